"""Operations for a service's own Alembic migrations: each takes Alembic's `op` and the table's name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from outspark.contracts import doorbell
from outspark.contracts.jeap import table as jeap
from outspark.contracts.names import TableName
from outspark.contracts.openoutbox import table as openoutbox


class Operations(Protocol):
    """The part of `alembic.op` that is used here."""

    def execute(self, sqltext: str) -> Any: ...


def upgrade(op: Operations, table: str = "openoutbox_events") -> None:
    """Create the outbox and its indexes."""
    _run(op, openoutbox.statements(TableName.parse(table)))


def downgrade(op: Operations, table: str = "openoutbox_events") -> None:
    """Drop the outbox with every event in it, delivered or not."""
    _run(op, openoutbox.drop_statements(TableName.parse(table)))


def install_doorbell(op: Operations, table: str = "public.openoutbox_events", lanes: int = 8) -> None:
    _run(op, doorbell.statements(TableName.parse(table), lanes))


def remove_doorbell(op: Operations, table: str = "public.openoutbox_events") -> None:
    _run(op, doorbell.removal_statements(TableName.parse(table)))


def upgrade_jeap(op: Operations, table: str = "deferred_message") -> None:
    """Create a jEAP outbox with its sequence and indexes, and `shedlock` if it is not there."""
    _run(op, jeap.statements(TableName.parse(table)))


def downgrade_jeap(op: Operations, table: str = "deferred_message") -> None:
    """Drop a jEAP outbox with every message in it, sent or not. `shedlock` stays: others may use it."""
    _run(op, jeap.drop_statements(TableName.parse(table)))


def create_ready_index(op: Operations, table: str = "deferred_message") -> None:
    """Our optional index on a jEAP outbox."""
    _run(op, [jeap.ready_index(TableName.parse(table))])


def _run(op: Operations, statements: Iterable[str]) -> None:
    # One by one: some drivers refuse several statements in one call.
    for statement in statements:
        op.execute(statement)
