"""omni-box's tables as abstract SQLAlchemy models, for a service to bind to a `DeclarativeBase` of its own.

The columns come from the contract's table. This module adds only their types in Python and what the ORM fills in:
ids, and times by the database's clock, because the table's own defaults are wrong in a session that is not in UTC.

omni-box's own repositories work on these models too. They read the columns for ON CONFLICT from the class; those come
from the contract's unique indexes, and a class with other indexes sets its own.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar
from uuid import UUID

from sqlalchemy import Enum, event, func
from sqlalchemy.orm import Mapped, MappedColumn, class_mapper, declared_attr, mapped_column
from sqlalchemy.schema import SchemaItem
from sqlalchemy.types import TypeEngine

from outspark.contracts.omnibox.table import (
    COLUMNS,
    DEDUPLICATION,
    IDEMPOTENCY,
    Kind,
    kind,
    named_by_stem,
    with_ready,
)
from outspark.database.names import TableName
from outspark.database.shape import sqlalchemy_type
from outspark.outbox.omnibox.new_event import DEFAULT_MAX_ATTEMPTS, TEXT_LENGTHS, EventStatus
from outspark.uuid7 import uuid7

_POSITIONS = {column.name: index for index, column in enumerate(COLUMNS)}
_AT_FIRST = {"status": EventStatus.PENDING, "attempts_made": 0, "max_attempts": DEFAULT_MAX_ATTEMPTS}


def _column(
    name: str, *, partitioned: bool = False, type_: TypeEngine[Any] | None = None, **filled: Any
) -> MappedColumn[Any]:
    """In the order of the contract, and before the columns that a service adds."""
    column = COLUMNS[_POSITIONS[name]]
    options = kind(partitioned=partitioned).shape.column_options(column)
    position = _POSITIONS[name] - len(COLUMNS)
    return mapped_column(type_ or sqlalchemy_type(column), sort_order=position, **options, **filled)


def _status_type() -> Enum:
    """Text in the database, without a type or a CHECK of its own."""
    return Enum(
        EventStatus,
        values_callable=lambda statuses: [status.value for status in statuses],
        native_enum=False,
        validate_strings=True,
        length=TEXT_LENGTHS["status"],
    )


class EventColumns:
    """What an outbox and an inbox have in common.

    `__ready_index__ = True` says that the table has our optional index; without it autogenerate would drop that.
    """

    __kind__: ClassVar[Kind]
    __ready_index__: ClassVar[bool] = False
    __outbox_conflict_index_id__: ClassVar[tuple[str, ...]]
    __outbox_conflict_index_idempotency__: ClassVar[tuple[str, ...]]

    id: Mapped[UUID] = _column("id", insert_default=uuid7)
    event_type: Mapped[str] = _column("event_type")
    payload: Mapped[Any] = _column("payload")
    headers: Mapped[dict[str, Any] | None] = _column("headers")
    trace_id: Mapped[str | None] = _column("trace_id")
    idempotency_key: Mapped[str | None] = _column("idempotency_key")
    correlation_id: Mapped[str | None] = _column("correlation_id")
    causation_id: Mapped[str | None] = _column("causation_id")
    schema_version: Mapped[str | None] = _column("schema_version")
    status: Mapped[EventStatus] = _column("status", type_=_status_type(), insert_default=_AT_FIRST["status"])
    attempts_made: Mapped[int] = _column("attempts_made", insert_default=_AT_FIRST["attempts_made"])
    max_attempts: Mapped[int] = _column("max_attempts", insert_default=_AT_FIRST["max_attempts"])
    last_error: Mapped[str | None] = _column("last_error")
    scheduled_at: Mapped[datetime] = _column("scheduled_at", insert_default=func.clock_timestamp())
    completed_at: Mapped[datetime | None] = _column("completed_at")
    locked_at: Mapped[datetime | None] = _column("locked_at")
    locked_by: Mapped[str | None] = _column("locked_by")
    created_at: Mapped[datetime] = _column("created_at", insert_default=func.clock_timestamp())
    updated_at: Mapped[datetime | None] = _column(
        "updated_at", insert_default=func.clock_timestamp(), onupdate=func.clock_timestamp()
    )

    @declared_attr.directive
    def __table_args__(cls) -> tuple[Any, ...]:
        shape = with_ready(cls.__kind__.shape) if cls.__ready_index__ else cls.__kind__.shape
        items, options = shape.table_options(TableName(cls.__tablename__))  # type: ignore[attr-defined]
        return (*items, options)


@event.listens_for(EventColumns, "init", propagate=True)
def _fill_in(new: EventColumns, args: tuple[Any, ...], given: dict[str, Any]) -> None:
    """A new object has its initial status before it is flushed. Its constructor runs after this."""
    class_mapper(type(new))  # the program's first object completes the mapping
    for name, value in _AT_FIRST.items():
        setattr(new, name, value)


class OutboxColumns(EventColumns):
    aggregate_type: Mapped[str] = _column("aggregate_type")
    aggregate_id: Mapped[UUID] = _column("aggregate_id")
    topic: Mapped[str] = _column("topic")
    partition_key: Mapped[str] = _column("partition_key")


class InboxColumns(EventColumns):
    __inbox_dedup_index_columns__: ClassVar[tuple[str, ...]]

    message_id: Mapped[str] = _column("message_id")
    consumer_group: Mapped[str] = _column("consumer_group")
    source: Mapped[str] = _column("source")


class OutboxEventBase(OutboxColumns):
    """The outbox: `class OutboxEvent(Base, OutboxEventBase): pass`."""

    __tablename__ = "outbox_events"
    __kind__ = kind()
    __outbox_conflict_index_id__ = __kind__.shape.primary_key
    __outbox_conflict_index_idempotency__ = __kind__.unique_columns(IDEMPOTENCY)


class InboxEventBase(InboxColumns):
    """The inbox, unique by message and consumer group."""

    __tablename__ = "inbox_events"
    __kind__ = kind(inbox=True)
    __outbox_conflict_index_id__ = __kind__.shape.primary_key
    __outbox_conflict_index_idempotency__ = __kind__.unique_columns(IDEMPOTENCY)
    __inbox_dedup_index_columns__ = __kind__.unique_columns(DEDUPLICATION)


class PartitionedOutboxEventBase(OutboxColumns):
    """The outbox, partitioned by `created_at`."""

    __tablename__ = "outbox_events_partitioned"
    __kind__ = kind(partitioned=True)
    __outbox_conflict_index_id__ = __kind__.shape.primary_key
    __outbox_conflict_index_idempotency__ = __kind__.unique_columns(IDEMPOTENCY)

    created_at: Mapped[datetime] = _column(
        "created_at", partitioned=True, insert_default=func.clock_timestamp()
    )


class PartitionedInboxEventBase(InboxColumns):
    """The inbox, partitioned by `created_at`, which has to be the message's own time for duplicates to be found."""

    __tablename__ = "inbox_events_partitioned"
    __kind__ = kind(inbox=True, partitioned=True)
    __outbox_conflict_index_id__ = __kind__.shape.primary_key
    __outbox_conflict_index_idempotency__ = __kind__.unique_columns(IDEMPOTENCY)
    __inbox_dedup_index_columns__ = __kind__.unique_columns(DEDUPLICATION)

    # No default: the time of writing would differ with every delivery of the same message.
    created_at: Mapped[datetime] = _column("created_at", partitioned=True)


# The names that omni-box has for them.
OutboxEventDBBase = OutboxEventBase
InboxEventDBBase = InboxEventBase
OutboxEventPartitionedDBBase = PartitionedOutboxEventBase
InboxEventPartitionedDBBase = PartitionedInboxEventBase


def get_event_constraints(
    table_name: str, include_created_at_in_unique: bool = False
) -> tuple[SchemaItem, ...]:
    """CHECKs and indexes that an outbox and an inbox have in common, as omni-box's function of this name gives them.

    `table_name` is what their names are made of: `outbox_events_p` for omni-box's partitioned outbox.
    """
    shape = kind(partitioned=include_created_at_in_unique).shape
    items, _ = shape.table_options(named_by_stem(table_name))
    return tuple(items)
