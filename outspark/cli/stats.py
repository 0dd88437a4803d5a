"""`outspark stats`: how much waits in each source and inbox, and how long."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from outspark.cli import options, output

if TYPE_CHECKING:
    from outspark.cli.tables import Kind
    from outspark.config.settings import Settings
    from outspark.contracts.maintenance import Stats

_COLUMNS = ("pending", "backoff", "scheduled")
_HELD_DEAD_DONE = {"source": ("delivering", "dead", "delivered"), "inbox": ("locked", "dead", "completed")}
_AGES = ("oldest", "behind", "lease")
_PLURALS = {"source": "sources", "inbox": "inboxes"}


def stats(
    exact: Annotated[
        bool,
        typer.Option(
            "--exact",
            help="Count delivered and completed events instead of estimating: reads all of them.",
        ),
    ] = False,
    json: options.Json = False,
    config: options.Config = None,
    source: options.Source = None,
    inbox: options.Inbox = None,
    url: options.Url = None,
    table: options.Table = None,
    contract: options.Contract = None,
) -> None:
    """Show how much waits, how long, and what is dead. All sources and inboxes, unless one is named.

    *oldest* is the age of the oldest event that waits, *behind* how long the first due event has been
    waiting, *lease* the age of the oldest claim. Of an inbox, the events of its consumer group are counted; in
    JSON, `delivering` are those that workers have locked, and `delivered` those that are completed.

    ```
    outspark stats
    outspark stats --source orders --json
    outspark stats --inbox billing --exact
    outspark stats --json | jq '.sources[].dead'
    ```
    """
    from outspark.cli.tables import load

    settings = load(config, source, inbox, url, table, contract)
    found = _read(settings, source, inbox, exact)
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


def _read(
    settings: Settings, source: str | None, inbox: str | None, exact: bool
) -> dict[Kind, dict[str, Stats]]:
    from outspark.cli.tables import open_inbox, open_source
    from outspark.config.loading import pick_inbox, pick_source

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
