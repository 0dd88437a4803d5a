"""What no waiting can mend: the relay says what is wrong and what to do, and ends before Spark starts."""

from __future__ import annotations

import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.acceptance.relay_process import CLI, START, StartRelay, clean_environ
from tests.databases import Database
from tests.waiting import wait_for

pytestmark = pytest.mark.needs("spark")

LOCKS = """\
SELECT count(*) FROM pg_locks JOIN pg_database d ON d.oid = database
WHERE locktype = 'advisory' AND datname = current_database()"""


@dataclass(frozen=True, slots=True)
class Outspark:
    """The program, with a database to work on."""

    folder: Path
    url: str

    def __call__(self, *args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*CLI, *args],
            cwd=self.folder,
            env={**clean_environ(), "OUTSPARK__SERVER__PORT": "0"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def relay(self, *args: str) -> subprocess.CompletedProcess[str]:
        return self("relay", "--url", self.url, "--to", "null", "--until-empty", *args)

    def init(self) -> None:
        assert self("init", "--url", self.url, "--apply").returncode == 0


@pytest.fixture
def outspark(database: Database, tmp_path: Path) -> Outspark:
    return Outspark(tmp_path, database.url)


def test_an_unknown_key(outspark: Outspark) -> None:
    config = outspark.folder / "mine.toml"
    config.write_text("[hosting]\nlanez = 4\n")
    done = outspark.relay("--config", str(config))
    assert done.returncode == 2
    assert "hosting.lanez" in done.stderr
    assert "did you mean lanes?" in done.stderr
    assert "Traceback" not in done.stderr


def test_nowhere_to_send_to(outspark: Outspark) -> None:
    done = outspark("relay", "--url", outspark.url)
    assert done.returncode == 2
    assert "no destination is configured" in done.stderr


def test_wrong_options_of_a_destination(outspark: Outspark) -> None:
    config = outspark.folder / "mine.toml"
    config.write_text(
        '[destinations.bus]\ntype = "nats"\nurl = "nats://127.0.0.1:1"\noptions = { strem = "orders" }\n'
    )
    done = outspark("relay", "--url", outspark.url, "--config", str(config))
    assert done.returncode == 2
    assert "destinations.bus.options: strem" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_missing_database(outspark: Outspark) -> None:
    done = outspark("relay", "--url", f"{outspark.url.rpartition('/')[0]}/none", "--to", "null")
    assert done.returncode == 3
    lines = [line for line in done.stderr.splitlines() if " INFO " not in line]
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("error: source 'default': connection failed: ")
    assert 'database "none" does not exist' in lines[0]


def test_an_inbox_in_a_missing_database(outspark: Outspark) -> None:
    config = outspark.folder / "mine.toml"
    config.write_text(
        f'[inboxes.billing]\nurl = "{outspark.url.rpartition("/")[0]}/none"\ngroup = "billing"\n'
        '[inboxes.billing.feed]\ntype = "nats"\nurl = "nats://127.0.0.1:1"\ntopics = ["a"]\n'
    )
    done = outspark("inbox", "consume", "--config", str(config))
    assert done.returncode == 3
    lines = [line for line in done.stderr.splitlines() if " INFO " not in line]
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("error: inbox 'billing': connection failed: ")


MISSING = """
import sys
for name in ("pyspark", "uvicorn", "nats", "aio_pika"):
    sys.modules[name] = None
from outspark.cli import main
main()
"""


def test_all_that_is_not_installed_is_named_at_once(outspark: Outspark) -> None:
    config = outspark.folder / "mine.toml"
    config.write_text(
        '[destinations.bus]\ntype = "nats"\nurl = "nats://127.0.0.1:1"\n'
        '[destinations.old]\ntype = "rabbitmq"\nurl = "amqp://127.0.0.1:1"\n'
        '[destinations.log]\ntype = "stdout"\n[[routes]]\ndestination = ["bus", "old", "log"]\n'
    )
    done = subprocess.run(
        [sys.executable, "-c", MISSING, "relay", "--url", outspark.url, "--config", str(config)],
        cwd=outspark.folder,
        env=clean_environ(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == (
        "error: the relay, the server, a destination of type nats and a destination of type rabbitmq need packages "
        "that are not installed; run: pip install 'outspark[spark,server,nats,rabbitmq]'\n"
    )


def test_a_missing_table(outspark: Outspark) -> None:
    done = outspark.relay()
    assert done.returncode == 1
    assert "there is no table openoutbox_events" in done.stderr
    assert "outspark init --table openoutbox_events --apply" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_missing_column(outspark: Outspark, database: Database) -> None:
    outspark.init()
    database.connect().execute("ALTER TABLE openoutbox_events DROP COLUMN locked_by")
    done = outspark.relay()
    assert done.returncode == 1
    assert "locked_by" in done.stderr
    assert "ALTER TABLE" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_missing_index_is_only_a_warning(
    outspark: Outspark, database: Database, start_relay: StartRelay
) -> None:
    outspark.init()
    conn = database.connect()
    [(index,), *_] = conn.execute(
        "SELECT indexname FROM pg_indexes WHERE tablename = 'openoutbox_events' AND indexdef LIKE '%PENDING%'"
    ).fetchall()
    conn.execute(f'DROP INDEX "{index}"'.encode())
    relay = start_relay("--url", database.url, "--to", "null")
    relay.await_log(index)
    assert "CREATE INDEX" in relay.log
    assert relay.running


def test_a_port_in_use(outspark: Outspark) -> None:
    outspark.init()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = outspark.relay("--port", str(taken.getsockname()[1]))
    assert done.returncode == 2
    assert "server.port" in done.stderr
    assert "Traceback" not in done.stderr


def test_two_relays_with_one_id_are_only_warned_of(
    outspark: Outspark, database: Database, start_relay: StartRelay
) -> None:
    outspark.init()
    same = ("--url", database.url, "--to", "null")
    first = start_relay(*same, environ={"OUTSPARK__RELAY__ID": "twin"})
    locks = database.connect()
    wait_for(
        lambda: locks.execute(LOCKS).fetchone() == (1,),
        timeout=START,
        what="the first relay's lock on its id",
    )
    second = start_relay(*same, environ={"OUTSPARK__RELAY__ID": "twin"})
    second.await_log("another relay with this id is at work on this database")
    assert first.running
    assert second.running
