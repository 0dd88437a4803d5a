"""A RabbitMQ server for demo, bench and tests, from the programs of a package such as Debian's.

It shares nothing with a RabbitMQ that the machine may run as a service: it has its own folder, cookie, configuration,
ports, and its own epmd, the program by which Erlang nodes find each other; left to itself the server would start one as
a daemon for the whole machine, and leave it behind.
"""

from __future__ import annotations

import signal
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from outspark.errors import ServerStartError
from outspark.tools.servers.process import GuardedProcess, packaged_program
from outspark.tools.servers.server import HOST, Server, free_port

_PROGRAM = "rabbitmq-server"
_READY_TIMEOUT = 120.0  # Erlang boots in 5 s, on a machine under load in 50
_PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
_METHOD_FRAME = b"\x01"


class RabbitMQ(Server):
    """`with RabbitMQ(options={"max_message_size": "65536"}) as server: await aio_pika.connect(server.url)`.

    `options` are settings of rabbitmq.conf, `plugins` what is enabled besides. Any user of this machine may connect as
    guest, so it is not for data that matter.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        port: int | None = None,
        options: Mapping[str, str] | None = None,
        plugins: Sequence[str] = (),
    ) -> None:
        super().__init__(folder, port)
        self.options = dict(options or {})
        """May be changed between a stop and the next start."""
        self._plugins = tuple(plugins)
        self._epmd: GuardedProcess | None = None

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@{HOST}:{self.port}/"

    def _prepare(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "enabled_plugins").write_text(f"[{','.join(self._plugins)}].\n")

    def _launch(self, folder: Path, port: int) -> GuardedProcess:
        settings = {"listeners.tcp.1": f"{HOST}:{port}", "log.console": "true", **self.options}
        lines = [f"{name} = {value}\n" for name, value in settings.items()]
        (folder / "rabbitmq.conf").write_text("".join(lines))
        epmd_port = free_port()
        self._epmd = _start_epmd(folder, epmd_port)
        process = GuardedProcess(
            [str(program())],
            folder=folder,
            stop_signal=signal.SIGTERM,
            discard=self._temporary,
            environment=_environment(folder, epmd_port),
        )
        try:
            process.await_ready(lambda: _is_ready(port), _READY_TIMEOUT)
        except ServerStartError as error:
            self._end_epmd()
            # In the words by which a start on another port is tried.
            raise ServerStartError(str(error).replace("eaddrinuse", "address already in use")) from error
        return process

    def _end(self, number: signal.Signals | None) -> None:
        super()._end(number)
        self._end_epmd()

    def _end_epmd(self) -> None:
        epmd, self._epmd = self._epmd, None
        if epmd is not None:
            epmd.stop(timeout=self.stop_timeout)


def _start_epmd(folder: Path, port: int) -> GuardedProcess:
    process = GuardedProcess(
        ["epmd", "-port", str(port), "-address", HOST], folder=folder, stop_signal=signal.SIGTERM
    )
    process.await_ready(lambda: _listens(port), _READY_TIMEOUT)
    return process


def program() -> Path:
    # Debian's is a link to a wrapper that runs the service as its own user; the program lies beside the wrapper.
    return packaged_program(_PROGRAM).resolve().with_name(_PROGRAM)


def _environment(folder: Path, epmd_port: int) -> dict[str, str]:
    return {
        "HOME": str(folder),  # the Erlang cookie lives there
        "RABBITMQ_NODENAME": "outspark@localhost",
        "RABBITMQ_CONF_ENV_FILE": str(folder / "rabbitmq-env.conf"),
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
        "RABBITMQ_CONFIG_FILES": str(folder / "conf.d"),
        "RABBITMQ_ADVANCED_CONFIG_FILE": str(folder / "advanced.config"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
        "RABBITMQ_MNESIA_BASE": str(folder / "data"),
        "RABBITMQ_LOG_BASE": str(folder),
        "RABBITMQ_LOGS": "-",
        "RABBITMQ_DIST_PORT": str(free_port()),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        "ERL_EPMD_PORT": str(epmd_port),
        "ERL_EPMD_ADDRESS": HOST,
        # The script then becomes the server instead of waiting for it, so signals reach the server itself.
        "RUNNING_UNDER_SYSTEMD": "true",
    }


def _is_ready(port: int) -> bool:
    """The listener opens last; it answers the protocol's header with a method frame, connection.start."""
    try:
        with socket.create_connection((HOST, port), timeout=1) as connection:
            connection.sendall(_PROTOCOL_HEADER)
            return connection.recv(1) == _METHOD_FRAME
    except OSError:
        return False


def _listens(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), timeout=1).close()
    except OSError:
        return False
    return True
