"""A service with a declarative base of its own, and omni-box's tables bound to it."""

from __future__ import annotations

from sqlalchemy import String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from outspark.outbox.omnibox import (
    InboxEventBase,
    OutboxEventBase,
    PartitionedInboxEventBase,
    PartitionedOutboxEventBase,
)


class Base(DeclarativeBase):
    pass


class OutboxEvent(Base, OutboxEventBase):
    pass


class InboxEvent(Base, InboxEventBase):
    pass


class PartitionedOutboxEvent(Base, PartitionedOutboxEventBase):
    pass


class PartitionedInboxEvent(Base, PartitionedInboxEventBase):
    pass


class OrdersBase(DeclarativeBase):
    pass


class OrdersOutboxEvent(OrdersBase, OutboxEventBase):
    """Under another name, with a column more, and with our index."""

    __tablename__ = "orders_outbox"
    __ready_index__ = True

    tenant: Mapped[str] = mapped_column(String(40), index=True)


class OrdersInboxEvent(OrdersBase, PartitionedInboxEventBase):
    __tablename__ = "orders_inbox"

    tenant: Mapped[str | None] = mapped_column(String(40))
