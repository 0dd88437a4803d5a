"""Our models are what omni-box's repositories take: the same names, values and conflict targets, on real tables."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa
from sqlalchemy import orm
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import IntegrityError, StatementError

from outspark.outbox import omnibox
from outspark.outbox.omnibox import EventStatus, get_event_constraints
from tests.databases import Database
from tests.integration.contracts import catalog as catalogs
from tests.integration.contracts import omnibox_service as service
from tests.integration.contracts.autogenerate import engine_of

SEED = (Path(catalogs.__file__).parent / "omnibox_seed.sql").read_text()
NOW = datetime.now(UTC)
OUTBOXES = (service.OutboxEvent, service.PartitionedOutboxEvent)
INBOXES = (service.InboxEvent, service.PartitionedInboxEvent)
MODELS = (*OUTBOXES, *INBOXES)
ID, IDEMPOTENCY, DEDUPLICATION = (
    "__outbox_conflict_index_id__",
    "__outbox_conflict_index_idempotency__",
    "__inbox_dedup_index_columns__",
)
TARGETS = [
    *((model, target) for model in MODELS for target in (ID, IDEMPOTENCY)),
    *((model, DEDUPLICATION) for model in INBOXES),
]


def values(model: type[Any], **given: Any) -> dict[str, Any]:
    """A new row: an id of its own, the same time and message."""
    common = {"id": uuid4(), "event_type": "order.paid", "payload": {"number": 7}, "created_at": NOW}
    if model in INBOXES:
        own: dict[str, Any] = {"message_id": "m-1", "consumer_group": "shop", "source": "orders"}
    else:
        own = {"aggregate_type": "order", "aggregate_id": uuid4(), "topic": "orders", "partition_key": "7"}
    return {**common, **own, **given}


def create(session: orm.Session, model: type[Any], target: str, row: dict[str, Any]) -> Any:
    """Insert as omni-box's repositories do; None where the row is there already."""
    of_keys = model.idempotency_key.is_not(None) if target == IDEMPOTENCY else None
    statement = insert(model).values(**row)
    statement = statement.on_conflict_do_nothing(
        index_elements=list(getattr(model, target)), index_where=of_keys
    )
    return session.execute(statement.returning(model)).scalar_one_or_none()


@pytest.fixture
def session(database: Database) -> Iterator[orm.Session]:
    conn = database.connect()
    conn.execute(SEED)
    for name in ("outbox_events_partitioned", "inbox_events_partitioned"):
        conn.execute(f"CREATE TABLE {name}_all PARTITION OF {name} DEFAULT".encode())
    with engine_of(database) as engine, orm.Session(engine) as session:
        yield session


@pytest.mark.parametrize(("model", "target"), TARGETS)
def test_the_conflict_targets_of_a_model_are_unique_indexes_of_its_table(
    session: orm.Session, model: type[Any], target: str
) -> None:
    row = values(model, idempotency_key="paid-7")
    changes: dict[str, dict[str, Any]] = {
        ID: {"idempotency_key": "paid-8", "message_id": "m-2"},
        IDEMPOTENCY: {"id": uuid4(), "message_id": "m-2"},
        DEDUPLICATION: {"id": uuid4(), "idempotency_key": "paid-8"},
    }
    second = row | {name: value for name, value in changes[target].items() if hasattr(model, name)}

    assert create(session, model, target, row).id == row["id"]
    assert create(session, model, target, second) is None
    assert session.scalars(sa.select(model.id)).all() == [row["id"]]


@pytest.mark.parametrize("model", MODELS)
def test_a_conflict_with_another_index_is_not_passed_over(session: orm.Session, model: type[Any]) -> None:
    row = values(model, idempotency_key="paid-7")
    create(session, model, ID, row)

    with pytest.raises(IntegrityError, match=r"idempotency_key|dedup"):
        create(session, model, ID, row | {"id": uuid4()})


def test_a_partitioned_table_has_the_time_in_every_target() -> None:
    assert service.PartitionedOutboxEvent.__outbox_conflict_index_id__ == ("id", "created_at")
    assert service.PartitionedInboxEvent.__outbox_conflict_index_idempotency__ == (
        "idempotency_key",
        "created_at",
    )
    assert service.PartitionedInboxEvent.__inbox_dedup_index_columns__ == (
        "message_id",
        "consumer_group",
        "created_at",
    )
    assert service.InboxEvent.__inbox_dedup_index_columns__ == ("message_id", "consumer_group")
    assert not hasattr(service.OutboxEvent, DEDUPLICATION)


