"""How much is measured: sizes, rounds and seconds, the same for every row of one run."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Plan:
    events: int = 200_000
    payload: int = 500
    keys: int = 1000
    lanes: int = 2
    slots: int = 8
    batch: int = 1000
    rounds: int = 5
    """How often drains that are compared count, taking turns; the result is the median."""
    shift: float = 10.0
    single_events: int = 5000
    """Events of a drain that publishes one by one: it is slow, and its rate is soon known."""
    finished: int = 5_000_000
    trickle_rate: float = 50.0
    trickle_seconds: float = 60.0
    writers: int = 8
    writer_rounds: int = 5
    writer_seconds: float = 5.0
    idle_seconds: float = 20.0
    soak_minutes: float = 10.0
    soak_rate: float = 10_000.0

    @property
    def long_events(self) -> int:
        """Long enough for several hand-overs."""
        return 5 * self.events

    @property
    def huge_events(self) -> int:
        """Its first and its last tenth are as many events as an ordinary drain."""
        return 10 * self.events

    def quick(self) -> Plan:
        """Everything in seconds, to check that the bench works; the numbers mean little."""
        return replace(
            self,
            events=min(self.events, 20_000),
            rounds=1,
            shift=2.0,
            single_events=500,
            finished=min(self.finished, 50_000),
            trickle_seconds=5.0,
            writer_rounds=1,
            writer_seconds=1.0,
            idle_seconds=3.0,
            soak_minutes=0.1,
        )
