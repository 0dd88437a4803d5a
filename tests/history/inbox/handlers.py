"""The handlers of every history: each does what its message asks for. Importable by name, as a service's are."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psycopg

from outspark.contracts.omnibox.inbox_maintenance import InboxMaintenance
from outspark.database.names import TableName
from outspark.inbox import InboxEvent, Reject, RetryLater, Router
from tests.history.inbox.conduct import Conduct, die
from tests.history.inbox.drafts import Behaviour
from tests.history.inbox.journal import Entry, Journal

APP = "tests.history.inbox.handlers:router"
SLOW = timedelta(milliseconds=400)
"""How long a handler may take that is known to be slow."""
FOREVER = 30.0

EFFECT = "INSERT INTO effects (name, consumer_group, process) VALUES (%s, %s, %s)"

router = Router()
_stage: Actor | None = None


@dataclass(frozen=True, slots=True)
class Actor:
    """The process that the handlers run in."""

    process: str
    conduct: Conduct
    journal: Journal

    def begin(self, event: InboxEvent) -> Behaviour:
        """What is to be done now; what is only done at first passes later."""
        name, behaviour = event.payload["name"], Behaviour(event.payload["do"])
        first = behaviour is Behaviour.PASS or not self._has_begun(name, event.group)
        self.journal.write([Entry(self.process, event.group, name, "begun")])
        return behaviour if first or not behaviour.endswith("first") else Behaviour.PASS

    def unlock(self, event: InboxEvent) -> None:
        """Take the event away from whoever has it."""
        with psycopg.connect(self.conduct.url, autocommit=True) as conn:
            table = TableName.parse(self.conduct.table).within("public")
            InboxMaintenance(table).unlock(conn, [event.id], "on purpose")

    def _has_begun(self, name: str, group: str) -> bool:
        return any(
            (entry.deed, entry.name, entry.group) == ("begun", name, group) for entry in self.journal.read()
        )


def prepare(process: str, conduct: Conduct) -> None:
    global _stage
    _stage = Actor(process, conduct, Journal(conduct.journal))


def actor() -> Actor:
    assert _stage is not None
    return _stage


def _effect(event: InboxEvent) -> list[str]:
    return [event.payload["name"], event.group, actor().process]


@router.on("sync")
def handle(event: InboxEvent, conn: psycopg.Connection[Any]) -> None:
    behaviour = actor().begin(event)
    conn.execute(EFFECT, _effect(event))
    match behaviour:
        case Behaviour.ABORT_FIRST:
            with suppress(psycopg.Error):
                conn.execute("SELECT 1 / 0")
        case Behaviour.COMMIT_FIRST:
            conn.execute("COMMIT")
            raise ValueError("after its own commit")
        case Behaviour.HANG_FIRST:
            threading.Event().wait(FOREVER)
        case _:
            _misbehave(event, behaviour)


@router.on("slow", timeout=SLOW)
def handle_slowly(event: InboxEvent, conn: psycopg.Connection[Any]) -> None:
    handle(event, conn)


@router.on("async", timeout=SLOW)
async def handle_async(event: InboxEvent, conn: psycopg.AsyncConnection[Any]) -> None:
    behaviour = actor().begin(event)
    await conn.execute(EFFECT, _effect(event))
    match behaviour:
        case Behaviour.ABORT_FIRST:
            with suppress(psycopg.Error):
                await conn.execute("SELECT 1 / 0")
        case Behaviour.COMMIT_FIRST:
            await conn.execute("COMMIT")
            raise ValueError("after its own commit")
        case Behaviour.HANG_FIRST:
            await asyncio.sleep(FOREVER)
        case _:
            _misbehave(event, behaviour)


def _misbehave(event: InboxEvent, behaviour: Behaviour) -> None:
    """What needs no connection."""
    match behaviour:
        case Behaviour.FAIL_FIRST | Behaviour.DIE:
            raise ValueError("on purpose")
        case Behaviour.NOT_NOW_FIRST:
            raise RetryLater("on purpose", after=0.05)
        case Behaviour.REJECT:
            raise Reject("on purpose")
        case Behaviour.KILL_FIRST | Behaviour.POISON:
            die()
        case Behaviour.UNLOCK_FIRST:
            actor().unlock(event)
