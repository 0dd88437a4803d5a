"""How a shift ends: a `threading.Event` is set, the driver says so by NOTIFY, or the next shift relieves this one."""

from __future__ import annotations

import logging
import selectors
import time
from collections.abc import Callable
from typing import Protocol

import psycopg
from psycopg import Notify

from outspark.database.session import Connection, connect
from outspark.errors import OutsparkError
from outspark.hosting import control
from outspark.hosting.spec import LEAD, LONGEST_OVERSTAY, LaneSpec

log = logging.getLogger(__name__)


class Stopping(Protocol):
    def is_set(self) -> bool: ...

    def wait(self, timeout: float) -> bool: ...


PAUSE = 1.0
LONGEST_WAIT = 0.5


class Signals:
    """Of one shift. A database that is away can tell nothing: then the shift ends in time, relieved or not."""

    def __init__(
        self,
        spec: LaneSpec,
        url: str,
        label: str,
        until: Callable[[], bool] | None = None,
        moved: Callable[[], None] | None = None,
    ) -> None:
        self._spec = spec
        self._until = until
        self._moved = moved
        self._url = url
        self._label = label
        shift = spec.hosting.shift.total_seconds()
        self._ends = time.monotonic() + shift + LEAD
        self._latest = self._ends + max(shift, LONGEST_OVERSTAY)
        self._conn: Connection | None = None
        self._next_try = 0.0
        self._holds_baton = False
        self.stopped = False
        self.relieved = False

    def is_set(self) -> bool:
        if self._moved is not None:
            self._moved()
        self._read_notifies()
        now = time.monotonic()
        if self.stopped or (self._until is not None and self._until()) or now >= self._latest:
            return True
        return now >= self._ends and (self.relieved or self._conn is None)

    def wait(self, timeout: float) -> bool:
        """As that of an event."""
        deadline = time.monotonic() + timeout
        while not self.is_set() and (left := deadline - time.monotonic()) > 0:
            self._sleep(min(left, LONGEST_WAIT))
        return self.is_set()

    def announce_ready(self) -> None:
        """From now on the shift before this one may end."""
        self._notify(str(control.Ready(self._spec.lane, self._spec.shift)))

    def take_baton(self) -> bool:
        """Wait until the shift before this one has let go; False when this one is to end before that."""
        while not self.is_set():
            if self._try_baton():
                return True
            self.wait(0.05)
        return False

    def close(self) -> None:
        """Let go, and tell the next shift. Harmless when it is closed."""
        if self._conn is not None:
            self._notify(control.free(self._spec.lane))
            if self._conn is not None:
                self._conn.close()
            self._conn = None

    def _try_baton(self) -> bool:
        conn = self._open()
        if conn is None or self._holds_baton:
            return self._holds_baton
        try:
            row = conn.execute(control.TRY_BATON, self._spec.baton).fetchone()
        except psycopg.Error as error:
            self._drop_connection(error)
            return False
        self._holds_baton = row is not None and bool(row[0])
        return self._holds_baton

    def _open(self) -> Connection | None:
        if self._conn is None and time.monotonic() >= self._next_try:
            name = f"outspark {self._spec.relay.id} {self._label} ear"
            try:
                self._conn = connect(self._url, name)
                control.listen(self._conn, self._spec.channel)
                self._conn.add_notify_handler(self._on_notify)
            except (psycopg.Error, OutsparkError) as error:
                self._drop_connection(error)
        return self._conn

    def _read_notifies(self) -> None:
        conn = self._open()
        if conn is None:
            return
        try:
            conn.pgconn.consume_input()
            while notify := conn.pgconn.notifies():
                self._on_notify(Notify(notify.relname.decode(), notify.extra.decode(), notify.be_pid))
        except psycopg.Error as error:
            self._drop_connection(error)

    def _on_notify(self, notify: Notify) -> None:
        if notify.payload == control.STOP:
            self.stopped = True
        elif control.is_relief(notify, self._spec.lane, self._spec.shift):
            self.relieved = True

    def _notify(self, message: str) -> None:
        conn = self._open()
        if conn is None:
            return
        try:
            control.notify(conn, self._spec.channel, message)
        except psycopg.Error as error:
            self._drop_connection(error)

    def _sleep(self, seconds: float) -> None:
        if self._conn is None:
            time.sleep(seconds)
            return
        with selectors.DefaultSelector() as selector:
            selector.register(self._conn.fileno(), selectors.EVENT_READ)
            selector.select(seconds)

    def _drop_connection(self, error: Exception) -> None:
        """The baton is lost with the session; whoever has it next finds our feed still open, or fenced by its own."""
        log.debug("a lane hears nothing from its driver", extra={"error": str(error).strip()})
        if self._conn is not None:
            self._conn.close()
        self._conn, self._holds_baton = None, False
        self._next_try = time.monotonic() + PAUSE
