"""A lane of an inbox: what it is told, and how it takes messages in or handles events for one shift."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from outspark.config.inbox import InboxSettings
from outspark.config.settings import Settings, SourceSettings
from outspark.errors import SettingsError
from outspark.hosting.shift import Signals
from outspark.hosting.spec import LaneSpec, ShiftReport
from outspark.inbox import dead_letters
from outspark.inbox.handling.guard import Records
from outspark.inbox.handling.worker import Worker
from outspark.inbox.intake.consumer import Consumer
from outspark.inbox.router import load_router
from outspark.observability.causes import Trouble
from outspark.observability.metrics import HANDOVERS_TOTAL, Tally

Task = Literal["consume", "handle"]


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxLaneSpec(LaneSpec):
    """One lane of one inbox. `number` counts those of the same inbox and task; `lane` counts all of the run."""

    name: str
    settings: InboxSettings
    task: Task
    number: int
    outbox: SourceSettings | None = None
    """Where letters about dead events go, if they go to an outbox."""

    @property
    def url(self) -> str:
        return self.settings.url.get_secret_value()

    @property
    def member(self) -> str:
        """What the broker knows this lane by: the same from shift to shift, so that no shift rebalances the group."""
        return f"{self.relay.id}-{self.name}-{self.number}"


def inbox_lanes(
    settings: Settings,
    names: Sequence[str],
    tasks: Sequence[Task],
    instance: str,
    environ: Mapping[str, str],
) -> list[InboxLaneSpec]:
    """As many lanes as the settings say for each inbox and task."""
    wanted = [
        (name, task, number) for name in names for task in tasks for number in range(settings.hosting.lanes)
    ]
    for name in names:
        _check(name, settings.inboxes[name], tasks)
    return [
        InboxLaneSpec(
            hosting=settings.hosting,
            relay=settings.relay,
            instance=instance,
            lane=lane,
            environ=environ,
            name=name,
            settings=settings.inboxes[name],
            task=task,
            number=number,
            outbox=_outbox(settings, settings.inboxes[name]),
        )
        for lane, (name, task, number) in enumerate(wanted)
    ]


def _check(name: str, inbox: InboxSettings, tasks: Sequence[Task]) -> None:
    if "consume" in tasks and inbox.feed is None:
        raise SettingsError(
            f"inboxes.{name}.feed is needed to take messages in; write a [inboxes.{name}.feed] table"
        )
    if "handle" in tasks and inbox.app is None:
        raise SettingsError(
            f"inboxes.{name}.app is needed to handle events: give --app module:router, or write it down"
        )


def _outbox(settings: Settings, inbox: InboxSettings) -> SourceSettings | None:
    letter = inbox.dead_letter
    return settings.sources[letter.outbox] if letter is not None and letter.outbox is not None else None


_records: dict[tuple[str, int], Records] = {}
"""What this process saw of handlers in earlier shifts of a lane: one may be too short to tell that they are broken."""


@dataclass(slots=True)
class InboxLane:
    spec: InboxLaneSpec
    tally: Tally = field(default_factory=Tally)
    trouble: Trouble = field(default_factory=Trouble)

    def run(
        self, until: Callable[[], bool] | None = None, moved: Callable[[], None] | None = None
    ) -> ShiftReport:
        """Until it is relieved after its time, told to stop, or `until` says so.

        `moved` is called again and again, also while handlers run, for whoever watches that the lane moves.
        """
        signals = Signals(self.spec, self.spec.url, f"{self.spec.task} {self.spec.number}", until, moved)
        try:
            if self.spec.task == "consume":
                self._consume(signals)
            else:
                self._handle(signals, moved)
        finally:
            signals.close()
        if signals.relieved and not signals.stopped:
            self.tally.add(HANDOVERS_TOTAL)
        return ShiftReport(
            lane=self.spec.lane,
            shift=self.spec.shift,
            tally=self.tally.to_json(),
            breakers={},
            problems=[],
            stopped=signals.stopped,
            causes=self.trouble.found,
        )

    def _consume(self, signals: Signals) -> None:
        # Two consumers of one name would fence each other, so the next begins when the last has closed its feed.
        signals.announce_ready()
        if signals.take_baton():
            Consumer(self.spec.settings, self.spec.member, tally=self.tally, causes=self.trouble).run(signals)

    def _handle(self, signals: Signals, moved: Callable[[], None] | None) -> None:
        settings = self.spec.settings
        if settings.app is None:
            raise SettingsError(f"inboxes.{self.spec.name}.app says which handlers there are, and is missing")
        router = load_router(settings.app)
        on_dead = dead_letters.writer(settings, self.spec.outbox)
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
        # Two workers never claim the same event, so two shifts may overlap for a moment.
        signals.announce_ready()
        with worker:
            worker.run(signals)
