"""The maintenance commands on an inbox, as processes against PostgreSQL: the same words, with what they mean there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from outspark.contracts.omnibox.table import kind
from tests.acceptance.test_cli_maintenance import Cli
from tests.databases import Database

CONFIG = """
[inboxes.billing]
url = "${DATABASE_URL}"
group = "billing"

[inboxes.shipping]
url = "${DATABASE_URL}"
group = "shipping-service"
"""


@pytest.fixture
def cli(database: Database, tmp_path: Path) -> Cli:
    (tmp_path / "outspark.toml").write_text(CONFIG, encoding="utf-8")
    environ = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("OUTSPARK", "OTEL_", "STORAGE"))
    }
    return Cli(tmp_path, {**environ, "DATABASE_URL": database.url})


@pytest.fixture
def inbox(database: Database) -> psycopg.Connection[Any]:
    conn = database.connect()
    for statement in kind(inbox=True, partitioned=False).statements():
        conn.execute(statement.encode())
    return conn


def put(
    conn: psycopg.Connection[Any],
    status: str = "pending",
    group: str = "billing",
    ago: str = "0s",
    **columns: Any,
) -> str:
    """An event as workers leave it, changed this long ago."""
    id = str(uuid4())
    row = {
        "id": id,
        "event_type": "order.created",
        "message_id": id,
        "consumer_group": group,
        "source": "orders",
        "payload": '{"n": 1}',
        "headers": '{"a": "b"}',
        "status": status,
        **columns,
    }
    names = psycopg.sql.SQL(", ").join(map(psycopg.sql.Identifier, row))
    values = psycopg.sql.SQL(", ").join(map(psycopg.sql.Placeholder, row))
    statement = psycopg.sql.SQL(
        "INSERT INTO inbox_events ({}, scheduled_at, created_at, updated_at, completed_at) VALUES ({},"
        " now(), now() - %(ago)s::interval, now() - %(ago)s::interval,"
        " CASE WHEN %(done)s THEN now() - %(ago)s::interval END)"
    ).format(names, values)
    conn.execute(statement, {**row, "ago": ago, "done": status == "completed"})
    return id


def lock(conn: psycopg.Connection[Any], id: str, ago: str = "0s") -> None:
    conn.execute(
        "UPDATE inbox_events SET locked_by = 'worker-7', locked_at = now() - %s::interval WHERE id = %s",
        (ago, id),
    )


def states(conn: psycopg.Connection[Any]) -> dict[str, int]:
    return dict(conn.execute("SELECT status, count(*) FROM inbox_events GROUP BY status").fetchall())


def test_stats_of_all_and_of_one(cli: Cli, inbox: psycopg.Connection[Any], database: Database) -> None:
    (cli.folder / "outspark.toml").write_text(
        CONFIG + f'[sources.shop]\nurl = "{database.url}"\n', encoding="utf-8"
    )
    cli.ok("init", "--apply")
    for status in ("pending", "completed", "failed"):
        put(inbox, status)
    lock(inbox, put(inbox))
    put(inbox, group="shipping-service")

    found = cli.json("stats", "--exact")

    assert list(found["sources"]) == ["shop"]
    billing = found["inboxes"]["billing"]
    assert (billing["pending"], billing["delivering"], billing["dead"], billing["delivered"]) == (1, 1, 1, 1)
    assert found["inboxes"]["shipping"]["pending"] == 1
    assert cli.json("stats", "--inbox", "shipping")["sources"] == {}
    assert list(cli.json("stats", "--source", "shop")["inboxes"]) == []
    lines = cli.ok("stats").splitlines()
    assert [line.split()[0] for line in lines] == ["source", "shop", "inbox", "billing", "shipping"]
    assert lines[2].split()[4:7] == ["locked", "dead", "completed"]


def test_dead_events_are_listed_shown_requeued_and_discarded(
    cli: Cli, inbox: psycopg.Connection[Any]
) -> None:
    dead = put(inbox, "failed", last_error="no such customer", attempts_made=6)
    other = put(inbox, "failed", last_error="timed out", attempts_made=6)
    theirs = put(inbox, "failed", group="shipping-service")
    billing = ("--inbox", "billing")

    listed = cli.json("dead", "list", *billing, "--error", "customer")
    assert [(event["id"], event["attempts"]) for event in listed["events"]] == [(dead, 6)]
    assert cli.json("dead", "show", dead, *billing)["headers"] == {"a": "b"}
    assert cli.ok("dead", "show", dead, "--payload", *billing) == '{"n": 1}'
    assert cli("dead", "show", theirs, *billing).returncode == 4
    assert cli.json("dead", "requeue", "--all", "--dry-run", *billing) == {"requeued": 2, "dry_run": True}
    assert cli.ok("dead", "requeue", "--error", "customer", *billing).split() == [dead]
    assert cli("dead", "requeue", dead, *billing).returncode == 4
    assert cli.json("dead", "discard", "--all", "--yes", *billing)["ids"] == [other]
    assert states(inbox) == {"pending": 1, "failed": 1}


def test_prune_keeps_what_is_young_or_of_another_group(cli: Cli, inbox: psycopg.Connection[Any]) -> None:
    for ago in ("1 day", "8 days", "9 days"):
        put(inbox, "completed", ago=ago)
    put(inbox, "failed", ago="40 days")
    put(inbox, "completed", "shipping-service", "40 days")
    ages = ("--inbox", "billing", "--delivered-age", "7d", "--dead-age", "30d")

    assert cli.json("prune", *ages, "--dry-run") == {"delivered": 2, "dead": 1, "dry_run": True}
    assert cli.ok("prune", *ages, "--batch", "1") == "2 completed and 1 dead events deleted\n"
    assert states(inbox) == {"completed": 2}


def test_reap_goes_by_the_lease_of_the_inbox(cli: Cli, inbox: psycopg.Connection[Any]) -> None:
    for ago in ("10 minutes", "30 seconds"):
        lock(inbox, put(inbox), ago)
    lock(inbox, put(inbox, max_attempts=1), "10 minutes")
    lock(inbox, put(inbox, group="shipping-service"), "10 minutes")

    assert cli.ok("reap", "--inbox", "billing") == "1 given back, 1 dead\n"
    assert len(cli.json("reap", "--inbox", "billing", "--lease-timeout", "20s")["returned"]) == 1


def test_a_forced_unlock_keeps_its_reason(cli: Cli, inbox: psycopg.Connection[Any]) -> None:
    held, free = put(inbox), put(inbox)
    lock(inbox, held)

    assert cli("unlock", held, "--inbox", "billing").returncode == 2
    assert cli("unlock", held, "--inbox", "billing", "--reason", " ").returncode == 2
    assert cli("unlock", "7", "--inbox", "billing", "--reason", "gone").returncode == 2
    assert cli("unlock", held, "--inbox", "shipping", "--reason", "gone").returncode == 4
    done = cli("unlock", held, free, "--inbox", "billing", "--reason", "host is gone")
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, [held], "1 of 2 unlocked\n")
    [error] = inbox.execute("SELECT last_error FROM inbox_events WHERE id = %s", [held]).fetchall()
    assert error[0].startswith("unlocked by force: host is gone (was locked by worker-7 since 20")
    assert cli("unlock", held, "--inbox", "billing", "--reason", "host is gone").returncode == 4


def test_an_outbox_is_unlocked_where_its_contract_has_locks(cli: Cli, database: Database) -> None:
    conn = database.connect()
    for statement in kind(inbox=False, partitioned=False).statements():
        conn.execute(statement.encode())
    id = str(uuid4())
    conn.execute(
        "INSERT INTO outbox_events (id, event_type, aggregate_type, aggregate_id, topic, partition_key, payload,"
        " scheduled_at, locked_at, locked_by) VALUES (%s, 'a', 'a', %s, 't', 'k', '{}', now(), now(), 'relay-1')",
        (id, id),
    )
    shop = ("--url", database.url, "--contract", "omnibox")

    assert cli.json("unlock", id, *shop, "--reason", "hangs") == {"unlocked": 1, "ids": [id]}
    [row] = conn.execute("SELECT locked_at, last_error FROM outbox_events").fetchall()
    assert row[0] is None
    assert row[1].startswith("unlocked by force: hangs (was locked by relay-1 since 20")
    cli.ok("init", "--apply", "--url", database.url)
    refused = cli("unlock", id, "--url", database.url, "--reason", "hangs")
    assert refused.returncode == 2
    assert "only inboxes and outboxes of contract omnibox" in refused.stderr


def test_which_inbox_is_meant(cli: Cli, inbox: psycopg.Connection[Any], database: Database) -> None:
    put(inbox, "failed", "audit")
    several = cli("dead", "list")
    assert several.returncode == 2
    assert "there are several inboxes; choose one with --inbox: billing, shipping" in several.stderr
    unknown = cli("dead", "list", "--inbox", "audit")
    assert unknown.returncode == 2
    assert "there is no inbox 'audit'; the settings have: billing, shipping" in unknown.stderr
    assert cli.json("dead", "list", "--inbox", "audit", "--url", database.url)["total"] == 1
    both = cli("dead", "list", "--inbox", "billing", "--source", "shop")
    assert both.returncode == 2
    assert "--source and --inbox exclude each other" in both.stderr
    assert "has no inbox" in cli("stats", "--inbox", "billing", "--contract", "jeap").stderr
    (cli.folder / "outspark.toml").write_text(CONFIG.partition("[inboxes.shipping]")[0], encoding="utf-8")
    assert cli.json("dead", "list")["total"] == 0


def test_an_inbox_that_is_not_there_says_how_to_make_it(cli: Cli) -> None:
    done = cli("stats", "--inbox", "billing")
    assert done.returncode == 1
    assert "outspark init --contract omnibox --inbox --table inbox_events --apply" in done.stderr
    away = cli("stats", "--inbox", "billing", "--url", "postgresql://ada:s3cret@127.0.0.1:1/shop")
    assert away.returncode == 3
    assert away.stderr.startswith(
        "error: inbox 'billing' at postgresql://ada:***@127.0.0.1:1/shop cannot be reached"
    )


def test_init_makes_the_inbox_of_the_settings(cli: Cli, database: Database) -> None:
    (cli.folder / "outspark.toml").write_text(
        '[inboxes.billing]\nurl = "${DATABASE_URL}"\ngroup = "b"\ntable = "billing_inbox"\n'
        '[inboxes.billing.dead_letter]\ntable = "billing_letters"\n[inboxes.billing.partitions]\nahead = 1\n',
        encoding="utf-8",
    )
    printed = cli.ok("init", "--inbox")
    assert 'CREATE TABLE IF NOT EXISTS "billing_inbox" (' in printed
    assert "PARTITION BY RANGE (created_at)" in printed
    done = cli("init", "--inbox", "--apply")
    assert done.returncode == 0
    assert "table public.billing_inbox created" in done.stderr
    assert len(cli.json("partitions", "keep")["created"]) == 2


def test_init_makes_a_table_for_dead_letters(cli: Cli, database: Database) -> None:
    conn = database.connect()
    printed = cli.ok("init", "--dead-letters", "--table", "sad_letters")
    conn.execute(printed.encode())
    conn.execute(printed.encode())
    assert conn.execute("SELECT count(*) FROM sad_letters").fetchone() == (0,)
    assert 'CREATE TABLE IF NOT EXISTS "inbox_dead_letters"' in cli.ok("init", "--dead-letters")
    made = cli("init", "--dead-letters", "--apply", "--source", "billing")
    assert made.returncode == 0
    assert "table public.inbox_dead_letters created" in made.stderr
    assert cli("init", "--dead-letters", "--doorbell").returncode == 2
    assert "choose one with --source: billing, shipping" in cli("init", "--dead-letters", "--apply").stderr
