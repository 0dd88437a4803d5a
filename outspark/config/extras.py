"""The extras that a configuration needs, so that one error names all missing ones before anything is imported."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib.util import find_spec

from outspark.config.brokers import BROKERS
from outspark.config.inbox import InboxSettings
from outspark.config.settings import Settings
from outspark.errors import ExtraMissing

Need = tuple[str, str]
"""An extra, and the part of the configuration that needs it."""

_MODULES = {
    "spark": ("pyspark",),
    "server": ("prometheus_client", "starlette", "uvicorn"),
    "claimcheck": ("fsspec",),
    **{name: (broker.module,) for name, broker in BROKERS.items()},
}


def require_for_relay(settings: Settings) -> None:
    """ExtraMissing with every extra that a relay of these settings lacks."""
    _require(
        [
            ("spark", "the relay"),
            ("server", "the server"),
            *((one.type, f"a destination of type {one.type}") for one in settings.destinations.values()),
            *(("claimcheck", "a claim check") for one in settings.destinations.values() if one.claim_check),
        ]
    )


def require_for_inboxes(inboxes: Iterable[InboxSettings], *, consume: bool) -> None:
    feeds = [one.feed for one in inboxes if consume and one.feed is not None]
    _require(
        [
            ("spark", "the inbox"),
            ("server", "the server"),
            *((feed.type, f"a feed of type {feed.type}") for feed in feeds),
        ]
    )


def _require(needs: Iterable[Need]) -> None:
    missing = dict(_missing(needs))
    if missing:
        raise ExtraMissing(_joined(list(missing.values())), ",".join(missing))


def _missing(needs: Iterable[Need]) -> Iterator[Need]:
    for extra, part in needs:
        if any(find_spec(module) is None for module in _MODULES.get(extra, ())):
            yield extra, part


def _joined(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
