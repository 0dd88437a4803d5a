"""A lane's connection: one per database, with a session of its own, planner settings and time limits."""

from __future__ import annotations

from typing import Any, Final

import psycopg

from outspark.database import arrays, conninfo
from outspark.errors import PoolerDetected, ServerTooOld

Connection = psycopg.Connection[tuple[Any, ...]]

# The planner takes a hash expression for rare and would sort the whole backlog; after five executions it would
# plan for any value of the parameters and go parallel. To update the claimed rows it would hash all that is pending,
# which old statistics make look like little. With these it walks the index in order, stops at the limit, and finds
# each claimed row by its primary key.
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

# ShedLock's times have no zone and are UTC's; where a table keeps them with one, the session's must be that.
ZONE = {"TimeZone": "UTC"}

CONFIGURE = """\
-- Settings of a lane's session
SELECT set_config(name, value, false) FROM unnest(%(names)s::text[], %(values)s::text[]) AS s(name, value)"""


def connect(url: str, name: str) -> Connection:
    """Open a lane's connection. PoolerDetected when the session behind it is shared with others."""
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
    row = conn.execute("SELECT pg_backend_pid()").fetchone()
    if row is None or row[0] != conn.info.backend_pid:
        raise PoolerDetected()


OLDEST: Final = 15


def refuse_old(conn: psycopg.Connection[Any]) -> None:
    """ServerTooOld below that. The server has said its version when the session began, so this asks nothing."""
    version = conn.info.server_version
    if version < OLDEST * 10_000:
        raise ServerTooOld(f"{version // 10_000}.{version % 10_000}", OLDEST)
