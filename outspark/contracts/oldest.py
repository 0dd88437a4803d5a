"""The oldest PostgreSQL that Outspark works on: the suites of our SQL run on it, and nothing older was ever tried."""

from __future__ import annotations

from typing import Any, Final

import psycopg

from outspark.errors import ServerTooOld

OLDEST: Final = 15


def refuse_old(conn: psycopg.Connection[Any]) -> None:
    """ServerTooOld below that. The server has said its version when the session began, so this asks nothing."""
    version = conn.info.server_version
    if version < OLDEST * 10_000:
        raise ServerTooOld(f"{version // 10_000}.{version % 10_000}", OLDEST)
