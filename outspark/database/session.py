"""A lane's connection: one per database, to a session of its own, with planner settings and time limits."""

from __future__ import annotations

from typing import Any, Final

import psycopg

from outspark.database import arrays, conninfo
from outspark.errors import PoolerDetected, ServerTooOld

Connection = psycopg.Connection[tuple[Any, ...]]

# The planner assumes that a hash expression selects few rows, and would sort the whole backlog. After five executions
# it would switch to a generic plan, possibly a parallel one. To update the claimed rows it would hash all pending ones,
# because old statistics show few of them. With these settings a claim walks the index in order, stops at the limit, and
# finds each claimed row by its primary key.
PLANNER = {
    "enable_sort": "off",
    "enable_bitmapscan": "off",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "max_parallel_workers_per_gather": "0",
    "plan_cache_mode": "force_custom_plan",
    "jit": "off",
}

# ShedLock stores UTC without a time zone. Where a table has timestamptz columns, the session must use UTC to match.
ZONE = {"TimeZone": "UTC"}

CONFIGURE = """\
-- Settings of a lane's session
SELECT set_config(name, value, false) FROM unnest(%(names)s::text[], %(values)s::text[]) AS s(name, value)"""


def connect(url: str, name: str) -> Connection:
    """Open a lane's connection. PoolerDetected when a pooler shares its session with other clients."""
    conn = psycopg.connect(
        **conninfo.options(url, application_name=name[:63]), autocommit=True, prepare_threshold=0
    )
    try:
        refuse_old(conn)
        _refuse_pooler(conn)
        arrays.register(conn)
        settings = {**PLANNER, **conninfo.server_settings(), **ZONE}
        conn.execute(CONFIGURE, {"names": list(settings), "values": list(settings.values())})
    except BaseException:
        conn.close()
        raise
    return conn


def _refuse_pooler(conn: Connection) -> None:
    # A transaction pooler makes up the pid that it sends at the start, so it differs from that of the real backend.
    row = conn.execute("SELECT pg_backend_pid()").fetchone()
    if row is None or row[0] != conn.info.backend_pid:
        raise PoolerDetected()


OLDEST: Final = 15


def refuse_old(conn: psycopg.Connection[Any]) -> None:
    """ServerTooOld for a version below OLDEST. The server reports it at the start of a session, so no query is sent."""
    version = conn.info.server_version
    if version < OLDEST * 10_000:
        raise ServerTooOld(f"{version // 10_000}.{version % 10_000}", OLDEST)
