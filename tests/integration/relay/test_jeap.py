"""A lane on a jEAP outbox: what it sends, in which order, and what it writes down about it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any

import pytest

from outspark.event import Event, Message
from outspark.outcome import Dead, DeadKind, Outcome, Retry
from outspark.relay import settle
from tests.databases import Database
from tests.history.checker import check
from tests.history.harness import Draft, open_harness
from tests.history.jeap_table import JeapTable
from tests.history.publisher import Behaviour
from tests.integration.relay.harness import Broker, close_harness
from tests.integration.relay.jeap_harness import JeapHarness, open_jeap_harness
from tests.waiting import wait_for

FAILED = Retry("no luck")
HOUR = timedelta(hours=1)
TRACE: dict[str, Any] = {
    "trace_id_high": 0x0AF7651916CD43DD,
    "trace_id": 0x8448EB211C80319C - (1 << 64),
    "span_id": 0xB7AD6B7169203331 - (1 << 64),
    "parent_span_id": 0x1234,
    "trace_id_string": "0af7651916cd43dd8448eb211c80319c",
    "sampled": True,
}
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
B3 = "0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-1-0000000000001234"


@pytest.fixture
def clusters(database: Database) -> Iterator[JeapHarness]:
    """Two clusters; what asks for none of them goes to the first."""
    harness = open_jeap_harness(database, "main", "other")
    harness.routes = [{"destination": "main"}]
    yield harness
    close_harness(harness)


def test_sent(jeap: JeapHarness) -> None:
    jeap.send("a", "b", key=b"k")
    jeap.send("c")
    before = jeap.now()

    jeap.work_to_the_end()

    assert sorted(jeap.broker.delivered()) == ["a", "b", "c"]
    for name in "abc":
        sent, *rest = jeap.row(name, "sent_scheduled", "sent_immediately", "failed", "fail_reason", "resend")
        assert before < sent < jeap.now()
        assert rest == [None, None, None, False]


def test_what_goes_out(jeap: JeapHarness) -> None:
    jeap.send("a", key=b"\x00\xffkey", topic="orders", message_id="the id that consumers know")
    jeap.send("b", topic="orders")

    jeap.work_to_the_end()

    a, b = jeap.broker.messages
    assert (a.id, a.topic, a.payload) == ("the id that consumers know", "orders", b"a")
    assert a.key is not None
    assert a.key.encode(errors="surrogateescape") == b"\x00\xffkey"
    assert (b.key, dict(b.headers)) == (None, {})


@pytest.mark.parametrize(
    ("form", "headers"),
    [
        ("w3c", {"traceparent": TRACEPARENT}),
        ("b3", {"b3": B3}),
        ("both", {"traceparent": TRACEPARENT, "b3": B3}),
    ],
)
def test_the_trace_goes_on(jeap: JeapHarness, form: str, headers: dict[str, str]) -> None:
    jeap.source["jeap"] = {**jeap.source["jeap"], "trace": form}
    jeap.send("a", **TRACE)

    jeap.work_to_the_end()

    assert dict(jeap.broker.messages[0].headers) == headers


def test_order_is_that_of_the_ids_whatever_the_clocks_said(jeap: JeapHarness) -> None:
    """Writers whose clocks go an hour late or early change nothing."""
    names = [f"{number:02}" for number in range(20)]
    for number, name in enumerate(names):
        created = jeap.now() + HOUR * (-1) ** number
        jeap.send(name, key=b"k", created=created)

    jeap.work_to_the_end()

    assert jeap.broker.delivered() == names


@pytest.mark.parametrize("hours", [-1, 1])
def test_the_clock_of_the_relay_does_not_matter(
    jeap: JeapHarness, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    class Wrong(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Wrong:
            return super().now(tz) + hours * HOUR

    real = time.time
    monkeypatch.setattr("time.time", lambda: real() + hours * 3600)
    monkeypatch.setattr(settle, "datetime", Wrong)
    jeap.send("scheduled", key=b"k")
    jeap.send("immediate", key=b"k", send_immediately=True, schedule_after=jeap.now() + HOUR / 2)
    jeap.send("overdue", key=b"k", send_immediately=True, schedule_after=jeap.now() - HOUR / 2)
    jeap.send("wrong topic", key=b"k")
    jeap.broker.answers["wrong topic"] = [Dead("there is none", "topic")]
    before = jeap.now()

    jeap.work(lambda: jeap.waiting() == 1)

    assert jeap.broker.delivered() == ["scheduled", "overdue"]
    assert before < jeap.row("scheduled", "sent_scheduled")[0] < jeap.now()
    assert before < jeap.row("wrong topic", "failed")[0] < jeap.now()
    assert jeap.ask(
        "SELECT abs(extract(epoch FROM lock_until - timezone('utc', now()))) < 60 FROM shedlock"
    ) == [(True,)]


def test_messages_without_a_key_keep_the_order_of_their_topic(jeap: JeapHarness) -> None:
    jeap.send("a1", "a2", "a3", topic="a")
    jeap.send("b1", "b2", topic="b")
    jeap.send("k1", topic="a", key=b"k")
    jeap.broker.answers["a2"] = [FAILED] * 3

    jeap.work_to_the_end()

    published = jeap.broker.published()
    assert [name for name in published if name[0] == "a"] == ["a1", "a2", "a2", "a2", "a2", "a3"]
    assert [name for name in published if name[0] == "b"] == ["b1", "b2"]
    assert published.index("k1") < published.index("a3")


def test_a_key_is_the_same_in_every_topic(jeap: JeapHarness) -> None:
    jeap.send("1", topic="a", key=b"k")
    jeap.send("2", topic="b", key=b"k")
    jeap.broker.answers["1"] = [FAILED]

    jeap.work_to_the_end()

    assert jeap.broker.published() == ["1", "1", "2"]


@pytest.mark.parametrize("attempts", [1, 3])
def test_what_may_pass_is_tried_for_ever_and_leaves_no_mark(jeap: JeapHarness, attempts: int) -> None:
    pause = {"base_delay": "10ms", "max_delay": "10ms", "max_attempts": attempts}
    jeap.source["retry"] = pause
    jeap.send("a", "b", key=b"k")
    jeap.broker.answers["a"] = [FAILED] * 12
    before = jeap.ask("SELECT d::text FROM deferred_message d")

    jeap.work(lambda: jeap.broker.published().count("a") >= 5)
    assert jeap.ask("SELECT d::text FROM deferred_message d") == before
    jeap.work_to_the_end()

    assert jeap.broker.published() == ["a"] * 13 + ["b"]
    assert jeap.states() == {"a": "sent", "b": "sent"}


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("topic", "INVALID_TOPIC"),
        ("permission", "UNAUTHORIZED_ON_TOPIC"),
        ("size", "MESSAGE_TOO_LARGE"),
        ("other", "GENERAL"),
    ],
)
def test_failed_with_its_reason_and_others_go_on(jeap: JeapHarness, kind: DeadKind, reason: str) -> None:
    jeap.send("a", "b", "c", key=b"k")
    jeap.broker.answers["b"] = [Dead("never", kind)]
    before = jeap.now()

    jeap.work_to_the_end()

    assert jeap.broker.batches == [["a"], ["b"], ["c"]]
    assert jeap.states() == {"a": "sent", "b": reason, "c": "sent"}
    failed, *rest = jeap.row("b", "failed", "sent_scheduled", "sent_immediately", "resend")
    assert before < failed < jeap.now()
    assert rest == [None, None, False]


def test_what_failed_stays_until_it_is_to_be_resent(jeap: JeapHarness) -> None:
    jeap.send("a", "b", key=b"k")
    jeap.broker.answers["a"] = [Dead("too large", "size"), Dead("there is none", "topic")]
    jeap.work_to_the_end()

    jeap.change("a", resend=True)
    jeap.work_to_the_end()
    assert jeap.states() == {"a": "INVALID_TOPIC", "b": "sent"}
    assert jeap.row("a", "resend") == (False,)

    jeap.change("a", resend=True)
    jeap.work_to_the_end()
    assert jeap.states() == {"a": "sent", "b": "sent"}
    assert jeap.row("a", "failed", "resend") == (None, False)
    assert jeap.broker.published() == ["a", "b", "a", "a"]


def test_park_keeps_a_key_behind_what_failed(jeap: JeapHarness) -> None:
    jeap.source["on_dead"] = "park"
    jeap.send("a", "b", key=b"k")
    jeap.send("x", key=b"other")
    jeap.broker.answers["a"] = [Dead("too large", "size")]
    jeap.work(lambda: jeap.waiting() == 1)
    assert jeap.broker.delivered() == ["x"]

    jeap.change("a", resend=True)
    jeap.work_to_the_end()

    assert jeap.broker.delivered() == ["x", "a", "b"]


def test_what_its_sender_sends_at_once_is_left_to_it_until_its_time(jeap: JeapHarness) -> None:
    at_once: dict[str, Any] = {"key": b"k", "send_immediately": True}
    jeap.send("hours later", **at_once, schedule_after=jeap.now() + HOUR)
    jeap.send("soon", **at_once, schedule_after=jeap.now() + timedelta(milliseconds=300))
    jeap.send("overdue", **at_once, schedule_after=jeap.now() - HOUR)
    jeap.send("sent", **at_once, schedule_after=jeap.now() - HOUR, sent_immediately=jeap.now())
    jeap.send("scheduled", key=b"k")

    jeap.work(lambda: jeap.waiting() == 1)

    assert jeap.broker.delivered() == ["overdue", "scheduled", "soon"]
    assert jeap.row("soon", "schedule_after") < jeap.row("soon", "sent_scheduled")
    assert jeap.states()["sent"] == "sent immediately"


def test_a_sender_that_was_faster_has_the_last_word(
    jeap: JeapHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have sent it, which nobody can prevent; the table keeps what it says already."""
    jeap.send("a", "b", key=b"k", send_immediately=True, schedule_after=jeap.now() - HOUR)
    publish = Broker.publish

    def publish_and_mark(self: Broker, messages: Sequence[Message], timeout: float) -> list[Outcome]:
        jeap.change(messages[0].payload.decode(), sent_immediately="now")
        return publish(self, messages, timeout)

    monkeypatch.setattr(Broker, "publish", publish_and_mark)

    jeap.work_to_the_end()

    assert jeap.broker.published() == ["a", "b"]
    assert jeap.row("a", "sent_scheduled") == (None,)
    assert jeap.states() == dict.fromkeys("ab", "sent immediately")


