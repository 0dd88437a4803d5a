"""From a batch to outcomes: what goes out together, what is held, and what never leaves."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from uuid import UUID

import pytest

from outspark.config.settings import RouteSettings
from outspark.delivery.destination import Destination
from outspark.delivery.dispatcher import Dispatcher
from outspark.delivery.permit import UNCONDITIONAL
from outspark.delivery.routing import Router, Transform
from outspark.errors import DestinationDown, OwnershipLost
from outspark.event import Event, Message
from outspark.observability.metrics import Tally
from outspark.observability.otel import tracing
from outspark.outcome import DELIVERED, HELD, Dead, Outcome, Retry, Skipped

FAILED = Retry("no luck")
DOWN = Retry("nobody answers", counted=False)
DEAD = Dead("too large")


@dataclass(slots=True)
class Recorder:
    """A publisher in memory: it answers by payload and remembers its batches."""

    keeps_order: bool = False
    answers: dict[str, Outcome] = field(default_factory=dict)
    batches: list[str] = field(default_factory=list)
    keeps_headers: bool = False

    def publish(self, messages: Sequence[Message], timeout: float) -> list[Outcome]:
        names = [message.payload.decode() for message in messages]
        self.batches.append("".join(names))
        return [self.answers.get(name, DELIVERED) for name in names]

    def check(self, timeout: float) -> None:
        raise DestinationDown("not yet")

    def close(self) -> None:
        """Nothing is open."""


@dataclass(slots=True)
class Checked:
    """A permit that asks this function."""

    prove: Callable[[], None]

    def check(self) -> None:
        self.prove()


def dispatcher(*publishers: Recorder, ordered: bool = True, transform: Transform | None = None) -> Dispatcher:
    """Destinations 0, 1, ... get the events whose type is their name."""
    destinations = {str(n): Destination(str(n), p, timeout=1.0) for n, p in enumerate(publishers)}
    routes = [RouteSettings(match=name, destination=name) for name in destinations]
    router = Router(routes, destinations, "source")
    return Dispatcher(router, destinations, transform, ordered, Tally(), tracing({}))


def events(*specs: str) -> list[Event]:
    """`a:k` is event a of key k for destination 0, `a:k:1` for destination 1; `a:` has no key."""
    made = []
    for number, spec in enumerate(specs):
        name, key, *destination = spec.split(":")
        made.append(
            Event(
                id=str(UUID(int=number)),
                type=destination[0] if destination else "0",
                key=key or None,
                payload=name.encode(),
                headers={},
                attempts=0,
                created_at=datetime(2026, 1, 1, tzinfo=UTC),
                order_key=key or None,
            )
        )
    return made


def run(dispatcher: Dispatcher, *specs: str, budget: float = 10.0) -> list[Outcome]:
    return dispatcher.dispatch(events(*specs), budget, UNCONDITIONAL).outcomes


def test_of_each_key_one_event_a_wave_where_order_is_not_kept() -> None:
    publisher = Recorder()

    assert run(dispatcher(publisher), "a:k", "b:k", "x:l", "n:", "c:k") == [DELIVERED] * 5
    assert publisher.batches == ["axn", "b", "c"]


def test_whole_batches_where_order_is_kept() -> None:
    publisher = Recorder(keeps_order=True)

    assert run(dispatcher(publisher), "a:k", "b:k", "x:l", "n:") == [DELIVERED] * 4
    assert publisher.batches == ["abxn"]


def test_whole_batches_where_keys_mean_nothing() -> None:
    publisher = Recorder(answers={"a": FAILED})

    assert run(dispatcher(publisher, ordered=False), "a:k", "b:k") == [FAILED, DELIVERED]
    assert publisher.batches == ["ab"]


@pytest.mark.parametrize("outcome", [FAILED, DOWN, DEAD])
def test_what_stands_behind_a_failure_is_held(outcome: Outcome) -> None:
    publisher = Recorder(answers={"b": outcome})

    outcomes = run(dispatcher(publisher), "a:k", "b:k", "c:k", "d:k", "x:l")

    assert outcomes == [DELIVERED, outcome, HELD, HELD, DELIVERED]
    assert publisher.batches == ["ax", "b"]


def test_a_publisher_that_keeps_order_has_its_later_failures_held() -> None:
    publisher = Recorder(keeps_order=True, answers={"b": FAILED, "c": Retry("behind b")})

    assert run(dispatcher(publisher), "a:k", "b:k", "c:k") == [DELIVERED, FAILED, HELD]


def test_a_key_with_two_destinations_goes_in_order_through_both() -> None:
    left, right = Recorder(keeps_order=True), Recorder(keeps_order=True)

    assert run(dispatcher(left, right), "a:k:0", "b:k:0", "c:k:1", "d:k:0") == [DELIVERED] * 4
    assert left.batches == ["ab", "d"]
    assert right.batches == ["c"]


def test_a_failure_at_one_destination_holds_the_key_at_the_other() -> None:
    left, right = Recorder(answers={"a": FAILED}), Recorder()

    assert run(dispatcher(left, right), "a:k:0", "b:k:1", "c::1") == [FAILED, HELD, DELIVERED]
    assert right.batches == ["c"]


def test_a_dropped_event_is_skipped_and_holds_nobody() -> None:
    publisher = Recorder()
    drop = dispatcher(publisher, transform=lambda event: None if event.payload == b"b" else event)

    assert run(drop, "a:k", "b:k", "c:k") == [DELIVERED, Skipped(), DELIVERED]
    assert publisher.batches == ["a", "c"]


def test_a_transform_that_fails_costs_its_event_an_attempt_and_holds_its_key() -> None:
    def transform(event: Event) -> Event:
        if event.payload == b"b":
            raise LookupError("no such thing")
        return event

    publisher = Recorder()
    outcomes = run(dispatcher(publisher, transform=transform), "a:k", "b:k", "c:k")

    assert outcomes == [DELIVERED, Retry("transform failed: LookupError: no such thing"), HELD]
    assert publisher.batches == ["a"]


def test_a_transform_that_fails_is_one_cause_for_all_its_events(caplog: pytest.LogCaptureFixture) -> None:
    def transform(event: Event) -> Event:
        json.loads(event.payload)
        raise AssertionError

    failing = dispatcher(Recorder(), transform=transform)
    run(failing, "a:k", "b:l")
    run(failing, "c:m")

    assert caplog.records == []
    [(cause, told)] = failing.trouble.found.items()
    assert (cause, told["count"], told["over"]) == ("transform failed: source", 3, False)
    line = transform.__code__.co_firstlineno + 1
    assert told["text"].startswith("JSONDecodeError: Expecting value: line 1 column 1 (char 0) ")
    assert told["text"].endswith(f"(in test_dispatch.py:{line} transform, event {UUID(int=0)})")


def test_an_event_without_a_route_is_dead() -> None:
    (dead, held) = run(dispatcher(Recorder()), "a:k:9", "b:k")

    assert isinstance(dead, Dead)
    assert "no route matches event_type '9'" in dead.error
    assert held == HELD


def test_headers_that_are_no_object_are_dead() -> None:
    (event,) = events("a:k")
    event.headers = ["x"]

    [outcome] = dispatcher(Recorder()).dispatch([event], 10.0, UNCONDITIONAL).outcomes

    assert outcome == Dead("headers must be a JSON object of strings, not list")


def test_what_does_not_fit_into_the_budget_is_held() -> None:
    publisher = Recorder()

    assert run(dispatcher(publisher), "a:k", "b:l", budget=0.0) == [HELD, HELD]
    assert publisher.batches == []


def test_nothing_goes_out_after_ownership_is_lost() -> None:
    publisher = Recorder()
    waves = 0

    def prove() -> None:
        nonlocal waves
        waves += 1
        if waves == 2:
            raise OwnershipLost("gone")

    with pytest.raises(OwnershipLost):
        dispatcher(publisher).dispatch(events("a:k", "b:k"), 10.0, Checked(prove))
    assert publisher.batches == ["a"]


def test_ownership_is_proved_before_each_destination() -> None:
    """The one before may have taken all its time."""
    first, second = Recorder(), Recorder()
    proofs = iter([None, OwnershipLost("gone")])

    def prove() -> None:
        if lost := next(proofs):
            raise lost

    with pytest.raises(OwnershipLost):
        dispatcher(first, second).dispatch(events("a:k", "b:l:1"), 10.0, Checked(prove))
    assert (first.batches, second.batches) == (["a"], [])


def test_a_publisher_that_forgets_an_outcome_is_an_error() -> None:
    class Forgetful(Recorder):
        def publish(self, messages: Sequence[Message], timeout: float) -> list[Outcome]:
            return []

    with pytest.raises(RuntimeError, match="0 outcomes for 1 messages"):
        run(dispatcher(Forgetful()), "a:k")


def test_an_open_breaker_lets_nothing_through() -> None:
    publisher = Recorder(answers={"a": DOWN})
    down = dispatcher(publisher)

    assert run(down, "a:k") == [DOWN]
    assert down.all_down()
    (outcome,) = run(down, "b:l")

    assert isinstance(outcome, Retry)
    assert not outcome.counted
    assert publisher.batches == ["a"]


def fan_out(*publishers: Recorder) -> Dispatcher:
    """Every event goes to all of the destinations 0, 1, ..."""
    destinations = {str(n): Destination(str(n), p, timeout=1.0) for n, p in enumerate(publishers)}
    router = Router([RouteSettings(destination=list(destinations))], destinations, "source")
    return Dispatcher(router, destinations, None, True, Tally(), tracing({}))


def test_a_fan_out_holds_its_key_until_all_have_answered() -> None:
    first, second = Recorder(keeps_order=True), Recorder(answers={"a": FAILED})

    dispatched = fan_out(first, second).dispatch(events("a:k", "b:k", "x:l"), 10.0, UNCONDITIONAL)

    assert dispatched.outcomes == [Retry("1: no luck"), HELD, DELIVERED]
    assert first.batches == ["ax"]
    assert second.batches == ["ax"]
    assert dispatched.partial == {str(UUID(int=0)): ["0"]}


def test_a_fan_out_goes_only_where_it_has_not_been() -> None:
    first, second = Recorder(), Recorder()
    been = {str(UUID(int=0)): {"0"}, str(UUID(int=1)): {"0", "1"}}

    dispatched = fan_out(first, second).dispatch(events("a:k", "b:k", "c:k"), 10.0, UNCONDITIONAL, been)

    assert dispatched.outcomes == [DELIVERED] * 3
    assert first.batches == ["c"]
    assert second.batches == ["a", "c"]
    assert dispatched.partial == {}


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([DELIVERED, DEAD, DOWN, FAILED], Retry("3: no luck")),
        ([DEAD, DOWN, DELIVERED, DELIVERED], Retry("1: nobody answers", counted=False)),
        ([DELIVERED, DELIVERED, DEAD, DELIVERED], Dead("2: too large")),
        ([DELIVERED, DEAD, HELD, DELIVERED], HELD),
    ],
)
def test_the_outcome_of_a_fan_out_is_where_it_needs_most(answers: list[Outcome], expected: Outcome) -> None:
    publishers = [Recorder(answers={"a": answer}) for answer in answers]

    dispatched = fan_out(*publishers).dispatch(events("a:k"), 10.0, UNCONDITIONAL)

    assert dispatched.outcomes == [expected]
    delivered = [str(n) for n, answer in enumerate(answers) if answer is DELIVERED]
    assert dispatched.partial == {str(UUID(int=0)): delivered}


def test_order_is_kept_by_the_old_key_where_a_transform_has_changed_it() -> None:
    publisher = Recorder(answers={"a": Retry("no")}, keeps_order=False)
    changed = dispatcher(publisher, transform=lambda event: replace(event, key=None))

    assert run(changed, "a:k", "b:k", "x:l") == [Retry("no"), HELD, DELIVERED]
    assert publisher.batches == ["ax"]
