"""A lane's ownership of slots of a source: take, wait for a crashed owner to end, adopt, prove, leave."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field

from pydantic import ValidationError

from outspark.contracts.relay_statements import (
    AdoptParams,
    CountAttemptParams,
    Fence,
    OnSlots,
    Suspect,
    SuspectsParams,
)
from outspark.database.slots import Slots, Taken
from outspark.observability import metrics
from outspark.relay.handover import HandoverNote
from outspark.relay.source import Source

log = logging.getLogger(__name__)

ADOPTED = "the relay ended while this event was in flight"


@dataclass(slots=True)
class SlotOwnership:
    """`active` are the slots to claim from: owned, and past the grace after an owner that crashed or disconnected."""

    source: Source
    slots: Slots
    hold: float
    grace: float
    active: list[int] = field(default_factory=list)
    suspects: list[Suspect] = field(default_factory=list)
    """Events that a crashed owner had in flight, oldest first. They go out one by one: so an event that kills its lane
    is found, and the other events of its batch are not blamed."""
    inherited: tuple[HandoverNote, float] | None = None
    """What the owner before us noted, and how many seconds ago; for the loop to use once."""
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
                    "the last owner of this slot crashed or disconnected and may still be publishing; waiting",
                    extra={"source": self.source.name, "slot": slot.slot, "seconds": self.grace},
                )
        ready = [taken for due, taken in self._graced if due <= now]
        if ready:
            self._graced = [(due, taken) for due, taken in self._graced if due > now]
            self._begin(ready)
        return bool(ready)

    def find_dead(self) -> None:
        """Under `on_dead = "park"` the table says which keys stand behind a dead event."""
        if self.source.settings.on_dead == "park" and self.active:
            rows = self.source.query(
                "park", self.source.statements.keys_behind_dead, OnSlots(slots=self.active)
            )
            self.source.keys.dead_found({row.key for row in rows})

    def grace_ends(self) -> float | None:
        return min((due for due, _ in self._graced), default=None)

    def taking_over(self) -> bool:
        """Is there still work to do because the last owner crashed or disconnected?"""
        return bool(self._graced or self.suspects)

    def fence(self) -> Fence:
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
        # The lane never worked on slots in their grace: they stay as the crashed owner left them.
        self.slots.leave(self.active, note.model_dump_json() if note is not None else None)
        self.active, self._graced, self.inherited = [], [], None
        self.suspects.clear()
        self._counted.clear()
        self.source.keys.slots_left()

    def clear_blocked(self) -> None:
        """Drop suspects that wait behind a failed event: an ordinary claim brings them when their turn comes.

        This happens immediately, because their key may be free again before the next suspect goes out.
        """
        self.suspects = [suspect for suspect in self.suspects if not self._is_blocked(suspect.key)]

    def next_suspect(self) -> str | None:
        """The next suspect to go out."""
        while self.suspects:
            suspect = self.suspects.pop(0)
            if self._is_blocked(suspect.key):
                continue
            counted = self.source.settings.lease == "row" or suspect.id in self._counted
            if counted or self._count_attempt(suspect):
                return suspect.id
        return None

    def _is_blocked(self, key: str | None) -> bool:
        return key is not None and key in self.source.keys

    def _begin(self, ready: list[Taken]) -> None:
        slots = [taken.slot for taken in ready]
        self.active = sorted({*self.active, *slots})
        heads = self.source.query("take", self.source.statements.keys_in_backoff, OnSlots(slots=slots))
        self.source.keys.slots_begun(heads)
        self.find_dead()
        self.inherited = self._note(ready)
        unclean = [taken.slot for taken in ready if not taken.clean]
        if unclean:
            self._adopt(unclean)
            self.slots.begin(unclean)

    def _note(self, ready: list[Taken]) -> tuple[HandoverNote, float] | None:
        """The note of the owner before us, if it is of this run and about exactly the slots that we own now."""
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
        """The crashed owner may have worked under another `lease` than ours, so its marks always go back."""
        settings, statements = self.source.settings, self.source.statements
        given: AdoptParams = {"slots": slots, "max_attempts": settings.retry.max_attempts, "error": ADOPTED}
        adopted = self.source.query("adopt", statements.adopt, given)
        rows = [Suspect(one.id, one.key) for one in adopted if not one.dead]
        dead = len(adopted) - len(rows)
        if settings.lease == "slot":
            self._counted.update(one.id for one in rows)
            wanted: SuspectsParams = {
                "slots": slots,
                "blocked": self.source.keys.blocked(),
                "limit": settings.batch_size,
            }
            rows = self.source.query("adopt", statements.suspects, wanted)
        self.suspects.extend(rows)
        self.source.count("dead", dead)
        if rows or dead:
            self.source.tally.add(metrics.ADOPTED_TOTAL, len(rows) + dead, source=self.source.name)
            log.warning(
                "adopted the events of an owner that crashed or disconnected",
                extra={"source": self.source.name, "events": len(rows) + dead, "dead": dead},
            )

    def _count_attempt(self, suspect: Suspect) -> bool:
        """Without a mark on the row, count the attempt before the event goes out; False if it was the last attempt."""
        parameters: CountAttemptParams = {
            "ids": [suspect.id],
            "max_attempts": self.source.settings.retry.max_attempts,
            "error": ADOPTED,
            **self.fence(),
        }
        rows = self.source.query("adopt", self.source.statements.count_attempt, parameters)
        if any(one.dead for one in rows):
            self.source.count("dead", 1)
            self.source.keys.died(suspect.key)
            return False
        return bool(rows)
