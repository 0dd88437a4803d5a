"""Settings of a jEAP outbox: what only its sources have, and what is different from those of other contracts."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Literal

from pydantic import Field

from outspark.config import durations
from outspark.config.contracts import ContractSettings
from outspark.config.fields import Duration, Model
from outspark.contracts.jeap.table import DEFAULT_TABLE

if TYPE_CHECKING:
    from outspark.config.settings import SourceSettings


class JeapSettings(Model):
    """What only a source of contract jeap has."""

    trace: Literal["w3c", "b3", "both"] = Field(
        "w3c", description="How the stored trace context goes out: as `traceparent`, as `b3`, or both."
    )
    lock_at_most: Duration = Field(
        timedelta(minutes=2),
        description="How long the ShedLock row holds without being extended; more than any publish timeout.",
    )
    housekeeping: str = Field(
        "03:00",
        pattern=r"^(([01]\d|2[0-3]):[0-5]\d|off)$",
        description="When old messages are deleted each day, in UTC; `off` leaves that to `outspark prune`.",
    )
    sent_retention: Duration = Field(timedelta(days=2), description="How long sent messages stay.")
    unsent_retention: Duration = Field(
        timedelta(days=30), description="How long messages stay that were not sent, failed or not."
    )
    page_size: int = Field(500, ge=1, le=10_000, description="Messages deleted per transaction.")
    max_pages: int = Field(100_000, ge=1, description="Pages per run and kind, at most.")
    ignore: tuple[str, ...] = Field(
        (),
        description="Columns of the table and tables that refer to it, which are the service's own and say nothing "
        "about how a message is sent. Any other that is not jEAP's is refused.",
    )


def own(source: SourceSettings) -> JeapSettings:
    """The table `jeap` of a source of this contract."""
    settings: JeapSettings = source.own
    return settings


def _check(source: SourceSettings) -> Iterator[str]:
    if (source.ordering, source.lease) != ("key", "slot"):
        yield 'contract = "jeap" needs ordering = "key" and lease = "slot": its table has no leases'


def _check_timeout(source: SourceSettings, longest: timedelta) -> Iterator[str]:
    lock = own(source).lock_at_most
    if lock <= longest + timedelta(seconds=2):
        yield (
            f"jeap.lock_at_most = {durations.text(lock)} must be more than 2s longer than every publish_timeout, and "
            f"the longest is {durations.text(longest)}"
        )


SETTINGS: Final = ContractSettings(
    name="jeap",
    default_table=str(DEFAULT_TABLE),
    defaults={"lease": "slot"},
    section=JeapSettings,
    no_dead_letters="whose messages belong to their own services",
    check=_check,
    check_timeout=_check_timeout,
)
