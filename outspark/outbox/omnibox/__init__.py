"""omni-box's tables for Python services: an outbox to enqueue in, and models for the service's own declarative base.

The models need SQLAlchemy (`pip install 'outspark[sqlalchemy]'`); the outbox works with psycopg alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from outspark.outbox.omnibox.new_event import EventStatus, NewOutboxEvent
from outspark.outbox.omnibox.outbox import Enqueued, OmniboxOutbox

if TYPE_CHECKING:
    from outspark.outbox.omnibox.models import (
        InboxEventBase,
        InboxEventDBBase,
        InboxEventPartitionedDBBase,
        OutboxEventBase,
        OutboxEventDBBase,
        OutboxEventPartitionedDBBase,
        PartitionedInboxEventBase,
        PartitionedOutboxEventBase,
        get_event_constraints,
    )

__all__ = [
    "Enqueued",
    "EventStatus",
    "InboxEventBase",
    "InboxEventDBBase",
    "InboxEventPartitionedDBBase",
    "NewOutboxEvent",
    "OmniboxOutbox",
    "OutboxEventBase",
    "OutboxEventDBBase",
    "OutboxEventPartitionedDBBase",
    "PartitionedInboxEventBase",
    "PartitionedOutboxEventBase",
    "get_event_constraints",
]


def __getattr__(name: str) -> object:
    """The models need SQLAlchemy; a service that writes with psycopg alone does not have to install it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from outspark.outbox.omnibox import models
    except ModuleNotFoundError as error:
        from outspark.errors import ExtraMissing

        raise ExtraMissing(f"outspark.outbox.omnibox.{name}", "sqlalchemy") from error
    found: object = getattr(models, name)
    return found
