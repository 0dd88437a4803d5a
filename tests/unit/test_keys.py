"""Which keys are blocked, by what, and what frees them."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import uuid4

from outspark.delivery.destination import Block
from outspark.event import Event
from outspark.relay.blocked_keys import MOST_PROBES, BlockedKeys

NATS, ELSEWHERE = Block("nats"), Block("other")
TOPIC = Block("nats", "orders")
HEAD, OTHER = str(uuid4()), str(uuid4())


def event(id: str, topic: str | None = None) -> Event:
    return Event(id, "t", None, b"", None, 0, datetime.now(UTC), topic=topic)


def test_a_head_blocks_its_key_until_it_is_settled_itself() -> None:
    keys = BlockedKeys()
    keys.wait_for_retry("k", HEAD, due=5.0)

    keys.free("k", OTHER)
    assert keys.blocked() == ["k"]
    assert "k" in keys
    keys.free(None, HEAD)
    assert "k" in keys

    keys.free("k", HEAD)
    assert keys.blocked() == []
    assert "k" not in keys


def test_heads_are_due_at_their_time_but_stay_blocked() -> None:
    keys = BlockedKeys()
    keys.wait_for_retry("k", HEAD, due=5.0)
    keys.wait_for_retry("l", OTHER, due=7.0)

    assert keys.next_due() == 5.0
    assert keys.due(4.9) == {}
    assert keys.due(5.0) == {HEAD: "k"}
    assert list(keys.due(7.0)) == [HEAD, OTHER]
    keys.wait_for_retry("k", HEAD, due=8.0)
    assert list(keys.due(8.0)) == [OTHER, HEAD]
    assert set(keys.blocked()) == {"k", "l"}


def test_a_destination_that_is_down_blocks_keys_and_types_until_it_is_back() -> None:
    keys = BlockedKeys()
    keys.wait_for_retry("k", HEAD, due=5.0)
    keys.wait_for(NATS, "k", event("1"))
    keys.wait_for(NATS, None, event("2"))
    keys.wait_for(ELSEWHERE, "l", event("3"))

    assert keys.next_due() is None
    assert keys.awaited() == {NATS, ELSEWHERE}
    assert set(keys.blocked()) == {"k", "l"}
    assert keys.blocked_types() == ["t"]

    keys.lift(NATS)
    assert keys.blocked() == ["l"]
    assert keys.blocked_types() == []


def test_events_without_a_key_wait_by_the_topic_that_they_name() -> None:
    keys = BlockedKeys()
    keys.wait_for(TOPIC, None, event("1", topic="orders"))
    keys.wait_for(Block("", type="t"), None, event("2", topic="bills"))

    assert keys.blocked_topics() == [("orders", "t")]
    assert keys.blocked_types() == ["t"]
    keys.lift(TOPIC)
    assert keys.blocked_topics() == []


def test_events_take_turns_to_probe() -> None:
    keys = BlockedKeys()
    for number in range(MOST_PROBES + 5):
        keys.wait_for(TOPIC, f"k{number}", event(str(number)))

    turns = [keys.next_to_probe(TOPIC) for _ in range(MOST_PROBES + 1)]
    assert turns == [*map(str, range(MOST_PROBES)), "0"]
    keys.forget_probe(TOPIC, "1")
    assert keys.next_to_probe(TOPIC) == "2"
    assert keys.next_to_probe(NATS) is None


def test_parked_keys_are_those_of_the_last_look() -> None:
    keys = BlockedKeys()

    keys.park_only({"k", "l"})
    assert "k" in keys
    freed = keys.version
    keys.park_only({"l", "m"})

    assert "k" not in keys
    assert keys.version == freed + 1
    keys.park_only({"l", "m", "n"})
    assert keys.version == freed + 1


def test_clear_frees_everything() -> None:
    keys = BlockedKeys()
    keys.wait_for_retry("k", HEAD, due=5.0)
    keys.wait_for(NATS, "l", event("3"))
    keys.wait_for(NATS, None, event("2"))
    keys.park_only({"m"})

    keys.clear()

    assert keys.blocked() == []
    assert keys.blocked_types() == []
    assert keys.next_due() is None