def test_the_cluster_is_the_destination_of_that_name(clusters: JeapHarness) -> None:
    clusters.send("a", key=b"k", cluster_name="other")
    clusters.send("b", key=b"k", cluster_name="main")
    clusters.send("c", key=b"k")
    clusters.send("d", key=b"k", cluster_name="unheard of")

    clusters.work_to_the_end()

    assert clusters.brokers["other"].delivered() == ["a"]
    assert clusters.brokers["main"].delivered() == ["b", "c", "d"]


def test_a_cluster_needs_no_route(clusters: JeapHarness) -> None:
    clusters.routes = [{"match": "routed", "destination": "main"}]
    clusters.send("a", topic="not routed", cluster_name="other")
    clusters.send("b", topic="not routed", cluster_name="unheard of")

    clusters.work_to_the_end()

    assert clusters.brokers["other"].delivered() == ["a"]
    assert clusters.states() == {"a": "sent", "b": "GENERAL"}


def test_a_cluster_that_is_down_fails_nothing_and_holds_up_no_other(clusters: JeapHarness) -> None:
    clusters.brokers["other"].down = True
    clusters.send("o1", "o2", key=b"o", cluster_name="other")
    clusters.send("o3", cluster_name="other")
    clusters.send("m1", "m2", key=b"m")

    with clusters.working():
        wait_for(lambda: clusters.waiting() == 3)
        assert clusters.brokers["main"].delivered() == ["m1", "m2"]
        clusters.brokers["other"].down = False
        wait_for(lambda: not clusters.waiting())

    assert sorted(clusters.brokers["other"].delivered()) == ["o1", "o2", "o3"]
    assert [name for name in clusters.brokers["other"].delivered() if name != "o3"] == ["o1", "o2"]
    assert set(clusters.states().values()) == {"sent"}


