"""What a lane knows that the table does not say, as a note for the next shift.

The note only saves work: a lane without one finds out by itself what waits and where to begin its scans.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import BaseModel, BeforeValidator

from outspark.outcome import TopicFault
from outspark.redaction import storable

MOST_KEYS = 100_000
"""Beyond this a note would cost more than it saves."""


class DestinationBacklog(BaseModel):
    """The events that wait for one destination that is down, for one topic of it, or, without it, for a paused type."""

    destination: str
    topic: str | None = None
    type: str | None = None
    fault: TopicFault | None = None
    """What is wrong with a topic."""
    probes: list[str] = []
    """Events to probe a topic or a type with."""
    since: float
    reason: Annotated[str, BeforeValidator(storable)]
    probe_in: float
    """Seconds until the next probe; `pause` is how long the one after it waits at least."""
    pause: float
    keys: list[str]
    types: list[str]
    """Of events without a key."""


class LowWaterMark(BaseModel):
    """A low-water mark as it was when the note was written."""

    at: datetime
    calm_since: datetime
    age: float
    took: float
    due: float | None
    """Seconds until a scheduled event falls due."""
    full: bool


class HandoverNote(BaseModel):
    """Of use to the owner of just these slots in the same run of a relay: it has the same routes."""

    instance: str
    slots: list[int]
    waiting: list[DestinationBacklog] = []
    mark: LowWaterMark | None = None
