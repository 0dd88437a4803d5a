"""A Redis server, for demo, bench and tests, from the program that Debian packages."""

from __future__ import annotations

import signal
import socket
from collections.abc import Mapping
from pathlib import Path

from outspark.tools.servers.process import GuardedProcess, packaged_program
from outspark.tools.servers.server import HOST, Server

_PROGRAM = "redis-server"
_READY_TIMEOUT = 15.0
# Each answer waits for the write to the append-only file, so a killed server forgets nothing. Redis' own default,
# `everysec`, puts writes off while an fsync is under way, and answers all the same.
_CONFIG = {"appendonly": "yes", "appendfsync": "no", "save": '""'}


class Redis(Server):
    """`with Redis(config={"maxmemory": "10mb"}) as server: redis.Redis.from_url(server.url)`.

    `config` are further lines of redis.conf. `cluster` makes it a node of a cluster, yet without slots and neighbours.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        port: int | None = None,
        password: str | None = None,
        cluster: bool = False,
        config: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(folder, port)
        self._password = password
        self._cluster = cluster
        self._more = dict(config or {})

    @property
    def url(self) -> str:
        credentials = f":{self._password}@" if self._password else ""
        return f"redis://{credentials}{HOST}:{self.port}"

    def _prepare(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)

    def _launch(self, folder: Path, port: int) -> GuardedProcess:
        config = folder / "redis.conf"
        config.write_text(self._config(folder, port))
        config.chmod(0o600)
        process = GuardedProcess(
            [str(program()), str(config)],
            folder=folder,
            stop_signal=signal.SIGTERM,
            discard=self._temporary,
        )
        process.await_ready(lambda: _is_ready(port, self._password), _READY_TIMEOUT)
        return process

    def _config(self, folder: Path, port: int) -> str:
        lines = {"bind": HOST, "port": str(port), "dir": _quoted(str(folder)), **_CONFIG}
        if self._password is not None:
            lines["requirepass"] = _quoted(self._password)
        if self._cluster:
            lines |= {"cluster-enabled": "yes", "cluster-node-timeout": "2000"}
        return "".join(f"{name} {value}\n" for name, value in {**lines, **self._more}.items())


def program() -> Path:
    return packaged_program(_PROGRAM)


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _is_ready(port: int, password: str | None) -> bool:
    """A server that is still reading its data answers LOADING to the PING."""
    login = f"AUTH {_quoted(password)}\r\n" if password is not None else ""
    try:
        with socket.create_connection((HOST, port), timeout=1) as connection:
            connection.sendall(f"{login}PING\r\nQUIT\r\n".encode())
            answers = b"".join(iter(lambda: connection.recv(256), b""))
    except OSError:
        return False
    # NOAUTH: the users were configured by hand, so nothing more can be known.
    return b"+PONG" in answers or b"-NOAUTH" in answers
