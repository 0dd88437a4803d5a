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
        25, ge=1, description="Failures after which an event is dead, unless its row has its own limit."
    )
    base_delay: Duration = Field(
        timedelta(seconds=1), description="Wait after the first failure; it doubles with each further one."
    )
    max_delay: Duration = Field(timedelta(hours=24), description="The longest wait.")
    jitter: float = Field(
        0.15, ge=0, le=1, description="Up to this fraction is added to each wait at random."
    )


class DeadGuardSettings(Model):
    """When a type of events is paused because too many of it die."""

    enabled: bool = Field(True, description="Pause an event type when too many of its events die.")
    window: Duration = Field(
        timedelta(minutes=1),
        description="The time, from the first dead event on, in which dead events are counted.",
    )
    events: int = Field(
        1000, ge=1, description="A type is paused when more of its events than this die in the window."
    )
    share: float = Field(
        0.5,
        ge=0,
        le=1,
        description="A type is also paused when at least `at_least` of its events and more than this fraction die.",
    )
    at_least: int = Field(
        20, ge=1, description="With fewer dead events than this, the fraction does not count."
    )


class PartitionSettings(Model):
    """Maintenance of a partitioned table."""

    every: Literal["hour", "day", "week", "month"] = Field("day", description="Length of a partition.")
    ahead: int = Field(3, ge=1, le=1000, description="Partitions to keep ready beyond the current one.")
    retention: Duration | None = Field(
        None,
        description="Partitions that ended this long ago are dropped once all their events are final; default: none.",
    )
