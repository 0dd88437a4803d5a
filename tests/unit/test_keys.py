"""Which keys are blocked, by what, and what frees them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from math import inf
from uuid import uuid4

from outspark.contracts.contract import Settlement
from outspark.contracts.relay_statements import KeyInBackoff
from outspark.delivery.destination import Block
from outspark.event import Event
from outspark.relay.blocked_keys import MOST_PROBES, BlockedKeys
from outspark.relay.settlements import Unfinished

NATS, ELSEWHERE = Block("nats"), Block("other")
TOPIC = Block("nats", "orders")
HEAD, OTHER = str(uuid4()), str(uuid4())


def event(id: str, topic: str | None = None, key: str | None = None) -> Event:
    return Event(id, "t", None, b"", None, 0, datetime.now(UTC), topic=topic, order_key=key)


def waiting(block: Block, key: str | None, of: Event) -> Unfinished:
    """Of an event that waits for a breaker."""
    of.order_key = key
    return Unfinished(of, Settlement(of.id, "pending"), block)


def failed(key: str, head: str, seconds: float) -> Unfinished:
    """Of an event that is tried again after so many seconds."""
    wait = timedelta(seconds=seconds)
    return Unfinished(event(head, key=key), Settlement(head, "pending", counted=True, wait=wait))


def dead(key: str, id: str) -> Unfinished:
    return Unfinished(event(id, key=key), Settlement(id, "dead", counted=True))


def test_a_head_blocks_its_key_until_it_is_settled_itself() -> None:
    keys = BlockedKeys()
    keys.settled([], [failed("k", HEAD, 5.0)])

    keys.settled([event(OTHER, key="k")], [])
    assert keys.blocked() == ["k"]
    assert "k" in keys
    keys.settled([event(HEAD, key=None)], [])
    assert "k" in keys

    keys.settled([event(HEAD, key="k")], [])
    assert keys.blocked() == []
    assert "k" not in keys


def test_an_event_delivered_before_the_failed_one_of_its_batch_frees_nothing() -> None:
    keys = BlockedKeys()
    keys.settled([], [failed("k", OTHER, 5.0)])
    claimed = keys.now()

    keys.settled([event(OTHER, key="k")], [failed("k", HEAD, 5.0)])

    assert keys.due(inf) == {HEAD: "k"}
    assert not keys.freed_since(claimed)


def test_a_head_that_another_session_settled_frees_its_key() -> None:
    keys = BlockedKeys()
    keys.settled([], [failed("k", HEAD, 5.0)])
    claimed = keys.now()

    keys.head_gone("k", OTHER)
    assert not keys.freed_since(claimed)
    keys.head_gone("k", HEAD)
    assert keys.freed_since(claimed)
    assert keys.blocked() == []


def test_heads_are_due_at_their_time_but_stay_blocked() -> None:
    keys = BlockedKeys()
    keys.slots_begun([KeyInBackoff(HEAD, "k", 500.0), KeyInBackoff(OTHER, "l", 700.0)])

    due = keys.next_due()
    assert due is not None
    assert keys.due(due - 0.1) == {}
    assert keys.due(due) == {HEAD: "k"}
    assert list(keys.due(due + 200.0)) == [HEAD, OTHER]
    keys.slots_begun([KeyInBackoff(HEAD, "k", 800.0)])
    assert list(keys.due(inf)) == [OTHER, HEAD]
    assert set(keys.blocked()) == {"k", "l"}


def test_slots_that_begin_may_hold_older_events() -> None:
    keys = BlockedKeys()
    claimed = keys.now()

    keys.slots_begun([])

    assert keys.freed_since(claimed)


def test_a_destination_that_is_down_blocks_keys_and_types_until_it_is_back() -> None:
    keys = BlockedKeys()
    keys.settled([], [failed("k", HEAD, 5.0)])
    keys.settled(
        [],
        [
            waiting(NATS, "k", event("1")),
            waiting(NATS, None, event("2")),
            waiting(ELSEWHERE, "l", event("3")),
        ],
    )

    assert keys.next_due() is None
    assert keys.awaited() == {NATS, ELSEWHERE}
    assert set(keys.blocked()) == {"k", "l"}
    assert keys.blocked_types() == ["t"]

    keys.breaker_closed(NATS)
    assert keys.blocked() == ["l"]
    assert keys.blocked_types() == []


def test_without_an_order_a_key_blocks_nothing() -> None:
    keys = BlockedKeys(ordered=False, parks=True)

    keys.settled([], [failed("k", HEAD, 5.0), dead("l", OTHER), waiting(NATS, "m", event("1"))])

    assert keys.blocked() == []
    assert keys.blocked_types() == ["t"]


def test_events_without_a_key_wait_by_the_topic_that_they_name() -> None:
    keys = BlockedKeys()
    keys.settled([], [waiting(TOPIC, None, event("1", topic="orders"))])
    keys.settled([], [waiting(Block("", type="t"), None, event("2", topic="bills"))])

    assert keys.blocked_topics() == [("orders", "t")]
    assert keys.blocked_types() == ["t"]
    keys.breaker_closed(TOPIC)
    assert keys.blocked_topics() == []


def test_events_take_turns_to_probe() -> None:
    keys = BlockedKeys()
    keys.settled([], [waiting(TOPIC, f"k{number}", event(str(number))) for number in range(MOST_PROBES + 5)])

    turns = [keys.next_to_probe(TOPIC) for _ in range(MOST_PROBES + 1)]
    assert turns == [*map(str, range(MOST_PROBES)), "0"]
    keys.probe_gone(TOPIC, "1")
    assert keys.next_to_probe(TOPIC) == "2"
    assert keys.next_to_probe(NATS) is None


def test_parked_keys_are_those_that_were_found_last() -> None:
    keys = BlockedKeys()

    keys.dead_found({"k", "l"})
    assert "k" in keys
    claimed = keys.now()
    keys.dead_found({"l", "m"})

    assert "k" not in keys
    assert keys.freed_since(claimed)
    claimed = keys.now()
    keys.dead_found({"l", "m", "n"})
    assert not keys.freed_since(claimed)


def test_a_dead_event_parks_its_key_only_where_the_settings_say_so() -> None:
    for parks in (False, True):
        keys = BlockedKeys(parks=parks)
        keys.settled([], [failed("k", HEAD, 5.0)])
        keys.settled([], [dead("k", HEAD)])
        keys.died(None)
        assert keys.blocked() == (["k"] if parks else [])


def test_slots_that_are_left_free_everything() -> None:
    keys = BlockedKeys()
    keys.settled([], [failed("k", HEAD, 5.0)])
    keys.settled([], [waiting(NATS, "l", event("3")), waiting(NATS, None, event("2"))])
    keys.dead_found({"m"})

    keys.slots_left()

    assert keys.blocked() == []
    assert keys.blocked_types() == []
    assert keys.next_due() is None
