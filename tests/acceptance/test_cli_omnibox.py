"""The commands on omni-box's tables: the same words, with what they mean there."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.acceptance.test_cli_maintenance import Cli
from tests.databases import Database

CONFIG = """
[sources.shop]
contract = "omnibox"
url = "${STORAGE_URL}"
"""
ORDER = "0198c1d2-0000-7000-8000-000000000000"


@pytest.fixture
def cli(database: Database, tmp_path: Path) -> Cli:
    (tmp_path / "outspark.toml").write_text(CONFIG)
    environ = {
        name: value for name, value in os.environ.items() if not name.startswith(("OUTSPARK", "OTEL_"))
    }
    made = Cli(tmp_path, {**environ, "STORAGE_URL": database.url})
    made.ok("init", "--apply")
    return made


@pytest.fixture
def conn(database: Database) -> psycopg.Connection[Any]:
    return database.connect()


def test_init_prints_each_of_the_four_tables(cli: Cli) -> None:
    assert 'CREATE TABLE IF NOT EXISTS "outbox_events" (' in cli.ok("init")
    assert 'CREATE TABLE IF NOT EXISTS "inbox_events" (' in cli.ok("init", "--inbox")
    partitioned = cli.ok("init", "--partitioned")
    assert 'CREATE TABLE IF NOT EXISTS "outbox_events_partitioned" (' in partitioned
    assert "PARTITION BY RANGE (created_at);" in partitioned
    both = cli.ok("init", "--inbox", "--partitioned", "--table", "sales.inbox", "--ready-index")
    assert 'ON "sales"."inbox" (message_id, consumer_group, created_at)' in both
    assert "outspark_ready" in both
    assert "outspark_ready" not in partitioned


def test_init_takes_these_flags_for_this_contract_only(cli: Cli) -> None:
    for flag in ("--inbox", "--partitioned"):
        refused = cli("init", "--contract", "openoutbox", flag)

        assert refused.returncode == 2
        assert f"{flag} is for --contract omnibox" in refused.stderr


def test_init_creates_an_inbox(cli: Cli, conn: psycopg.Connection[Any]) -> None:
    cli.ok("init", "--inbox", "--apply")

    assert conn.execute("SELECT to_regclass('idx_inbox_deduplication') IS NOT NULL").fetchone() == (True,)


def test_events_go_in_and_are_kept(cli: Cli, conn: psycopg.Connection[Any]) -> None:
    line = {
        "type": "order.paid",
        "payload": {"n": 1},
        "key": ORDER,
        "headers": {"topic": "orders", "idempotency_key": "i", "tenant": "a"},
    }
    answer = json.loads(cli.ok("enqueue", "--json", stdin=f"{json.dumps(line)}\n" * 2))

    assert (answer["enqueued"], answer["known"]) == (1, 1)
    row = conn.execute(
        "SELECT topic, aggregate_type, aggregate_id::text, partition_key, idempotency_key, headers FROM outbox_events"
    ).fetchall()
    assert row == [("orders", "order", ORDER, ORDER, "i", {"tenant": "a"})]
    assert cli.json("stats")["sources"]["shop"]["pending"] == 1

    conn.execute("UPDATE outbox_events SET status = 'failed', attempts_made = 6, last_error = 'no luck'")
    dead = json.loads(cli.ok("dead", "list", "--json"))
    assert [(event["type"], event["error"]) for event in dead["events"]] == [("order.paid", "no luck")]
    cli.ok("dead", "requeue", "--all")
    assert cli.json("stats")["sources"]["shop"]["pending"] == 1


def test_an_event_without_an_aggregate_is_refused(cli: Cli) -> None:
    refused = cli("enqueue", "--type", "order.paid", "--payload", "{}", "--key", "7")

    assert refused.returncode == 1
    assert "needs the header aggregate_id" in refused.stderr
