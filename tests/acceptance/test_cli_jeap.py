"""The maintenance commands on a jEAP outbox: the same words, with what its table means."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.acceptance.test_cli_maintenance import Cli
from tests.databases import Database

CONFIG = """
[sources.shop]
contract = "jeap"
url = "${STORAGE_URL}"
"""


@pytest.fixture
def cli(database: Database, tmp_path: Path) -> Cli:
    (tmp_path / "outspark.toml").write_text(CONFIG)
    made = Cli(tmp_path, {"STORAGE_URL": database.url, "PATH": ""})
    made.ok("init", "--apply")
    return made


@pytest.fixture
def conn(database: Database) -> psycopg.Connection[Any]:
    return database.connect()


def lines(*bodies: str) -> str:
    return "".join(f'{{"type": "orders", "key": "k", "payload": "{body}"}}\n' for body in bodies)


def fail(conn: psycopg.Connection[Any], id: int, reason: str) -> None:
    conn.execute("UPDATE deferred_message SET failed = now(), fail_reason = %s WHERE id = %s", [reason, id])


def test_init_prints_the_contract_and_our_index_on_demand(cli: Cli) -> None:
    plain, more = cli.ok("init"), cli.ok("init", "--ready-index")

    assert 'CREATE TABLE IF NOT EXISTS "shedlock"' in plain
    assert "outspark_ready" not in plain
    assert more.startswith(plain)
    assert "WHERE (sent_immediately IS NULL AND sent_scheduled IS NULL AND failed IS NULL) OR resend;" in more


def test_init_takes_the_index_for_this_contract_only(cli: Cli) -> None:
    refused = cli("init", "--contract", "openoutbox", "--ready-index")

    assert refused.returncode == 2
    assert "--ready-index is for --contract jeap" in refused.stderr


def test_messages_are_enqueued_for_the_relay(cli: Cli, conn: psycopg.Connection[Any]) -> None:
    assert cli.ok("enqueue", stdin=lines("a", "b")) == "1\n2\n"

    rows = conn.execute(
        'SELECT message, "key", topic, send_immediately FROM deferred_message ORDER BY id'
    ).fetchall()
    assert rows == [(b"a", b"k", "orders", False), (b"b", b"k", "orders", False)]
    assert cli.json("stats")["sources"]["shop"]["pending"] == 2


def test_what_the_table_has_no_place_for_is_refused(cli: Cli) -> None:
    refused = cli("enqueue", "--type", "orders", "--payload", "x", "--header", "a=b")

    assert refused.returncode != 0
    assert "a jEAP outbox has no place for headers" in refused.stderr


def test_failed_messages_are_listed_by_page_and_requeued(cli: Cli, conn: psycopg.Connection[Any]) -> None:
    cli.ok("enqueue", stdin=lines("a", "b", "c", "d"))
    for id in (1, 2, 3):
        fail(conn, id, "MESSAGE_TOO_LARGE" if id == 2 else "INVALID_TOPIC")

    assert [event["id"] for event in cli.json("dead", "list", "--after", "1")["events"]] == ["2", "3"]
    assert cli.json("dead", "list", "--error", "invalid_topic")["total"] == 2
    assert cli.json("dead", "requeue", "1", "2")["ids"] == ["1", "2"]
    assert [event["id"] for event in cli.json("dead", "list", "--requeued")["events"]] == ["2", "1"]
    assert [event["id"] for event in cli.json("dead", "list")["events"]] == ["3"]
    assert cli.json("dead", "discard", "3", "--yes")["ids"] == ["3"]
    assert conn.execute("SELECT id, resend FROM deferred_message ORDER BY id").fetchall() == [
        (1, True),
        (2, True),
        (4, False),
    ]


def test_one_failed_message_is_shown_with_its_payload(cli: Cli, conn: psycopg.Connection[Any]) -> None:
    cli.ok("enqueue", stdin=lines("hello"))
    fail(conn, 1, "UNAUTHORIZED_ON_TOPIC")

    shown = cli.json("dead", "show", "1")
    assert (shown["type"], shown["key"], shown["error"]) == ("orders", "k", "UNAUTHORIZED_ON_TOPIC")
    assert shown["headers"]["message_type_name"] == "orders"
    assert cli.ok("dead", "show", "1", "--payload") == "hello"


def test_ids_are_numbers(cli: Cli) -> None:
    refused = cli("dead", "show", "0198f3c2")

    assert refused.returncode != 0
    assert "allowed: a whole number" in refused.stderr


def test_old_messages_are_pruned(cli: Cli, conn: psycopg.Connection[Any]) -> None:
    cli.ok("enqueue", stdin=lines("sent", "unsent", "new"))
    conn.execute("UPDATE deferred_message SET sent_scheduled = now() - interval '3 days' WHERE id = 1")
    conn.execute("UPDATE deferred_message SET created = now() - interval '31 days' WHERE id = 2")

    pruned = cli.json("prune", "--delivered-age", "2d", "--dead-age", "30d")
    assert (pruned["delivered"], pruned["dead"]) == (1, 1)
    assert conn.execute("SELECT id FROM deferred_message").fetchall() == [(3,)]


def test_there_is_nothing_to_reap(cli: Cli) -> None:
    assert cli("reap").returncode == 0
