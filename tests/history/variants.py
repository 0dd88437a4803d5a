"""Deliberately broken relays. Each breaks one rule of the lane, and the checker must notice.

They change the modules of the process they are called in, which is a lane's own process and never a test's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final
from uuid import UUID, uuid4

from outspark.brokers import Publisher, open_publisher
from outspark.config.settings import DestinationSettings
from outspark.contracts.jeap import relay as jeap_statements
from outspark.contracts.jeap.table import order_key as jeap_order_key
from outspark.contracts.openoutbox import relay as statements
from outspark.database import slots as slot_statements
from outspark.database.slots import Slots
from outspark.delivery import waves
from outspark.delivery.dispatcher import Dispatched
from outspark.delivery.permit import UNCONDITIONAL
from outspark.event import Message
from outspark.outcome import DELIVERED, Dead, Held, Outcome, Retry
from outspark.relay.blocked_keys import BlockedKeys
from outspark.relay.loop import SourceLoop
from outspark.relay.ownership import SlotOwnership
from outspark.relay.source import Batch
from tests.history import passing


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
        self._heads.pop(key or "", None)

    _set(BlockedKeys, "_free", free)


def skip_locked_heads() -> None:
    _replace("_CLAIM_OWNED", "LIMIT %(limit)s\n)", "LIMIT %(limit)s FOR UPDATE SKIP LOCKED\n)")


def hold_nothing() -> None:
    """Everything goes out in one wave, to a publisher that does not keep order."""

    def next_wave(waiting: Sequence[waves.Routed], failed: set[str]) -> Any:
        return list(waiting), []

    _set(waves, "next_wave", next_wave)


def go_on_after_dead() -> None:
    def is_success(outcome: Outcome | None) -> bool:
        return outcome is not None and not isinstance(outcome, Retry | Held)

    assert waves.is_success(Dead("")) is False
    _set(waves, "is_success", is_success)


def work_without_owning() -> None:
    """No lock, no epoch: every lane believes that the slots are its own."""

    def prove(self: Slots) -> None:
        return

    everything = "SELECT slot, %(class)s::int IS NOT NULL FROM unnest(%(slots)s::int[]) AS slot"
    _set(slot_statements, "TRY_LOCKS", everything)
    _set(statements, "FENCE", statements._NO_FENCE)
    _set(Slots, "prove", prove)


def settle_before_publish() -> None:
    def work(self: SourceLoop, batch: Batch) -> None:
        size = len(batch.events)
        self.settler.settle(batch, Dispatched([DELIVERED] * size, [None] * size, {}))
        self.dispatcher.dispatch(batch.events, 10.0, UNCONDITIONAL)

    _set(SourceLoop, "_work", work)


def never_adopt() -> None:
    """A dead owner's claims are left where they are, and the rest of the key goes on."""
    _replace("_ADOPT", "e.status = 'DELIVERING' AND", "false AND e.status = 'DELIVERING' AND")


def keep_blocked_suspects() -> None:
    """What stands behind a suspect that did not pass goes out when its key is free, even before that one."""

    def clear_blocked(self: SlotOwnership) -> None:
        return

    _set(SlotOwnership, "clear_blocked", clear_blocked)


def believe_in_delivery() -> None:
    """A publisher that answers Delivered, whatever the broker said."""

    def lie(messages: Sequence[Message], outcomes: list[Outcome]) -> list[Outcome]:
        return [DELIVERED] * len(outcomes)

    _lie(lie)


def doubt_delivery() -> None:
    """A publisher that answers Retry at first, whatever the broker said."""
    doubted: set[str] = set()

    def lie(messages: Sequence[Message], outcomes: list[Outcome]) -> list[Outcome]:
        new = {message.id for message in messages} - doubted
        doubted.update(new)
        answers = zip(messages, outcomes, strict=True)
        return [
            Retry("no answer", counted=False) if message.id in new else outcome
            for message, outcome in answers
        ]

    _lie(lie)


def ignore_schedule_after() -> None:
    """What a writer sends at once is sent by the relay, too."""
    _replace("_READY", "now() > e.schedule_after", "true", jeap_statements)


def ignore_topic_order() -> None:
    """Messages without a key are spread by their id, as if they had no order."""
    _replace("_ORDER_KEY", "'/' || e.topic", "'/' || e.id", jeap_statements)

    def order_key(key: bytes | None, topic: str) -> str:
        return f"/{uuid4()}" if key is None else jeap_order_key(key, topic)

    _set(jeap_statements, "order_key", order_key)


def claim_backwards() -> None:
    _replace("_CLAIM", "ORDER BY e.id", "ORDER BY e.id DESC", jeap_statements)


def _lie(lie: Callable[[Sequence[Message], list[Outcome]], list[Outcome]]) -> None:
    def open_liar(name: str, settings: DestinationSettings) -> Publisher:
        def publish(messages: Sequence[Message], timeout: float) -> list[Outcome]:
            return lie(messages, honest(messages, timeout))

        publisher = open_publisher(name, settings)
        honest = publisher.publish
        _set(publisher, "publish", publish)
        return publisher

    _set(passing, "open_publisher", open_liar)


def _replace(name: str, old: str, new: str, module: Any = statements) -> None:
    text = getattr(module, name)
    assert old in text, f"{name} has changed, and this variant breaks nothing any more"
    _set(module, name, text.replace(old, new))


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

LIARS: Final[dict[str, Callable[[], None]]] = {
    variant.__name__: variant for variant in (believe_in_delivery, doubt_delivery)
}
"""They need a real broker, because only there a lie comes to light."""

OF_JEAP: Final[dict[str, Callable[[], None]]] = {
    variant.__name__: variant for variant in (ignore_schedule_after, ignore_topic_order, claim_backwards)
}

ALL: Final = BROKEN | LIARS | OF_JEAP
