"""The maintenance commands as processes against PostgreSQL: what they print, what they change, how they end."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from tests.acceptance.cli_process import run
from tests.databases import Database


@dataclass(frozen=True)
class Cli:
    """`outspark …` in a folder of its own, with the source given by the environment."""

    folder: Path
    environ: dict[str, str]

    def __call__(
        self, *args: str, stdin: str | None = None, **environ: str
    ) -> subprocess.CompletedProcess[str]:
        return run(args, self.folder, {**self.environ, **environ}, stdin or "")

    def ok(self, *args: str, stdin: str | None = None) -> str:
        done = self(*args, stdin=stdin)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def json(self, *args: str, stdin: str | None = None) -> Any:
        return json.loads(self.ok(*args, "--json", stdin=stdin))


@pytest.fixture
def cli(database: Database, tmp_path: Path) -> Cli:
    environ = {
        name: value for name, value in os.environ.items() if not name.startswith(("OUTSPARK", "OTEL_"))
    }
    return Cli(tmp_path, {**environ, "STORAGE_URL": database.url})


@pytest.fixture
def outbox(cli: Cli, database: Database) -> psycopg.Connection[Any]:
    cli.ok("init", "--apply")
    return database.connect()


def bury(conn: psycopg.Connection[Any], type: str, error: str, age: str = "0s") -> str:
    """A dead event, as a relay would have left it."""
    id = str(uuid4())
    conn.execute(
        "INSERT INTO openoutbox_events"
        " (event_id, event_type, partition_key, payload, headers, status, attempts, last_error, updated_at)"
        " VALUES (%s, %s, 'k', 'body', '{\"a\": \"b\"}', 'DEAD', 25, %s, now() - %s::interval)",
        (id, type, error, age),
    )
    return id


def statuses(conn: psycopg.Connection[Any]) -> dict[str, int]:
    return dict(conn.execute("SELECT status, count(*) FROM openoutbox_events GROUP BY status").fetchall())


def test_init_prints_ddl_and_nothing_else(cli: Cli, database: Database) -> None:
    done = cli("init", "--contract", "openoutbox", "--table", "sales_outbox", STORAGE_URL="")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("-- ")
    conn = database.connect()
    conn.execute(done.stdout.encode())
    conn.execute(done.stdout.encode())
    assert conn.execute("SELECT count(*) FROM sales_outbox").fetchone() == (0,)


def test_init_applies_with_a_doorbell(cli: Cli, outbox: psycopg.Connection[Any]) -> None:
    done = cli("init", "--apply", "--doorbell", "--lanes", "3")
    assert done.returncode == 0
    assert done.stdout == ""
    assert "table public.openoutbox_events exists\n" in done.stderr
    assert "doorbell for 3 lanes created\n" in done.stderr
    [trigger] = outbox.execute(
        "SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal"
    ).fetchall()
    assert trigger[0].count("pg_try_advisory_xact_lock_shared") == 3


def test_init_says_what_it_made_and_what_was_there(cli: Cli, database: Database) -> None:
    first, second = cli("init", "--apply"), cli("init", "--apply")
    assert first.stdout == second.stdout == ""
    made, found = first.stderr.splitlines(), second.stderr.splitlines()
    assert made[0] == "table public.openoutbox_events created"
    assert made[-1] == "table public.outspark_slots created"
    assert all(line.endswith(" created") for line in made)
    assert found == [line.replace(" created", " exists") for line in made]
    assert sum(line.startswith("index public.") for line in made) == len(made) - 2
    lost = made[1].split()[1]
    database.connect().execute(f"DROP INDEX {lost}".encode())
    again = cli("init", "--apply").stderr.splitlines()
    assert [line for line in again if line.endswith(" created")] == [f"index {lost} created"]


def test_init_prints_and_makes_the_side_tables_and_grants(cli: Cli, database: Database) -> None:
    conn = database.connect()
    conn.execute("CREATE ROLE modest_role")
    try:
        printed = cli.ok("init", "--table", "public.printed", "--grants", "modest_role")
        conn.execute(printed.encode())
        assert 'GRANT SELECT, UPDATE, DELETE ON "public"."printed" TO "modest_role";' in printed
        assert 'GRANT SELECT, INSERT ON "public"."printed" TO "modest_role";' in printed
        assert 'CREATE TABLE IF NOT EXISTS "public"."outspark_slots"' in printed
        writer = cli.ok(
            "init", "--table", "public.printed", "--grants", "modest_role", "--grants-for", "writer"
        )
        assert 'UPDATE, DELETE ON "public"."printed"' not in writer
        applied = cli("init", "--apply", "--grants", "modest_role", "--grants-for", "relay")
        assert applied.returncode == 0
        assert (
            'GRANT SELECT, UPDATE, DELETE ON "public"."openoutbox_events" TO "modest_role"' in applied.stderr
        )
        allowed = "SELECT has_table_privilege('modest_role', 'openoutbox_events', %s)"
        answers = [conn.execute(allowed, [one]).fetchone() for one in ("SELECT", "UPDATE", "INSERT")]
        assert answers == [(True,), (True,), (False,)]
        slots = "SELECT has_table_privilege('modest_role', 'outspark_slots', 'SELECT, INSERT, UPDATE')"
        assert conn.execute(slots).fetchone() == (True,)
        assert cli("init", "--grants-for", "relay").returncode == 2
    finally:
        conn.execute("DROP OWNED BY modest_role")
        conn.execute("DROP ROLE modest_role")


def test_an_event_from_flags(cli: Cli, outbox: psycopg.Connection[Any]) -> None:
    flags = ("--type", "order.created", "--key", "42", "--payload", '{"order": 42}', "--header", "tenant=a")
    id = cli.ok("enqueue", *flags).strip()
    row = outbox.execute(
        "SELECT event_id, event_type, partition_key, payload, headers FROM openoutbox_events"
    ).fetchone()
    assert row == (UUID(id), "order.created", "42", b'{"order": 42}', {"tenant": "a"})
    assert cli.json("enqueue", *flags, "--id", id) == {"enqueued": 0, "known": 1, "ids": []}


def test_events_from_json_lines(cli: Cli, outbox: psycopg.Connection[Any]) -> None:
    lines = [{"type": "order.paid", "key": str(n % 7), "payload": {"n": n}} for n in range(1200)]
    text = "\n".join(json.dumps(line) for line in lines)
    ids = cli.ok("enqueue", stdin=text).split()
    assert len(set(ids)) == 1200
    assert statuses(outbox) == {"PENDING": 1200}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: Expecting property name"),
        ("[]", "line 2: an event is a JSON object, not list"),
        ('{"type": "a"}', "line 2: an event needs type, and one of payload and payload_base64"),
        (
            '{"type": "a", "payload": "b", "kee": "c"}',
            "line 2: unknown field 'kee'; known are: type, payload,",
        ),
        (
            '{"type": "a", "payload": "b", "id": "c"}',
            "line 2: id = 'c': badly formed hexadecimal UUID string",
        ),
        ('{"type": "a", "payload_base64": "?"}', "line 2: payload_base64 = '?': "),
    ],
)
def test_a_bad_line_is_named(cli: Cli, outbox: psycopg.Connection[Any], line: str, message: str) -> None:
    done = cli("enqueue", "--batch", "1", stdin=f'{{"type": "good", "payload": "x"}}\n{line}\n')
    assert done.returncode == 1
    assert f"error: {message}" in done.stderr
    assert "1 enqueued before this" in done.stderr
    assert statuses(outbox) == {"PENDING": 1}


def test_stats(cli: Cli, outbox: psycopg.Connection[Any]) -> None:
    cli.ok("enqueue", "--type", "a", "--payload", "x")
    cli.ok("enqueue", "--type", "a", "--payload", "x", "--delay", "1h")
    bury(outbox, "a", "too large")
    found = cli.json("stats", "--exact")["sources"]["default"]
    assert (found["pending"], found["scheduled"], found["dead"], found["delivered"]) == (2, 1, 1, 0)
    assert found["oldest_age_seconds"] > 0
    assert found["oldest_lease_seconds"] is None
    header, row = cli.ok("stats").splitlines()
    assert header.split()[:2] == ["source", "pending"]
    assert row.split()[:2] == ["default", "2"]


def test_dead_events_are_listed_shown_and_requeued(cli: Cli, outbox: psycopg.Connection[Any]) -> None:
    old = bury(outbox, "order.created", "stream not found", "3 hours")
    large = bury(outbox, "order.paid", "payload too large")
    assert [event["id"] for event in cli.json("dead", "list")["events"]] == [large, old]
    assert [event["id"] for event in cli.json("dead", "list", "--error", "TOO LARGE")["events"]] == [large]
    assert [event["id"] for event in cli.json("dead", "list", "--before", "1h")["events"]] == [old]
    assert cli.json("dead", "list", "--type", "order.*", "--since", "2h")["total"] == 1
    assert old in cli.ok("dead", "list")

    shown = cli.json("dead", "show", old)
    assert (shown["error"], shown["headers"], shown["payload_size"]) == ("stream not found", {"a": "b"}, 4)
    assert cli.ok("dead", "show", old, "--payload") == "body"

    assert cli.json("dead", "requeue", "--all", "--dry-run") == {"requeued": 2, "dry_run": True}
    assert statuses(outbox) == {"DEAD": 2}
    assert cli.ok("dead", "requeue", "--error", "stream").split() == [old]
    assert statuses(outbox) == {"DEAD": 1, "PENDING": 1}


def test_discarding_needs_a_choice_and_a_yes(cli: Cli, outbox: psycopg.Connection[Any]) -> None:
    ids = [bury(outbox, "a", "e") for _ in range(3)]
    assert cli("dead", "discard", "--yes").returncode == 2
    unanswered = cli("dead", "discard", ids[0])
    assert unanswered.returncode == 2
    assert "repeat with --yes" in unanswered.stderr
    assert statuses(outbox) == {"DEAD": 3}
    assert cli.json("dead", "discard", ids[0], "--yes") == {"discarded": 1, "ids": [ids[0]], "dry_run": False}
    assert cli.json("dead", "discard", "--all", "--limit", "1", "--yes")["discarded"] == 1
    assert statuses(outbox) == {"DEAD": 1}


def test_nothing_matched_is_four(cli: Cli, outbox: psycopg.Connection[Any]) -> None:
    missing = str(uuid4())
    for args in (["show", missing], ["requeue", missing], ["discard", missing, "--yes"]):
        assert cli("dead", *args).returncode == 4
    assert cli("dead", "show", "nonsense").returncode == 2


def test_prune_keeps_what_is_young(cli: Cli, outbox: psycopg.Connection[Any]) -> None:
    outbox.execute(
        "INSERT INTO openoutbox_events (event_id, event_type, payload, status, delivered_at)"
        " SELECT gen_random_uuid(), 'a', '', 'DELIVERED', now() - n * interval '1 day'"
        " FROM generate_series(1, 10) n"
    )
    bury(outbox, "a", "e", "40 days")
    ages = ("--delivered-age", "7d12h", "--dead-age", "30d")
    assert cli.json("prune", *ages, "--dry-run") == {"delivered": 3, "dead": 1, "dry_run": True}
    assert statuses(outbox) == {"DELIVERED": 10, "DEAD": 1}
    assert cli.ok("prune", *ages, "--batch", "2") == "3 delivered and 1 dead events deleted\n"
    assert statuses(outbox) == {"DELIVERED": 7}
    assert cli("prune").returncode == 2
    assert cli("prune", "--delivered-age", "soon").returncode == 2


def test_reap_gives_back_and_counts(cli: Cli, outbox: psycopg.Connection[Any]) -> None:
    for attempts, minutes in ((0, 10), (24, 10), (0, 1)):
        outbox.execute(
            "INSERT INTO openoutbox_events"
            " (event_id, event_type, payload, status, attempts, locked_by, locked_at)"
            " VALUES (gen_random_uuid(), 'a', '', 'DELIVERING', %s, 'r', now() - %s * interval '1 minute')",
            (attempts, minutes),
        )
    assert cli.ok("reap") == "1 given back, 1 dead\n"
    assert statuses(outbox) == {"PENDING": 1, "DEAD": 1, "DELIVERING": 1}
    assert len(cli.json("reap", "--lease-timeout", "30s")["returned"]) == 1


def test_a_database_that_is_away_is_three(cli: Cli) -> None:
    done = cli("stats", "--url", "postgresql://ada:s3cret@127.0.0.1:1/shop")
    assert done.returncode == 3
    assert done.stderr.startswith(
        "error: source 'default' at postgresql://ada:***@127.0.0.1:1/shop cannot be reached"
    )
    assert done.stderr.count("\n") == 1
    assert "s3cret" not in done.stderr


def test_a_missing_table_says_how_to_make_it(cli: Cli) -> None:
    done = cli("stats", "--table", "nowhere")
    assert done.returncode == 1
    assert "outspark init --table nowhere --apply" in done.stderr


def test_several_sources(cli: Cli, outbox: psycopg.Connection[Any], database: Database) -> None:
    cli.ok("init", "--apply", "--table", "other")
    (cli.folder / "outspark.toml").write_text(
        f'[sources.a]\nurl = "{database.url}"\n[sources.b]\nurl = "{database.url}"\ntable = "other"\n',
        encoding="utf-8",
    )
    assert list(cli.json("stats")["sources"]) == ["a", "b"]
    assert list(cli.json("stats", "--source", "b")["sources"]) == ["b"]
    done = cli("dead", "list")
    assert done.returncode == 2
    assert "choose one with --source: a, b" in done.stderr


def test_a_relay_without_a_destination_says_so(cli: Cli) -> None:
    done = cli("relay", "--url", "postgresql://localhost/shop", STORAGE_URL="")
    assert done.returncode == 2
    assert done.stderr.startswith("error: no destination is configured: give --to")
