"""Deliberately broken inboxes. Each breaks one rule, and the checker must notice.

They change the modules of the process they are called in, which is a lane's own process and never a test's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final

from outspark.config.inbox import Strategy
from outspark.contracts.omnibox import inbox as statements
from outspark.inbox.handling import transaction
from outspark.inbox.handling.batch import Job, TransactionLost
from outspark.inbox.handling.session import KeyOrder
from outspark.inbox.handling.transaction import Script
from outspark.inbox.intake import message
from outspark.inbox.outcome import HandlingOutcome


def acknowledge_first() -> None:
    """The broker hears of messages before the database does."""
    _set(Strategy, "acknowledge", property(lambda self: "first"))


def acknowledge_when_kept() -> None:
    """The broker hears of messages before their handlers are through."""
    _set(Strategy, "acknowledge", property(lambda self: "kept"))


def complete_apart() -> None:
    """Effects are committed, and then the completion in a transaction of its own."""
    _set(Strategy, "complete", property(lambda self: "after"))


def complete_early() -> None:
    """The event is completed before its handler is called."""
    _set(Strategy, "complete", property(lambda self: "before"))


def forget_groups_of_keys() -> None:
    """Idempotency keys of one group are those of another."""

    def idempotency_key(key: bytes | None, group: str) -> str | None:
        return None if key is None else key.decode()

    _set(message, "_idempotency_key", idempotency_key)


def forget_groups_of_ids() -> None:
    """A message that one group has is a duplicate for another, where accept looks through all partitions."""
    _replace(statements, "KNOWN_MESSAGES", "consumer_group = %(group)s", "%(group)s::text IS NOT NULL")


def take_time_from_the_clock() -> None:
    """A redelivery has another time, so that a partitioned table's indexes do not see that it is one."""

    def created_at(*args: Any) -> tuple[datetime | None, bool]:
        return None, True

    _set(message, "_created_at", created_at)


def ignore_blocked_keys() -> None:
    def blocked(self: KeyOrder) -> list[str]:
        return []

    _set(KeyOrder, "blocked", blocked)


def lose_locks_unnoticed() -> None:
    """What was done for an event stands, even if it was taken away meanwhile."""
    honest = transaction._complete

    def complete(job: Job, outcomes: Sequence[HandlingOutcome]) -> Script[TransactionLost | None]:
        yield from honest(job, outcomes)
        return None

    _set(transaction, "_complete", complete)


def stand_no_guard() -> None:
    """A handler may commit by itself."""
    _set(transaction, "BEGIN", "SET TRANSACTION READ WRITE; SAVEPOINT outspark_event")
    _set(transaction, "END", "SELECT 1")


def _replace(module: Any, name: str, old: str, new: str) -> None:
    text = getattr(module, name)
    assert old in text, f"{name} has changed, and this variant breaks nothing any more"
    _set(module, name, text.replace(old, new))


def _set(owner: Any, name: str, value: object) -> None:
    assert hasattr(owner, name), f"{name} is not there any more, and this variant breaks nothing"
    setattr(owner, name, value)


BROKEN: Final[dict[str, Callable[[], None]]] = {
    variant.__name__: variant
    for variant in (
        acknowledge_first,
        acknowledge_when_kept,
        complete_apart,
        complete_early,
        forget_groups_of_keys,
        forget_groups_of_ids,
        take_time_from_the_clock,
        ignore_blocked_keys,
        lose_locks_unnoticed,
        stand_no_guard,
    )
}
