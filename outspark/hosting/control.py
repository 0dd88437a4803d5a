"""What the shifts of a lane and the driver tell each other, over NOTIFY on the lane's own connections."""

from __future__ import annotations

import re
from dataclasses import dataclass

from psycopg import Notify, sql

from outspark.database.session import Connection

STOP = "stop"

TRY_BATON = """\
-- Take over from the last shift of this lane, once it has let go
SELECT pg_try_advisory_lock(%s::int, %s::int)"""

HELD_BATONS = """\
-- Lanes of a run that are at work on this database
SELECT objid::bigint FROM pg_locks
WHERE locktype = 'advisory' AND granted AND objsubid = 2 AND classid = (%(class)s::bigint & 4294967295)::oid
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"""

LET_GO = """\
-- Unlock everything this session holds, and tell the next shift
SELECT pg_advisory_unlock_all(), pg_notify(%(channel)s, %(message)s)"""

NOTIFY = """\
-- Tell the other shifts of this relay
SELECT pg_notify(%(channel)s, %(message)s)"""


_READY = re.compile(r"ready (\d+) (\d+)")


@dataclass(frozen=True, slots=True)
class Ready:
    """The shift that says this is warm and waits for the baton."""

    lane: int
    shift: int

    def __str__(self) -> str:
        return f"ready {self.lane} {self.shift}"


def free(lane: int) -> str:
    return f"free {lane}"


def is_relief(notify: Notify, lane: int, shift: int) -> bool:
    """Does this say that a later shift of the lane is ready?"""
    ready = _READY.fullmatch(notify.payload)
    return ready is not None and int(ready[1]) == lane and int(ready[2]) > shift


def listen(conn: Connection, channel: str) -> None:
    conn.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))


def notify(conn: Connection, channel: str, message: str) -> None:
    conn.execute(NOTIFY, {"channel": channel, "message": message})
