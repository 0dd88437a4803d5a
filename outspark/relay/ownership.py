"""The time in which a lane owns slots of a source: taking them, waiting out a ghost, adopting, proving, leaving."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from outspark.database.slots import Slots, Taken
from outspark.observability import metrics
from outspark.relay.handover import HandoverNote
from outspark.relay.source import Source

log = logging.getLogger(__name__)

ADOPTED = "the relay ended while this event was in flight"


@dataclass(slots=True)
class SlotOwnership:
    """`active` are the slots to claim from: owned, and past the grace after an owner that vanished."""

    source: Source
    slots: Slots
    hold: float
    grace: float
    active: list[int] = field(default_factory=list)
    suspects: list[tuple[str, str | None]] = field(default_factory=list)
    """What a vanished owner had in flight, oldest first. They go out one by one, so that one that kills its lane is
    found out and those that travelled with it are not blamed."""
    inherited: tuple[HandoverNote, float] | None = None
    """What the one before us noted, and how many seconds ago; for the loop to use once."""
    _graced: list[tuple[float, Taken]] = field(default_factory=list)
    _counted: set[str] = field(default_factory=set)
    """Suspects whose attempt was counted when they were adopted."""

    def take(self) -> bool:
        """Take free slots and begin with those whose grace is over; True when there are new ones to claim from."""
        now = time.monotonic()
        for slot in self.slots.take():
            self._graced.append((now if slot.settled else now + self.grace, slot))
            if not slot.settled:
                log.warning(
                    "the last owner of this slot vanished and may still be publishing; waiting",
                    extra={"source": self.source.name, "slot": slot.slot, "seconds": self.grace},
                )
        ready = [taken for due, taken in self._graced if due <= now]
        if ready:
            self._graced = [(due, taken) for due, taken in self._graced if due > now]
            self._begin(ready)
        return bool(ready)

    def look_for_parked(self) -> None:
        """Under `on_dead = "park"` the table says which keys stand behind a dead event."""
        if self.source.settings.on_dead == "park" and self.active:
            rows = self.source.execute(
                "park", self.source.statements.keys_behind_dead, {"slots": self.active}
            )
            self.source.keys.park_only({key for (key,) in rows})

    def grace_ends(self) -> float | None:
        return min((due for due, _ in self._graced), default=None)

    def taking_over(self) -> bool:
        """Is there something left to do because the last owner vanished?"""
        return bool(self._graced or self.suspects)

    def fence(self) -> dict[str, Any]:
        return {
            "source": self.slots.source,
            "slots": self.active,
            "epochs": [self.slots.epochs[slot] for slot in self.active],
        }

    def prove(self) -> None:
        """A publish cannot be fenced, so ownership is proved again when the last proof is old; OwnershipLost if not."""
        if time.monotonic() - max(self.slots.proved, self.source.answered) > self.hold:
            self.slots.prove()

    def leave(self, note: HandoverNote | None = None) -> None:
        # Slots still in their grace were never worked on: they stay as the one who vanished left them.
        self.slots.leave(self.active, note.model_dump_json() if note is not None else None)
        self.active, self._graced, self.inherited = [], [], None
        self.suspects.clear()
        self._counted.clear()
        self.source.keys.clear()

    def clear_blocked(self) -> None:
        """No longer suspect what stands behind an event that did not pass: it joins the others when its turn comes.

        At once, because the key may be free again, its head among the others, before the next suspect goes out.
        """
        self.suspects = [suspect for suspect in self.suspects if not self._is_blocked(suspect[1])]

    def next_suspect(self) -> str | None:
        """The next suspect to go out."""
        while self.suspects:
            suspect, key = self.suspects.pop(0)
            if self._is_blocked(key):
                continue
            counted = self.source.settings.lease == "row" or suspect in self._counted
            if counted or self._count_attempt(suspect, key):
                return suspect
        return None

    def _is_blocked(self, key: str | None) -> bool:
        return key is not None and key in self.source.keys

    def _begin(self, ready: list[Taken]) -> None:
        slots = [taken.slot for taken in ready]
        self.active = sorted({*self.active, *slots})
        now = time.monotonic()
        # These slots may hold older events than those the last claim looked at.
        self.source.keys.version += 1
        for head, key, seconds in self.source.execute(
            "take", self.source.statements.keys_in_backoff, {"slots": slots}
        ):
            self.source.keys.wait_for_retry(key, head, now + seconds)
        self.look_for_parked()
        self.inherited = self._note(ready)
        unclean = [taken.slot for taken in ready if not taken.clean]
        if unclean:
            self._adopt(unclean)
            self.slots.begin(unclean)

    def _note(self, ready: list[Taken]) -> tuple[HandoverNote, float] | None:
        """The note of the one before us, if it is of this run and about just the slots that we own now."""
        text, age = ready[0].note, ready[0].age
        if text is None or age is None or not all(taken.clean for taken in ready):
            return None
        try:
            note = HandoverNote.model_validate_json(text)
        except ValidationError:
            return None
        if note.instance != self.slots.owner.instance or note.slots != self.active:
            return None
        return note, age

    def _adopt(self, slots: list[int]) -> None:
        """Whoever vanished may have worked under another `lease` than we do, so its marks are always looked for."""
        settings, statements = self.source.settings, self.source.statements
        limits = {"max_attempts": settings.retry.max_attempts, "error": ADOPTED}
        adopted = self.source.execute("adopt", statements.adopt, {"slots": slots, **limits})
        rows = [(event, key) for event, key, is_dead in adopted if not is_dead]
        dead = len(adopted) - len(rows)
        if settings.lease == "slot":
            self._counted.update(event for event, _ in rows)
            parameters = {
                "slots": slots,
                "blocked": self.source.keys.blocked(),
                "limit": settings.batch_size,
            }
            rows = [
                (event, key) for event, key in self.source.execute("adopt", statements.suspects, parameters)
            ]
        self.suspects.extend(rows)
        self.source.count("dead", dead)
        if rows or dead:
            self.source.tally.add(metrics.ADOPTED_TOTAL, len(rows) + dead, source=self.source.name)
            log.warning(
                "adopted events of an owner that vanished",
                extra={"source": self.source.name, "events": len(rows) + dead, "dead": dead},
            )

    def _count_attempt(self, suspect: str, key: str | None) -> bool:
        """Without a mark on the row, the attempt is counted before the event goes out; False when it was the last."""
        parameters = {
            "ids": [suspect],
            "max_attempts": self.source.settings.retry.max_attempts,
            "error": ADOPTED,
        }
        rows = self.source.execute(
            "adopt", self.source.statements.count_attempt, {**parameters, **self.fence()}
        )
        if any(dead for _, dead in rows):
            self.source.count("dead", 1)
            if key is not None and self.source.settings.on_dead == "park":
                self.source.keys.parked.add(key)
            return False
        return bool(rows)
