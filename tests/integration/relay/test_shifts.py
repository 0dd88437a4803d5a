"""From one shift to the next, from one relay to another, and after an end that was not meant to be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from outspark.event import Message
from outspark.outcome import Outcome
from tests.databases import Database
from tests.history.checker import check
from tests.history.harness import Draft, open_harness
from tests.integration.relay.harness import Broker, Harness
from tests.waiting import wait_for

CUT = """\
-- End the session of the lane
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND starts_with(application_name, 'outspark')"""


@pytest.mark.parametrize("lease", ["row", "slot"])
def test_a_hand_over_under_a_trickle_loses_and_doubles_nothing(
    lease: str, database: Database, tmp_path: Path
) -> None:
    with open_harness(
        database, tmp_path, hosting={"lanes": 1, "shift": "300ms"}, source={"lease": lease}
    ) as harness:
        relay = harness.relay()

        def trickle() -> bool:
            relay.tick()
            harness.write(Draft("k"), Draft(None))
            processes = {entry.process for entry in harness.entries()}
            return len(processes) >= 4

        wait_for(trickle, timeout=30, what="the fourth shift")
        wait_for(harness.finished)
        relay.stop()

        history = harness.history()
        assert check(history) == []
        deliveries = Counter(entry.event for entry in history.entries if entry.deed == "delivered")
        assert set(deliveries.values()) == {1}
        assert harness.query("SELECT bool_and(clean) FROM outspark_slots") == [(True,)]


def test_two_relays_with_the_same_id_stay_apart(database: Database, tmp_path: Path) -> None:
    with open_harness(database, tmp_path, relay={"id": "twin"}, hosting={"lanes": 1}) as harness:
        first, second = harness.relay(), harness.relay()
        harness.write(*(Draft(f"k{number % 5}") for number in range(50)))
        wait_for(harness.finished)
        first.stop()
        harness.write(*(Draft(f"k{number % 5}") for number in range(50)))
        wait_for(harness.finished)
        second.stop()

        assert check(harness.history()) == []


def test_an_exception_in_a_batch_is_no_clean_end(leased: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was in flight is adopted, and its key does not go on without it."""
    leased.source["batch_size"] = 1
    leased.enqueue("a", "b", key="k")
    publish = Broker.publish

    def interrupt(self: Broker, messages: Sequence[Message], timeout: float) -> list[Outcome]:
        raise KeyboardInterrupt

    monkeypatch.setattr(Broker, "publish", interrupt)
    with pytest.raises(KeyboardInterrupt):
        leased.work_to_the_end()
    monkeypatch.setattr(Broker, "publish", publish)

    leased.work_to_the_end()

    assert leased.broker.delivered() == ["a", "b"]
    assert leased.states() == {"a": ("DELIVERED", 1), "b": ("DELIVERED", 0)}


def test_a_session_lost_in_the_middle_of_a_batch_is_made_good(
    leased: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    leased.enqueue("a", "b", key="k")
    publish = Broker.publish

    def cut(self: Broker, messages: Sequence[Message], timeout: float) -> list[Outcome]:
        if not self.batches:
            leased.ask(CUT)
        return publish(self, messages, timeout)

    monkeypatch.setattr(Broker, "publish", cut)

    leased.work_to_the_end()

    # Delivered, but not settled: it comes again before the rest of its key goes on.
    assert leased.broker.delivered() in (["a", "b", "a", "b"], ["a", "a", "b"])
    assert leased.states()["a"] == ("DELIVERED", 1)


def test_noise_on_the_channel_hurts_nobody(harness: Harness) -> None:
    with harness.working() as lane:
        wait_for(lambda: lane.sessions and lane.sessions[0].holds_baton)
        for payload in ("", "ready", "ready one two", "ready 0", "free"):
            harness.conn.execute("SELECT pg_notify(%s, %s)", [lane.spec.channel, payload])
        harness.enqueue("a")
        wait_for(lambda: harness.broker.arrived)
