"""What a lane of an inbox is told: to take messages in, or to handle events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from outspark.errors import SettingsError
from outspark.relay.spec import HostedSpec
from outspark.settings import Settings, SourceSettings
from outspark.settings.inbox import InboxSettings

Task = Literal["take", "work"]


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxSpec(HostedSpec):
    """One lane of one inbox. `number` counts those of the same inbox and task; `lane` counts all of the run."""

    name: str
    settings: InboxSettings
    task: Task
    number: int
    outbox: SourceSettings | None = None
    """Where letters about dead events go, if they go to an outbox."""

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
) -> list[InboxSpec]:
    """As many lanes as the settings say for each inbox and task."""
    wanted = [
        (name, task, number) for name in names for task in tasks for number in range(settings.relay.lanes)
    ]
    for name in names:
        _check(name, settings.inboxes[name], tasks)
    return [
        InboxSpec(
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
    if "take" in tasks and inbox.feed is None:
        raise SettingsError(
            f"inboxes.{name}.feed is needed to take messages in; write a [inboxes.{name}.feed] table"
        )
    if "work" in tasks and inbox.app is None:
        raise SettingsError(
            f"inboxes.{name}.app is needed to handle events: give --app module:router, or write it down"
        )


def _outbox(settings: Settings, inbox: InboxSettings) -> SourceSettings | None:
    letter = inbox.dead_letter
    return settings.sources[letter.outbox] if letter is not None and letter.outbox is not None else None
