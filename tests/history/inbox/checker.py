"""Decides whether a history of an inbox kept what its strategy promises. Pure: it looks at nothing but the history.

The promises, each a function below, for every consumer group by itself:

- No loss: each message has one row, and that is at its end: completed, or dead for a reason. Only under at-most-once
  may messages be missing, and deaths not be written down, at most a batch an interruption each. Of messages with one
  idempotency key one has a row.
- Effects: what the handlers' own table holds of each message. Exactly-once: one if it is completed, none if it is
  dead. At-most-once: one or none, and none of a sound message only as often as somebody was interrupted.
  At-least-once: one or more if it is completed, and none if its handler never let one stand.
- Acknowledgements: the broker hears of no message that is not kept; under at-least-once-on-success of none that is
  not at its end.
- Order: with `ordering = "key"`, first effects of a key come in the order in which its messages were taken in.
- Locks: nobody holds what is at its end.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from outspark.config.inbox import Strategy
from tests.history.inbox.drafts import MUST_DIE, Behaviour, Draft
from tests.history.inbox.history import History, Row

FINAL = ("completed", "failed")
_NEVER_STANDS = (Behaviour.DIE, Behaviour.REJECT, Behaviour.BROKEN)
"""Handlers that raise before anything is committed, or are never called."""

Name = tuple[str, str]
"""A message in a group."""


def check(history: History) -> list[str]:
    """Every broken promise in words; an empty list is a pass."""
    evidence = Evidence(history)
    rules: list[Callable[[Evidence], Iterator[str]]] = [
        strangers,
        loss,
        ends,
        effects,
        acknowledgements,
        order,
        locks,
    ]
    return [breach for rule in rules for breach in rule(evidence)]


@dataclass(slots=True)
class Evidence:
    """A history, sorted by message and group."""

    history: History
    rows: dict[Name, list[Row]] = field(default_factory=lambda: defaultdict(list))
    effects: Counter[Name] = field(default_factory=Counter)
    first_effect: dict[Name, int] = field(default_factory=dict)
    keys_taken: Counter[Name] = field(default_factory=Counter)
    """Rows by idempotency key and group. What was refused leaves its key to others."""

    def __post_init__(self) -> None:
        for row in self.history.rows:
            self.rows[row.name, row.group].append(row)
            draft = self.history.published.get(row.name)
            if draft is not None and draft.idempotency_key is not None and draft.behaviour not in MUST_DIE:
                self.keys_taken[draft.idempotency_key, row.group] += 1
        for position, effect in enumerate(self.history.effects):
            self.effects[effect.name, effect.group] += 1
            self.first_effect.setdefault((effect.name, effect.group), position)

    def messages(self) -> Iterator[tuple[Draft, str]]:
        for group in self.history.rules.groups:
            for draft in self.history.published.values():
                yield draft, group

    def has_twin(self, draft: Draft, group: str) -> bool:
        """Did another message with its idempotency key take its place?"""
        key = draft.idempotency_key
        return key is not None and not self.rows[draft.name, group] and self.keys_taken[key, group] > 0


def strangers(evidence: Evidence) -> Iterator[str]:
    history = evidence.history
    for name, group in sorted({*evidence.rows, *evidence.effects}):
        if name not in history.published or group not in history.rules.groups:
            yield f"{name} in {group} was never published, but seen"


def loss(evidence: Evidence) -> Iterator[str]:
    history = evidence.history
    missing = 0
    for draft, group in evidence.messages():
        rows = evidence.rows[draft.name, group]
        if len(rows) > 1:
            yield f"{draft.name} was taken in {len(rows)} times by {group}"
        if rows or evidence.has_twin(draft, group):
            continue
        missing += 1
        if history.rules.strategy is not Strategy.AT_MOST_ONCE:
            yield f"{draft.name} was lost for {group}"
    if history.rules.strategy is Strategy.AT_MOST_ONCE:
        most = history.interruptions * history.rules.batch_size
        if missing > most:
            yield f"{missing} messages were lost, more than {most}"
    for (key, group), count in evidence.keys_taken.items():
        if count > 1:
            yield f"idempotency key {key} was taken in {count} times by {group}"


def ends(evidence: Evidence) -> Iterator[str]:
    rules = evidence.history.rules
    unsaid, most = 0, evidence.history.interruptions * rules.batch_size
    for draft, group in evidence.messages():
        for row in evidence.rows[draft.name, group]:
            what = f"{draft.name} ({draft.behaviour}) in {group}"
            if row.status not in FINAL:
                yield f"{what} is still {row.status}"
            elif row.status == "completed" and _may_end_unsaid(evidence, draft):
                unsaid += 1
            elif row.status == "completed" and _must_die(evidence, draft):
                yield f"{what} should have died"
            elif row.status == "failed" and not _may_die(evidence, draft, row):
                yield f"{what} is dead after {row.attempts} attempts"
            if row.attempts > rules.max_attempts:
                yield f"{what} has {row.attempts} attempts, more than {rules.max_attempts}"
    if unsaid > most:
        yield f"{unsaid} messages should have died, more than {most} without a word"


def effects(evidence: Evidence) -> Iterator[str]:
    strategy = evidence.history.rules.strategy
    never = 0
    for draft, group in evidence.messages():
        count = evidence.effects[draft.name, group]
        row = next(iter(evidence.rows[draft.name, group]), None)
        completed = row is not None and row.status == "completed"
        what = f"{draft.name} ({draft.behaviour}) in {group}"
        match strategy:
            case Strategy.EXACTLY_ONCE if count != int(completed):
                yield f"{what} has {count} effects and is {'completed' if completed else 'not completed'}"
            case Strategy.AT_MOST_ONCE:
                never += row is not None and not count and draft.behaviour is Behaviour.PASS
                if count > 1:
                    yield f"{what} has {count} effects, more than once"
            case Strategy.AT_LEAST_ONCE_ON_PERSIST | Strategy.AT_LEAST_ONCE_ON_SUCCESS:
                if completed and not count:
                    yield f"{what} is completed, but was never handled"
                if count and draft.behaviour in _NEVER_STANDS:
                    yield f"{what} has {count} effects, though its handler let none stand"
    # Of each worker, one handler at a time is between the completion of its event and its end.
    if never > evidence.history.interruptions:
        yield f"{never} messages were not handled, in {evidence.history.interruptions} interruptions"


def acknowledgements(evidence: Evidence) -> Iterator[str]:
    strategy = evidence.history.rules.strategy
    for entry in evidence.history.entries:
        if entry.deed != "acknowledged" or strategy is Strategy.AT_MOST_ONCE:
            continue
        draft = evidence.history.published.get(entry.name)
        if not entry.state:
            if draft is None or not evidence.has_twin(draft, entry.group):
                yield f"{entry.name} was acknowledged for {entry.group} before it was kept"
        elif strategy is Strategy.AT_LEAST_ONCE_ON_SUCCESS and entry.state not in FINAL:
            yield f"{entry.name} was acknowledged for {entry.group} before it was final"


def order(evidence: Evidence) -> Iterator[str]:
    history = evidence.history
    if history.rules.ordering == "none":
        return
    queues: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in sorted(history.rows, key=lambda row: row.accepted):
        draft = history.published.get(row.name)
        if draft is not None and draft.key is not None and (row.name, row.group) in evidence.first_effect:
            queues[draft.key, row.group].append(row)
    for (key, group), rows in queues.items():
        for earlier, later in pairwise(rows):
            if evidence.first_effect[later.name, group] < evidence.first_effect[earlier.name, group]:
                yield f"{later.name} of key {key} in {group} overtook {earlier.name}"


def locks(evidence: Evidence) -> Iterator[str]:
    for row in evidence.history.rows:
        if row.status in FINAL and row.locked_by is not None:
            yield f"{row.name} in {row.group} is {row.status}, but locked by {row.locked_by}"


def _must_die(evidence: Evidence, draft: Draft) -> bool:
    if draft.behaviour is Behaviour.STRAY:
        return evidence.history.rules.partitioned
    # Under at-most-once the row is completed before its handler kills the process.
    at_most_once = evidence.history.rules.strategy is Strategy.AT_MOST_ONCE
    return draft.behaviour in MUST_DIE and not (at_most_once and draft.behaviour is Behaviour.POISON)


def _may_end_unsaid(evidence: Evidence, draft: Draft) -> bool:
    """Under at-most-once a worker that is killed after its handlers failed leaves their rows completed."""
    at_most_once = evidence.history.rules.strategy is Strategy.AT_MOST_ONCE
    return at_most_once and draft.behaviour in (Behaviour.DIE, Behaviour.REJECT)


def _may_die(evidence: Evidence, draft: Draft, row: Row) -> bool:
    """Under at-most-once nothing is tried again, so any failure is the end; `effects` counts those without a reason."""
    rules = evidence.history.rules
    gave_up = row.attempts >= rules.max_attempts or rules.strategy is Strategy.AT_MOST_ONCE
    return gave_up or _must_die(evidence, draft)
