"""A destination that does what each event's payload asks for, and writes it into the journal as it happens."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from outspark.config.settings import DestinationSettings
from outspark.errors import DestinationDown
from outspark.event import Event, Message
from outspark.outcome import DELIVERED, Dead, Outcome, Retry
from tests.history.journal import Deed, Journal, Tries
from tests.waiting import wait_for

MEETING_TIMEOUT = 1.5
PUBLISH_TIMEOUT = 5.0

FATES: Final[dict[Deed, Outcome]] = {
    "delivered": DELIVERED,
    "failed": Retry("bad luck"),
    "dead": Dead("meant to die"),
    "down": Retry("out on purpose", counted=False),
}


class Behaviour(StrEnum):
    """What becomes of an event, apart from random failures. "First" means: no attempt was counted yet."""

    PASS = "pass"
    FAIL_FIRST = "fail first"
    DIE = "die"
    SKIP = "skip"
    POISON = "poison"
    """Kills the lane's process whenever it is published."""
    KILL_BEFORE = "kill before"
    """Kills the process at first, just before it is delivered."""
    KILL_AFTER = "kill after"
    """Kills the process at first, just after it was delivered."""
    MEET = "meet"
    """Is delivered only after another process claimed it too, or when none did in time."""

    @property
    def payload(self) -> bytes:
        return json.dumps(self.value).encode()

    @classmethod
    def of(cls, payload: bytes) -> Behaviour:
        return cls(json.loads(payload))


@dataclass(frozen=True, slots=True)
class Address:
    """Where messages really go to."""

    settings: DestinationSettings
    topic: str


@dataclass(frozen=True, slots=True)
class Conduct:
    """How a lane's destination behaves in general; travels to the lane's process. Without an address, what passes
    is delivered by being written into the journal."""

    journal: Path
    seed: int = 0
    failure_rate: float = 0.0
    keeps_order: bool = False
    address: Address | None = None
    counts_attempts: bool = True
    """Does the table? Otherwise the journal tells how often an event was tried."""

    @property
    def outage(self) -> Path:
        """While this file is there, the destination is down."""
        return self.journal.with_suffix(".outage")


class JournalPublisher:
    keeps_headers = False

    def __init__(self, process: str, conduct: Conduct) -> None:
        self.keeps_order = conduct.keeps_order
        self._process = process
        self._conduct = conduct
        self._journal = Journal(conduct.journal)
        self._tries = Tries(self._journal)
        self._batch = 0
        self._claiming = False

    def stamp(self, event: Event) -> Event | None:
        """The transform: note the claim, and put on the message what a publisher is not told."""
        if not self._claiming:
            self._claiming = True
            self.begin_batch()
        id = event.message_id or event.id
        attempts = event.attempts if self._conduct.counts_attempts else self._tries.of(UUID(id))
        self._journal.write(self._process, self._batch, id, "claimed", attempts)
        if Behaviour.of(event.payload) is Behaviour.SKIP:
            return None
        return dataclasses.replace(event, headers={"attempts": attempts})

    def begin_batch(self) -> None:
        self._batch += 1

    def publish(self, messages: Sequence[Message], timeout: float) -> list[Outcome]:
        self._claiming = False
        outcomes: list[Outcome] = []
        failed: set[str | None] = set()
        for message in messages:
            if self.keeps_order and message.order_key is not None and message.order_key in failed:
                outcomes.append(Retry("behind a failure"))
                continue
            outcome = self._publish(message)
            outcomes.append(outcome)
            if outcome is not DELIVERED:
                failed.add(message.order_key)
        return outcomes

    def check(self, timeout: float) -> None:
        if self._conduct.outage.exists():
            raise DestinationDown("out on purpose")

    def close(self) -> None:
        self._journal.close()

    def _publish(self, message: Message) -> Outcome:
        fate = self._fate(message)
        if fate == "delivered" and Behaviour.of(message.payload) is Behaviour.MEET:
            self._meet(message)
        outcome = self._suffer(message, fate)
        if fate == "delivered" and self._kills_after(message):
            self._die(message)
        return outcome

    def _fate(self, message: Message) -> Deed:
        """What is to become of it now."""
        behaviour, first = Behaviour.of(message.payload), _is_first(message)
        if self._conduct.outage.exists():
            return "down"
        if behaviour is Behaviour.POISON or (first and behaviour is Behaviour.KILL_BEFORE):
            return "died"
        if behaviour is Behaviour.DIE:
            return "dead"
        if (first and behaviour is Behaviour.FAIL_FIRST) or self._unlucky(message):
            return "failed"
        return "delivered"

    def _suffer(self, message: Message, fate: Deed) -> Outcome:
        if fate == "died":
            self._die(message)
        self._note(message, fate)
        return FATES[fate]

    def _kills_after(self, message: Message) -> bool:
        return _is_first(message) and Behaviour.of(message.payload) is Behaviour.KILL_AFTER

    def _note(self, message: Message, deed: Deed, why: str = "") -> None:
        attempts = int(message.headers["attempts"])
        self._journal.write(self._process, self._batch, message.id, deed, attempts, why)

    def _unlucky(self, message: Message) -> bool:
        luck = random.Random(f"{self._conduct.seed}/{message.id}/{message.headers['attempts']}")
        return luck.random() < self._conduct.failure_rate

    def _die(self, message: Message) -> None:
        self._note(message, "died")
        os.kill(os.getpid(), signal.SIGKILL)

    def _meet(self, message: Message) -> None:
        def others() -> list[Any]:
            claims = [e for e in self._journal.read() if str(e.event) == message.id and e.deed == "claimed"]
            return [claim for claim in claims if claim.process != self._process]

        try:
            wait_for(others, timeout=MEETING_TIMEOUT)
        except AssertionError:
            return


def _is_first(message: Message) -> bool:
    return message.headers["attempts"] == "0"
