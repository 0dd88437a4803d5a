"""A lane of an inbox, for one shift: it takes messages in, or handles events. Knows nothing of what hosts it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from outspark.causes import Trouble
from outspark.errors import SettingsError
from outspark.inbox import letters
from outspark.inbox.app import load_router
from outspark.inbox.guard import Records
from outspark.inbox.signals import Signals
from outspark.inbox.spec import InboxSpec
from outspark.inbox.taking import Taker
from outspark.inbox.work import Worker
from outspark.metrics import HANDOVERS_TOTAL, Tally
from outspark.relay.lane import Report

_records: dict[tuple[str, int], Records] = {}
"""What this process saw of handlers in earlier shifts of a lane: one may be too short to tell that they are broken."""


@dataclass(slots=True)
class InboxLane:
    spec: InboxSpec
    tally: Tally = field(default_factory=Tally)
    trouble: Trouble = field(default_factory=Trouble)

    def run(self, until: Callable[[], bool] | None = None, moved: Callable[[], None] | None = None) -> Report:
        """Until it is relieved after its time, told to stop, or `until` says so.

        `moved` is called again and again, also while handlers run, for whoever watches that the lane moves.
        """
        signals = Signals(self.spec, until, moved)
        try:
            if self.spec.task == "take":
                self._take(signals)
            else:
                self._work(signals, moved)
        finally:
            signals.close()
        if signals.relieved and not signals.stopped:
            self.tally.add(HANDOVERS_TOTAL)
        return Report(
            lane=self.spec.lane,
            shift=self.spec.shift,
            tally=self.tally.to_json(),
            breakers={},
            problems=[],
            stopped=signals.stopped,
            causes=self.trouble.found,
        )

    def _take(self, signals: Signals) -> None:
        # Two consumers of one name would fence each other, so the next begins when the last has closed its feed.
        signals.say_ready()
        if signals.take_baton():
            Taker(self.spec.settings, self.spec.member, tally=self.tally, causes=self.trouble).run(signals)

    def _work(self, signals: Signals, moved: Callable[[], None] | None) -> None:
        settings = self.spec.settings
        if settings.app is None:
            raise SettingsError(f"inboxes.{self.spec.name}.app says which handlers there are, and is missing")
        router = load_router(settings.app)
        on_dead = letters.writer(settings, self.spec.outbox)
        worker = Worker(
            settings.url.get_secret_value(),
            settings.table,
            router,
            settings.work_settings(self.spec.member.replace("/", "-")[:100]),
            tally=self.tally,
            on_dead=on_dead,
            causes=self.trouble,
            records=_records.setdefault((self.spec.instance, self.spec.lane), {}),
            moved=moved,
        )
        # Workers do not get in each other's way, so two shifts may work side by side for a moment.
        signals.say_ready()
        with worker:
            worker.run(signals)
