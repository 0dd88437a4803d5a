"""A run as one picture: rates against the ceiling, latencies, a long backlog and memory over time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from outspark.tools.bench.results import Results, Row

Panel = Callable[[Axes, Results], None]

BROKERS = ("nats", "kafka", "rabbitmq", "redis")
JEAP = ("jeap", "jeap-finished")
INBOX = ("inbox-consume", "inbox-handle")
COLOURS = {"ceiling": "#8a8f98", "own": "#b9bdc4", "serial": "#b9bdc4", "bare": "#4c9be8", "spark": "#e8743b"}


def write_plot(results: Results, path: Path) -> None:
    """Only panels that have something to show; PNG."""
    panels: list[Panel] = []
    if any(row.rate for row in results.rows if row.scenario in ("drain", "share")):
        panels.append(_rates)
    if any(row.rate for row in results.rows if row.scenario in BROKERS):
        panels.append(_brokers)
    if any(row.rate for row in results.rows if row.scenario in JEAP):
        panels.append(_jeap)
    if any(row.rate for row in results.rows if row.scenario in INBOX):
        panels.append(_inbox)
    curves: dict[str, Panel] = {"trickle": _latencies, "backlog": _backlog, "soak": _memory}
    for prefix, panel in curves.items():
        if any(name.startswith(prefix) for name in results.curves):
            panels.append(panel)
    path.parent.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context({"axes.spines.top": False, "axes.spines.right": False, "font.size": 9}):
        figure = Figure(figsize=(11, 4.2 * max((len(panels) + 1) // 2, 1)), layout="constrained")
        for number, panel in enumerate(panels, 1):
            panel(figure.add_subplot((len(panels) + 1) // 2, min(len(panels), 2), number), results)
        figure.savefig(path, format="png", dpi=110)


def _rates(axes: Axes, results: Results) -> None:
    rows = [row for row in results.rows if row.scenario in ("drain", "share") and row.rate]
    known = all(row.ratio for row in rows)
    labels = [
        "ceiling" if row.host == "ceiling" else f"{row.scenario} {row.host} {row.lease}" for row in rows
    ]
    values = [(row.ratio if known else row.rate) or 0.0 for row in rows]
    axes.barh(labels, values, color=[COLOURS[row.host] for row in rows])
    axes.invert_yaxis()
    if known:
        axes.axvline(1.0, color=COLOURS["ceiling"], linewidth=1)
    axes.set_title("Rate" + (", 1 = claim and settle in SQL inside the server" if known else ", events/s"))


def _brokers(axes: Axes, results: Results) -> None:
    rows = [row for row in results.rows if row.scenario in BROKERS and row.rate and row.destination != "null"]
    _bars(axes, rows, [f"{row.destination} {row.host} {row.lease}" for row in rows])
    axes.set_title("To brokers, events/s")


def _jeap(axes: Axes, results: Results) -> None:
    rows = [row for row in results.rows if row.scenario in JEAP and row.rate]
    labels = [f"{row.host} {row.destination}" for row in rows]
    notes = [row.note if row.destination != "kafka" else "" for row in rows]
    _bars(axes, rows, ["\n".join(filter(None, lines)) for lines in zip(labels, notes, strict=True)])
    axes.tick_params(axis="y", labelsize=7)
    axes.set_title("An outbox of jEAP, events/s")


def _inbox(axes: Axes, results: Results) -> None:
    rows = [row for row in results.rows if row.scenario in INBOX and row.rate]
    _bars(axes, rows, [f"{row.scenario.removeprefix('inbox-')} {row.host}" for row in rows])
    axes.set_title("An inbox: consumed, handled, events/s")


def _bars(axes: Axes, rows: Sequence[Row], labels: Sequence[str]) -> None:
    """By position, not by label: two rows may have the same label."""
    positions = range(len(rows))
    axes.barh(positions, [row.rate or 0.0 for row in rows], color=[COLOURS[row.host] for row in rows])
    axes.set_yticks(positions, labels)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.invert_yaxis()


def _latencies(axes: Axes, results: Results) -> None:
    for name, latencies in results.curves.items():
        if name.startswith("trickle"):
            shares = [100 * (position + 1) / len(latencies) for position in range(len(latencies))]
            axes.plot([max(ms, 0.01) for ms in latencies], shares, label=name.removeprefix("trickle "))
    axes.set_xscale("log")
    axes.set(title="Commit to publish, a trickle on Spark", xlabel="ms", ylabel="% of events within")
    axes.legend()


def _backlog(axes: Axes, results: Results) -> None:
    for name, curve in results.curves.items():
        if name.startswith("backlog"):
            width = max(len(curve) // 20, 1)
            starts = [0.0, *curve[width - 1 :: width]]
            rates = [1 / (end - start) for start, end in pairwise(starts)]
            shares = [100 * width * (position + 1) / len(curve) for position in range(len(rates))]
            axes.plot(shares, [rate / rates[0] for rate in rates], label=name.removeprefix("backlog "))
    axes.set_ylim(bottom=0)
    axes.set(title="A long backlog: rate against its start", xlabel="% delivered")
    axes.legend()


def _memory(axes: Axes, results: Results) -> None:
    times, memory = zip(*results.curves["soak"], strict=True)
    axes.plot([seconds / 60 for seconds in times], memory, color=COLOURS["spark"])
    axes.set_ylim(bottom=0)
    axes.set(title="Memory of our processes under steady load", xlabel="minutes", ylabel="MB")
