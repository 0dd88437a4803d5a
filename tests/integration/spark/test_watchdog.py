"""A lane that hangs is named in the database with the place where it hangs, until it moves again."""

from __future__ import annotations

import threading

from outspark import contracts
from outspark.config.settings import Settings
from outspark.database.names import TableName
from outspark.event import Event
from outspark.hosting import process
from outspark.outbox.openoutbox import NewEvent, Outbox
from outspark.relay.lane import Lane
from outspark.relay.spec import RelayLaneSpec, assign_slots
from outspark.spark.databases import Databases
from outspark.spark.watchdog import HANGING, SILENT, prefix, watch_lane
from tests.databases import Database
from tests.waiting import wait_for

let_go, done, given_up = threading.Event(), threading.Event(), threading.Event()


def hang(event: Event) -> Event:
    """The transform of the lane."""
    let_go.wait()
    return event


def spec(url: str) -> RelayLaneSpec:
    settings = {
        "relay": {"id": "test"},
        "hosting": {"lanes": 1, "stuck_after": "1s"},
        "sources": {"default": {"url": url, "transform": f"{__name__}:hang", "lease_timeout": "1s"}},
        "destinations": {"default": {"type": "null", "publish_timeout": "500ms"}},
    }
    [lane] = assign_slots(Settings.model_validate(settings), "run", {})
    return lane


def work(lane: RelayLaneSpec) -> None:
    with watch_lane(lane, given_up.set) as moved:
        Lane(lane).run(done.is_set, moved)
    process.close()


def test_the_place_is_told_as_long_as_the_lane_hangs(database: Database) -> None:
    conn = database.connect()
    for statement in contracts.get("openoutbox").statements(TableName("openoutbox_events")):
        conn.execute(statement.encode())
    Outbox().enqueue(conn, NewEvent("order", b""))
    lane, databases = spec(database.url), Databases("driver")

    def told() -> list[str]:
        return databases.query({"default": database.url}, HANGING, {"prefix": prefix(lane)})

    thread = threading.Thread(target=work, args=[lane])
    thread.start()
    try:
        [harness] = wait_for(told, timeout=30, what="a place")
        silent = {"class": lane.baton[0], "lane": lane.lane, "seconds": 1}
        [after] = wait_for(
            lambda: databases.query({"default": database.url}, SILENT, silent), what="a silent lane"
        )
        assert databases.query({"default": database.url}, SILENT, silent | {"seconds": 60}) == []
        assert given_up.wait(30)
        let_go.set()
        wait_for(lambda: not told(), what="an end of it")
    finally:
        let_go.set()
        done.set()
        thread.join()
        databases.close()
    assert len(after) > len("an unknown place after: ")
    assert harness.startswith("test_watchdog.py:")
    assert harness.endswith(" hang")
