"""Each program of `examples/` runs as its README says, on real servers, and what it writes arrives."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nats
import pyspark
import pytest

from outspark.config.loading import load
from outspark.config.settings import Settings
from outspark.relay.lane import Lane
from outspark.relay.spec import assign_slots
from outspark.spark.java import java_home
from outspark.tools.servers.nats import Nats
from tests.acceptance.relay_process import CLI, START, StartRelay, clean_environ
from tests.databases import Database
from tests.waiting import wait_for

EXAMPLES = Path(__file__).parents[2] / "examples"
SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
RECOVERY = 30.0


class Shell:
    """Runs what the README shows, in the folder of an example."""

    def __init__(self, folder: Path, database: Database, **environ: str) -> None:
        self.folder = folder
        root = str(EXAMPLES.parent)
        self.environ = {**clean_environ(), "PYTHONPATH": root, "DATABASE_URL": database.url, **environ}

    def run(self, *command: str, ends_with: int = 0, timeout: float = START) -> str:
        done = subprocess.run(
            command,
            check=False,
            cwd=self.folder,
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        assert done.returncode == ends_with, done.stderr + done.stdout
        return done.stdout

    def python(self, *args: str, ends_with: int = 0) -> str:
        return self.run(sys.executable, *args, ends_with=ends_with)

    def outspark(self, *args: str, timeout: float = START) -> str:
        return self.run(*CLI, *args, timeout=timeout)

    @contextmanager
    def serving(self, *command: str) -> Iterator[subprocess.Popen[bytes]]:
        process = subprocess.Popen(command, cwd=self.folder, env=self.environ)
        try:
            yield process
        finally:
            process.terminate()
            process.wait(RECOVERY)


def run_lane(settings: Settings, until: Callable[[], bool]) -> None:
    """One lane in this process: what `outspark relay` hosts on Spark, without the start of a JVM."""
    [spec] = assign_slots(settings, "examples", {})
    wait = iter(range(100_000))
    Lane(spec).run(lambda: until() or next(wait, None) is None)


def relayed(database: Database, file: Path, count: int, **source: str) -> list[dict[str, Any]]:
    """What the relay prints until it printed so many events."""
    config = file.with_suffix(".toml")
    keys = "".join(f"{key} = {json.dumps(value)}\n" for key, value in {"url": database.url, **source}.items())
    out = f'[destinations.out]\ntype = "stdout"\noptions = {{ path = {json.dumps(str(file))} }}\n'
    config.write_text(f"[hosting]\nlanes = 1\n[sources.shop]\n{keys}{out}")
    run_lane(load(config, {}), lambda: len(lines(file)) >= count)
    return lines(file)


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def told(events: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(event["topic"], event["key"], json.loads(event["payload"])) for event in events]


def test_psycopg(database: Database, tmp_path: Path) -> None:
    shell = Shell(EXAMPLES.parent, database)
    shell.outspark("init", "--apply", "--url", database.url)
    assert shell.python("examples/psycopg_service.py") == "placed o-1\n"
    shell.python("examples/psycopg_service.py", "fail", ends_with=1)

    assert told(relayed(database, tmp_path / "events", 2)) == [
        ("order.placed", "c-7", {"order": "o-1", "total": 42}),
        ("invoice.requested", "c-7", {"order": "o-1"}),
    ]
    assert database.connect().execute("SELECT id FROM orders").fetchall() == [("o-1",)]
    assert database.connect().execute("SELECT count(*) FROM openoutbox_events").fetchone() == (2,)


def test_sqlalchemy_and_alembic(database: Database, tmp_path: Path) -> None:
    shell = Shell(EXAMPLES / "sqlalchemy_alembic", database)
    shell.python("-m", "alembic", "upgrade", "head")
    assert "No new upgrade operations detected" in shell.python("-m", "alembic", "check")
    assert shell.python("shop.py") == "placed o-1\n"

    events = relayed(database, tmp_path / "events", 1, table="order_events")
    assert told(events) == [("order.placed", "c-7", {"order": "o-1", "total": 42})]

    shell.python("-m", "alembic", "downgrade", "base")
    assert database.connect().execute("SELECT to_regclass('order_events')").fetchone() == (None,)


def test_jeap(database: Database, tmp_path: Path) -> None:
    shell = Shell(EXAMPLES.parent, database)
    shell.outspark("init", "--contract", "jeap", "--apply", "--url", database.url)
    [sent] = shell.python("examples/jeap_service.py").splitlines()
    assert (json.loads(sent)["topic"], json.loads(sent)["payload"]) == (
        "shop-order-placed",
        '{"order": "o-1"}',
    )

    [event] = relayed(database, tmp_path / "events", 1, contract="jeap")
    assert (event["topic"], event["payload"]) == ("shop-order-archive", '{"order": "o-1"}')


@pytest.mark.needs("nats")
def test_fastapi(database: Database, nats_server: Nats) -> None:
    pytest.importorskip("fastapi")
    folder = EXAMPLES / "fastapi_service"
    shell = Shell(folder, database, NATS_URL=nats_server.url)
    asyncio.run(open_stream(nats_server.url))
    shell.outspark("init", "--apply")
    shell.outspark("init", "--inbox", "--apply")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with shell.serving(sys.executable, "-m", "uvicorn", "app:app", "--port", str(port)) as service:
        wait_for(lambda: ask("GET", f"{url}/bills/o-1") == (404, None), timeout=START, what="the service")
        assert ask("POST", f"{url}/orders/o-1?total=42") == (201, None)
        settings = load(folder / "outspark.toml", shell.environ, {"hosting.lanes": 1})
        run_lane(settings, lambda: ask("GET", f"{url}/bills/o-1") == (200, {"total": 42}))
        assert service.poll() is None
    assert database.connect().execute("SELECT status FROM inbox_events").fetchall() == [("completed",)]
    assert service.returncode in (0, -15)


async def open_stream(url: str) -> None:
    client = await nats.connect(url)
    await client.jetstream().add_stream(name="examples", subjects=["order.>"])
    await client.close()


def ask(method: str, url: str) -> tuple[int, Any]:
    """Status 0 while the service does not answer; what it says about an error is left out."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=10) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, None
    except OSError:
        return 0, None


