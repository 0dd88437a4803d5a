"""The checker on histories made by hand, for what the broken variants do not show."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from tests.history.checker import check
from tests.history.history import History, Row, Rules, Written, with_arrivals
from tests.history.journal import Deed, Entry
from tests.history.publisher import Behaviour

START = datetime(2026, 1, 1, tzinfo=UTC)
A, B = UUID(int=1), UUID(int=2)
DELIVERED = Row("DELIVERED", 0, None)


def written(id: UUID, behaviour: Behaviour = Behaviour.PASS, due: float | None = None) -> Written:
    """Event n of key k, written n seconds after the start."""
    created = START + timedelta(seconds=id.int)
    return Written(id, "k", created, behaviour, None if due is None else START + timedelta(seconds=due))


def line(event: UUID, deed: Deed = "delivered", process: str = "p", batch: int = 1, at: float = 10) -> Entry:
    return Entry(process, batch, event, deed, 0, START.timestamp() + at)


def history(*entries: Entry, **changes: object) -> History:
    both = {A: written(A), B: written(B)}
    plain = History(Rules(5, 10), both, {A: DELIVERED, B: DELIVERED}, list(entries))
    return replace(plain, **changes)  # type: ignore[arg-type]


def only(breaches: list[str]) -> str:
    (breach,) = breaches
    return breach


def test_a_plain_history_passes() -> None:
    assert check(history(line(A, "claimed"), line(B, "claimed"), line(A), line(B))) == []


def test_an_event_that_was_rolled_back_is_noticed() -> None:
    assert "never committed" in only(check(history(line(A), line(B), line(UUID(int=9)))))


@pytest.mark.parametrize("status", ["PENDING", "DELIVERING"])
def test_an_event_that_was_left_behind_is_noticed(status: str) -> None:
    rows = {A: DELIVERED, B: Row(status, 0, None)}

    assert f"is still {status}" in only(check(history(line(A), rows=rows)))


def test_a_lost_row_is_noticed() -> None:
    assert "not in the table" in only(check(history(line(A), line(B), rows={A: DELIVERED})))


def test_a_death_without_a_reason_is_noticed() -> None:
    rows = {A: DELIVERED, B: Row("DEAD", 1, None)}

    assert "is dead after 1 attempts" in only(check(history(line(A), line(B, "failed"), rows=rows)))


def test_the_wrong_order_is_noticed() -> None:
    assert "overtook" in only(check(history(line(B), line(A))))


def test_a_try_before_the_earlier_one_passed_is_noticed() -> None:
    rows = {A: Row("DELIVERED", 1, None), B: DELIVERED}

    assert "overtook" in only(check(history(line(A, "failed"), line(B), line(A), rows=rows)))


def test_a_scheduled_event_may_be_overtaken_only_until_it_is_due() -> None:
    def overtaken(at: float) -> list[str]:
        both = {A: written(A, due=20), B: written(B)}
        return check(history(line(B, "claimed", at=at), line(B, at=at), line(A, at=60), written=both))

    assert overtaken(at=19) == []
    assert "overtook" in only(overtaken(at=30))


def test_a_repetition_needs_a_kill_in_that_batch() -> None:
    def repeated(*killed: str, batch: int = 1) -> list[str]:
        last = line(B, "claimed", batch=batch)
        return check(history(line(A), last, line(A, process="q"), line(B, process="q"), killed=set(killed)))

    assert repeated("p") == []
    assert "after its delivery by p" in only(repeated())
    assert "after its delivery by p" in only(repeated("q"))
    assert "after its delivery by p" in only(repeated("p", batch=2))


def test_more_than_a_batch_of_repetitions_is_noticed() -> None:
    twice = [line(A), line(B), line(A, process="q"), line(B, process="q")]

    breaches = check(history(*twice, killed={"p"}, rules=Rules(5, batch_size=1)))

    assert "more than 1 batches" in only(breaches)


def test_what_a_broker_has_counts_from_when_it_can_have_got_it() -> None:
    journal = [line(A, "sent"), line(B, "sent"), line(A, "acked"), line(B, "acked")]

    def deeds(*arrivals: Entry) -> list[tuple[UUID, Deed]]:
        return [(e.event, e.deed) for e in with_arrivals(journal, [entry.send for entry in arrivals])]

    sent_a, sent_b, *acks = [(entry.event, entry.deed) for entry in journal]
    assert deeds() == [sent_a, sent_b, *acks]
    assert deeds(line(A), line(B)) == [sent_a, (A, "delivered"), sent_b, (B, "delivered"), *acks]
    assert deeds(line(B), line(A)) == [sent_a, sent_b, (B, "delivered"), (A, "delivered"), *acks]


def test_what_a_broker_took_without_a_word_may_come_twice_if_it_was_stopped() -> None:
    def twice(answer: Deed, stops: int) -> list[str]:
        first = [line(A, "sent"), line(A), line(A, answer)]
        again = [line(A, "sent", batch=2), line(A, batch=2), line(A, "acked", batch=2)]
        return check(history(*first, *again, line(B), broker_stops=stops))

    assert twice("down", stops=1) == []
    assert "came twice, more than 0 batches" in only(twice("down", stops=0))
    assert "after its delivery by p" in only(twice("acked", stops=1))


def test_an_attempt_that_a_broker_cost_is_noticed() -> None:
    rows = {A: Row("DELIVERED", 1, None), B: DELIVERED}
    first = [line(A, "sent"), line(A, "failed")]
    again = [line(A, "sent", batch=2), line(A, batch=2), line(A, "acked", batch=2)]

    assert "was blamed" in only(check(history(*first, *again, line(B), rows=rows)))


@pytest.mark.parametrize("attempts", [0, 2])
def test_attempts_that_were_not_made_or_not_counted_are_noticed(attempts: int) -> None:
    rows = {A: Row("DELIVERED", attempts, None), B: DELIVERED}

    assert "not 1 to 1" in only(check(history(line(A, "failed"), line(A), line(B), rows=rows)))


def test_nothing_goes_out_behind_a_dead_event_of_a_parked_key() -> None:
    both = {A: written(A, Behaviour.DIE), B: written(B)}
    parked = Rules(5, 10, on_dead="park")
    dead = Row("DEAD", 1, None)

    def behind(row: Row, *entries: Entry) -> list[str]:
        return check(history(line(A, "dead"), *entries, written=both, rows={A: dead, B: row}, rules=parked))

    assert behind(Row("PENDING", 0, None)) == []
    assert "overtook" in only(behind(DELIVERED, line(B)))


def test_a_claim_of_what_another_holds_is_noticed() -> None:
    competing = Rules(5, 10, ordering="none")
    claims = [line(A, "claimed"), line(A, "claimed", process="q"), line(A, process="q"), line(B)]

    assert "while p held it" in only(check(history(*claims, rules=competing)))
    assert check(history(*claims, rules=competing, killed={"p"})) == []
