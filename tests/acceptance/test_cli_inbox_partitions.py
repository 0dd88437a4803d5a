"""`outspark partitions` as a process: what there is, what one run does, and what it says about it."""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from outspark.contracts.omnibox.table import kind
from tests.acceptance.test_cli_maintenance import Cli
from tests.databases import Database

DAY = timedelta(days=1)
CONFIG = """
[inboxes.billing]
url = "${DATABASE_URL}"
group = "billing"
table = "inbox_events_partitioned"

[inboxes.billing.partitions]
ahead = 2
retention = "7d"
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
    """With a partition that is old and empty."""
    conn = database.connect()
    for statement in kind(inbox=True, partitioned=True).statements():
        conn.execute(statement.encode())
    first = today() - 30 * DAY
    conn.execute(
        "CREATE TABLE old PARTITION OF inbox_events_partitioned"
        f" FOR VALUES FROM ('{first}') TO ('{first + DAY}')".encode()
    )
    return conn


def today() -> datetime:
    return datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)


def names(count: int) -> list[str]:
    return [f"inbox_events_partitioned_p{today() + n * DAY:%Y%m%d}" for n in range(count)]


def test_one_run_by_the_settings(cli: Cli, inbox: psycopg.Connection[Any]) -> None:
    expected = {"created": names(3), "dropped": ["old"], "busy": []}

    assert cli.json("partitions", "keep", "--dry-run") == {**expected, "dry_run": True}
    assert [one["name"] for one in cli.json("partitions", "list")["partitions"]] == ["old"]
    assert "none for the present time" in cli("partitions", "list").stderr
    assert cli.json("partitions", "keep", "--inbox", "billing") == {**expected, "dry_run": False}
    assert cli.ok("partitions", "keep") == "nothing to do\n"


def test_the_list(cli: Cli, inbox: psycopg.Connection[Any]) -> None:
    cli.ok("partitions", "keep")
    inbox.execute("ANALYZE")

    found = cli.json("partitions", "list")

    assert found["table"] == "public.inbox_events_partitioned"
    present = found["partitions"][0]
    assert (present["name"], present["first"], present["present"]) == (names(1)[0], today().isoformat(), True)
    assert (present["rows"], present["bytes"] > 0) == (0, True)
    header, first, *_ = cli.ok("partitions", "list").splitlines()
    assert header.split() == ["partition", "from", "to", "rows", "size"]
    assert first.split()[-1] == "present"


def test_flags_go_over_the_settings(cli: Cli, inbox: psycopg.Connection[Any]) -> None:
    lines = cli.ok("partitions", "keep", "--ahead", "1", "--retention", "60d", "--dry-run").splitlines()
    assert lines == [f"{name} would be created" for name in names(2)]
    hours = cli.json("partitions", "keep", "--every", "hour", "--dry-run")["created"]
    assert len(hours) == 3
    assert all(re.search(r"_p\d{8}_\d\d$", name) for name in hours)
    for wrong in (["--every", "year"], ["--ahead", "0"], ["--retention", "soon"]):
        refused = cli("partitions", "keep", *wrong)
        assert refused.returncode == 2
        assert "must be" in refused.stderr


def test_what_is_in_use_is_left_for_the_next_run(
    cli: Cli, inbox: psycopg.Connection[Any], database: Database
) -> None:
    with psycopg.connect(database.url) as other:
        other.execute("SELECT count(*) FROM inbox_events_partitioned")

        done = cli("partitions", "keep")

    assert done.returncode == 0
    assert done.stdout.splitlines() == [f"{name} created" for name in names(3)]
    assert "old is in use, and left for the next run" in done.stderr
    assert cli.ok("partitions", "keep") == "old dropped\n"


def test_an_outbox_too(cli: Cli, database: Database) -> None:
    conn = database.connect()
    for statement in kind(inbox=False, partitioned=True).statements():
        conn.execute(statement.encode())
    shop = ("--url", database.url, "--contract", "omnibox", "--table", "outbox_events_partitioned")

    assert len(cli.json("partitions", "keep", *shop)["created"]) == 4


def test_a_table_without_partitions_is_refused(cli: Cli, database: Database) -> None:
    conn = database.connect()
    for statement in kind(inbox=True, partitioned=False).statements():
        conn.execute(statement.encode())
    for command in ("list", "keep"):
        refused = cli("partitions", command, "--inbox", "billing", "--table", "inbox_events")

        assert refused.returncode == 1
        assert "table public.inbox_events is not partitioned" in refused.stderr
    cli.ok("init", "--apply", "--url", database.url)
    assert cli("partitions", "keep", "--url", database.url).returncode == 2
