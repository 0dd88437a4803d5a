"""The last screen of the demo: claims, evidence, and what came twice. The result goes to stdout."""

from __future__ import annotations

import json

from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from outspark.demo.consumer import STREAM
from outspark.demo.report import Report, count
from outspark.demo.stage import Stage


def show(report: Report, *, as_json: bool) -> None:
    console = Console(highlight=False, markup=False)
    if as_json:
        console.print(json.dumps(report.to_json()), soft_wrap=True)
        return
    console.print(Padding(Group(_claims(report), *_notes(report), Text(), _verdict(report)), (1, 1)))


def addresses(stage: Stage) -> str:
    return f"""\
 Everything is still running, until Ctrl-C. The shop is closed, but you can write:

   psql {stage.postgres.url()}
   nats --server {stage.nats.url} stream view {STREAM}
   curl {stage.relay.url}/stats
   outspark enqueue --config {stage.relay.config} --type order.noted --payload '{{"version": 1}}' --key 1
"""


def _claims(report: Report) -> Table:
    table = Table.grid(padding=(0, 2))
    for claim in report.claims():
        mark = Text("✓", "bold green") if claim.holds else Text("✗", "bold red")
        table.add_row(mark, claim.text, Text(claim.evidence, "dim" if claim.holds else "red"))
    return table


def _notes(report: Report) -> list[Text]:
    proof, lines = report.proof, [Text()]
    sent_twice = report.published - proof.arrived
    if sent_twice:
        lines.append(
            Text(
                f"{count(sent_twice, 'event')} sent a second time; NATS knew the id and dropped {report.dropped:,}; "
                f"{len(proof.twice):,} came twice at the consumer."
            )
        )
    else:
        lines.append(Text(f"No event was sent twice, and {len(proof.twice):,} came twice at the consumer."))
    if report.latency is not None:
        found = report.latency
        lines.append(
            Text(
                f"From commit to consumer: half within {found.p50:,.0f} ms, 99 % within {found.p99:,.0f} ms, "
                f"all within {found.max:,.0f} ms."
            )
        )
    return lines + [Text(line, "red") for line in report.examples()]


def _verdict(report: Report) -> Text:
    if report.holds:
        return Text.assemble(("The proof holds", "bold green"), f", after {report.seconds:.0f} s.")
    return Text.assemble(("The proof does not hold", "bold red"), f", after {report.seconds:.0f} s.")
