"""When a shift of an inbox ends: told to stop, relieved after its time, or left alone by its database."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, Protocol

import pytest

from outspark.config.inbox import InboxSettings
from outspark.config.settings import HostingSettings, RelaySettings
from outspark.hosting import control
from outspark.hosting.shift import Signals
from outspark.hosting.spec import LEAD
from outspark.inbox.lane import InboxLane, InboxLaneSpec
from outspark.tools.servers.server import HOST, free_port
from tests.databases import Database
from tests.waiting import wait_for

CUT = """\
-- End the sessions of all lanes
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND starts_with(application_name, 'outspark')"""
BATONS = """\
-- Who holds a baton in this database
SELECT l.pid FROM pg_locks l JOIN pg_database d ON d.oid = l.database
WHERE l.locktype = 'advisory' AND l.granted AND d.datname = current_database()"""


def spec_of(
    url: str, shift: int = 0, *, length: str = "600s", lane: int = 0, task: Any = "consume"
) -> InboxLaneSpec:
    hosting = HostingSettings.model_validate({"shift": length})
    inbox = InboxSettings.model_validate({"url": url, "group": "billing"})
    return InboxLaneSpec(
        hosting=hosting,
        relay=RelaySettings(id="test"),
        instance="i",
        lane=lane,
        shift=shift,
        name="billing",
        settings=inbox,
        task=task,
        number=lane,
    )


class Begin(Protocol):
    def __call__(self, shift: int = 0, *, length: str = "600s", lane: int = 0) -> Signals: ...


@pytest.fixture
def begin(database: Database) -> Iterator[Begin]:
    """Begins shifts that hear what is said; they are closed at the end."""
    with ExitStack() as stack:

        def start(shift: int = 0, *, length: str = "600s", lane: int = 0) -> Signals:
            signals = Signals(spec_of(database.url, shift, length=length, lane=lane), database.url, "take 0")
            stack.callback(signals.close)
            assert not signals.is_set()
            return signals

        yield start


def say(database: Database, message: str) -> None:
    control.notify(database.connect(), spec_of(database.url).channel, message)


def test_it_is_told_to_stop(begin: Begin, database: Database) -> None:
    signals = begin()

    say(database, control.STOP)

    wait_for(signals.is_set)
    assert (signals.stopped, signals.relieved) == (True, False)


def test_a_wait_ends_when_something_is_said(begin: Begin, database: Database) -> None:
    signals = begin()
    started = time.monotonic()
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(signals.wait, 60)
        say(database, control.STOP)

        assert waiting.result(10)
    assert time.monotonic() - started < 30


def test_a_wait_ends_by_itself(begin: Begin) -> None:
    assert begin().wait(0.05) is False


def test_whoever_hosts_it_may_end_it(database: Database) -> None:
    signals = Signals(spec_of(database.url), database.url, "take 0", lambda: True)

    assert signals.is_set()
    assert not signals.stopped
    signals.close()


def test_relief_counts_only_after_its_time(begin: Begin) -> None:
    first = begin()

    begin(1).announce_ready()

    wait_for(lambda: first.is_set() or first.relieved)
    assert not first.is_set()


def test_it_works_on_until_it_is_relieved(begin: Begin) -> None:
    first = begin(length="50ms")
    assert first.wait(LEAD + 0.5) is False

    begin(1).announce_ready()

    wait_for(first.is_set)
    assert (first.stopped, first.relieved) == (False, True)


@pytest.mark.parametrize(
    ("shift", "lane"), [(4, 1), (3, 0), (2, 0)], ids=["another lane", "itself", "earlier"]
)
def test_only_the_next_shift_of_the_lane_is_relief(begin: Begin, shift: int, lane: int) -> None:
    signals = begin(3)

    begin(shift, lane=lane).announce_ready()

    # What was said first is heard first.
    begin(9, lane=7).announce_ready()
    signals.wait(0.3)
    assert not signals.relieved


def test_the_baton_is_handed_over(begin: Begin) -> None:
    first, second = begin(1), begin(2)
    assert first.take_baton()
    assert first.take_baton()
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(second.take_baton)
        assert not first.wait(0.2)
        assert not waiting.done()

        first.close()

        assert waiting.result(10)


def test_lanes_have_batons_of_their_own(begin: Begin) -> None:
    assert begin(lane=0).take_baton()
    assert begin(lane=1).take_baton()


def test_a_shift_that_is_stopped_takes_no_baton(begin: Begin, database: Database) -> None:
    first, second = begin(1), begin(2)
    assert first.take_baton()
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(second.take_baton)
        say(database, control.STOP)

        assert waiting.result(10) is False


def test_nobody_needs_the_baton_of_who_was_killed(begin: Begin, database: Database) -> None:
    first, second = begin(1), begin(2)
    assert first.take_baton()
    conn = database.connect()
    [killed] = conn.execute(BATONS).fetchall()

    conn.execute("SELECT pg_terminate_backend(%s)", killed)

    assert second.take_baton()
    [holder] = conn.execute(BATONS).fetchall()
    assert holder != killed


@pytest.mark.faults
def test_it_hears_again_after_its_session_was_lost(begin: Begin, database: Database) -> None:
    signals = begin()

    database.connect().execute(CUT)

    def told() -> bool:
        say(database, control.STOP)
        return signals.is_set()

    wait_for(told)
    assert signals.stopped


@pytest.mark.faults
def test_a_shift_ends_in_time_when_its_database_is_away() -> None:
    nowhere = f"postgresql://{HOST}:{free_port()}/nowhere"
    signals = Signals(spec_of(nowhere, length="50ms"), nowhere, "take 0")
    assert not signals.is_set()

    signals.announce_ready()
    assert signals.take_baton() is False

    assert signals.is_set()
    assert (signals.stopped, signals.relieved) == (False, False)
    signals.close()


@pytest.mark.faults
def test_a_lane_without_a_database_ends_in_time() -> None:
    """It must not keep a task for ever: the driver hosts it again."""
    spec = spec_of(f"postgresql://{HOST}:{free_port()}/nowhere", length="50ms")

    report = InboxLane(spec).run()

    assert (report.lane, report.stopped) == (0, False)
