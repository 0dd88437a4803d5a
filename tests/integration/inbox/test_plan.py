"""The plans of a worker's statements: a claim reads what it claims, whatever is completed and however much waits."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from psycopg import sql

from outspark.contracts.omnibox import inbox
from outspark.contracts.omnibox.inbox import WorkStatements, accept_statements, work_statements
from outspark.contracts.omnibox.table import ready_index
from outspark.database.names import TableName
from outspark.database.session import Connection, connect
from outspark.tools.servers.postgres import Postgres
from tests.databases import Database
from tests.integration.inbox.harness import Harness, open_harness, uuid7_at

WAITING = 3000
LIMIT = 100
NAMED = 20
AHEAD = 64
"""An Incremental Sort takes a few dozen rows before it answers the first."""
FORBIDDEN = {"Seq Scan", "Sort", "Bitmap Heap Scan", "Hash Join", "Merge Join", "Gather"}
"""An Incremental Sort only orders ids within one scheduled_at, as they come from the index."""

FILL = """\
-- Completed events, and a backlog; many messages share their time
INSERT INTO {table} (id, event_type, message_id, consumer_group, source, payload, headers, status,
  scheduled_at, completed_at, created_at)
SELECT gen_random_uuid(), 't', 'm' || n, 'billing', 's', '1', jsonb_build_object('partition_key', 'key-' || n %% 1000),
       CASE WHEN n <= %(completed)s THEN 'completed' ELSE 'pending' END,
       now() - interval '1 minute' + n * interval '1 us', CASE WHEN n <= %(completed)s THEN now() END,
       date_trunc('day', now(), 'UTC') + n / 500 * interval '1 ms'
FROM generate_series(1, %(completed)s + %(waiting)s) AS n"""

COMPLETE_ALL = "UPDATE {table} SET status = 'completed', completed_at = now() WHERE status = 'pending'"
REOPEN = "UPDATE {table} SET status = 'pending', completed_at = NULL WHERE message_id = ANY(%(message_ids)s)"

# A partitioned table itself holds nothing that could be analysed behind our back.
PARTS = """\
SELECT relid::regclass::text FROM pg_partition_tree(%(name)s) WHERE isleaf
UNION SELECT oid::regclass::text FROM pg_class WHERE oid = %(name)s::regclass AND relkind = 'r'"""

_numbers = itertools.count(1)


@contextmanager
def own_harness(server: Postgres, *, partitioned: bool) -> Iterator[Harness]:
    """For several tests, each of which undoes what it does."""
    name = sql.Identifier(f"inbox_plans_{next(_numbers)}")
    with connect(server.url(), "admin") as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(name))
        database = Database(server.url(name.as_string().strip('"')))
        with closing(database), closing(open_harness(database, partitioned=partitioned)) as harness:
            yield harness
        admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "partitioned"])
def partitioned(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(scope="module", params=[0, 50_000], ids=["nothing completed", "50k completed"])
def filled(request: pytest.FixtureRequest, postgres_server: Postgres, partitioned: bool) -> Iterator[Harness]:
    with own_harness(postgres_server, partitioned=partitioned) as harness:
        given = {"completed": request.param, "waiting": WAITING}
        harness.conn.execute(FILL.format(table=harness.table).encode(), given)
        harness.conn.execute(f"VACUUM ANALYZE {harness.table}".encode())
        yield harness


@pytest.fixture(scope="module")
def burst(postgres_server: Postgres, partitioned: bool) -> Iterator[Harness]:
    """A backlog that the planner has not heard of: its statistics are from when everything was completed."""
    with own_harness(postgres_server, partitioned=partitioned) as harness:
        conn, table = harness.conn, harness.table
        conn.execute(ready_index(TableName(table)).encode())
        for (part,) in harness.ask(PARTS.replace("%(name)s", f"'{table}'")):
            conn.execute(f"ALTER TABLE {part} SET (autovacuum_enabled = false)".encode())
        conn.execute(FILL.format(table=table).encode(), {"completed": 20_000, "waiting": WAITING})
        conn.execute(COMPLETE_ALL.format(table=table).encode())
        conn.execute(f"VACUUM ANALYZE {table}".encode())
        last = [f"m{n}" for n in range(20_001, 20_001 + WAITING)]
        conn.execute(REOPEN.format(table=table).encode(), {"message_ids": last})
        yield harness


@pytest.fixture
def worker(filled: Harness) -> Iterator[Connection]:
    with working(filled) as conn:
        yield conn


@contextmanager
def working(harness: Harness) -> Iterator[Connection]:
    """A worker's session, in a transaction that is undone."""
    with connect(harness.database.url, "worker") as conn, conn.transaction(force_rollback=True):
        yield conn


def statements(harness: Harness, slots: int | None = None) -> WorkStatements:
    return work_statements(TableName(harness.table), slots, partitioned=harness.partitioned)


def given(blocked: int = 0, limit: int = LIMIT) -> dict[str, Any]:
    keys = [f"key-{n}" for n in range(blocked)]
    return {"group": "billing", "token": "t", "limit": limit, "slots": [0, 2, 4, 6], "blocked": keys}


