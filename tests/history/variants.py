"""Deliberately broken relays. Each breaks one rule of the lane, and the checker must notice.

They change the modules of the process they are called in, which is a lane's own process and never a test's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final
from uuid import UUID

from outspark.contracts import slots as slot_statements
from outspark.contracts.openoutbox import lane as statements
from outspark.outcome import DELIVERED, Dead, Held, Outcome, Retry
from outspark.relay import dispatch
from outspark.relay.keys import BlockedKeys
from outspark.relay.loop import SourceLoop
from outspark.relay.slots import Slots
from outspark.relay.source import Batch
from outspark.relay.tenure import Tenure


def claim_by_available_at() -> None:
    for name in ("_CLAIM_OWNED", "_CLAIM_READ"):
        _replace(name, "ORDER BY e.created_at, e.event_id", "ORDER BY e.available_at, e.event_id")


def filter_rows_not_keys() -> None:
    def blocked(self: BlockedKeys) -> list[str]:
        return []

    _set(BlockedKeys, "blocked", blocked)


def free_keys_early() -> None:
    """Any delivered event of a key frees it, even one that stood before the failed one in the same batch."""

    def free(self: BlockedKeys, key: str | None, head: UUID) -> None:
        self.heads.pop(key or "", None)

    _set(BlockedKeys, "free", free)


def skip_locked_heads() -> None:
    _replace("_CLAIM_OWNED", "LIMIT %(limit)s\n)", "LIMIT %(limit)s FOR UPDATE SKIP LOCKED\n)")


def hold_nothing() -> None:
    """Everything goes out in one wave, to a publisher that does not keep order."""

    def next_wave(waiting: Sequence[dispatch.Parcel], failed: set[str]) -> Any:
        return list(waiting), []

    _set(dispatch, "_next_wave", next_wave)


def go_on_after_dead() -> None:
    def passed(outcome: Outcome | None) -> bool:
        return outcome is not None and not isinstance(outcome, Retry | Held)

    assert dispatch._passed(Dead("")) is False
    _set(dispatch, "_passed", passed)


def work_without_owning() -> None:
    """No lock, no epoch: every lane believes that the slots are its own."""

    def prove(self: Slots) -> None:
        return

    everything = "SELECT slot, %(class)s::int IS NOT NULL FROM unnest(%(slots)s::int[]) AS slot"
    _set(slot_statements, "TRY_LOCKS", everything)
    _set(statements, "_FENCE", statements._NO_FENCE)
    _set(Slots, "prove", prove)


def settle_before_publish() -> None:
    def work(self: SourceLoop, batch: Batch) -> None:
        size = len(batch.events)
        self.settler.settle(batch, [DELIVERED] * size, [None] * size)
        self.dispatcher.dispatch(batch.events, 10.0, lambda: None)

    _set(SourceLoop, "_work", work)


def never_adopt() -> None:
    """A dead owner's claims are left where they are, and the rest of the key goes on."""
    _replace("_ADOPT", "e.status = 'DELIVERING' AND", "false AND e.status = 'DELIVERING' AND")


def keep_blocked_suspects() -> None:
    """What stands behind a suspect that did not pass goes out when its key is free, even before that one."""

    def clear_blocked(self: Tenure) -> None:
        return

    _set(Tenure, "clear_blocked", clear_blocked)


def _replace(name: str, old: str, new: str) -> None:
    text = getattr(statements, name)
    assert old in text, f"{name} has changed, and this variant breaks nothing any more"
    _set(statements, name, text.replace(old, new))


def _set(owner: Any, name: str, value: object) -> None:
    assert hasattr(owner, name), f"{name} is not there any more, and this variant breaks nothing"
    setattr(owner, name, value)


BROKEN: Final[dict[str, Callable[[], None]]] = {
    variant.__name__: variant
    for variant in (
        claim_by_available_at,
        filter_rows_not_keys,
        skip_locked_heads,
        hold_nothing,
        go_on_after_dead,
        work_without_owning,
        settle_before_publish,
        never_adopt,
        free_keys_early,
        keep_blocked_suspects,
    )
}
