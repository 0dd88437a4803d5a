"""jEAP's outbox for Python services: write a message with the change it tells of, and have it sent after the commit."""

from __future__ import annotations

from outspark.jeap.avro import AvroSerializer
from outspark.jeap.failed import FailedMessage, FailedMessages
from outspark.jeap.message import NewMessage
from outspark.jeap.outbox import JeapOutbox
from outspark.jeap.transactions import AsyncTransaction, Transaction

__all__ = [
    "AsyncTransaction",
    "AvroSerializer",
    "FailedMessage",
    "FailedMessages",
    "JeapOutbox",
    "NewMessage",
    "Transaction",
]
