"""A service on omni-box: its repositories, on our models. It runs in omni-box's own environment, as a process.

It is told the database and the model, and prints what the repositories answered.
"""

from __future__ import annotations

import asyncio
import json
import sys
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

from omni_box import __version__
from omni_box.core.models.entities import InboxEvent, OutboxEvent
from omni_box.infra.storage.postgres import PostgresInboxRepository, PostgresOutboxRepository
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from tests.integration.contracts import omnibox_service

# One time for all, as every delivery of one message has: on a partitioned table it belongs to each conflict target.
NOW = datetime.now(UTC)
COMMON = {"event_type": "order.paid", "payload": {"number": 7}, "created_at": NOW, "scheduled_at": NOW}
WORKER = "omni-box/1"


def outgoing(number: int, key: str | None = None) -> Any:
    """Each is of a line of its own, so that none waits for another."""
    return OutboxEvent(
        **COMMON,
        idempotency_key=key,
        aggregate_type="order",
        aggregate_id=uuid4(),
        topic="orders",
        partition_key=f"{number}",
    )


def incoming(number: int, key: str | None = None) -> Any:
    return InboxEvent(
        **COMMON, idempotency_key=key, message_id=f"m-{number}", consumer_group="shop", source="orders"
    )


async def write(repository: Any, make: Any) -> dict[str, Any]:
    """Create, create again, and both in bulk."""
    first, bare = make(1, "paid-1"), make(2)
    again, others = make(1, "paid-1"), [make(3, "paid-3"), make(4)]
    created = [await repository.create(event) for event in (first, bare)]
    repeated = [await repository.create(event) for event in (again, bare)]
    bulk = await repository.bulk_create([*others, bare])
    return {
        "given": ids([first, bare, *others]),
        "created": ids(created),
        "repeated": ids(repeated),
        "bulk": ids(bulk),
        "bulk_given": ids([*others, bare]),
        "began": [(event.status, event.attempts_made, event.max_attempts) for event in created],
    }


async def work(repository: Any) -> dict[str, Any]:
    """Lock all, complete one, fail another until it is out of attempts, and see how they stand."""
    locked = await repository.fetch_and_lock_pending(10, WORKER)
    done, failing, *rest = sorted(event.id for event in locked)
    await repository.mark_completed(done, WORKER)
    for _ in range(6):
        await repository.mark_failed(failing, "no", WORKER)
        await repository.mark_processing(failing, WORKER)
    await repository.bulk_release_locks(rest, WORKER)
    return {
        "locked": len(locked),
        "statuses": [await status(repository, id) for id in (done, failing, *rest)],
    }


async def status(repository: Any, id: UUID) -> str:
    event = await repository.get_by_id(id)
    return f"{event.status}"


def ids(events: list[Any]) -> list[str]:
    return [str(event.id) for event in events]


async def main(url: str, model_name: str) -> dict[str, Any]:
    model: Any = getattr(omnibox_service, model_name)
    of_inbox = hasattr(model, "message_id")
    engine = create_async_engine(url.replace("postgresql://", "postgresql+asyncpg://"))
    async with AsyncSession(engine) as session, session.begin():
        kind = PostgresInboxRepository if of_inbox else PostgresOutboxRepository
        repository = kind(session, model_class=model)
        written = await write(repository, incoming if of_inbox else outgoing)
        worked = await work(repository)
    await engine.dispose()
    return {"version": __version__, **written, **worked}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(*sys.argv[1:]))))
