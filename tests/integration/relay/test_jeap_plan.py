"""The plan of a claim on a jEAP outbox: in the order of ids, by our index where it is there, and never sorted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import SecretStr

from outspark import contracts
from outspark.config.settings import SourceSettings
from outspark.contracts.jeap.table import DEFAULT_TABLE, ddl, ready_index
from outspark.database import slots
from outspark.database.names import TableName
from outspark.database.session import Connection, connect
from tests.databases import Database

TABLE = TableName("deferred_message", "public")
ALLOWED = {
    "Index Scan",
    "Limit",
    "Result",
    "Function Scan",
    "CTE Scan",
    "Aggregate",
    "WindowAgg",
    "Subquery Scan",
}
"""The last four add up the bytes of what was found."""
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
    statements = contracts.get("jeap").relay_statements(TABLE, settings)

    def used(statement: str) -> set[str]:
        found = plan(lane, statement, blocked)
        assert {node["Node Type"] for node in found} <= ALLOWED, found
        return {node["Index Name"] for node in found if "Index Name" in node}

    assert used(statements.claim.text) == {PRIMARY_KEY}
    assert used(statements.suspects.text) == {PRIMARY_KEY}

    lane.execute(ready_index(DEFAULT_TABLE).encode())

    assert used(statements.claim.text) == {OURS}
    assert used(statements.suspects.text) == {OURS}


@pytest.mark.parametrize("name", ["claim_ids", "deliver", "settle", "count_attempt"])
def test_a_known_message_is_found_by_its_id_whatever_the_statistics_say(
    database: Database, name: str
) -> None:
    """Our index is not, though it is taken for empty since the days when everything was sent."""
    conn = database.connect()
    conn.execute(ddl())
    conn.execute(ready_index(DEFAULT_TABLE).encode())
    for side_table in (
        slots.compose(slots.CREATE, TABLE),
        *contracts.get("jeap").side_tables(TABLE).values(),
    ):
        conn.execute(side_table.encode())
    conn.execute("ALTER TABLE deferred_message SET (autovacuum_enabled = false)")
    conn.execute(FILL, {"sent": 20_000})
    conn.execute("UPDATE deferred_message SET sent_scheduled = now()")
    conn.execute("VACUUM ANALYZE deferred_message")
    conn.execute("UPDATE deferred_message SET sent_scheduled = NULL WHERE id % 2 = 0")
    settings = SourceSettings(url=SecretStr("postgresql://"), contract="jeap", slots=8)
    statement = getattr(contracts.get("jeap").relay_statements(TABLE, settings), name).text
    ids = [str(n) for n in range(500)]
    parameters = {
        "ids": ids,
        "states": ["dead"] * 500,
        "kinds": ["other"] * 500,
        "error": "e",
        "max_attempts": 25,
        "source": "s",
        "slots": [0],
        "epochs": [1],
        "token": "t",
    }

    with connect(database.url, "lane") as lane:
        row = lane.execute(b"EXPLAIN (FORMAT JSON) " + statement.encode(), parameters).fetchone()

    assert row is not None
    known = [node for node in _nodes(row[0][0]["Plan"]) if node.get("Alias", "").startswith("e")]
    assert {node["Index Name"] for node in known if "Index Name" in node} == {PRIMARY_KEY}, row[0]
