"""Several hosts in a URL, the first of them a standby: all work goes to the one that can be written to."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg
import pytest
from typer.testing import CliRunner

from outspark.cli.app import app
from outspark.config.settings import Settings
from outspark.hosting import process
from outspark.relay.spec import assign_slots
from outspark.spark.databases import Databases
from outspark.spark.watchdog import HANGING, prefix, watch_lane
from outspark.tools.servers.postgres import Postgres
from tests.databases import Database
from tests.integration.relay.harness import open_harness
from tests.waiting import wait_for


@pytest.fixture
def hosts() -> Iterator[str]:
    """A URL that names a standby, and then the server that it is a copy of."""
    with TemporaryDirectory() as folder:
        # The servers run as a user of their own where the tests run as root.
        Path(folder).chmod(0o755)
        first, copy = Path(folder, "primary"), Path(folder, "standby")
        with Postgres(first):
            pass
        shutil.copytree(first, copy)
        (copy / "standby.signal").touch()
        for path in (copy, *copy.rglob("*")):
            shutil.chown(path, first.owner(), first.group())
        with Postgres(first) as primary, Postgres(copy) as standby:
            yield f"postgresql://postgres@127.0.0.1:{standby.port},127.0.0.1:{primary.port}/postgres"


def test_work_goes_to_the_host_that_can_be_written_to(hosts: str) -> None:
    with closing(Database(f"{hosts}?target_session_attrs=read-write")) as database:
        harness = open_harness(database)
        harness.enqueue("one", key="k")
        harness.source["url"] = hosts

        harness.work_to_the_end()
        assert harness.broker.delivered() == ["one"]

        driver = Databases("driver")
        with driver.use(hosts) as conn:
            assert _writable(conn)
        driver.close()
        done = CliRunner().invoke(app, ["reap", "--url", hosts])
        assert done.exit_code == 0, done.output
        process.discard(hosts)


def test_a_lane_that_hangs_says_so_where_its_driver_looks(hosts: str) -> None:
    settings = {
        "relay": {"id": "test"},
        "hosting": {"lanes": 1, "stuck_after": "500ms"},
        "sources": {"default": {"url": hosts, "lease_timeout": "100ms"}},
    }
    [lane] = assign_slots(Settings.model_validate(settings), "run", {})
    driver = Databases("driver")

    with watch_lane(lane, lambda: None):
        found = wait_for(
            lambda: driver.query({"default": hosts}, HANGING, {"prefix": prefix(lane)}), what="a place"
        )
    driver.close()

    assert len(found) == 1


def _writable(conn: psycopg.Connection) -> bool:
    row = conn.execute("SELECT NOT pg_is_in_recovery()").fetchone()
    return row is not None and bool(row[0])
