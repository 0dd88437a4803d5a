"""jEAP's outbox for Python services: write a message with the change it reports; it is sent after the commit."""

from __future__ import annotations

from outspark.outbox.jeap.avro import AvroSerializer
from outspark.outbox.jeap.failed import FailedMessage, FailedMessages
from outspark.outbox.jeap.new_message import NewMessage
from outspark.outbox.jeap.outbox import JeapOutbox
from outspark.outbox.jeap.transactions import AsyncTransaction, Transaction

__all__ = [
    "AsyncTransaction",
    "AvroSerializer",
    "FailedMessage",
    "FailedMessages",
    "JeapOutbox",
    "NewMessage",
    "Transaction",
]