def claimed(conn: Connection, made: WorkStatements) -> dict[str, Any]:
    """Claim a few, and answer the parameters of all that is done to claimed events."""
    rows = conn.execute(made.claim.encode(), given(limit=NAMED)).fetchall()
    each = {"notes": None, "states": "pending", "counts": 1, "waits": 1.0, "errors": None}
    return {
        "ids": [row[0] for row in rows],
        "created_ats": [row[1] for row in rows],
        "token": "t",
        **{name: [value] * NAMED for name, value in each.items()},
    }


def explain(conn: Connection, statement: str, parameters: dict[str, Any]) -> list[dict[str, Any]]:
    """The nodes of a plan that was run, and undone."""
    with conn.transaction(force_rollback=True):
        row = conn.execute(
            b"EXPLAIN (ANALYZE, FORMAT JSON, TIMING OFF) " + statement.encode(), parameters
        ).fetchone()
    assert row is not None
    return list(_nodes(row[0][0]["Plan"]))


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", []):
        yield from _nodes(child)


def rows_read(nodes: list[dict[str, Any]]) -> int:
    """All that the scans answered or threw away."""
    return sum(
        int(node["Actual Loops"] * (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)))
        for node in nodes
        if node["Node Type"].startswith(("Index", "Seq", "Bitmap"))
    )


@pytest.mark.parametrize(("slots", "blocked"), [(None, 0), (8, 0), (8, 100)])
def test_a_claim_reads_what_it_claims(
    worker: Connection, filled: Harness, slots: int | None, blocked: int
) -> None:
    nodes = explain(worker, statements(filled, slots).claim, given(blocked))

    assert not {node["Node Type"] for node in nodes} & FORBIDDEN, nodes
    assert nodes[0]["Actual Rows"] == LIMIT
    # Twice: to find them and to lock them. With slots, half of the keys are others'.
    assert rows_read(nodes) <= (2 if slots is None else 5) * LIMIT + AHEAD, nodes


def test_a_claim_of_nothing_reads_nothing(worker: Connection, filled: Harness) -> None:
    worker.execute(COMPLETE_ALL.format(table=filled.table).encode())
    worker.execute(f"ANALYZE {filled.table}".encode())

    for slots in (None, 8):
        assert rows_read(explain(worker, statements(filled, slots).claim, given())) == 0


def test_what_was_tried_before_costs_no_walk_over_all_that_waits(worker: Connection, filled: Harness) -> None:
    """Most of what waits was never tried, and no index knows the difference."""
    nodes = explain(worker, statements(filled).claim, given(limit=10))

    assert rows_read(nodes) <= 20 + AHEAD, nodes


@pytest.mark.parametrize("name", ["complete", "settle", "heartbeat"])
def test_named_events_are_found_by_their_id(worker: Connection, filled: Harness, name: str) -> None:
    made = statements(filled)
    named = claimed(worker, made)

    nodes = explain(worker, getattr(made, name), named)

    assert nodes[0]["Actual Rows"] == NAMED
    assert rows_read(nodes) == NAMED, nodes


def test_a_look_for_ids_ahead_of_the_clock_reads_those_alone(worker: Connection, filled: Harness) -> None:
    made = accept_statements(TableName(filled.table))
    assert rows_read(explain(worker, made.ahead, {})) == 0

    ahead = uuid7_at(datetime.now(UTC) + timedelta(seconds=5))
    worker.execute(f"UPDATE {filled.table} SET id = %s WHERE message_id = 'm1'".encode(), [ahead])
    nodes = explain(worker, made.ahead, {})

    assert nodes[0]["Actual Rows"] == 1
    assert rows_read(nodes) <= 1, nodes


def read_in_burst(harness: Harness, name: str) -> int:
    """How many rows a statement reads, where a few events are claimed already."""
    made = statements(harness, 8)
    with working(harness) as conn:
        named = claimed(conn, made)
        if name in ("complete", "release_stale"):
            # Also run in sessions that are not a worker's own: its handlers', and of whoever calls `reap`.
            conn.execute(b"RESET ALL")
        [(id, created_at)] = conn.execute(
            f"SELECT id, created_at FROM {harness.table} WHERE message_id = 'm23000'".encode()
        ).fetchall()
        more = {"id": id, "created_at": created_at, "lease": timedelta(minutes=-1)}
        nodes = explain(conn, getattr(made, name), {**given(), **named, **more})
    assert nodes[0]["Actual Rows"] == {"claim": LIMIT, "claim_head": 1}.get(name, NAMED)
    return rows_read(nodes)


def test_known_events_are_found_by_their_ids_whatever_the_statistics_say(
    burst: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By an index on a status that is taken for rare, each of them is compared with all that waits."""
    most = {
        "complete": NAMED,
        "settle": NAMED,
        "heartbeat": NAMED,
        "claim_head": 2,
        "claim": 5 * LIMIT + AHEAD,
        "release_stale": 2 * NAMED,
    }
    read = {name: read_in_burst(burst, name) for name in most}
    assert all(read[name] <= most[name] for name in most), str(read)

    monkeypatch.setattr(inbox, "hide_from_planner", lambda condition: condition)
    with_it_in_sight = {name: read_in_burst(burst, name) for name in most}
    assert all(with_it_in_sight[name] > 5 * most[name] for name in most), str(with_it_in_sight)
