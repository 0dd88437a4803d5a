"""The handlers of a service, as a lane finds them by their name."""

from __future__ import annotations

from typing import Any

import psycopg

from outspark.inbox import InboxEvent, Router
from tests.integration.inbox.harness import write

router = Router()


@router.otherwise
def handle(event: InboxEvent, conn: psycopg.Connection[Any]) -> None:
    write(conn, event.message_id)


broken = Router()


@broken.otherwise
def fail(event: InboxEvent, conn: psycopg.Connection[Any]) -> None:
    raise ValueError(f"column total of order {event.message_id} does not exist")
