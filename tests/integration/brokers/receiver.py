"""A real webhook receiver: uvicorn in a process of its own that records what arrives and answers as it is told.

`curl <url>/received` shows what it recorded. The record is a file, so it outlives a kill and a restart.
"""

from __future__ import annotations

import asyncio
import base64
import json
import signal
import socket
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import Request as Call
from urllib.request import urlopen

from outspark.tools.servers.process import GuardedProcess
from outspark.tools.servers.server import HOST, Server

_RECORD = "received.jsonl"
_READY_TIMEOUT = 30.0


@dataclass(frozen=True)
class Answer:
    """How one request is answered. `hang`: never. `cut`: the connection closes in the middle of the body."""

    status: int = 204
    headers: dict[str, str] = field(default_factory=dict)
    body: str = ""
    hang: bool = False
    cut: bool = False


@dataclass(frozen=True)
class Arrival:
    """One recorded request. `at_once` is how many were in flight with it, `of_key` how many of its key."""

    target: str
    headers: dict[str, str]
    body: bytes
    at_once: int
    of_key: int

    @property
    def id(self) -> str:
        return self.headers["x-event-id"]


class Receiver(Server):
    """`with Receiver() as receiver: ...`. `tls` are the arguments of uvicorn for it."""

    def __init__(self, tls: dict[str, Any] | None = None) -> None:
        super().__init__(None, None)
        self._tls = tls or {}

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://{HOST}:{self.port}"

    def answer(self, event_id: str, *answers: Answer) -> None:
        """To the next requests with this event id; after these, and to all others: 204."""
        self._tell({"event_id": event_id, "answers": [asdict(answer) for answer in answers]})

    def answer_all(self, status: int) -> None:
        """To every request from now on for which nothing else was planned."""
        self._tell({"status": status})

    def gather(self, count: int) -> None:
        """Answer only when `count` requests are in flight together."""
        self._tell({"gather": count})

    def received(self, target_prefix: str = "/") -> list[Arrival]:
        """In the order of arrival."""
        record = self.folder / _RECORD
        lines = record.read_text().splitlines() if record.exists() else []
        arrivals = [_arrival(json.loads(line)) for line in lines]
        return [arrival for arrival in arrivals if arrival.target.startswith(target_prefix)]

    def _tell(self, what: dict[str, Any]) -> None:
        call = Call(f"{self.url}/control", data=json.dumps(what).encode(), method="PUT")
        with urlopen(call, timeout=_READY_TIMEOUT):
            pass

    def _prepare(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)

    def _launch(self, folder: Path, port: int) -> GuardedProcess:
        process = GuardedProcess(
            [sys.executable, __file__, str(port), json.dumps(self._tls)],
            folder=folder,
            stop_signal=signal.SIGTERM,
            discard=self._temporary,
        )
        process.await_ready(lambda: _listens(port), _READY_TIMEOUT)
        return process


def _listens(port: int) -> bool:
    try:
        with socket.create_connection((HOST, port), timeout=1):
            return True
    except OSError:
        return False


def _arrival(line: dict[str, Any]) -> Arrival:
    body = base64.b64decode(line["body_base64"])
    return Arrival(line["target"], line["headers"], body, line["at_once"], line["of_key"])


class _App:
    """The ASGI application. One event loop, so nothing here needs a lock."""

    def __init__(self) -> None:
        self._answers: dict[str, list[dict[str, Any]]] = {}
        self._barrier: asyncio.Barrier | None = None
        self._status = Answer().status
        self._in_flight: Counter[str] = Counter()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = await _body(receive)
        match scope["method"], scope["path"]:
            case "GET", "/received":
                record = Path(_RECORD)
                await _reply(send, 200, {}, record.read_bytes() if record.exists() else b"")
            case "PUT", "/control":
                self._obey(json.loads(body))
                await _reply(send, 204, {}, b"")
            case _:
                await self._take(scope, body, receive, send)

    def _obey(self, order: dict[str, Any]) -> None:
        if "gather" in order:
            self._barrier = asyncio.Barrier(order["gather"])
        elif "status" in order:
            self._status = order["status"]
        else:
            self._answers[order["event_id"]] = order["answers"]

    async def _take(self, scope: Any, body: bytes, receive: Any, send: Any) -> None:
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        key = headers.get("x-partition-key", "")
        self._in_flight[key] += 1
        try:
            self._record(scope, headers, body, self._in_flight.total(), self._in_flight[key])
            if self._barrier is not None:
                await self._barrier.wait()
            planned = self._answers.get(headers.get("x-event-id", ""))
            answer = Answer(**planned.pop(0)) if planned else Answer(self._status)
            if answer.hang:
                await receive()  # until the client goes away
                return
        finally:
            self._in_flight[key] -= 1
        await _reply(send, answer.status, answer.headers, answer.body.encode(), cut=answer.cut)

    def _record(self, scope: Any, headers: dict[str, str], body: bytes, at_once: int, of_key: int) -> None:
        query = scope["query_string"].decode()
        line = {
            "target": scope["raw_path"].decode() + (f"?{query}" if query else ""),
            "headers": headers,
            "body": body.decode(errors="replace"),
            "body_base64": base64.b64encode(body).decode(),
            "at_once": at_once,
            "of_key": of_key,
        }
        with Path(_RECORD).open("a") as record:
            record.write(json.dumps(line, ensure_ascii=False) + "\n")


async def _body(receive: Any) -> bytes:
    body, more = b"", True
    while more:
        part = await receive()
        body += part.get("body", b"")
        more = part.get("more_body", False)
    return body


async def _reply(send: Any, status: int, headers: dict[str, str], body: bytes, cut: bool = False) -> None:
    promised = len(body) + 1 if cut else len(body)
    lines = [(name.encode(), value.encode()) for name, value in headers.items()]
    if status != 204:
        lines.append((b"content-length", b"%d" % promised))
    await send({"type": "http.response.start", "status": status, "headers": lines})
    await send({"type": "http.response.body", "body": body, "more_body": cut})
    # A cut answer ends here, one byte short, and uvicorn closes its connection.


def main(arguments: Sequence[str]) -> None:
    import uvicorn

    port, tls = int(arguments[0]), json.loads(arguments[1])
    uvicorn.run(
        _App(),
        host=HOST,
        port=port,
        lifespan="off",
        access_log=False,
        timeout_graceful_shutdown=1,
        **tls,
    )


if __name__ == "__main__":
    main(sys.argv[1:])
