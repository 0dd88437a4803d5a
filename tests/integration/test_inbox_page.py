"""The page on the inbox works as it stands: its settings, its handlers, its commands, and its service."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nats
import pytest
from typer.testing import CliRunner

from outspark.cli.app import app
from outspark.tools.servers.nats import Nats
from tests.databases import Database
from tests.waiting import wait_for

PAGE = (Path(__file__).parents[2] / "docs" / "inbox.md").read_text()
TABLES = "CREATE TABLE bills (order_number int, total int); CREATE TABLE notes (order_number int, what text)"

pytestmark = pytest.mark.needs("nats")


def block(kind: str, start: str) -> str:
    """The first block of this kind that begins so."""
    found = re.findall(rf"^```{kind}\n({re.escape(start)}.*?)^```", PAGE, re.M | re.S)
    assert found, f"docs/inbox.md has no block of {kind} that begins with {start!r}"
    return str(found[0])


@pytest.fixture
def nats_alone() -> Iterator[Nats]:
    """The page's subjects are not named after a test, so it gets a server of its own."""
    with Nats() as server:
        yield server


@pytest.fixture
def harness(
    database: Database, nats_alone: Nats, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Database]:
    """A working folder with what the page shows, and all that it takes for granted."""
    settings = block("toml", "[inboxes.billing]").replace("nats://localhost:4222", nats_alone.url)
    (tmp_path / "outspark.toml").write_text(settings)
    (tmp_path / "billing").mkdir()
    (tmp_path / "billing" / "handlers.py").write_text(block("python", "# billing/handlers.py"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("DATABASE_URL", database.url)
    database.connect().execute(TABLES)
    yield database
    for name in [name for name in sys.modules if name.split(".")[0] == "billing"]:
        del sys.modules[name]


async def publish(url: str, messages: list[tuple[str, str, dict[str, Any]]]) -> None:
    """Subject, id and payload of each. JetStream looks at another header, and so lets copies through."""
    client = await nats.connect(url)
    jetstream = client.jetstream()
    await jetstream.add_stream(name="ORDERS", subjects=["order.>"])
    for subject, id, payload in messages:
        await jetstream.publish(subject, json.dumps(payload).encode(), headers={"X-Event-ID": id})
    await client.close()


def test_the_page_bills_each_order_once(harness: Database, nats_alone: Nats) -> None:
    init = next(line for line in block("sh", "outspark init").splitlines() if "init" in line)
    done = CliRunner().invoke(app, shlex.split(init, comments=True)[1:])
    assert done.exit_code == 0, done.output
    placed: list[tuple[str, str, dict[str, Any]]] = [
        ("order.placed", f"m{n}", {"order": n, "total": 10 * n}) for n in range(1, 4)
    ]
    others: list[tuple[str, str, dict[str, Any]]] = [
        ("order.paid", "m4", {"order": 1}),
        ("order.placed", "m5", {"order": 9, "total": -1}),
        ("order.placed", "m6", {"order": "nine"}),
    ]
    asyncio.run(publish(nats_alone.url, [*placed, *others, *placed]))
    conn = harness.connect()

    def waiting() -> int:
        row = conn.execute("SELECT count(*) FILTER (WHERE status <> 'pending') FROM inbox_events").fetchone()
        return 6 - row[0] if row else 6

    service: dict[str, Any] = {"__name__": "service"}
    exec(compile(block("python", "# service.py"), "service.py", "exec"), service)
    stopping: threading.Event = service["stopping"]
    try:
        wait_for(lambda: waiting() == 0, timeout=30, what="the end of all events")
    finally:
        stopping.set()
        for thread in service["threads"]:
            thread.join(15)

    assert not any(thread.is_alive() for thread in service["threads"])
    assert conn.execute("SELECT * FROM bills ORDER BY 1").fetchall() == [(1, 10), (2, 20), (3, 30)]
    assert conn.execute("SELECT * FROM notes").fetchall() == [(1, "order.paid")]
    dead = conn.execute("SELECT message_id, last_error FROM inbox_events WHERE status = 'failed' ORDER BY 1")
    [(rejected, why), (unfit, reason)] = dead.fetchall()
    assert (rejected, why) == ("m5", "order 9 has a total of -1")
    assert unfit == "m6"
    assert "Placed" in reason