def test_a_service_may_say_its_own_conflict_target() -> None:
    class Base(orm.DeclarativeBase):
        pass

    class InboxEvent(Base, omnibox.InboxEventDBBase):
        __inbox_dedup_index_columns__ = ("message_id", "consumer_group", "source")

    assert InboxEvent.__inbox_dedup_index_columns__ == ("message_id", "consumer_group", "source")
    assert service.InboxEvent.__inbox_dedup_index_columns__ == ("message_id", "consumer_group")


def test_the_models_have_omni_boxs_names_too() -> None:
    assert omnibox.OutboxEventDBBase is omnibox.OutboxEventBase
    assert omnibox.InboxEventDBBase is omnibox.InboxEventBase
    assert omnibox.OutboxEventPartitionedDBBase is omnibox.PartitionedOutboxEventBase
    assert omnibox.InboxEventPartitionedDBBase is omnibox.PartitionedInboxEventBase


def test_a_status_is_lowercase_text() -> None:
    assert issubclass(EventStatus, StrEnum)
    assert {status.name: f"{status}" for status in EventStatus} == {
        "PENDING": "pending",
        "COMPLETED": "completed",
        "FAILED": "failed",
    }


@pytest.mark.parametrize("model", MODELS)
def test_a_new_object_says_how_it_begins_before_it_is_flushed(model: type[Any]) -> None:
    new, other = model(), model(status="failed", attempts_made=3, max_attempts=3)

    assert (new.status, new.attempts_made, new.max_attempts) == (EventStatus.PENDING, 0, 6)
    assert isinstance(new.status, EventStatus)
    assert (other.status, other.attempts_made, other.max_attempts) == (EventStatus.FAILED, 3, 3)


def test_the_very_first_object_of_a_service_with_a_constructor_of_its_own_too() -> None:
    class Base(orm.DeclarativeBase):
        pass

    class OutboxEvent(Base, omnibox.OutboxEventBase):
        def __init__(self, tries: int) -> None:
            self.max_attempts = tries

    new = OutboxEvent(2)

    assert (new.status, new.attempts_made, new.max_attempts) == (EventStatus.PENDING, 0, 2)


@pytest.mark.parametrize("model", MODELS)
def test_a_status_is_read_as_it_was_written(session: orm.Session, model: type[Any]) -> None:
    session.add(model(**values(model)))
    session.commit()
    session.execute(sa.update(model).values(status="failed", attempts_made=6))

    [found] = session.scalars(sa.select(model).where(model.status == EventStatus.FAILED))

    assert found.status is EventStatus.FAILED
    with pytest.raises(StatementError, match="lost"):
        session.execute(sa.update(model).values(status="lost"))


def test_an_insert_without_an_object_fills_in_the_same(session: orm.Session) -> None:
    """A table that was made from omni-box's models has no defaults of its own."""
    for name in ("status", "attempts_made", "max_attempts"):
        session.execute(sa.text(f"ALTER TABLE outbox_events ALTER COLUMN {name} DROP DEFAULT"))

    session.execute(sa.insert(service.OutboxEvent).values(**values(service.OutboxEvent)))

    found = session.scalars(sa.select(service.OutboxEvent)).one()
    assert (found.status, found.attempts_made, found.max_attempts) == (EventStatus.PENDING, 0, 6)


def test_a_table_of_a_services_own_has_the_seeds_constraints(database: Database) -> None:
    class Base(orm.DeclarativeBase):
        pass

    class OutboxEvent(Base, omnibox.OutboxEventDBBase):
        __table_args__ = get_event_constraints("outbox_events")

    class PartitionedOutboxEvent(Base, omnibox.OutboxEventPartitionedDBBase):
        __table_args__ = (
            *get_event_constraints("outbox_events_p", include_created_at_in_unique=True),
            {"postgresql_partition_by": "RANGE (created_at)"},
        )

    tables = [model.__tablename__ for model in (OutboxEvent, PartitionedOutboxEvent)]
    conn = database.connect()
    conn.execute(SEED)
    wanted = [catalogs.catalog(conn, table) for table in tables]
    conn.execute(f"DROP TABLE {', '.join(tables)}".encode())

    with engine_of(database) as engine:
        Base.metadata.create_all(engine)

    assert [catalogs.catalog(conn, table) for table in tables] == wanted
