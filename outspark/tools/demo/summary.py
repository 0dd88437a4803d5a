"""The last screen of the demo: claims, evidence, and what came twice. The result goes to stdout."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from textwrap import indent

from rich.console import Console
from rich.table import Table
from rich.text import Text

from outspark.tools.demo.billing import COMPARE
from outspark.tools.demo.report import Billing, Report
from outspark.tools.demo.setup import Setup


def show(report: Report, *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(f"{json.dumps(report.to_json())}\n")
        sys.stdout.flush()
        return
    console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else 120)
    billing = [] if report.billing is None else [*_query(report.billing), Text()]
    for part in (
        Text(),
        _claims(report),
        Text(),
        *billing,
        *_notes(report),
        Text(),
        _conclusion(report),
        Text(),
    ):
        console.print(part)


def addresses(setup: Setup) -> str:
    return f"""\
 The shop is closed; everything else runs on until Ctrl-C:

   database  {setup.postgres.url()}
   broker    {setup.broker.url}, {setup.topic}
""" + "".join(
        f"   {one.kind:<8}  {one.url}/stats\n   settings  {one.config}, for outspark stats, dead, …\n"
        for one in setup.applications
    )


def _claims(report: Report) -> Table:
    table = Table.grid(padding=(0, 2))
    for claim in report.claims():
        mark = Text(" ✓", "bold green") if claim.holds else Text(" ✗", "bold red")
        table.add_row(mark, claim.text, Text(claim.evidence, "dim" if claim.holds else "red"))
    return table


def _query(billing: Billing) -> list[Text]:
    """What was asked, as it was asked, and the answer."""
    answer = "   ".join(f"{name} {number:,}" for name, number in asdict(billing.bills).items())
    return [
        Text(" The bills, by one query over the tables of both services:"),
        Text(indent(COMPARE, "   "), "dim"),
        Text(f"   {answer}", "bold"),
    ]


def _notes(report: Report) -> list[Text]:
    notes = [Text(f" {_twice(report)}")]
    if report.latency is not None:
        found = report.latency
        waits = f"p50 {found.p50:,.0f} ms, p99 {found.p99:,.0f} ms, longest {found.max:,.0f} ms"
        notes.append(Text(f" From commit to consumer: {waits}."))
    return notes + [Text(f" {line}", "red") for line in report.examples()]


def _twice(report: Report) -> str:
    sent, by_broker, by_consumer = report.sent_twice, report.dropped_by_broker, report.dropped_by_consumer
    if report.broker_drops:
        fate = (
            f"dropped by {report.broker}, which knew the ids: {by_broker:,}; by the consumer: {by_consumer:,}"
        )
    else:
        kept = f"kept by {report.broker}, which does not compare ids"
        fate = f"{kept}; dropped by the consumer, which does: {by_consumer:,}"
    return f"Sent twice: {sent:,}; {fate}."


def _conclusion(report: Report) -> Text:
    holds, style = ("holds", "bold green") if report.holds else ("does not hold", "bold red")
    return Text.assemble((f" The proof {holds}", style), f", after {report.seconds:.0f} s.")
