"""The application's side of an Open Outbox table: a service writes events in its own transaction.

The other contracts have modules of their own with the same shape, `outspark.outbox.jeap` and
`outspark.outbox.omnibox`. All of them raise the errors that are listed here.
"""

from __future__ import annotations

from outspark.errors import (
    EventInvalid,
    ExtraMissing,
    HeadersInvalid,
    OutsparkError,
    SettingsError,
    TransactionRequired,
)
from outspark.outbox.openoutbox import Limits, NewEvent, Outbox, Statement

__all__ = [
    "EventInvalid",
    "ExtraMissing",
    "HeadersInvalid",
    "Limits",
    "NewEvent",
    "Outbox",
    "OutsparkError",
    "SettingsError",
    "Statement",
    "TransactionRequired",
]
