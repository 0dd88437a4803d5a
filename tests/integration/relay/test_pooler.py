"""A transaction pooler in between is found out, whatever its make: the session is not the one it announced."""

from __future__ import annotations

import socket
import socketserver
import struct
import threading
from collections.abc import Iterator

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from outspark.database.session import connect
from outspark.errors import PoolerDetected
from tests.integration.relay.harness import Harness
from tests.waiting import wait_for


class Pooler(socketserver.ThreadingTCPServer):
    """Passes everything through, but announces a session of its own making, as poolers do."""

    daemon_threads = True

    def __init__(self, upstream: tuple[str, int]) -> None:
        super().__init__(("127.0.0.1", 0), _Client)
        self.upstream = upstream
        self.honest = False


class _Client(socketserver.BaseRequestHandler):
    server: Pooler

    def handle(self) -> None:
        with socket.create_connection(self.server.upstream) as backend:
            back = threading.Thread(target=self._answer, args=(backend,), daemon=True)
            back.start()
            _copy(self.request, backend)
            back.join()

    def _answer(self, backend: socket.socket) -> None:
        """Pass the start-up on message by message, and the rest as it comes."""
        while not self.server.honest:
            head = _exactly(backend, 5)
            if len(head) < 5:
                break
            kind, length = struct.unpack("!cI", head)
            body = _exactly(backend, length - 4)
            if kind == b"K":
                (pid,) = struct.unpack("!I", body[:4])
                body = struct.pack("!I", pid + 1) + body[4:]
            self.request.sendall(head + body)
            if kind == b"Z":
                break
        _copy(backend, self.request)


def _exactly(source: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count and (more := source.recv(count - len(data))):
        data += more
    return data


def _copy(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        return


@pytest.fixture
def pooler(harness: Harness) -> Iterator[Pooler]:
    server = conninfo_to_dict(harness.database.url)
    with Pooler((str(server["host"]), int(str(server["port"])))) as pooler:
        thread = threading.Thread(target=pooler.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield pooler
        pooler.shutdown()
        thread.join()


def through(pooler: Pooler, url: str) -> str:
    host, port = pooler.server_address[:2]
    return make_conninfo(url, host=str(host), port=port, sslmode="disable", gssencmode="disable")


def test_a_session_that_is_not_what_it_says_is_refused(harness: Harness, pooler: Pooler) -> None:
    with pytest.raises(PoolerDetected, match="Connect the relay to PostgreSQL directly"):
        connect(through(pooler, harness.database.url), "lane")


def test_a_plain_proxy_is_no_pooler(harness: Harness, pooler: Pooler) -> None:
    pooler.honest = True

    with connect(through(pooler, harness.database.url), "lane") as conn:
        assert conn.execute("SELECT 1").fetchone() == (1,)


def test_a_lane_says_so_and_works_once_it_is_gone(harness: Harness, pooler: Pooler) -> None:
    harness.enqueue("a", key="k")
    harness.source["url"] = through(pooler, harness.database.url)

    with harness.working() as lane:
        wait_for(lambda: lane.sessions and "transaction pooler" in lane.sessions[0].problem)
        assert harness.broker.published() == []
        pooler.honest = True
        wait_for(lambda: not harness.waiting())
