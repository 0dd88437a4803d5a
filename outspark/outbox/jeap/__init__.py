"""jEAP's outbox for Python services: a message is written with the change that it reports, and sent after the commit.

A message is sent by the service itself right after the commit, or later by the relay; the caller chooses.
"""

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
