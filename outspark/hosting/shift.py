"""How a shift ends: a `threading.Event` is set, the driver sends a stop, or the next shift relieves this one.

A hand-over: the next shift starts, warms up and sends `ready`; the current one finishes its batch, releases the baton
and sends `free`; the next one takes the baton and works. Without a relief the current shift continues for a while.
"""

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
"""Seconds between attempts to reconnect."""
LONGEST_WAIT = 0.5
"""Seconds after which a sleeping shift checks its clock and its `until` again."""


class Signals:
    """The stop signals of one shift. Without a connection no relief can arrive, so the shift then ends on time."""

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
        """Like `threading.Event.wait`, but a notification ends the sleep early."""
        deadline = time.monotonic() + timeout
        while not self.is_set() and (left := deadline - time.monotonic()) > 0:
            self._sleep(min(left, LONGEST_WAIT))
        return self.is_set()

    def announce_ready(self) -> None:
        """Notify the previous shift that this one is warm, so that it may end."""
        self._notify(str(control.Ready(self._spec.lane, self._spec.shift)))

    def take_baton(self) -> bool:
        """Wait until the previous shift has released the baton; False when this shift has to end before that."""
        while not self.is_set():
            if self._try_baton():
                return True
            self.wait(0.05)
        return False

    def close(self) -> None:
        """Release the baton and notify the next shift. Harmless when already closed."""
        if self._conn is not None:
            self._notify(control.free(self._spec.lane))
            # `_notify` drops the connection when it fails. Closing the session releases the baton.
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
            # libpq directly: psycopg's `notifies()` would wait, and this runs between any two steps of a lane.
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
        """Give up the session, and the baton with it: the next shift may start while this one still finishes its batch.

        That is safe: both are members of the consumer group, or fenced by the tokens of their claims.
        """
        log.debug(
            "the lane lost its connection for stop signals, reconnecting", extra={"error": str(error).strip()}
        )
        if self._conn is not None:
            self._conn.close()
        self._conn, self._holds_baton = None, False
        self._next_try = time.monotonic() + PAUSE
