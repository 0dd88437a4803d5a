"""What an outcome means for a fan-out and for the order of a key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args

import pytest

from outspark.delivery.waves import Routed, combine, is_success
from outspark.outcome import DELIVERED, HELD, Dead, Delivered, Held, Outcome, Retry, Skipped

SUCCEEDS: dict[type, bool] = {Delivered: True, Skipped: True, Retry: False, Dead: False, Held: False}


@dataclass(frozen=True, slots=True)
class Unknown:
    """An outcome that nobody has thought of."""


def made(kind: type) -> Any:
    return kind("no luck") if kind in (Retry, Dead) else kind()


def test_it_is_known_of_every_outcome_whether_it_is_a_success() -> None:
    assert set(SUCCEEDS) == set(get_args(Outcome))
    assert {kind: is_success(made(kind)) for kind in SUCCEEDS} == SUCCEEDS
    assert not is_success(None)


def test_an_unknown_outcome_is_no_success() -> None:
    unknown: Any = Unknown()
    with pytest.raises(AssertionError):
        is_success(unknown)
    with pytest.raises(AssertionError):
        combine(Routed(None, copies=[Routed(None, outcome=DELIVERED), Routed(None, outcome=unknown)]))


def test_of_several_destinations_the_one_that_needs_most_decides() -> None:
    rising: list[Outcome] = [DELIVERED, Dead("d"), HELD, Retry("u", counted=False), Retry("c")]
    for index, most in enumerate(rising):
        routed = Routed(None, copies=[Routed(None, outcome=one) for one in rising[: index + 1]])
        combine(routed)
        assert routed.outcome == most