def test_messages_without_a_key_wait_behind_one_whose_cluster_is_down(clusters: JeapHarness) -> None:
    """They share a topic, and so an order."""
    clusters.brokers["other"].down = True
    clusters.send("a", topic="one", cluster_name="other")
    clusters.send("b", topic="one")
    clusters.send("c", topic="two")

    with clusters.working():
        wait_for(lambda: clusters.waiting() == 2)
        assert clusters.brokers["main"].delivered() == ["c"]
        clusters.brokers["other"].down = False
        wait_for(lambda: not clusters.waiting())

    assert clusters.brokers["main"].delivered() == ["c", "b"]


def test_an_outage_fails_nothing(jeap: JeapHarness) -> None:
    jeap.broker.down = True
    jeap.send("a", "b", key=b"k")
    jeap.send("c")
    before = jeap.ask("SELECT d::text FROM deferred_message d")

    with jeap.working() as lane:
        wait_for(lambda: lane.destinations and lane.destinations["broker"].open)
        assert jeap.ask("SELECT d::text FROM deferred_message d") == before
        jeap.send("d", key=b"other")
        jeap.broker.down = False
        wait_for(lambda: not jeap.waiting())

    assert jeap.states() == dict.fromkeys("abcd", "sent")
    assert [name for name in jeap.broker.delivered() if name in "ab"] == ["a", "b"]


