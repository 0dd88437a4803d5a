"""What all settings are made of."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
)

from outspark.config import durations


def _duration(value: Any) -> Any:
    return durations.parse(value) if isinstance(value, str) else value


Duration = Annotated[
    timedelta,
    BeforeValidator(_duration),
    PlainSerializer(durations.text, return_type=str),
    Field(gt=timedelta(0)),
]
Ordering = Literal["key", "none"]


class Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class RetrySettings(Model):
    """How a failed event comes back."""

    max_attempts: int = Field(
        25, ge=1, description="Failures after which an event is dead, unless its row has a limit of its own."
    )
    base_delay: Duration = Field(
        timedelta(seconds=1), description="Wait after the first failure; doubles with each."
    )
    max_delay: Duration = Field(timedelta(hours=24), description="The longest wait.")
    jitter: float = Field(0.15, ge=0, le=1, description="Up to this share is added to each wait.")


class DeadGuardSettings(Model):
    """When a type of events is paused because too many of it die."""

    enabled: bool = Field(True, description="Pause a type whose events die one after the other.")
    window: Duration = Field(
        timedelta(minutes=1), description="The time, from the first death on, in which deaths are counted."
    )
    events: int = Field(1000, ge=1, description="More deaths of a type than this in the window pause it.")
    share: float = Field(
        0.5, ge=0, le=1, description="So do `at_least` deaths that are more than this share of its events."
    )
    at_least: int = Field(20, ge=1, description="Fewer deaths than this are never too large a share.")


class PartitionSettings(Model):
    """Maintenance of a partitioned table."""

    every: Literal["hour", "day", "week", "month"] = Field("day", description="How long a partition is.")
    ahead: int = Field(3, ge=1, le=1000, description="Partitions beyond the present one.")
    retention: Duration | None = Field(
        None,
        description="Partitions that ended this long ago go, once all in them is final; default: none goes.",
    )
