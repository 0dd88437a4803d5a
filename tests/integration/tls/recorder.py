"""A listener that greets whoever connects, and keeps every byte it is sent: proof of what left a client."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

HOST = "127.0.0.1"


class Recorder:
    """`with Recorder(b"INFO {}\\r\\n", {b"PING\\r\\n": b"PONG\\r\\n"}) as recorder: ...`.

    It gives the answer once what came in last ends with that word.
    """

    def __init__(self, greeting: bytes = b"", answers: dict[bytes, bytes] | None = None) -> None:
        self._greeting = greeting
        self._answers = answers or {}
        self._heard: list[bytearray] = []
        self._listener = socket.create_server((HOST, 0))
        self.port = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def connections(self) -> int:
        return len(self._heard)

    def heard(self) -> bytes:
        """All that came in, over all connections."""
        return b"".join(bytes(one) for one in self._heard)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Without the shutdown, `accept` in the other thread would not notice.
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(5)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self._heard.append(bytearray())
                thread = threading.Thread(
                    target=self._listen, args=(connection, self._heard[-1]), daemon=True
                )
                thread.start()
                self._threads.append(thread)

    def _listen(self, connection: socket.socket, heard: bytearray) -> None:
        with suppress(OSError), connection:
            connection.settimeout(20)
            connection.sendall(self._greeting)
            while data := connection.recv(65536):
                heard += data
                for word, answer in self._answers.items():
                    if heard.endswith(word):
                        connection.sendall(answer)
