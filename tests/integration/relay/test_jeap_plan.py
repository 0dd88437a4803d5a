"""The plan of a claim on a jEAP outbox: in the order of ids, by our index where it is there, and never sorted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import SecretStr

from outspark import contracts
from outspark.contracts.jeap.table import DEFAULT_TABLE, ddl, ready_index
from outspark.contracts.names import TableName
from outspark.relay.connection import Connection, connect
from outspark.settings import SourceSettings
from tests.databases import Database

TABLE = TableName("deferred_message", "public")
OURS, PRIMARY_KEY = "deferred_message_outspark_ready", "deferred_message_pkey"

FILL = """\
-- Sent messages, and a backlog with and without keys
INSERT INTO deferred_message (id, message, key, topic, message_id, message_idempotence_id, message_type_name,
  created, send_immediately, sent_scheduled)
SELECT n, 'x', CASE WHEN n %% 10 > 0 THEN convert_to('key-' || n %% 1000, 'UTF8') END, 't', n, n, 'T', now(), false,
       CASE WHEN n <= %(sent)s THEN now() END
FROM generate_series(1, %(sent)s + 3000) AS n"""


@pytest.fixture(params=[0, 50_000], ids=["nothing sent", "50k sent"])
def lane(request: pytest.FixtureRequest, database: Database) -> Iterator[Connection]:
    conn = database.connect()
    conn.execute(ddl())
    conn.execute(FILL, {"sent": request.param})
    conn.execute("ANALYZE deferred_message")
    with connect(database.url, "lane") as lane:
        yield lane


def plan(lane: Connection, statement: str, blocked: list[str]) -> list[dict[str, Any]]:
    parameters = {"slots": [0, 2, 4, 6], "blocked": blocked, "types": [], "limit": 500, "token": "t"}
    row = lane.execute(b"EXPLAIN (FORMAT JSON) " + statement.encode(), parameters).fetchone()
    assert row is not None
    return list(_nodes(row[0][0]["Plan"]))


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", []):
        yield from _nodes(child)


@pytest.mark.parametrize("blocked", [[], [f"{n:02x}" for n in range(100)]], ids=["free", "100 keys blocked"])
def test_a_claim_walks_an_index(lane: Connection, blocked: list[str]) -> None:
    settings = SourceSettings(url=SecretStr("postgresql://"), contract="jeap", slots=8)
    statements = contracts.get("jeap").lane_statements(TABLE, settings)

    def used(statement: str) -> set[str]:
        found = plan(lane, statement, blocked)
        assert {node["Node Type"] for node in found} <= {"Index Scan", "Limit", "Result"}, found
        return {node["Index Name"] for node in found if "Index Name" in node}

    assert used(statements.claim) == {PRIMARY_KEY}
    assert used(statements.suspects) == {PRIMARY_KEY}

    lane.execute(ready_index(DEFAULT_TABLE).encode())

    assert used(statements.claim) == {OURS}
    assert used(statements.suspects) == {OURS}
