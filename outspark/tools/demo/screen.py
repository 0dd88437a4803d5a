"""What the user sees while the demo runs: a panel that lives on a terminal, plain lines anywhere else."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import pairwise
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

BARS = " ▁▂▃▄▅▆▇█"
HISTORY = 48
"""Bars of the picture, one per STEP."""
STEP = 0.5
RATE_OVER = 1.5
"""Seconds over which events per second are counted."""
PLAIN_EVERY = 2.0


@dataclass(frozen=True, slots=True)
class Lane:
    text: str
    """Its name, what it does, and where."""
    killed: bool = False


@dataclass(frozen=True, slots=True)
class Billing:
    """The inbox at one moment."""

    handled: int = 0
    waiting: int = 0
    bills: int = 0
    lanes: tuple[Lane, ...] = ()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The numbers of one moment."""

    at: float
    """Seconds since the demo began."""
    phase: str
    committed: int = 0
    rolled_back: int = 0
    delivered: int = 0
    waiting: int = 0
    lag: float = 0.0
    """Seconds that the oldest event which is due has waited."""
    arrived: int = 0
    twice: int = 0
    latency: float | None = None
    """Median of the last arrivals, in milliseconds."""
    lanes: tuple[Lane, ...] = ()
    billing: Billing | None = None
    """None where there is no inbox."""


class Screen(Protocol):
    """Used from the main thread only."""

    def milestone(self, at: float, text: str, *, bad: bool = False) -> None: ...

    def show(self, snapshot: Snapshot) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def open_screen(console: Console) -> Screen:
    return LiveScreen(console) if console.is_terminal else PlainScreen(console)


class PlainScreen:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._pace = Pace()
        self._next = 0.0

    def milestone(self, at: float, text: str, *, bad: bool = False) -> None:
        self._say(at, text)

    def show(self, snapshot: Snapshot) -> None:
        self._pace.add(snapshot)
        if snapshot.committed == 0 or snapshot.at < self._next:
            return
        self._next = snapshot.at + PLAIN_EVERY
        self._say(
            snapshot.at,
            f"{snapshot.committed:,} committed, {snapshot.rolled_back:,} rolled back, {snapshot.arrived:,} arrived, "
            f"{snapshot.waiting:,} waiting, lag {_duration(snapshot.lag)}, {self._pace.arrived:,.0f} events/s"
            + _billed(snapshot.billing),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def _say(self, at: float, text: str) -> None:
        self._console.print(f"[{_clock(at)}] {text}", markup=False, highlight=False, soft_wrap=True)


class LiveScreen:
    """Milestones stay above; the panel below them is drawn again and again."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._pace = Pace()
        self._live = Live(console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)

    def milestone(self, at: float, text: str, *, bad: bool = False) -> None:
        mark = Text(" ✗ ", "bold red") if bad else Text(" ✓ ", "bold green")
        self._console.print(Text.assemble(mark, (f"{_clock(at)}  ", "dim"), (text, "red" if bad else "")))

    def show(self, snapshot: Snapshot) -> None:
        self._pace.add(snapshot)
        self._live.update(panel(snapshot, self._pace), refresh=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()


class Pace:
    """Events per second, from one snapshot to the next."""

    def __init__(self) -> None:
        self._recent: deque[Snapshot] = deque()
        self._marks: deque[Snapshot] = deque(maxlen=HISTORY + 1)
        self.committed = self.delivered = self.arrived = self.handled = 0.0

    def add(self, snapshot: Snapshot) -> None:
        while self._recent and snapshot.at - self._recent[0].at > RATE_OVER:
            self._recent.popleft()
        self._recent.append(snapshot)
        if snapshot.committed and (not self._marks or snapshot.at - self._marks[-1].at >= STEP):
            self._marks.append(snapshot)
        first = self._recent[0]
        span = max(snapshot.at - first.at, 0.1)
        self.committed = (snapshot.committed - first.committed) / span
        self.delivered = max(snapshot.delivered - first.delivered, 0) / span
        self.arrived = (snapshot.arrived - first.arrived) / span
        if snapshot.billing is not None and first.billing is not None:
            self.handled = max(snapshot.billing.handled - first.billing.handled, 0) / span

    def picture(self) -> str:
        """Arrivals over the last seconds as bars, the highest a full block."""
        marks = list(self._marks)
        rates = [(new.arrived - old.arrived) / (new.at - old.at) for old, new in pairwise(marks)]
        top = max(rates, default=0.0) or 1.0
        return "".join(BARS[round(rate / top * (len(BARS) - 1))] for rate in rates)


def panel(snapshot: Snapshot, pace: Pace) -> Panel:
    title = Text.assemble(("outspark demo", "bold"))
    subtitle = Text(f"{_clock(snapshot.at)}  {snapshot.phase}", "dim")
    ended = bool(snapshot.arrived)
    lanes = [_lanes("lanes", snapshot.lanes, ended)]
    if snapshot.billing is not None:
        lanes.append(_lanes("inbox", snapshot.billing.lanes, ended))
    body = Group(_numbers(snapshot, pace), Text(), *lanes, _arrivals(pace))
    return Panel(
        body, title=title, title_align="left", subtitle=subtitle, subtitle_align="right", padding=(1, 2)
    )


def _numbers(snapshot: Snapshot, pace: Pace) -> Table:
    table = Table.grid(padding=(0, 2), expand=True)
    table.add_column(style="bold cyan", no_wrap=True)
    table.add_column(justify="right", no_wrap=True, min_width=6)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, ratio=1, style="dim")
    table.add_column(justify="right", no_wrap=True)
    lag = f"{snapshot.waiting:,} waiting, lag {_duration(snapshot.lag)}"
    median = "" if snapshot.latency is None else f", {snapshot.latency:,.0f} ms after the commit"
    rows = [
        ("shop", snapshot.committed, "committed", f"{snapshot.rolled_back:,} rolled back", pace.committed),
        ("relay", snapshot.delivered, "delivered", lag, pace.delivered),
        ("consumer", snapshot.arrived, "arrived", f"{snapshot.twice:,} twice{median}", pace.arrived),
    ]
    if (billing := snapshot.billing) is not None:
        more = f"{billing.waiting:,} waiting, {billing.bills:,} orders billed"
        rows.append(("billing", billing.handled, "handled", more, pace.handled))
    for name, number, verb, more, rate in rows:
        table.add_row(name, Text(f"{number:,}", "bold"), verb, more, Text(f"{rate:,.0f}/s", "green"))
    return table


def _lanes(title: str, lanes: tuple[Lane, ...], ended: bool) -> Text:
    text = Text.assemble((f"{title:<10}", "bold cyan"))
    for lane in lanes:
        if lane.killed:
            text.append(f"✗ {lane.text}", "bold red")
        else:
            text.append("● ", "green")
            text.append(lane.text)
        text.append("   ")
    if not lanes:
        text.append("all ended" if ended else "none yet", "dim")
    return text


def _arrivals(pace: Pace) -> Text:
    return Text.assemble(("arrivals  ", "bold cyan"), (pace.picture(), "green"))


def _billed(billing: Billing | None) -> str:
    return "" if billing is None else f", {billing.handled:,} handled, {billing.bills:,} billed"


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def _duration(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
