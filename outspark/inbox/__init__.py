"""The receiving side: messages are taken in once, and handled once, in the transaction that completes them.

router = Router()

@router.on("user.created", source="users")
def created(user: User, conn: psycopg.Connection) -> None:
    conn.execute("INSERT INTO accounts (user_id) VALUES (%s)", [user.id])

with Worker(url, "inbox_events", router, WorkSettings(group="billing")) as worker:
    worker.run(stopping)
"""

from __future__ import annotations

from outspark.brokers.feed import Feed, Received
from outspark.config.inbox import AcceptSettings, Strategy, WorkSettings
from outspark.errors import Reject, RetryLater
from outspark.inbox.event import InboxEvent
from outspark.inbox.handling.worker import Worker
from outspark.inbox.intake.acceptor import Acceptor
from outspark.inbox.intake.batch import Accepted, Duplicate, New, OutOfPartitions, Refused
from outspark.inbox.intake.consumer import Intake
from outspark.inbox.router import Router

__all__ = [
    "AcceptSettings",
    "Accepted",
    "Acceptor",
    "Duplicate",
    "Feed",
    "InboxEvent",
    "Intake",
    "New",
    "OutOfPartitions",
    "Received",
    "Refused",
    "Reject",
    "RetryLater",
    "Router",
    "Strategy",
    "WorkSettings",
    "Worker",
]
