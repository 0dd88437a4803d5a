"""The checker on histories made by hand, for what the broken variants do not show."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from outspark.config.inbox import Strategy
from tests.history.inbox.checker import check
from tests.history.inbox.drafts import Behaviour, Draft
from tests.history.inbox.history import Effect, History, Row, Rules
from tests.history.inbox.journal import Entry

G = "billing"
RULES = Rules(Strategy.EXACTLY_ONCE, (G,), max_attempts=3, batch_size=2)
AT_LEAST = [Strategy.AT_LEAST_ONCE_ON_PERSIST, Strategy.AT_LEAST_ONCE_ON_SUCCESS]


def draft(name: str, behaviour: Behaviour = Behaviour.PASS, **more: Any) -> Draft:
    return Draft(name, behaviour, key="k", **more)


def row(name: str, status: str = "completed", attempts: int = 0, accepted: int = 0, **more: Any) -> Row:
    return Row(name, more.pop("group", G), status, attempts, accepted or ord(name[0]), **more)


def history(*effects: str, **changes: Any) -> History:
    """Messages a and b of key k, taken in in this order, and both completed."""
    rules = replace(RULES, **changes.pop("rules", {}))
    plain = History(
        rules=rules,
        published={name: draft(name) for name in "ab"},
        rows=[row("a"), row("b")],
        effects=[Effect(name, G) for name in effects],
        entries=[],
    )
    return replace(plain, **changes)


def only(breaches: list[str]) -> str:
    (breach,) = breaches
    return breach


def test_a_plain_history_passes() -> None:
    assert check(history("a", "b")) == []


def test_what_was_never_published_is_noticed() -> None:
    assert "never published" in only(check(history("a", "b", "x")))


def test_a_lost_message_is_noticed() -> None:
    assert only(check(history("a", rows=[row("a")]))) == f"b was lost for {G}"


def test_a_message_that_another_group_has_is_lost_for_this_one() -> None:
    rows = [row("a"), row("b"), row("a", group="shipping")]
    effects = [Effect("a", G), Effect("b", G), Effect("a", "shipping")]
    found = check(history(rows=rows, effects=effects, rules={"groups": (G, "shipping")}))

    assert only(found) == "b was lost for shipping"


def test_a_second_row_is_noticed() -> None:
    found = check(history("a", "b", rows=[row("a"), row("a"), row("b")]))

    assert only(found) == f"a was taken in 2 times by {G}"


def test_of_messages_with_one_idempotency_key_one_has_a_row() -> None:
    twins = {name: draft(name, idempotency_key="one") for name in "ab"}

    assert check(history("a", rows=[row("a")], published=twins)) == []
    assert "idempotency key one was taken in 2 times" in only(check(history("a", "b", published=twins)))
    assert len(check(history(rows=[], published=twins))) == 2


def test_a_message_that_is_not_at_its_end_is_noticed() -> None:
    assert "is still pending" in only(check(history("a", rows=[row("a"), row("b", "pending")])))


def test_a_death_without_a_reason_is_noticed() -> None:
    assert "is dead after 1 attempts" in only(check(history("a", rows=[row("a"), row("b", "failed", 1)])))
    assert check(history("a", rows=[row("a"), row("b", "failed", 3)])) == []


@pytest.mark.parametrize("behaviour", [Behaviour.DIE, Behaviour.POISON, Behaviour.BROKEN, Behaviour.REJECT])
def test_a_life_without_a_reason_is_noticed(behaviour: Behaviour) -> None:
    published = {"a": draft("a"), "b": draft("b", behaviour)}

    assert any("should have died" in breach for breach in check(history("a", "b", published=published)))


def test_a_stray_dies_only_where_there_are_partitions() -> None:
    published = {"a": draft("a"), "b": draft("b", Behaviour.STRAY)}

    assert check(history("a", "b", published=published)) == []
    dead = [row("a"), row("b", "failed")]
    assert check(history("a", published=published, rows=dead, rules={"partitioned": True})) == []


@pytest.mark.parametrize("effects", ["a", "abb"])
def test_exactly_once_is_neither_never_nor_twice(effects: str) -> None:
    assert f"b (pass) in {G} has" in only(check(history(*effects)))


def test_a_dead_message_has_no_effect() -> None:
    published = {"a": draft("a"), "b": draft("b", Behaviour.DIE)}

    assert "has 1 effects and is not completed" in only(
        check(history("a", "b", published=published, rows=[row("a"), row("b", "failed", 3)]))
    )


def test_at_most_once_may_lose_what_an_interruption_explains() -> None:
    def lost(*killed: str) -> list[str]:
        rules = {"strategy": Strategy.AT_MOST_ONCE, "batch_size": 1}
        return check(history("a", rows=[row("a")], killed=set(killed), rules=rules))

    assert lost("billing.take.0.1") == []
    assert only(lost()) == "1 messages were lost, more than 0"


def test_at_most_once_may_not_handle_what_an_interruption_explains() -> None:
    def unhandled(cuts: int) -> list[str]:
        return check(history("a", cuts=cuts, rules={"strategy": Strategy.AT_MOST_ONCE}))

    assert unhandled(cuts=1) == []
    assert "1 messages were not handled" in only(unhandled(cuts=0))


def test_at_most_once_may_keep_quiet_about_what_an_interruption_explains() -> None:
    def unsaid(cuts: int) -> list[str]:
        published = {"a": draft("a"), "b": draft("b", Behaviour.REJECT)}
        rules = {"strategy": Strategy.AT_MOST_ONCE}
        return check(history("a", published=published, cuts=cuts, rules=rules))

    assert unsaid(cuts=1) == []
    assert only(unsaid(cuts=0)) == "1 messages should have died, more than 0 without a word"


def test_at_most_once_is_never_twice() -> None:
    found = check(history("a", "b", "b", cuts=9, rules={"strategy": Strategy.AT_MOST_ONCE}))

    assert "more than once" in only(found)


@pytest.mark.parametrize("strategy", AT_LEAST)
def test_at_least_once_may_be_twice_but_not_never(strategy: Strategy) -> None:
    assert check(history("a", "b", "a", rules={"strategy": strategy})) == []
    assert "was never handled" in only(check(history("a", rules={"strategy": strategy})))


@pytest.mark.parametrize("strategy", AT_LEAST)
def test_at_least_once_a_handler_that_only_raised_has_no_effect(strategy: Strategy) -> None:
    published = {"a": draft("a"), "b": draft("b", Behaviour.DIE)}
    rows = [row("a"), row("b", "failed", 3)]

    found = check(history("a", "b", published=published, rows=rows, rules={"strategy": strategy}))
    assert "let none stand" in only(found)


@pytest.mark.parametrize(
    ("strategy", "states"),
    [
        (Strategy.EXACTLY_ONCE, {"": "kept", "pending": "", "completed": ""}),
        (Strategy.AT_LEAST_ONCE_ON_PERSIST, {"": "kept", "pending": ""}),
        (Strategy.AT_LEAST_ONCE_ON_SUCCESS, {"": "kept", "pending": "final", "failed": ""}),
        (Strategy.AT_MOST_ONCE, {"": "", "pending": ""}),
    ],
)
def test_an_acknowledgement_that_comes_too_early_is_noticed(
    strategy: Strategy, states: dict[str, str]
) -> None:
    for state, missing in states.items():
        entries = [Entry("p", G, "a", "acknowledged", state)]
        found = check(history("a", "b", entries=entries, rules={"strategy": strategy}))
        assert found == ([f"a was acknowledged for {G} before it was {missing}"] if missing else [])


def test_the_wrong_order_is_noticed() -> None:
    assert check(history("b", "a")) == []
    assert "b of key k" in only(check(history("b", "a", rules={"ordering": "key"})))


def test_order_is_that_of_first_effects() -> None:
    rules = {"ordering": "key", "strategy": Strategy.AT_LEAST_ONCE_ON_PERSIST}

    assert check(history("a", "b", "a", rules=rules)) == []


def test_a_dead_message_holds_up_nobody() -> None:
    published = {"a": draft("a", Behaviour.DIE), "b": draft("b")}
    rows = [row("a", "failed", 3), row("b")]

    assert check(history("b", published=published, rows=rows, rules={"ordering": "key"})) == []


def test_a_lock_on_what_is_at_its_end_is_noticed() -> None:
    assert "but locked by w" in only(check(history("a", "b", rows=[row("a", locked_by="w"), row("b")])))
