"""Reports a lane that makes no progress: a watchdog thread marks it in the database, where the driver finds it.

The hanging lane may be using its own connection, so the watchdog opens another one for as long as the lane hangs.
The `application_name` of that session says where the lane hangs.
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
-- Where a lane hangs, as its watchdog reports
SELECT substr(application_name, length(%(prefix)s) + 1) FROM pg_stat_activity
WHERE starts_with(application_name, %(prefix)s)"""
SILENT = """\
-- The last query of a lane that holds its baton and has sent no query for this long
SELECT 'an unknown place after: ' || split_part(ltrim(s.query, E'- \n'), E'\n', 1)
FROM pg_locks l JOIN pg_stat_activity s ON s.pid = l.pid
WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 2
  AND l.classid = (%(class)s::bigint & 4294967295)::oid AND l.objid = %(lane)s::oid
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND s.state_change < clock_timestamp() - %(seconds)s * interval '1 second'"""
"""The fallback for a lane that holds the GIL, in a C extension for instance: then its watchdog cannot run either."""

_OUTSPARK = f"{Path(outspark.__file__).parent}{os.sep}"
_STANDARD = sysconfig.get_path("stdlib")


def prefix(spec: LaneSpec) -> str:
    """How the `application_name` of a marker session begins; the location follows."""
    return f"outspark {spec.instance} lane {spec.lane} in "


@contextmanager
def watch_lane(spec: LaneSpec, give_up: Callable[[], None]) -> Iterator[Callable[[], None]]:
    """Yields a function that the lane calls whenever it makes progress.

    The watchdog calls `give_up` when the lane has hung for twice `stuck_after`.
    """
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
        # Written by the lane's thread and read by the watchdog's. A float assignment is atomic, and the watchdog
        # only compares its age with seconds, so no lock is needed.
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
            log.debug(
                "the watchdog could not mark the stuck lane in the database",
                extra={"error": str(error).strip()},
            )
            self._marker = None

    def _unmark(self) -> None:
        if self._marker is not None:
            self._marker.abandon()
            self._marker = None


def location(frame: FrameType | None) -> str:
    """`shop.py:12 enrich`: the frame that Outspark called, or Outspark's own where it called the standard library."""
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
    raise TypeError(f"{type(spec).__name__} has no database URL")
