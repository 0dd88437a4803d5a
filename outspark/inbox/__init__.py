"""The receiving side: messages are taken in once, and handled once, in the transaction that completes them.

router = Router()

@router.on("user.created", source="users")
def created(user: User, conn: psycopg.Connection) -> None:
    conn.execute("INSERT INTO accounts (user_id) VALUES (%s)", [user.id])

with Worker(url, "inbox_events", router, WorkSettings(group="billing")) as worker:
    worker.run(stopping)
"""

from __future__ import annotations

from outspark.errors import NotNow, Reject
from outspark.inbox.accept import Acceptor
from outspark.inbox.arrivals import Accepted, Duplicate, New, OutOfPartitions, Refused
from outspark.inbox.event import InboxEvent
from outspark.inbox.intake import Feed, Intake
from outspark.inbox.message import Received
from outspark.inbox.router import Router
from outspark.inbox.work import Worker
from outspark.settings.inbox import AcceptSettings, Strategy, WorkSettings

__all__ = [
    "AcceptSettings",
    "Accepted",
    "Acceptor",
    "Duplicate",
    "Feed",
    "InboxEvent",
    "Intake",
    "New",
    "NotNow",
    "OutOfPartitions",
    "Received",
    "Refused",
    "Reject",
    "Router",
    "Strategy",
    "WorkSettings",
    "Worker",
]
