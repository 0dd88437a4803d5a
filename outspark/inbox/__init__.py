"""The receiving side: messages become rows once, and a handler runs in the transaction that completes its row.

With `outspark inbox run` a service needs only `Router` and what its handlers take and raise. The rest is for a process
that hosts the loops itself: a `Consumer` moves messages from the broker into the table, a `Worker` calls the handlers,
and an `Acceptor` accepts messages that the process has consumed by its own means.
"""

from __future__ import annotations

from outspark.brokers.feed import Feed, Received
from outspark.config.inbox import AcceptSettings, InboxSettings, Strategy, WorkSettings
from outspark.config.loading import load
from outspark.errors import (
    FeedFailed,
    HandlerHung,
    HandlerInvalid,
    OutsparkError,
    PartitionMissing,
    Reject,
    RetryLater,
    SettingsError,
)
from outspark.inbox.event import InboxEvent
from outspark.inbox.handling.worker import Worker
from outspark.inbox.intake.acceptor import Acceptor
from outspark.inbox.intake.batch import Accepted, Duplicate, New, OutOfPartitions, Refused
from outspark.inbox.intake.consumer import Consumer, Intake
from outspark.inbox.router import Router
from outspark.maintenance.partitions import PartitionKeeper

__all__ = [
    "AcceptSettings",
    "Accepted",
    "Acceptor",
    "Consumer",
    "Duplicate",
    "Feed",
    "FeedFailed",
    "HandlerHung",
    "HandlerInvalid",
    "InboxEvent",
    "InboxSettings",
    "Intake",
    "New",
    "OutOfPartitions",
    "OutsparkError",
    "PartitionKeeper",
    "PartitionMissing",
    "Received",
    "Refused",
    "Reject",
    "RetryLater",
    "Router",
    "SettingsError",
    "Strategy",
    "WorkSettings",
    "Worker",
    "load",
]
