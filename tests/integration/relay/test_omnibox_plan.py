"""The plan of a claim on an omni-box outbox: in index order, without a sort, from where the oldest event is due."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any, Literal

import pytest
from pydantic import SecretStr

from outspark import contracts
from outspark.config.settings import SourceSettings
from outspark.contracts.omnibox.table import kind, ready_index
from outspark.contracts.relay_statements import RelayStatements
from outspark.database.session import Connection, connect
from outspark.relay.low_water import BEGINNING
from tests.databases import Database
from tests.integration.relay.omnibox_harness import PARTITIONS, TABLE

ALLOWED = {
    "Aggregate",
    "Append",
    "CTE Scan",
    "Function Scan",
    "Incremental Sort",
    "Index Only Scan",
    "Index Scan",
    "Limit",
    "LockRows",
    "Merge Append",
    "ModifyTable",
    "Nested Loop",
    "Result",
    "Subquery Scan",
    "WindowAgg",
}
"""An Incremental Sort only orders ids within one created_at, as they come from the index. A WindowAgg adds up bytes."""

FILL = """\
-- Completed events of the past days, and a backlog
INSERT INTO outbox_events (id, event_type, aggregate_type, aggregate_id, topic, partition_key, payload, status,
  scheduled_at, completed_at, created_at)
SELECT gen_random_uuid(), 't', 'o', gen_random_uuid(), 't', 'key-' || n %% 1000, '1',
       CASE WHEN n <= %(completed)s THEN 'completed' ELSE 'pending' END,
       now(), CASE WHEN n <= %(completed)s THEN now() END, now() - (%(completed)s + 3000 - n) * interval '1 ms'
FROM generate_series(1, %(completed)s + 3000) AS n"""


@pytest.fixture(params=[False, True], ids=["plain", "partitioned"])
def table(request: pytest.FixtureRequest, database: Database) -> Database:
    conn = database.connect()
    conn.execute(kind(partitioned=request.param).ddl(TABLE))
    if request.param:
        conn.execute(PARTITIONS)
    return database


@pytest.fixture(params=[0, 50_000], ids=["nothing completed", "50k completed"])
def lane(request: pytest.FixtureRequest, table: Database) -> Iterator[Connection]:
    conn = table.connect()
    conn.execute(FILL, {"completed": request.param})
    conn.execute("VACUUM ANALYZE outbox_events")
    with connect(table.url, "lane") as lane:
        yield lane


def statements(lane: Connection, **settings: Any) -> RelayStatements:
    given = SourceSettings(url=SecretStr("postgresql://"), contract="omnibox", slots=8, **settings)
    return contracts.get("omnibox").relay_statements(TABLE, given, lane)


def parameters(low: datetime = BEGINNING, blocked: list[str] | None = None) -> dict[str, Any]:
    return {
        "slots": [0, 2, 4, 6],
        "blocked": blocked or [],
        "types": [],
        "topics": [],
        "topic_types": [],
        "low": low,
        "limit": 500,
        "token": "t",
    }


def explain(lane: Connection, statement: str, given: dict[str, Any]) -> list[dict[str, Any]]:
    row = lane.execute(b"EXPLAIN (FORMAT JSON) " + statement.encode(), given).fetchone()
    assert row is not None
    return list(_nodes(row[0][0]["Plan"]))


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", []):
        yield from _nodes(child)


@pytest.mark.parametrize("blocked", [[], [f"key-{n}" for n in range(100)]], ids=["free", "100 keys blocked"])
@pytest.mark.parametrize(("ordering", "lease"), [("key", "row"), ("key", "slot"), ("none", "row")])
@pytest.mark.parametrize("indexed", [False, True], ids=["as omni-box made it", "with our index"])
def test_a_claim_walks_an_index(
    lane: Connection,
    indexed: bool,
    ordering: Literal["key", "none"],
    lease: Literal["row", "slot"],
    blocked: list[str],
) -> None:
    if indexed:
        lane.execute(ready_index(TABLE).encode())
        lane.execute("ANALYZE outbox_events")
    made = statements(lane, ordering=ordering, lease=lease)

    for low in (BEGINNING, datetime(2026, 1, 1)):
        found = explain(lane, made.claim.text, parameters(low, blocked))
        assert {node["Node Type"] for node in found} <= ALLOWED, found
    if ordering == "key":
        found = explain(lane, made.suspects.text, parameters(blocked=blocked))
        assert {node["Node Type"] for node in found} <= ALLOWED, found


@pytest.mark.parametrize("indexed", [False, True], ids=["as omni-box made it", "with our index"])
def test_a_look_reads_no_more_than_it_must(lane: Connection, indexed: bool) -> None:
    """Not what is completed: neither where something is due, nor where nothing is."""
    if indexed:
        lane.execute(ready_index(TABLE).encode())
        lane.execute("ANALYZE outbox_events")
    claim = statements(lane, lease="slot").claim.text

    assert rows_read(lane, claim) <= 2 * 3000 + 100
    lane.execute(
        "UPDATE outbox_events SET status = 'completed', completed_at = now() WHERE status = 'pending'"
    )
    lane.execute("VACUUM ANALYZE outbox_events")
    assert rows_read(lane, claim) <= 100


def rows_read(lane: Connection, statement: str) -> int:
    """All that the scans of a statement answered or threw away."""
    row = lane.execute(
        b"EXPLAIN (ANALYZE, FORMAT JSON, TIMING OFF) " + statement.encode(), parameters()
    ).fetchone()
    assert row is not None
    scans = [node for node in _nodes(row[0][0]["Plan"]) if node["Node Type"].startswith("Index")]
    return sum(
        int(node["Actual Loops"] * (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)))
        for node in scans
    )


def test_a_batch_is_settled_through_the_index_on_its_lock(lane: Connection) -> None:
    lane.execute(
        "CREATE TABLE outspark_slots (source text, slot int, epoch bigint, owner text, since timestamptz, clean bool)"
    )
    made = statements(lane, lease="row")
    given = {"leased_at": datetime(2026, 1, 1), "token": "t", "source": "s", "slots": [0], "epochs": [1]}

    found = explain(lane, made.deliver_all.text, given)

    scans = [node for node in found if node["Node Type"] == "Index Scan"]
    assert {"locked_at" in node["Index Cond"] for node in scans} == {True}, found


def test_what_begins_a_shift_enters_its_index_where_it_must(lane: Connection) -> None:
    found = explain(lane, statements(lane).keys_in_backoff.text, {"slots": [0]})

    scans = [node for node in found if node["Node Type"] == "Index Scan"]
    assert {node["Index Cond"] for node in scans} == {"(scheduled_at > now())"}, found
