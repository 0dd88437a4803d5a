"""NATS JetStream for the bench, spoken to in NATS' text protocol."""

from __future__ import annotations

import json
import socket
from typing import Any
from urllib.parse import urlsplit

from outspark.errors import OutsparkError
from outspark.tools.bench.brokers.broker import Broker
from outspark.tools.servers.nats import Nats


class JetStream(Broker):
    """A stream on disk for each topic, and otherwise as the server has it by default."""

    name = "nats"
    title = "NATS"

    def __init__(self) -> None:
        self._nats = Nats()
        super().__init__(self._nats)

    @property
    def url(self) -> str:
        return self._nats.url

    def count(self, topic: str) -> int:
        return int(_ask(self.url, f"STREAM.INFO.{topic}", None)["state"]["messages"])

    def _create(self, topic: str) -> None:
        _ask(self.url, f"STREAM.CREATE.{topic}", {"name": topic, "subjects": [topic], "storage": "file"})


def _ask(url: str, api: str, body: dict[str, Any] | None) -> dict[str, Any]:
    address = urlsplit(url)
    question = b"" if body is None else json.dumps(body).encode()
    with socket.create_connection((address.hostname, address.port), timeout=10) as connection:
        with connection.makefile("rwb") as stream:
            stream.readline()
            stream.write(b'CONNECT {"verbose": false}\r\nSUB bench.answer 1\r\n')
            stream.write(f"PUB $JS.API.{api} bench.answer {len(question)}\r\n".encode() + question + b"\r\n")
            stream.flush()
            while not (line := stream.readline()).startswith(b"MSG "):
                if not line or line.startswith(b"-ERR"):
                    raise OutsparkError(f"JetStream did not answer {api}: {line.decode().strip()}")
            answer: dict[str, Any] = json.loads(stream.read(int(line.split()[-1])))
    if "error" in answer:
        raise OutsparkError(f"JetStream refused {api}: {answer['error']['description']}")
    return answer