def drop_b(event: Event) -> Event | None:
    return None if event.payload == b"b" else event


def test_what_a_transform_drops_counts_as_sent(jeap: JeapHarness) -> None:
    jeap.source["transform"] = f"{__name__}:drop_b"
    jeap.send("a", "b", "c", key=b"k")

    jeap.work_to_the_end()

    assert jeap.broker.delivered() == ["a", "c"]
    assert jeap.states() == dict.fromkeys("abc", "sent")


def test_a_new_lane_goes_on_where_the_last_one_was(jeap: JeapHarness) -> None:
    jeap.source["retry"] = {"base_delay": "1h"}
    jeap.send("a", "b", key=b"k")
    jeap.send("x", key=b"other")
    jeap.broker.answers["a"] = [FAILED]
    jeap.work(lambda: jeap.waiting() == 2)
    assert jeap.broker.published() in (["a", "x"], ["x", "a"])

    jeap.work_to_the_end()

    assert jeap.broker.delivered() == ["x", "a", "b"]


def test_what_kills_its_lane_ends_as_failed_and_nothing_else_does(database: Database, tmp_path: Path) -> None:
    retry = {"base_delay": "50ms", "max_delay": "50ms", "max_attempts": 3}
    source = {"slots": 1, "retry": retry}
    with open_harness(database, tmp_path, hosting={"lanes": 1}, source=source, contract=JeapTable) as harness:
        before = harness.write(*[Draft("before")] * 3, Draft(None))
        (poison,) = harness.write(Draft("k", Behaviour.POISON))
        behind = harness.write(Draft("k"), Draft("after"), Draft(None))
        relay = harness.relay()

        def over() -> bool:
            relay.tick()
            return harness.finished()

        wait_for(over, timeout=30, what="the end of the backlog")
        relay.stop()

        history = harness.history()
        assert check(history) == []
        assert history.rows[poison].status == "DEAD"
        assert {history.rows[id].status for id in (*before, *behind)} == {"DELIVERED"}
        assert harness.query("SELECT fail_reason FROM deferred_message WHERE failed IS NOT NULL") == [
            ("GENERAL",)
        ]
        died = [entry.process for entry in history.entries if entry.deed == "died"]
        # In company once, which is counted for nobody, and then alone until its attempts have run out.
        assert len(died) == len(set(died)) == 3
