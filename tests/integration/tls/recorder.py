"""A listener that greets whoever connects, and keeps every byte it is sent: proof of what left a client."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

HOST = "127.0.0.1"
PATIENCE = 30.0


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
        self._last: tuple[str, int] | None = None
        self._listening: list[threading.Thread] = []
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    @property
    def connections(self) -> int:
        return len(self._heard)

    def heard(self) -> bytes:
        """All that came in, over all connections. Only when clients have hung up, and nobody is listened to later."""
        if self._accepting.is_alive():
            # Connections are accepted in their order, so that all others come before this one.
            with socket.socket() as last:
                last.bind((HOST, 0))
                self._last = last.getsockname()
                last.connect((HOST, self.port))
                self._accepting.join(PATIENCE)
        for thread in self._listening:
            thread.join(PATIENCE)
            assert not thread.is_alive(), "a client has not hung up, and may yet say more"
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
        for thread in [self._accepting, *self._listening]:
            thread.join(5)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, peer = self._listener.accept()
                if peer == self._last:
                    connection.close()
                    return
                self._heard.append(bytearray())
                thread = threading.Thread(
                    target=self._listen, args=(connection, self._heard[-1]), daemon=True
                )
                thread.start()
                self._listening.append(thread)

    def _listen(self, connection: socket.socket, heard: bytearray) -> None:
        with suppress(OSError), connection:
            connection.settimeout(20)
            connection.sendall(self._greeting)
            while data := connection.recv(65536):
                heard += data
                for word, answer in self._answers.items():
                    if heard.endswith(word):
                        connection.sendall(answer)
