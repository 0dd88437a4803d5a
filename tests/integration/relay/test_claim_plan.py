"""The plan of a claim: in index order and no further than the limit, however much is finished already."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import uuid4

import pytest
from psycopg import sql
from pydantic import SecretStr

from outspark import contracts
from outspark.config.settings import SourceSettings
from outspark.contracts.openoutbox.maintenance import REAP, OpenOutboxMaintenance
from outspark.database.names import TableName
from outspark.database.session import Connection, connect
from outspark.database.slots import CREATE, compose
from tests.databases import Database

TABLE = TableName("openoutbox_events", "public")
ALLOWED = {
    "Index Scan",
    "Index Only Scan",
    "Incremental Sort",
    "Limit",
    "CTE Scan",
    "Nested Loop",
    "Function Scan",
    "Aggregate",
    "WindowAgg",
    "Subquery Scan",
}
"""An Incremental Sort only orders ids within one created_at, as they come from the index. A function lists keys. The
last three add up the bytes of what was found."""

FILL = """\
-- Finished events, and a backlog with and without keys
INSERT INTO openoutbox_events (event_id, event_type, partition_key, payload, status, delivered_at)
SELECT gen_random_uuid(), 't', CASE WHEN n %% 10 > 0 THEN 'key-' || n %% 1000 END, 'x',
       CASE WHEN n <= %(finished)s THEN 'DELIVERED' ELSE 'PENDING' END, now()
FROM generate_series(1, %(finished)s + 3000) AS n"""


@pytest.fixture(scope="module", params=[0, 300_000], ids=["nothing finished", "300k finished"])
def filled(request: pytest.FixtureRequest, postgres_server: Any) -> Iterator[Database]:
    name = f"plans_{request.param}"
    with connect(postgres_server.url(), "admin") as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        database = Database(postgres_server.url(name))
        conn = database.connect()
        for statement in contracts.get("openoutbox").statements(TABLE):
            conn.execute(statement.encode())
        conn.execute(compose(CREATE, TABLE).encode())
        conn.execute(FILL, {"finished": request.param})
        conn.execute("VACUUM ANALYZE openoutbox_events")
        yield database
        database.close()
        admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture
def burst(database: Database) -> Iterator[Connection]:
    """A backlog that the planner has not heard of: its statistics are from when everything was delivered."""
    conn = database.connect()
    for statement in contracts.get("openoutbox").statements(TABLE):
        conn.execute(statement.encode())
    conn.execute(compose(CREATE, TABLE).encode())
    conn.execute("ALTER TABLE openoutbox_events SET (autovacuum_enabled = false)")
    conn.execute(FILL, {"finished": 20_000})
    conn.execute("UPDATE openoutbox_events SET status = 'DELIVERED'")
    conn.execute("VACUUM ANALYZE openoutbox_events")
    conn.execute(FILL, {"finished": 0})
    conn.execute("UPDATE openoutbox_events SET status = 'DELIVERING' WHERE partition_key = 'key-1'")
    with connect(database.url, "lane") as lane:
        yield lane


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", []):
        yield from nodes(child)


@pytest.mark.parametrize("blocked", [[], [f"key-{n}" for n in range(100)]], ids=["free", "100 keys blocked"])
@pytest.mark.parametrize(("ordering", "lease"), [("key", "row"), ("key", "slot"), ("none", "row")])
def test_a_claim_walks_the_index(
    filled: Database, ordering: Literal["key", "none"], lease: Literal["row", "slot"], blocked: list[str]
) -> None:
    settings = SourceSettings(url=SecretStr(filled.url), slots=8, ordering=ordering, lease=lease)
    statements = contracts.get("openoutbox").relay_statements(TABLE, settings)
    parameters = {
        "slots": [0, 2, 4, 6],
        "blocked": blocked,
        "types": [],
        "low": datetime(1, 1, 1),
        "limit": 500,
        "token": "t",
    }
    with connect(filled.url, "lane") as lane:
        row = lane.execute(b"EXPLAIN (FORMAT JSON) " + statements.claim.text.encode(), parameters).fetchone()

    assert row is not None
    found = {node["Node Type"] for node in nodes(row[0][0]["Plan"])} - {"ModifyTable", "LockRows", "Result"}
    assert found <= ALLOWED, row[0]
    assert "Index Scan" in found
    if blocked and ordering == "key":
        assert "hashed SubPlan" in str(row[0]), "each row is compared with every key"


def test_what_begins_a_shift_enters_its_index_where_it_must(filled: Database) -> None:
    """Not over all that is pending, or was ever leased: then each hand-over in a long drain would be felt."""
    settings = SourceSettings(url=SecretStr(filled.url), slots=8)
    waiting = contracts.get("openoutbox").relay_statements(TABLE, settings).keys_in_backoff.text
    reap = OpenOutboxMaintenance(TABLE)._compose(REAP).as_string(None)
    limits = {"lease": timedelta(minutes=3), "max_attempts": 25, "limit": 100}
    with connect(filled.url, "lane") as lane:
        for statement, parameters, condition in (
            (waiting, {"slots": [0]}, "(available_at > now())"),
            (reap, limits, "(locked_at < (now() - "),
        ):
            plan = lane.execute(b"EXPLAIN " + statement.encode(), parameters).fetchall()
            text = "\n".join(line for (line,) in plan)
            assert f"Index Cond: {condition}" in text, text


@pytest.mark.parametrize("name", ["claim", "claim_ids", "deliver", "settle", "count_attempt"])
@pytest.mark.parametrize("lease", ["row", "slot"])
def test_a_known_event_is_found_by_its_id_whatever_the_statistics_say(
    burst: Connection, lease: Literal["row", "slot"], name: str
) -> None:
    """By an index on the status that is taken for empty, a claim of 1,000 in a backlog of 50,000 takes ten seconds."""
    settings = SourceSettings(url=SecretStr("postgresql://"), slots=8, lease=lease)
    statement = getattr(contracts.get("openoutbox").relay_statements(TABLE, settings), name).text
    ids = [str(uuid4()) for _ in range(500)]
    parameters = {
        "slots": [0, 2, 4, 6],
        "blocked": [],
        "types": [],
        "low": datetime(1, 1, 1),
        "limit": 500,
        "token": "t",
        "ids": ids,
        "states": ["pending"] * 500,
        "counts": [0] * 500,
        "waits": [None] * 500,
        "errors": [None] * 500,
        "source": "s",
        "epochs": [1, 1, 1, 1],
        "error": "e",
        "max_attempts": 25,
    }

    row = burst.execute(b"EXPLAIN (FORMAT JSON) " + statement.encode(), parameters).fetchone()

    assert row is not None
    events = [node for node in nodes(row[0][0]["Plan"]) if node.get("Alias", "").startswith("e")]
    used = {node["Index Name"] for node in events if "Index Name" in node}
    # A claim finds them in order, and then by their ids if it marks them.
    in_order = {"idx_openoutbox_metrics_lag"} if name == "claim" else set()
    by_id = {"openoutbox_events_pkey"} if (name, lease) != ("claim", "slot") else set()
    assert used == in_order | by_id, row[0]
