"""Which keys are blocked, by what, and what frees them."""

from __future__ import annotations

from uuid import uuid4

from outspark.relay.keys import Block, BlockedKeys

NATS, ELSEWHERE = Block("nats"), Block("other")
HEAD, OTHER = str(uuid4()), str(uuid4())


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
    assert set(keys.blocked()) == {"k", "l"}


def test_a_destination_that_is_down_blocks_keys_and_types_until_it_is_back() -> None:
    keys = BlockedKeys()
    keys.wait_for_retry("k", HEAD, due=5.0)
    keys.wait_for(NATS, "k", "t", "1")
    keys.wait_for(NATS, None, "t", "2")
    keys.wait_for(ELSEWHERE, "l", "t", "3")

    assert keys.next_due() is None
    assert keys.awaited() == {NATS, ELSEWHERE}
    assert set(keys.blocked()) == {"k", "l"}
    assert keys.blocked_types() == ["t"]

    keys.lift(NATS)
    assert keys.blocked() == ["l"]
    assert keys.blocked_types() == []


def test_parked_keys_are_those_of_the_last_look() -> None:
    keys = BlockedKeys()

    keys.park_only({"k", "l"})
    assert "k" in keys
    freed = keys.freed
    keys.park_only({"l", "m"})

    assert "k" not in keys
    assert keys.freed == freed + 1
    keys.park_only({"l", "m", "n"})
    assert keys.freed == freed + 1


def test_clear_frees_everything() -> None:
    keys = BlockedKeys()
    keys.wait_for_retry("k", HEAD, due=5.0)
    keys.wait_for(NATS, "l", "t", "3")
    keys.wait_for(NATS, None, "t", "2")
    keys.park_only({"m"})

    keys.clear()

    assert keys.blocked() == []
    assert keys.blocked_types() == []
    assert keys.next_due() is None
