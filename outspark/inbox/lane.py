"""A lane of an inbox: its specification, and one shift of consuming messages or handling events."""

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
    """One lane of one inbox. `number` counts the lanes of this inbox and task, `lane` all lanes of the run."""

    name: str
    settings: InboxSettings
    task: Task
    number: int
    outbox: SourceSettings | None = None
    """The outbox that dead letters are written to, if the settings name one."""

    @property
    def url(self) -> str:
        return self.settings.url.get_secret_value()

    @property
    def member(self) -> str:
        """The lane's name at the broker. It is the same in every shift, so that a new shift causes no rebalance."""
        return f"{self.relay.id}-{self.name}-{self.number}"


def inbox_lanes(
    settings: Settings,
    names: Sequence[str],
    tasks: Sequence[Task],
    instance: str,
    environ: Mapping[str, str],
) -> list[InboxLaneSpec]:
    """The lanes for each inbox and task, as many as the settings say."""
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
            f"inboxes.{name}.feed is needed to consume messages; write a [inboxes.{name}.feed] table"
        )
    if "handle" in tasks and inbox.app is None:
        raise SettingsError(
            f"inboxes.{name}.app is needed to handle events: give --app module:router, or set it in the configuration"
        )


def _outbox(settings: Settings, inbox: InboxSettings) -> SourceSettings | None:
    dead_letter = inbox.dead_letter
    if dead_letter is None or dead_letter.outbox is None:
        return None
    return settings.sources[dead_letter.outbox]


_records: dict[tuple[str, int], Records] = {}
"""Handler failures that this process saw in earlier shifts of a lane: one shift may be too short to judge handlers."""


@dataclass(slots=True)
class InboxLane:
    spec: InboxLaneSpec
    tally: Tally = field(default_factory=Tally)
    trouble: Trouble = field(default_factory=Trouble)

    def run(
        self, until: Callable[[], bool] | None = None, moved: Callable[[], None] | None = None
    ) -> ShiftReport:
        """Run until the next shift takes over, a stop is requested, or `until` returns true.

        The lane calls `moved` repeatedly, also while handlers run, so that a watchdog sees that it makes progress.
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
        # Two consumers with one member name would fence each other, so this shift starts to consume only after the
        # shift before has closed its feed.
        signals.announce_ready()
        if signals.take_baton():
            Consumer(self.spec.settings, self.spec.member, tally=self.tally, causes=self.trouble).run(signals)

    def _handle(self, signals: Signals, moved: Callable[[], None] | None) -> None:
        settings = self.spec.settings
        if settings.app is None:
            raise SettingsError(
                f"inboxes.{self.spec.name}.app is missing: it names the router with the handlers"
            )
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
        # Claims keep workers apart, so two shifts may handle events at the same time for a moment.
        signals.announce_ready()
        with worker:
            worker.run(signals)
