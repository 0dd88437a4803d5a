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

_OURS = f"{Path(outspark.__file__).parent}{os.sep}"
_STANDARD = sysconfig.get_path("stdlib")


def prefix(spec: LaneSpec) -> str:
    """How the name of such a session begins; the place comes after it."""
    return f"outspark {spec.instance} lane {spec.lane} in "


@contextmanager
def beating(spec: LaneSpec, give_up: Callable[[], None]) -> Iterator[Callable[[], None]]:
    """Gives what the lane has to call as long as it moves. `give_up` is called when it hung for twice the limit."""
    beat = _Beat(spec, threading.get_ident(), give_up)
    thread = threading.Thread(target=beat.run, name="outspark-beat", daemon=True)
    thread.start()
    try:
        yield beat.moved
    finally:
        beat.ended.set()
        thread.join()


class _Beat:
    def __init__(self, spec: LaneSpec, lane: int, give_up: Callable[[], None]) -> None:
        self._spec, self._lane, self._give_up = spec, lane, give_up
        self._after = spec.hosting.stuck_after.total_seconds()
        self._last = time.monotonic()
        self._telling: Connecting | None = None
        self.ended = threading.Event()

    def moved(self) -> None:
        self._last = time.monotonic()

    def run(self) -> None:
        while not self.ended.wait(POLL):
            hide_from_planner = time.monotonic() - self._last
            if hide_from_planner >= 2 * self._after:
                where = place(sys._current_frames().get(self._lane))
                log.error(
                    "the lane ends its process so that Spark starts it again",
                    extra={"lane": self._spec.lane, "stuck": where},
                )
                self._give_up()
            if hide_from_planner < self._after:
                self._tell_no_more()
            elif self._telling is None:
                self._tell()
            elif self._telling.done():
                self._see_whether_told(self._telling)
        self._tell_no_more()

    def _tell(self) -> None:
        frame = sys._current_frames().get(self._lane)
        log.debug("the lane makes no progress", extra={"stack": "".join(traceback.format_stack(frame))})
        self._telling = Connecting(partial(connect, _url(self._spec), prefix(self._spec) + place(frame)))

    def _see_whether_told(self, telling: Connecting) -> None:
        try:
            telling.result()
        except (psycopg.Error, OutsparkError) as error:
            log.debug("the database cannot be told where the lane hangs", extra={"error": str(error).strip()})
            self._telling = None

    def _tell_no_more(self) -> None:
        if self._telling is not None:
            self._telling.abandon()
            self._telling = None


def place(frame: FrameType | None) -> str:
    """`shop.py:12 enrich`: what our code called and did not come back from, or our own place if that is Python's."""
    called = frame
    while frame is not None and not frame.f_code.co_filename.startswith(_OURS):
        called, frame = frame, frame.f_back
    if frame is not None and called is not None and _is_pythons(called.f_code.co_filename):
        called = frame
    if called is None:
        return "an unknown place"
    return f"{Path(called.f_code.co_filename).name}:{called.f_lineno} {called.f_code.co_name}"


def _is_pythons(path: str) -> bool:
    return path.startswith((_STANDARD, "<frozen")) and "site-packages" not in path


def _url(spec: LaneSpec) -> str:
    match spec:
        case RelayLaneSpec():
            return spec.sources[0].settings.url.get_secret_value()
        case InboxLaneSpec():
            return spec.settings.url.get_secret_value()
    raise TypeError(f"no database is known of {type(spec).__name__}")
