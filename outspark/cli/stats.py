"""`outspark stats`: how many events wait in each source and inbox, and how long."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from outspark.cli import options, output
from outspark.cli.commands import flag

if TYPE_CHECKING:
    from outspark.cli.tables import Kind
    from outspark.contracts.maintenance import Stats

_COLUMNS = ("pending", "backoff", "scheduled")
_HELD_DEAD_DONE = {"source": ("delivering", "dead", "delivered"), "inbox": ("locked", "dead", "completed")}
_AGES = ("oldest", "behind", "lease")
_PLURALS = {"source": "sources", "inbox": "inboxes"}


def stats(
    *,
    exact: Annotated[
        bool,
        flag(
            "--exact",
            "Count delivered and completed events instead of estimating them; this reads all of their rows.",
        ),
    ] = False,
    json: options.Json = False,
    target: options.TableOptions,
) -> None:
    """Show how many events wait, how long they wait, and how many are dead, in all sources and inboxes or in one.

    *oldest* is the age of the oldest pending event, *behind* is how long the first due event has been due, and *lease*
    is the age of the oldest claim. For an inbox, the command counts the events of its consumer group; with `--json`,
    `delivering` is the number of events that workers have locked, and `delivered` that of completed events.

    ```
    outspark stats
    outspark stats --source orders --json
    outspark stats --inbox billing --exact
    outspark stats --json | jq '.sources[].dead'
    ```
    """
    found = _read(target, exact)
    if json:
        output.print_json(
            {
                _PLURALS[kind]: {name: output.record(one) for name, one in all.items()}
                for kind, all in found.items()
            }
        )
        return
    for kind, all in found.items():
        if all:
            columns = (kind, *_COLUMNS, *_HELD_DEAD_DONE[kind], *_AGES)
            output.print_table(columns, [_row(name, one) for name, one in all.items()])


def _read(target: options.TableOptions, exact: bool) -> dict[Kind, dict[str, Stats]]:
    from outspark.cli.tables import open_inbox, open_source
    from outspark.config.loading import pick_inbox, pick_source

    settings, source, inbox = target.load(), target.source, target.inbox
    sources: dict[str, Any] = {} if inbox is not None else dict(settings.sources)
    inboxes: dict[str, Any] = {} if source is not None else dict(settings.inboxes)
    if source is not None or not (sources or inboxes or inbox):
        sources = dict([pick_source(settings, source)])
    if inbox is not None:
        inboxes = dict([pick_inbox(settings, inbox)])
    found: dict[Kind, dict[str, Stats]] = {"source": {}, "inbox": {}}
    for name, of_source in sources.items():
        with open_source(name, of_source) as opened:
            found["source"][name] = opened.maintenance.stats(exact=exact)
    for name, of_inbox in inboxes.items():
        with open_inbox(name, of_inbox) as opened:
            found["inbox"][name] = opened.maintenance.stats(exact=exact)
    return found


def _row(name: str, stats: Stats) -> list[str]:
    delivered = "?" if stats.delivered is None else f"{'' if stats.delivered_exact else '~'}{stats.delivered}"
    counts = (stats.pending, stats.backoff, stats.scheduled, stats.delivering, stats.dead)
    ages = (stats.oldest_age, stats.due_age, stats.oldest_lease)
    return [name, *map(str, counts), delivered, *map(output.age, ages)]
