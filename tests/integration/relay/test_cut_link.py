"""A machine that vanishes: its link is cut with data on the way, and nobody is told."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import pairwise

import psycopg
import pytest

from outspark.database import conninfo
from outspark.database.session import connect
from outspark.hosting import process
from outspark.spark.databases import Databases
from outspark.tools.servers.postgres import Postgres
from tests import netns
from tests.databases import Database
from tests.integration.relay.harness import Harness, open_harness
from tests.waiting import wait_for

pytestmark = pytest.mark.needs("netns")

SILENCE = 3
"""Seconds without a sign after which a connection is given up in these tests."""
LOCK = "SELECT pg_advisory_lock(4711)"
LOCKED = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 4711"


@dataclass(slots=True)
class InboxHarness:
    """A server at each end of the link; the test is at the near end."""

    link: netns.Link
    near: Postgres
    far: Postgres

    @property
    def far_url(self) -> str:
        return self.far.url().replace("127.0.0.1", netns.FAR)

    def beside_far(self) -> psycopg.Connection:
        """A connection that no cut touches."""
        with self.link.inside("far"):
            return psycopg.connect(self.far.url(), autocommit=True)


@contextmanager
def _server(link: netns.Link, end: str) -> Iterator[Postgres]:
    with link.inside(end):
        server = Postgres(options={"listen_addresses": "*", "fsync": "off"}).start()
        with (server.folder / "pg_hba.conf").open("a") as rules:
            rules.write("host all all 10.213.0.0/16 trust\n")
        with psycopg.connect(server.url()) as conn:
            conn.execute("SELECT pg_reload_conf()")
    with server:
        yield server


@pytest.fixture
def inbox_harness(monkeypatch: pytest.MonkeyPatch) -> Iterator[InboxHarness]:
    monkeypatch.setattr(conninfo, "PEER_TIMEOUT", SILENCE, raising=False)
    with (
        netns.open_link() as link,
        _server(link, "near") as near,
        _server(link, "far") as far,
        link.inside("near"),
    ):
        yield InboxHarness(link, near, far)
        for url in list(process._connections):
            process.discard(url)


def test_the_server_lets_go_of_the_locks_of_a_client_that_vanished(inbox_harness: InboxHarness) -> None:
    with (
        closing(inbox_harness.beside_far()) as beside,
        closing(connect(inbox_harness.far_url, "a lane")) as lane,
    ):
        lane.execute(LOCK)
        lane.pgconn.send_query(b"SELECT pg_sleep(0.5)")
        lane.pgconn.flush()
        inbox_harness.link.cut()

        wait_for(
            lambda: beside.execute(LOCKED).fetchone() == (0,), timeout=SILENCE + 8, what="the lock's end"
        )


def test_a_lane_goes_on_at_the_second_host(inbox_harness: InboxHarness) -> None:
    with _places(inbox_harness) as (far, near):
        far.enqueue("at the first", key="k")
        near.enqueue("at the second", key="k")
        url = f"postgresql://postgres@{netns.FAR}:{inbox_harness.far.port},127.0.0.1:{inbox_harness.near.port}/postgres"
        far.source["url"] = f"{url}?connect_timeout=2"

        far.work(
            _cut_after(inbox_harness, lambda: far.broker.delivered() == ["at the first"], near), timeout=20
        )
        assert far.broker.delivered() == ["at the first", "at the second"]


def test_a_database_that_vanished_does_not_hold_up_another_one(inbox_harness: InboxHarness) -> None:
    with _places(inbox_harness) as (far, near):
        far.source["url"] = inbox_harness.far_url
        far.more_sources["near"] = {"url": near.database.url}
        far.enqueue("far", key="k")
        rounds: list[float] = []

        def done() -> bool:
            if far.broker.delivered() == ["far"]:
                inbox_harness.link.cut()
                near.enqueue("near", key="k")
            if "near" in far.broker.delivered():
                # What was under way when the link was cut is given up: from here on there are only connects.
                rounds.append(time.monotonic())
            return bool(rounds) and rounds[-1] > rounds[0] + 2.5 * SILENCE

        far.work(done, timeout=30)
        # The end comes although a connect is still under way.
        rounds.append(time.monotonic())
        assert max(after - before for before, after in pairwise(rounds)) < SILENCE / 2


def test_the_driver_reaches_one_database_while_another_has_vanished(inbox_harness: InboxHarness) -> None:
    urls = {"far": inbox_harness.far_url, "near": inbox_harness.near.url()}
    driver = Databases("driver")
    with closing(psycopg.connect(inbox_harness.near.url(), autocommit=True)) as ear:
        ear.execute("LISTEN lanes")
        inbox_harness.link.cut()
        saying = threading.Thread(target=driver.send_stop, args=(urls, "lanes"))
        saying.start()
        heard = [notify.payload for notify in ear.notifies(timeout=SILENCE / 2, stop_after=1)]
        saying.join()
        driver.close()
    assert heard == ["stop"]


def _cut_after(
    inbox_harness: InboxHarness, condition: Callable[[], bool], other: Harness
) -> Callable[[], bool]:
    cut = False

    def done() -> bool:
        nonlocal cut
        if not cut and condition():
            inbox_harness.link.cut()
            cut = True
        return cut and not other.waiting()

    return done


@contextmanager
def _places(inbox_harness: InboxHarness) -> Iterator[tuple[Harness, Harness]]:
    """At the far end, and at the near one."""
    with inbox_harness.link.inside("far"):
        far = open_harness(Database(inbox_harness.far.url()))
    near = open_harness(Database(inbox_harness.near.url()))
    yield far, near
    far.database.close()
    near.database.close()
