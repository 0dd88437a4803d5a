"""`outspark stats`: how much waits in each source, and how long."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from outspark.cli import options, output

if TYPE_CHECKING:
    from outspark.contracts.upkeep import Stats
    from outspark.settings import Settings, SourceSettings

_COLUMNS = (
    "source",
    "pending",
    "backoff",
    "scheduled",
    "delivering",
    "dead",
    "delivered",
    "oldest",
    "behind",
    "lease",
)


def stats(
    exact: Annotated[
        bool, typer.Option("--exact", help="Count delivered events instead of estimating: reads all of them.")
    ] = False,
    json: options.Json = False,
    config: options.Config = None,
    source: options.Source = None,
    url: options.Url = None,
    table: options.Table = None,
    contract: options.Contract = None,
) -> None:
    """Show how much waits in the outbox, how long, and what is dead. All sources, unless one is named.

    *oldest* is the age of the oldest event that waits, *behind* how long the first due event has been
    waiting, *lease* the age of the oldest claim.

    ```
    outspark stats
    outspark stats --source orders --json
    outspark stats --json | jq '.sources[].dead'
    ```
    """
    settings = options.load_settings(config, source, url=url, table=table, contract=contract)
    found = {name: _read(name, one, exact) for name, one in _chosen(settings, source)}
    if json:
        output.print_json({"sources": {name: output.record(one) for name, one in found.items()}})
    else:
        output.print_table(_COLUMNS, [_row(name, one) for name, one in found.items()])


def _chosen(settings: Settings, source: str | None) -> list[tuple[str, SourceSettings]]:
    from outspark.loading import pick_source

    if source is None and len(settings.sources) > 1:
        return list(settings.sources.items())
    return [pick_source(settings, source)]


def _read(name: str, settings: SourceSettings, exact: bool) -> Stats:
    from outspark.cli.sources import open_source

    with open_source(name, settings) as opened:
        return opened.maintenance.stats(exact=exact)


def _row(name: str, stats: Stats) -> list[str]:
    delivered = "?" if stats.delivered is None else f"{'' if stats.delivered_exact else '~'}{stats.delivered}"
    counts = (stats.pending, stats.backoff, stats.scheduled, stats.delivering, stats.dead)
    ages = (stats.oldest_age, stats.due_age, stats.oldest_lease)
    return [name, *map(str, counts), delivered, *map(output.age, ages)]
