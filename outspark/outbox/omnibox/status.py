"""What the column `status` of omni-box's tables says."""

from __future__ import annotations

from enum import StrEnum


class EventStatus(StrEnum):
    PENDING = "pending"
    """Also while somebody has it locked."""
    COMPLETED = "completed"
    FAILED = "failed"
