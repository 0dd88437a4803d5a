"""A lane: it owns slots, works on them for a shift, and hands them over. It does not know what hosts it."""

from __future__ import annotations

import logging
import selectors
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from outspark.delivery.destination import Destination
from outspark.hosting import process
from outspark.hosting.spec import LEAD, LONGEST_OVERSTAY, ShiftReport
from outspark.observability.metrics import HANDOVERS_TOTAL, Tally
from outspark.relay.session import DatabaseSession
from outspark.relay.spec import RelayLaneSpec, databases

log = logging.getLogger(__name__)
LONGEST_WAIT = 0.5
MOST_TOLD = 100
"""Closed topics of a destination that a report names; each has a gauge."""


@dataclass(slots=True)
class Lane:
    spec: RelayLaneSpec
    destinations: Mapping[str, Destination] | None = None
    """Used instead of those of the spec, by a host that has destinations of its own."""
    tally: Tally = field(default_factory=Tally)
    sessions: list[DatabaseSession] = field(default_factory=list)

    def run(
        self, until: Callable[[], bool] | None = None, moved: Callable[[], None] | None = None
    ) -> ShiftReport:
        """Work for one shift: until it is relieved after its time, told to stop, or `until` says so.

        `moved` is called before each step of a source and each publish, for a watchdog of the lane.
        """
        spec = self.spec
        started = time.monotonic()
        ends = started + spec.hosting.shift.total_seconds() + LEAD
        # Without relief a lane works on, so that a lack of task slots in the cluster delays nothing; but not for ever.
        latest = ends + max(spec.hosting.shift.total_seconds(), LONGEST_OVERSTAY)
        tracing = process.tracer(spec.environ)
        destinations = self.destinations or process.destinations(spec.destinations)
        self.sessions = [
            DatabaseSession(spec, url, sources, destinations, self.tally, tracing, moved or _unwatched)
            for url, sources in databases(spec.sources).items()
        ]
        if all(assigned.settings.ordering == "key" for assigned in spec.sources):
            # An earlier shift of this process may have closed topics that another lane found open since; notes tell.
            for destination in destinations.values():
                destination.topics.clear()
        stopped = False
        try:
            while not all(session.released for session in self.sessions):
                worked = sum(session.step() for session in self.sessions)
                stopped = any(session.stopped for session in self.sessions) or (until is not None and until())
                now = time.monotonic()
                if stopped or now >= ends:
                    for session in self.sessions:
                        # Where a database is away there is nothing to hand over, and no relief can arrive.
                        ready = session.is_away() or (session.relieved and not session.taking_over())
                        if stopped or ready or now >= latest:
                            self._release(session)
                if not worked:
                    self._wait(ends)
        except BaseException:
            # A batch may be in flight: the next owner has to find the slots as a crashed owner leaves them.
            for session in self.sessions:
                session.abandon()
            raise
        finally:
            tracing.flush()
        return ShiftReport(
            lane=spec.lane,
            shift=spec.shift,
            tally=self.tally.to_json(),
            breakers={d.name: d.reason for d in destinations.values() if d.open},
            closed=[
                *_closed_topics(destinations),
                *(one for session in self.sessions for one in session.paused),
            ],
            problems=[session.problem for session in self.sessions if session.problem],
            stopped=stopped,
            causes=self._causes(destinations.values()),
        )

    def _causes(self, destinations: Iterable[Destination]) -> dict[str, Any]:
        found = {cause: one for session in self.sessions for cause, one in session.trouble.found.items()}
        for one in destinations:
            if one.open or one.opened:
                told = {"text": one.reason, "count": one.opened, "over": not one.open}
                found[f"destination is down: {one.name}"] = told
                one.opened = 0
        return found

    def _release(self, session: DatabaseSession) -> None:
        if session.released:
            return
        if session.relieved and not session.stopped:
            self.tally.add(HANDOVERS_TOTAL)
        session.release()

    def _wait(self, ends: float) -> None:
        """Wait until the next poll of a loop, something arrives on a connection, or the shift ends."""
        now = time.monotonic()
        poll = min((session.next_poll() for session in self.sessions), default=now)
        # Past its end a lane only waits for relief, which arrives on the socket.
        until = min(poll, ends) if now < ends else poll
        wait = min(max(until - now, 0.0), LONGEST_WAIT)
        with selectors.DefaultSelector() as selector:
            for session in self.sessions:
                if session.conn is not None and not session.released:
                    selector.register(session.conn.fileno(), selectors.EVENT_READ, session)
            for key, _ in selector.select(wait):
                key.data.hear()


def _unwatched() -> None:
    pass


def _closed_topics(destinations: Mapping[str, Destination]) -> list[dict[str, Any]]:
    return [
        {"destination": d.name, "topic": topic, "reason": breaker.reason, "since": breaker.since}
        for d in destinations.values()
        for topic, breaker in islice(d.topics.items(), MOST_TOLD)
    ]
