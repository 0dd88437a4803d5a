"""Messages between the shifts of a lane and the driver, sent with NOTIFY, and the baton that shifts hand over.

The baton is a session-level advisory lock per lane: PostgreSQL releases it when its session ends, for whatever reason.
So only one shift of a lane works at a time, and a crashed one cannot block the next.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from psycopg import Notify, sql

from outspark.database.session import Connection

STOP = "stop"

TRY_BATON = """\
-- Take over from the previous shift of this lane, once that has released the baton
SELECT pg_try_advisory_lock(%s::int, %s::int)"""

HELD_BATONS = """\
-- Lanes of a run that are at work on this database
SELECT objid::bigint FROM pg_locks
WHERE locktype = 'advisory' AND granted AND objsubid = 2 AND classid = (%(class)s::bigint & 4294967295)::oid
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"""

LET_GO = """\
-- Release every lock of this session, and notify the next shift
SELECT pg_advisory_unlock_all(), pg_notify(%(channel)s, %(message)s)"""

NOTIFY = """\
-- Notify the other shifts of this run
SELECT pg_notify(%(channel)s, %(message)s)"""


_READY = re.compile(r"ready (\d+) (\d+)")


@dataclass(frozen=True, slots=True)
class Ready:
    """A shift sends this once it is warm and waits for the baton."""

    lane: int
    shift: int

    def __str__(self) -> str:
        return f"ready {self.lane} {self.shift}"


def free(lane: int) -> str:
    return f"free {lane}"


def is_relief(notify: Notify, lane: int, shift: int) -> bool:
    """Is this the `Ready` of a later shift of the lane?"""
    ready = _READY.fullmatch(notify.payload)
    return ready is not None and int(ready[1]) == lane and int(ready[2]) > shift


def listen(conn: Connection, channel: str) -> None:
    conn.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))


def notify(conn: Connection, channel: str, message: str) -> None:
    conn.execute(NOTIFY, {"channel": channel, "message": message})
