"""Outspark: a transactional outbox and inbox for PostgreSQL, relayed on Apache Spark.

This is what most services need: an `Outbox` to write a `NewEvent` into, and a `Router` whose handlers take an
`InboxEvent`. Importing `outspark` loads nothing else; each name loads its module when it is first used, and Spark is
imported only where lanes run.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from outspark.version import __version__

if TYPE_CHECKING:
    from outspark.errors import Reject, RetryLater
    from outspark.inbox.event import InboxEvent
    from outspark.inbox.router import Router
    from outspark.outbox.openoutbox import Limits, NewEvent, Outbox

__all__ = ["InboxEvent", "Limits", "NewEvent", "Outbox", "Reject", "RetryLater", "Router", "__version__"]

_MODULES = {
    "InboxEvent": "outspark.inbox.event",
    "Limits": "outspark.outbox.openoutbox",
    "NewEvent": "outspark.outbox.openoutbox",
    "Outbox": "outspark.outbox.openoutbox",
    "Reject": "outspark.errors",
    "RetryLater": "outspark.errors",
    "Router": "outspark.inbox.router",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'outspark' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
