"""The event that a handler receives."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from outspark.contracts.omnibox.inbox import KEY_HEADER, Row


@dataclass(slots=True)
class InboxEvent:
    """One claimed row of an inbox. `body` is the payload as JSON text; `payload` parses it on each access."""

    id: str
    type: str
    message_id: str
    group: str
    source: str
    body: str = field(repr=False)
    headers: dict[str, Any]
    attempts: int
    """Failed attempts before this one."""
    max_attempts: int
    created_at: datetime
    trace_id: str | None = None
    idempotency_key: str | None = None
    correlation_id: str | None = None
    causation_id: str | None = None
    schema_version: str | None = None

    @property
    def payload(self) -> Any:
        return json.loads(self.body)

    @property
    def key(self) -> str | None:
        """The message key at the broker."""
        key = self.headers.get(KEY_HEADER)
        # A key that is not text is stored as a JSON object; the SQL statements compare it as JSON text.
        return key if key is None or isinstance(key, str) else json.dumps(key)


def from_row(row: Row) -> InboxEvent:
    return InboxEvent(
        id=row.id,
        type=row.event_type,
        message_id=row.message_id,
        group=row.consumer_group,
        source=row.source,
        body=row.payload,
        # Another writer may have stored any JSON here.
        headers=row.headers if isinstance(row.headers, dict) else {},
        attempts=row.attempts_made,
        max_attempts=row.max_attempts,
        created_at=row.created_at,
        trace_id=row.trace_id,
        idempotency_key=row.idempotency_key,
        correlation_id=row.correlation_id,
        causation_id=row.causation_id,
        schema_version=row.schema_version,
    )
