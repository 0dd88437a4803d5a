"""Outspark: a transactional outbox and inbox for PostgreSQL, relayed on Apache Spark.

`from outspark import Outbox, NewEvent` is all a service needs; Spark is imported only where it runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from outspark.version import __version__

if TYPE_CHECKING:
    from outspark.outbox.openoutbox import Limits, NewEvent, Outbox

__all__ = ["Limits", "NewEvent", "Outbox", "__version__"]


def __getattr__(name: str) -> Any:
    if name in ("Limits", "NewEvent", "Outbox"):
        from outspark.outbox import openoutbox

        return getattr(openoutbox, name)
    raise AttributeError(f"module 'outspark' has no attribute {name!r}")
