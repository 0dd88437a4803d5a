"""What becomes of an event after each outcome, in the table and for the rest of its key."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from psycopg.types.json import Jsonb

from outspark.event import Event, Message
from outspark.outcome import Dead, Outcome, Retry
from tests.integration.relay.harness import Broker, Harness

FAILED = Retry("no luck")


def test_delivered(leased: Harness) -> None:
    leased.enqueue("a", "b", key="k")
    leased.enqueue("c")

    leased.work_to_the_end()

    assert sorted(leased.broker.delivered()) == ["a", "b", "c"]
    assert leased.states() == dict.fromkeys("abc", ("DELIVERED", 0))
    query = "SELECT count(*) FROM openoutbox_events WHERE delivered_at IS NOT NULL AND locked_by IS NULL"
    assert leased.ask(query) == [(3,)]


def test_a_failure_counts_and_the_key_waits_behind_it(leased: Harness) -> None:
    leased.enqueue("a", "b", "c", key="k")
    leased.broker.answers["b"] = [FAILED]

    leased.work_to_the_end()

    assert leased.broker.published() == ["a", "b", "b", "c"]
    assert leased.states() == {"a": ("DELIVERED", 0), "b": ("DELIVERED", 1), "c": ("DELIVERED", 0)}


def test_other_keys_do_not_wait(leased: Harness) -> None:
    leased.source["retry"] = {"base_delay": "1h"}
    leased.enqueue("a", "b", key="k")
    leased.enqueue("x", "y", key="other")
    leased.broker.answers["a"] = [FAILED]

    leased.work(lambda: leased.waiting() == 2)

    assert leased.broker.delivered() == ["x", "y"]
    assert leased.states()["b"] == ("PENDING", 0)


def test_an_event_is_dead_when_its_attempts_run_out(leased: Harness) -> None:
    leased.enqueue("a", "b", key="k")
    leased.broker.answers["a"] = [FAILED] * 3

    leased.work_to_the_end()

    assert leased.states() == {"a": ("DEAD", 3), "b": ("DELIVERED", 0)}
    assert leased.error("a") == "gave up after 3 attempts: no luck"


def test_the_destination_may_say_when_to_come_back(leased: Harness) -> None:
    leased.enqueue("a", key="k")
    leased.broker.answers["a"] = [Retry("later", after=timedelta(hours=1))]

    leased.work(lambda: leased.states()["a"] == ("PENDING", 1))

    assert leased.ask("SELECT available_at > now() + interval '59 minutes' FROM openoutbox_events") == [
        (True,)
    ]


def test_continue_goes_on_behind_a_dead_event(leased: Harness) -> None:
    leased.enqueue("a", "b", key="k")
    leased.broker.answers["a"] = [Dead("too large")]

    leased.work_to_the_end()

    assert leased.broker.batches == [["a"], ["b"]]
    assert leased.states() == {"a": ("DEAD", 1), "b": ("DELIVERED", 0)}
    assert leased.error("a") == "too large"


def test_park_keeps_the_key_behind_a_dead_event(leased: Harness) -> None:
    leased.source["on_dead"] = "park"
    leased.enqueue("a", "b", key="k")
    leased.enqueue("x", key="other")
    leased.broker.answers["a"] = [Dead("too large")]
    leased.work(lambda: leased.waiting() == 1)

    # A new lane learns from the table what the last one knew.
    leased.enqueue("c", key="k")
    leased.enqueue("y", key="other")
    leased.work(lambda: leased.waiting() == 2)
    assert leased.broker.delivered() == ["x", "y"]

    leased.set("a", status="PENDING", attempts=0)
    leased.work_to_the_end()
    assert leased.broker.delivered() == ["x", "y", "a", "b", "c"]


def test_a_scheduled_event_holds_nobody_back_and_takes_its_place_when_due(leased: Harness) -> None:
    leased.enqueue("scheduled", key="k", delay=timedelta(hours=1))
    leased.enqueue("a", key="k")
    leased.work(lambda: leased.waiting() == 1)
    leased.enqueue("b", key="k")
    leased.ask("UPDATE openoutbox_events SET available_at = created_at RETURNING 1")

    leased.work_to_the_end()

    assert leased.broker.delivered() == ["a", "scheduled", "b"]


def test_a_retry_survives_the_lane(leased: Harness) -> None:
    leased.source["retry"] = {"base_delay": "400ms", "jitter": 0.0}
    leased.enqueue("a", "b", key="k")
    leased.broker.answers["a"] = [FAILED]
    leased.work(lambda: leased.states()["a"] == ("PENDING", 1))

    leased.work_to_the_end()

    assert leased.broker.published() == ["a", "a", "b"]


def test_a_publisher_that_keeps_order_gets_whole_batches(harness: Harness) -> None:
    harness.broker.keeps_order = True
    harness.enqueue("a", "b", "c", key="k")

    harness.work_to_the_end()

    assert harness.broker.batches == [["a", "b", "c"]]


def test_a_publisher_that_raises_costs_an_attempt(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    harness.enqueue("a", key="k")
    publish = Broker.publish
    calls = 0

    def raise_once(self: Broker, messages: list[Message], timeout: float) -> list[Outcome]:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise ZeroDivisionError("a bug")
        return publish(self, messages, timeout)

    monkeypatch.setattr(Broker, "publish", raise_once)

    harness.work_to_the_end()

    assert harness.states() == {"a": ("DELIVERED", 1)}


@pytest.mark.parametrize("headers", [["x"], "text", 7, []])
def test_headers_that_are_no_object_are_dead_with_a_reason(harness: Harness, headers: object) -> None:
    harness.enqueue("a", "b", key="k")
    harness.set("a", headers=Jsonb(headers))

    harness.work_to_the_end()

    assert harness.states() == {"a": ("DEAD", 1), "b": ("DELIVERED", 0)}
    assert harness.error("a").startswith("headers must be a JSON object of strings, not")


def test_nested_headers_are_carried_as_json_text(harness: Harness) -> None:
    harness.enqueue("a")
    harness.set("a", headers=Jsonb({"s": "x", "n": 1, "o": {"k": [True]}, "none": None}))

    harness.work_to_the_end()

    (message,) = harness.broker.messages
    assert message.headers["s"] == "x"
    assert message.headers["n"] == "1"
    assert json.loads(message.headers["o"]) == {"k": [True]}
    assert "none" not in message.headers


def drop_b(event: Event) -> Event | None:
    if event.payload == b"explode":
        raise LookupError("no such thing")
    return None if event.payload == b"b" else event


def test_a_transform_skips_or_costs_an_attempt(leased: Harness) -> None:
    leased.source["transform"] = f"{__name__}:drop_b"
    leased.enqueue("a", "b", "c", key="k")
    leased.enqueue("explode")

    leased.work_to_the_end()

    assert leased.broker.delivered() == ["a", "c"]
    assert leased.states()["b"] == ("DELIVERED", 0)
    assert leased.states()["explode"] == ("DEAD", 3)
    assert leased.error("b") == "skipped: dropped by transform"


def test_without_its_index_a_batch_is_settled_by_its_ids(harness: Harness) -> None:
    harness.conn.execute("DROP INDEX idx_openoutbox_stuck_leases")
    harness.enqueue("a", "b", key="k")
    lane = harness.lane()
    used: set[bool] = set()

    def settled() -> bool:
        used.update(
            loop.source.statements.deliver_all == loop.source.statements.deliver
            for session in lane.sessions
            for loop in session.loops
        )
        return not harness.waiting()

    harness.work(settled, lane)

    assert used == {True}
    assert harness.states() == {"a": ("DELIVERED", 0), "b": ("DELIVERED", 0)}
