"""Whoever drains a backlog in threads of this process: it begins at `go` and comes to rest by itself."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import psycopg

from outspark.errors import OutsparkError

PATIENCE = 10.0


@dataclass(slots=True, kw_only=True)
class Clients:
    """Who they are says what they do, in a `go` of their own."""

    pids: tuple[int, ...] = ()
    """None of its own: the server does the work."""
    _threads: list[threading.Thread] = field(default_factory=list)
    _errors: list[Exception] = field(default_factory=list)

    def start(self, shares: Iterable[Callable[[], object]]) -> None:
        """A client for each: it works until nothing is left."""
        self._threads = [threading.Thread(target=self._run, args=(share,), daemon=True) for share in shares]
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join(PATIENCE)

    def check(self) -> None:
        if self._errors:
            raise self._errors[0]

    def pause(self) -> None:
        """It is at rest by itself."""

    def resume(self) -> None:
        """It begins at `go`."""

    def await_ready(self) -> None:
        """It always is."""

    def handovers(self) -> int:
        return 0

    def _run(self, share: Callable[[], object]) -> None:
        try:
            share()
        except (psycopg.Error, OutsparkError) as error:
            self._errors.append(error)
