"""Opens a connection in a thread of its own, so that a host that does not answer blocks no other work."""

from __future__ import annotations

import threading
from collections.abc import Callable

from outspark.database.session import Connection


class Connecting:
    """Starts connecting immediately. Poll `done`, then take the `result`; or `abandon` it."""

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._abandoned = False
        self._conn: Connection | None = None
        self._error: BaseException | None = None
        threading.Thread(target=self._run, name="outspark-connecting", daemon=True).start()

    def done(self, wait: float = 0.0) -> bool:
        return self._ended.wait(wait)

    def result(self) -> Connection:
        """The connection; raises what `connect` raised. Call it only once `done` is true."""
        if self._error is not None:
            raise self._error
        assert self._conn is not None
        return self._conn

    def abandon(self) -> None:
        """Close the connection now, or as soon as it is open."""
        # The lock closes the race with `_run`: whichever of the two comes second sees the other's field and closes.
        with self._lock:
            self._abandoned = True
            if self._conn is not None:
                self._conn.close()

    def _run(self) -> None:
        try:
            conn = self._connect()
        except BaseException as error:  # noqa: BLE001 - `result` raises it in the caller's thread
            self._error = error
        else:
            with self._lock:
                self._conn = conn
                if self._abandoned:
                    conn.close()
        self._ended.set()
