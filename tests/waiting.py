"""The one way tests wait: on a condition, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_for(
    condition: Callable[[], T], *, timeout: float = 10.0, what: str = "the condition", every: float = 0.01
) -> T:
    """The first truthy answer of `condition`; fails the test when there is none within `timeout` seconds.

    `every` so many seconds it is asked: more for what takes a busy server's time.
    """
    deadline = time.monotonic() + timeout
    while not (answer := condition()):
        if time.monotonic() >= deadline:
            raise AssertionError(
                f"{what} did not come true within {timeout:g} s; the last answer was {answer!r}"
            )
        time.sleep(every)
    return answer
