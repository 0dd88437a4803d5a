"""A relay of another make on the same table: the Open Outbox protocol in its plainest form, fenced by a relay id."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from outspark.event import Event, Message
from outspark.headers import wire_headers
from outspark.outcome import DELIVERED, Dead, Retry
from tests.history.hosting import processes
from tests.history.publisher import Conduct, JournalPublisher
from tests.waiting import wait_for

CLAIM = """\
-- Take what is free, for this relay
UPDATE openoutbox_events SET status = 'DELIVERING', locked_by = %(relay)s, locked_at = now(), updated_at = now()
WHERE event_id IN (
  SELECT event_id FROM openoutbox_events WHERE status = 'PENDING' AND available_at <= now()
  ORDER BY available_at, created_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED)
RETURNING event_id, event_type, partition_key, payload, headers, attempts, created_at"""

MARK = """\
-- Write down what became of one event, if this relay still holds it
UPDATE openoutbox_events
SET status = %(status)s, attempts = attempts + %(counted)s, locked_by = NULL, locked_at = NULL, updated_at = now(),
    available_at = now() + interval '50 ms', delivered_at = CASE WHEN %(status)s = 'DELIVERED' THEN now() END
WHERE event_id = %(id)s AND status = 'DELIVERING' AND locked_by = %(relay)s"""


def run_foreign(url: str, name: str, conduct: Conduct, limit: int, stop: Path) -> None:
    publisher = JournalPublisher(name, conduct)
    with psycopg.connect(url, autocommit=True) as conn:
        while not stop.exists():
            events = [Event(*row) for row in conn.execute(CLAIM, {"relay": name, "limit": limit})]
            stamped = [(event, publisher.stamp(event)) for event in events]
            for event, sent in stamped:
                conn.execute(MARK, {"relay": name, "id": event.id, **_publish(publisher, sent)})


def _publish(publisher: JournalPublisher, event: Event | None) -> dict[str, Any]:
    if event is None:
        return {"status": "DELIVERED", "counted": 0}
    message = Message(
        str(event.id), event.type, event.key, event.payload, wire_headers(event.headers), event.key
    )
    (outcome,) = publisher.publish([message], timeout=1.0)
    if outcome is DELIVERED:
        return {"status": "DELIVERED", "counted": 0}
    counted = not (isinstance(outcome, Retry) and not outcome.counted)
    return {"status": "DEAD" if isinstance(outcome, Dead) else "PENDING", "counted": int(counted)}


@dataclass(slots=True)
class ForeignRelay:
    url: str
    conduct: Conduct
    limit: int
    killed: set[str] = field(default_factory=set)
    lanes: int = 1
    _process: Any = None
    _name: str = ""
    _started: int = 0

    @property
    def _stop(self) -> Path:
        return self.conduct.journal.with_suffix(".stop")

    def tick(self) -> None:
        if self._process is not None and self._process.exitcode is None:
            return
        self._note_end()
        self._stop.unlink(missing_ok=True)
        self._started += 1
        self._name = f"foreign.{self._started}"
        args = (self.url, self._name, self.conduct, self.limit, self._stop)
        self._process = processes.Process(target=run_foreign, args=args, daemon=True)
        self._process.start()

    def kill(self, lane: int) -> None:
        self.abandon()
        self._note_end()

    def stop(self) -> None:
        self._stop.touch()
        wait_for(lambda: self._process.exitcode is not None, timeout=20)
        self._note_end()

    def abandon(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()

    def _note_end(self) -> None:
        if self._process is not None and self._process.exitcode < 0:
            self.killed.add(self._name)
            self._process = None
