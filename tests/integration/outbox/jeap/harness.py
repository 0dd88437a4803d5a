"""A jEAP outbox in a database of its own, as a service and as whoever looks at its table see it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from psycopg.rows import class_row
from pydantic import SecretStr

from outspark import contracts
from outspark.config.settings import SourceSettings
from outspark.contracts.jeap.table import ddl
from outspark.database.names import TableName, resolve
from outspark.observability.metrics import JEAP_POST_TOTAL, JEAP_TRANSMIT, Histogram, Tally
from outspark.outbox.jeap import JeapOutbox, NewMessage
from tests.databases import Database

TABLE = "deferred_message"
NULL = {"type": "null"}
SHORT = {"immediate_timeout": timedelta(seconds=1), "immediate_block": timedelta(seconds=0.5)}


@dataclass(frozen=True, slots=True)
class Row:
    id: int
    message: bytes
    key: bytes | None
    cluster_name: str | None
    topic: str
    message_id: str
    message_idempotence_id: str
    message_type_name: str
    message_type_version: str | None
    created: datetime
    send_immediately: bool | None
    schedule_after: datetime | None
    sent_immediately: datetime | None
    sent_scheduled: datetime | None
    failed: datetime | None
    fail_reason: str | None
    resend: bool | None
    trace_id_high: int | None
    trace_id: int | None
    span_id: int | None
    parent_span_id: int | None
    trace_id_string: str | None
    sampled: bool | None

    @property
    def waits(self) -> bool:
        return self.sent_immediately is None and self.sent_scheduled is None and self.failed is None

    @property
    def hold(self) -> float:
        """Seconds from its making until it is the relay's."""
        assert self.schedule_after is not None
        return (self.schedule_after - self.created).total_seconds()


@dataclass
class Harness:
    database: Database
    tally: Tally = field(default_factory=Tally)
    outboxes: list[JeapOutbox] = field(default_factory=list)

    def create(self) -> None:
        self.database.connect().execute(ddl())

    def outbox(self, **options: Any) -> JeapOutbox:
        given = {"destination": NULL, "tally": self.tally, **options}
        outbox = JeapOutbox(TABLE, **given)
        self.outboxes.append(outbox)
        return outbox

    def rows(self) -> list[Row]:
        with self.database.connect() as conn, conn.cursor(row_factory=class_row(Row)) as cursor:
            return cursor.execute(f"SELECT * FROM {TABLE} ORDER BY id").fetchall()

    def row(self) -> Row:
        [row] = self.rows()
        return row

    def ready(self) -> list[int]:
        """What a relay would take now."""
        settings = SourceSettings(contract="jeap", url=SecretStr(self.database.url), slots=1)
        with self.database.connect() as conn:
            table = resolve(conn, TableName.parse(settings.table))
            claim = contracts.get("jeap").relay_statements(table, settings).claim.text
            rows = conn.execute(claim.encode(), {"slots": [0], "blocked": [], "limit": 100}).fetchall()
        return [int(row[0]) for row in rows]

    def posted(self, delivery_type: str) -> dict[str, float]:
        """How many messages were put in, by the end of their transaction."""
        counts = {
            status: self.tally.value(JEAP_POST_TOTAL, delivery_type=delivery_type, tx_status=status)
            for status in ("committed", "rolled_back", "unknown")
        }
        return {status: count for status, count in counts.items() if count}

    def transmitted(self) -> int:
        """How many messages went out at once."""
        [samples] = [samples for metric, samples in self.tally.samples() if metric.name == JEAP_TRANSMIT]
        for sample in samples:
            assert sample.labels == (TABLE, "immediate")
        return sum(sample.value.count for sample in samples if isinstance(sample.value, Histogram))

    def close(self) -> None:
        for outbox in self.outboxes:
            outbox.close()


def message(payload: bytes = b"{}", topic: str = "orders", **options: Any) -> NewMessage:
    return NewMessage(topic=topic, payload=payload, type="OrderCreated", **options)


def messages(count: int) -> list[NewMessage]:
    return [message(b"%d" % number, key=b"k") for number in range(count)]


def bodies(rows: Sequence[Row]) -> list[bytes]:
    return [row.message for row in rows]
