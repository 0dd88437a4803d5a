"""omni-box's own repositories at work on our tables and models, in its newest and its oldest version."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from outspark.contracts.omnibox.table import Kind, kind
from outspark.outbox.omnibox import Enqueued, NewOutboxEvent, OmniboxOutbox
from tests.databases import Database
from tests.parts import INTEROP

pytestmark = pytest.mark.needs("omni-box")

ROOT = Path(__file__).parents[2]
OLDEST = INTEROP / "oldest"
VERSIONS = {"0.3.1": (ROOT,), "0.1.0": (ROOT, OLDEST)}
"""Each with what it finds before its own environment."""
MODELS = {
    "OutboxEvent": kind(),
    "PartitionedOutboxEvent": kind(partitioned=True),
    "InboxEvent": kind(inbox=True),
    "PartitionedInboxEvent": kind(inbox=True, partitioned=True),
}
OUTBOXES = [name for name in MODELS if "Outbox" in name]


def make_table(database: Database, kind: Kind) -> None:
    conn = database.connect()
    conn.execute(kind.ddl())
    if kind.shape.partition_by:
        table = kind.default_table.table
        conn.execute(f"CREATE TABLE {table}_all PARTITION OF {table} DEFAULT".encode())


def run_service(database: Database, version: str, model: str) -> dict[str, Any]:
    """What omni-box's repositories answered in a process of their own."""
    path = os.pathsep.join(map(str, VERSIONS[version]))
    argv = [str(INTEROP / "bin" / "python"), "-m", "tests.interop.service", database.url, model]
    done = subprocess.run(
        argv, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("model", MODELS)
def test_a_repository_writes_once_and_settles_what_it_wrote(
    database: Database, model: str, version: str
) -> None:
    make_table(database, MODELS[model])

    answer = run_service(database, version, model)

    first, bare, *_ = answer["given"]
    table = MODELS[model].default_table.table
    rows = database.connect().execute(f"SELECT id::text, status FROM {table}".encode()).fetchall()
    assert answer["version"] == version
    assert answer["created"] == answer["repeated"] == [first, bare]
    assert sorted(answer["bulk"]) == sorted(answer["bulk_given"])
    assert answer["began"] == [["pending", 0, 6]] * 2
    assert sorted(id for id, _ in rows) == sorted(answer["given"])
    assert answer["locked"] == 4
    assert answer["statuses"] == ["completed", "failed", "pending", "pending"]
    assert sorted(status for _, status in rows) == sorted(answer["statuses"])


@pytest.mark.parametrize("model", OUTBOXES)
def test_our_enqueue_finds_what_a_repository_wrote(database: Database, model: str) -> None:
    make_table(database, MODELS[model])
    first, *_ = run_service(database, "0.3.1", model)["given"]
    event = NewOutboxEvent(
        "order.paid",
        {},
        aggregate_type="order",
        aggregate_id=uuid4(),
        topic="orders",
        idempotency_key="paid-1",
    )

    conn = database.connect()
    with conn.transaction():
        [answer] = OmniboxOutbox(MODELS[model].default_table.table).enqueue(conn, event)

    assert answer == Enqueued(UUID(first), new=False)
