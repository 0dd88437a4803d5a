"""A lane that is at work moves, however long its batches take, and is not taken for one that hangs."""

from __future__ import annotations

import multiprocessing
import threading
from contextlib import closing
from itertools import pairwise
from multiprocessing.process import BaseProcess
from typing import Any

import psycopg

from outspark import contracts
from outspark.config.settings import LogSettings, Settings
from outspark.database.names import TableName
from outspark.event import Event
from outspark.hosting import control, process
from outspark.inbox import InboxEvent, Router
from outspark.inbox.lane import InboxLaneSpec, inbox_lanes
from outspark.outbox.openoutbox import NewEvent, Outbox
from outspark.relay.lane import Lane
from outspark.relay.spec import assign_slots
from outspark.spark.task import host
from tests.databases import Database
from tests.integration.inbox.harness import Harness, messages, open_harness, write
from tests.waiting import wait_for

router = Router()
happened: list[str] = []


@router.otherwise
def slow(event: InboxEvent, conn: psycopg.Connection[Any]) -> None:
    conn.execute("SELECT pg_sleep(%s)", [4.0 if event.message_id == "long" else 0.15])
    write(conn, event.message_id)


def note(event: Event) -> Event:
    """The transform of the relay's sources."""
    happened.append("work")
    return event


def run_shift(spec: InboxLaneSpec) -> None:
    """What a worker process of Spark does."""
    for _ in host(spec, LogSettings(), iter(())):
        pass


def worker_process(harness: Harness) -> tuple[InboxLaneSpec, BaseProcess]:
    inbox = {"url": harness.database.url, "group": "billing", "app": f"{__name__}:router"}
    hosting = {"lanes": 1, "stuck_after": "1s", "shift": "60s"}
    settings = Settings.model_validate(
        {"relay": {"id": "test"}, "hosting": hosting, "inboxes": {"bills": inbox}}
    )
    [spec] = inbox_lanes(settings, ["bills"], ["handle"], "run", {})
    process = multiprocessing.get_context("spawn").Process(target=run_shift, args=[spec])
    process.start()
    return spec, process


def test_slow_handlers_end_no_process(database: Database) -> None:
    """A batch of 20 takes 3 s and a single handler 4 s; a lane that hangs is given up after 2 s."""
    with closing(open_harness(database)) as harness:
        harness.accept(*messages([*(f"m{n:02}" for n in range(20)), "long"]))
        spec, process = worker_process(harness)
        try:
            wait_for(lambda: not harness.waiting() or not process.is_alive(), timeout=60, what="all events")
            assert process.exitcode is None
            control.notify(harness.conn, spec.channel, control.STOP)
            process.join(30)
        finally:
            process.kill()
            process.join()
        assert process.exitcode == 0
        assert len(harness.effects()) == 21


def test_a_relay_moves_from_source_to_source(database: Database) -> None:
    conn, names = database.connect(), ("one", "two", "three")
    for name in names:
        for statement in contracts.get("openoutbox").statements(TableName(name)):
            conn.execute(statement.encode())
        Outbox(name).enqueue(conn, NewEvent("order", b""))
    sources = {name: {"url": database.url, "table": name, "transform": f"{__name__}:note"} for name in names}
    settings = {"relay": {"id": "test"}, "hosting": {"lanes": 1}, "sources": sources}
    [spec] = assign_slots(
        Settings.model_validate({**settings, "destinations": {"a": {"type": "null"}}}), "run", {}
    )
    done = threading.Event()
    happened.clear()

    def moved() -> None:
        happened.append("move")
        if happened.count("work") == len(names):
            done.set()

    Lane(spec).run(done.is_set, moved)
    process.close()

    assert happened.count("work") == len(names)
    assert ("work", "work") not in pairwise(happened)
