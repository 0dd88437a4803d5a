"""The handler of the bench: it inserts one row into `bench_effects`. The inbox imports it by name, as usual."""

from __future__ import annotations

from typing import Any

import psycopg

from outspark.inbox import InboxEvent, Router

APP = "outspark.tools.bench.inbox.handlers:router"

INSERT = """
-- The effect of one event
INSERT INTO bench_effects (message_id, number) VALUES (%s, %s)"""

router = Router()


@router.otherwise
def handle(event: InboxEvent, payload: dict[str, Any], conn: psycopg.Connection[Any]) -> None:
    conn.execute(INSERT, [event.message_id, payload["number"]])