@pytest.mark.needs("spark")
@pytest.mark.timeout(3 * START)
def test_cluster(database: Database, tmp_path: Path, start_relay: StartRelay) -> None:
    port, events = free_port(), tmp_path / "events"
    master = f"spark://127.0.0.1:{port}"
    places = {
        "SPARK_HOME": str(SPARK_CLASS.parents[1]),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "JAVA_HOME": str(java_home()),
    }
    environ = {**places, "SPARK_MASTER": master, "EVENTS": str(events)}
    shell = Shell(EXAMPLES / "cluster", database, **environ)
    deploy = "org.apache.spark.deploy"
    own = ["--host", "127.0.0.1", "--webui-port", "0"]
    size = ["--cores", "4", "--memory", "2g", "--work-dir", str(tmp_path / "work")]
    with (
        shell.serving(str(SPARK_CLASS), f"{deploy}.master.Master", *own, "--port", str(port)),
        shell.serving(str(SPARK_CLASS), f"{deploy}.worker.Worker", *own, *size, master),
    ):
        shell.outspark("init", "--apply")
        assert shell.python("place_orders.py", "1000") == "placed 1000 orders\n"
        config = str(shell.folder / "outspark.toml")
        relay = start_relay("--config", config, "--until-empty", environ=shell.environ)
        assert relay.wait(2 * START) == 0

    by_customer: dict[str, list[int]] = {}
    for _, customer, payload in told(lines(events)):
        by_customer.setdefault(customer, []).append(payload["order"])
    assert by_customer == {f"c-{n}": list(range(n, 1000, 10)) for n in range(10)}
    assert len(os.listdir(tmp_path / "work")) == 1


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
