"""Ids of the rows of an inbox: UUIDs of version 7 from the database's clock, which show the order of acceptance.

48 bits milliseconds │ version 7 │ 12 bits microseconds │ variant │ 38 bits random │ 24 bits position in the batch

Consumers have different clocks, and the messages of one key may arrive first at one consumer and then at another. So
the statement that inserts a batch takes the time from the database.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LARGEST = 10_000


def _time(at: str) -> str:
    """The first three groups of an id."""
    microseconds = f"(extract(epoch FROM {at}) * 1000000)::bigint"
    milliseconds = f"lpad(to_hex({microseconds} / 1000), 12, '0')"
    return f"""overlay({milliseconds} PLACING '-' FROM 9 FOR 0)
           || '-7' || lpad(to_hex(mod({microseconds}, 1000)), 3, '0')"""


# A clock that was set back, or that of a standby which has taken over, must not bring a batch before an earlier one.
START: Final = f"""\
clock AS MATERIALIZED (
  SELECT greatest(clock_timestamp(), %(after)s::timestamptz) AS at
), start AS MATERIALIZED (
  SELECT at, {_time("at")}
           || substr(gen_random_uuid()::text, 19, 12) AS ids
  FROM clock
)"""
"""The time of a batch, and how its ids begin. `after` may be NULL."""

ID: Final = "(start.ids || lpad(to_hex(m.position - 1), 6, '0'))::uuid"

# What lies further ahead was made by others, in other ways: to wait for it would hold up all.
AHEAD = f"""
-- The last id that lies ahead of the clock, though not far
SELECT id::text FROM {{table}}
WHERE id > ({_time("statement_timestamp()")}
           || '-8000-000000000000')::uuid
  AND id < ({_time("statement_timestamp() + interval '10 seconds'")}
           || '-8000-000000000000')::uuid
ORDER BY id DESC LIMIT 1"""


def id_at(ids: str, position: int) -> str:
    """As `ID` makes them."""
    return f"{ids}{position:06x}"


def time_after(id: str) -> datetime:
    """The first time for a batch after the one whose last id this is; its rows are due a microsecond apart.

    What others made says nothing about a position, so not more is believed than a feed has in a batch.
    """
    milliseconds, microseconds = int(id[:8] + id[9:13], 16), int(id[15:18], 16)
    position = min(int(id[-6:], 16), _LARGEST)
    return _EPOCH + timedelta(milliseconds=milliseconds, microseconds=microseconds + position + 1)
