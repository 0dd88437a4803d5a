"""A lane that does not move says so from a thread of its own, in the database, where its driver looks for it.

The lane's own connection cannot tell, so another one is opened for as long as it hangs, and its name says where.
"""

from __future__ import annotations

import logging
import os
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType

import psycopg

import outspark
from outspark.database.connecting import Connecting
from outspark.database.session import connect
from outspark.errors import OutsparkError
from outspark.hosting.spec import LaneSpec
from outspark.inbox.lane import InboxLaneSpec
from outspark.relay.spec import RelayLaneSpec

log = logging.getLogger(__name__)

POLL = 1.0
HANGING = """\
-- Where a lane hangs, as it says itself
SELECT substr(application_name, length(%(prefix)s) + 1) FROM pg_stat_activity
WHERE starts_with(application_name, %(prefix)s)"""
SILENT = """\
-- What a lane last asked for, if it holds its baton and has asked for nothing for so long
SELECT 'an unknown place after: ' || split_part(ltrim(s.query, E'- \n'), E'\n', 1)
FROM pg_locks l JOIN pg_stat_activity s ON s.pid = l.pid
WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 2
  AND l.classid = (%(class)s::bigint & 4294967295)::oid AND l.objid = %(lane)s::oid
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND s.state_change < clock_timestamp() - %(seconds)s * interval '1 second'"""
"""A thread that lets no other run cannot say where it is: a C extension's, for instance."""

_OUTSPARK = f"{Path(outspark.__file__).parent}{os.sep}"
_STANDARD = sysconfig.get_path("stdlib")


def prefix(spec: LaneSpec) -> str:
    """How the name of such a session begins; the place comes after it."""
    return f"outspark {spec.instance} lane {spec.lane} in "


@contextmanager
def watch_lane(spec: LaneSpec, give_up: Callable[[], None]) -> Iterator[Callable[[], None]]:
    """Gives what the lane has to call as long as it moves. `give_up` is called when it hung for twice the limit."""
    watchdog = _Watchdog(spec, threading.get_ident(), give_up)
    thread = threading.Thread(target=watchdog.run, name="outspark-watchdog", daemon=True)
    thread.start()
    try:
        yield watchdog.moved
    finally:
        watchdog.ended.set()
        thread.join()


class _Watchdog:
    def __init__(self, spec: LaneSpec, lane: int, give_up: Callable[[], None]) -> None:
        self._spec, self._lane, self._give_up = spec, lane, give_up
        self._after = spec.hosting.stuck_after.total_seconds()
        self._last = time.monotonic()
        self._marker: Connecting | None = None
        self.ended = threading.Event()

    def moved(self) -> None:
        self._last = time.monotonic()

    def run(self) -> None:
        while not self.ended.wait(POLL):
            idle = time.monotonic() - self._last
            if idle >= 2 * self._after:
                where = location(sys._current_frames().get(self._lane))
                log.error(
                    "the lane ends its process so that Spark starts it again",
                    extra={"lane": self._spec.lane, "stuck": where},
                )
                self._give_up()
            if idle < self._after:
                self._unmark()
            elif self._marker is None:
                self._mark()
            elif self._marker.done():
                self._check_marker(self._marker)
        self._unmark()

    def _mark(self) -> None:
        frame = sys._current_frames().get(self._lane)
        log.debug("the lane makes no progress", extra={"stack": "".join(traceback.format_stack(frame))})
        self._marker = Connecting(partial(connect, _url(self._spec), prefix(self._spec) + location(frame)))

    def _check_marker(self, marker: Connecting) -> None:
        try:
            marker.result()
        except (psycopg.Error, OutsparkError) as error:
            log.debug("the database cannot be told where the lane hangs", extra={"error": str(error).strip()})
            self._marker = None

    def _unmark(self) -> None:
        if self._marker is not None:
            self._marker.abandon()
            self._marker = None


def location(frame: FrameType | None) -> str:
    """`shop.py:12 enrich`: what our code called and did not come back from, or our own place if that is Python's."""
    called = frame
    while frame is not None and not frame.f_code.co_filename.startswith(_OUTSPARK):
        called, frame = frame, frame.f_back
    if frame is not None and called is not None and _in_standard_library(called.f_code.co_filename):
        called = frame
    if called is None:
        return "an unknown place"
    return f"{Path(called.f_code.co_filename).name}:{called.f_lineno} {called.f_code.co_name}"


def _in_standard_library(path: str) -> bool:
    return path.startswith((_STANDARD, "<frozen")) and "site-packages" not in path


def _url(spec: LaneSpec) -> str:
    match spec:
        case RelayLaneSpec():
            return spec.sources[0].settings.url.get_secret_value()
        case InboxLaneSpec():
            return spec.settings.url.get_secret_value()
    raise TypeError(f"no database is known of {type(spec).__name__}")
