"""A server below the oldest supported version is refused with one line, by lanes, by the driver and by commands.

There is none so old at hand: the one here only says that it is.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator

import pytest
from psycopg.conninfo import conninfo_to_dict
from typer.testing import CliRunner

from outspark.cli.app import app
from outspark.config.settings import Settings
from outspark.database.session import OLDEST, connect
from outspark.errors import ServerTooOld
from outspark.spark.monitor import Monitor
from tests.databases import Database
from tests.integration.relay.test_pooler import Pooler, _Client, _copy, _exactly, through

REFUSAL = rf"the database is PostgreSQL 14\.11, and Outspark needs {OLDEST} or later: upgrade the server"


class _Old(_Client):
    def _answer(self, backend: socket.socket) -> None:
        while len(head := _exactly(backend, 5)) == 5:
            kind, length = struct.unpack("!cI", head)
            body = _exactly(backend, length - 4)
            if kind == b"S" and body.startswith(b"server_version\0"):
                body = b"server_version\x0014.11\0"
            self.request.sendall(struct.pack("!cI", kind, len(body) + 4) + body)
            if kind == b"Z":
                break
        _copy(backend, self.request)


@pytest.fixture
def old(database: Database) -> Iterator[str]:
    """The URL of a server that calls itself 14."""
    server = conninfo_to_dict(database.url)
    with Pooler((str(server["host"]), int(str(server["port"])))) as proxy:
        proxy.RequestHandlerClass = _Old
        thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield through(proxy, database.url)
        proxy.shutdown()
        thread.join()


def test_a_lane_refuses_it(old: str) -> None:
    with pytest.raises(ServerTooOld, match=REFUSAL):
        connect(old, "lane")


def test_the_relay_refuses_to_start(old: str) -> None:
    settings = Settings.model_validate(
        {"sources": {"orders": {"url": old}}, "destinations": {"out": {"type": "null"}}}
    )

    with pytest.raises(ServerTooOld, match=REFUSAL):
        Monitor(settings, "instance", "channel").preflight()


@pytest.mark.parametrize("command", ["stats", "init --apply"])
def test_commands_refuse_it(old: str, command: str) -> None:
    done = CliRunner().invoke(app, [*command.split(), "--url", old])

    assert isinstance(done.exception, ServerTooOld)
    assert done.exit_code != 0


def test_the_oldest_and_the_newest_are_welcome(database: Database) -> None:
    with connect(database.url, "lane") as conn:
        assert conn.info.server_version >= OLDEST * 10_000
