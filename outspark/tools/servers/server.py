"""What every embedded server shares: a folder, a port on 127.0.0.1, how it starts, stops and cleans up."""

from __future__ import annotations

import atexit
import os
import random
import shutil
import signal
import socket
import tempfile
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import Self

from outspark.errors import ServerStartError
from outspark.tools.servers.process import GuardedProcess

HOST = "127.0.0.1"
# Below the ephemeral ports of Linux and macOS: while a server is stopped, no outgoing connection may take its
# port, and no client that reconnects in a loop may by accident connect to itself.
_PORTS = range(20_000, 32_000)
_START_TRIES = 5


class Server(ABC):
    """One server of this Python process. Without a folder it lives in a temporary one that `close` removes.

    The port is chosen at the first start and kept from then on, so clients find a restarted server again.
    """

    stop_timeout = 30.0

    def __init__(self, folder: Path | None, port: int | None) -> None:
        self._folder = folder
        self._temporary = folder is None
        self._port = port
        self._process: GuardedProcess | None = None
        self._creator = os.getpid()

    @property
    def folder(self) -> Path:
        if self._folder is None:
            raise ServerStartError(f"{type(self).__name__} was not started yet, so it has no folder")
        return self._folder

    @property
    def port(self) -> int:
        if self._port is None:
            raise ServerStartError(f"{type(self).__name__} was not started yet, so it has no port")
        return self._port

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.running

    @property
    def pid(self) -> int:
        if self._process is None:
            raise ServerStartError(f"{type(self).__name__} is not running, so it has no pid")
        return self._process.pid

    def start(self) -> Self:
        """Returns when the server takes connections; ServerStartError with its log when it does not."""
        if self.running:
            return self
        self.stop()  # cleans up after a process that died by itself
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix=f"outspark-{type(self).__name__.lower()}-"))
        atexit.unregister(self.close)
        atexit.register(self.close)
        self._prepare(self._folder)
        self._process = self._launch_on_port()
        return self

    def stop(self) -> None:
        """Orderly; harmless when it is not running. The data stay for the next `start`."""
        self._end(None)

    def kill(self) -> None:
        """SIGKILL, for tests of what survives it."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop, and remove the folder if it is a temporary one."""
        if os.getpid() != self._creator:  # a forked child must not stop its parent's server at exit
            return
        atexit.unregister(self.close)
        self.stop()
        if self._temporary and self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @abstractmethod
    def _prepare(self, folder: Path) -> None:
        """Make the folder fit for a start; called before each."""

    @abstractmethod
    def _launch(self, folder: Path, port: int) -> GuardedProcess:
        """Start the process and wait until it is ready."""

    def _launch_on_port(self) -> GuardedProcess:
        if self._port is not None:
            return self._launch(self.folder, self._port)
        for tries_left in reversed(range(_START_TRIES)):
            port = free_port()
            try:
                process = self._launch(self.folder, port)
            except ServerStartError as error:
                # Another process bound the port after `free_port` had probed it.
                if tries_left and "address already in use" in str(error).lower():
                    continue
                raise
            self._port = port
            return process
        raise AssertionError("the last try returns or raises")

    def _end(self, number: signal.Signals | None) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.stop(number, timeout=self.stop_timeout)


def free_port() -> int:
    """A port on which nothing listens now."""
    for port in random.sample(_PORTS, 100):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return port
    raise ServerStartError(f"no free port on {HOST} between {_PORTS.start} and {_PORTS.stop - 1}")
