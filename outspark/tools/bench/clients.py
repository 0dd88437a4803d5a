"""Clients that drain a backlog in threads of this process: they begin at `go` and end when nothing is left."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Self

import psycopg
from psycopg import sql

from outspark.database.session import connect
from outspark.errors import OutsparkError
from outspark.tools.bench.backlog import Connection
from outspark.tools.bench.plan import Plan
from outspark.tools.bench.tables import Table

PATIENCE = 10.0


@dataclass(slots=True, kw_only=True)
class Clients:
    """A subclass says in its `go` what each client does."""

    pids: tuple[int, ...] = ()
    """No processes of their own: the server does the work."""
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
        """Nothing to do: clients rest between drains."""

    def resume(self) -> None:
        """Nothing to do: clients begin at `go`."""

    def await_ready(self) -> None:
        """Clients always are."""

    def handovers(self) -> int:
        return 0

    def _run(self, share: Callable[[], object]) -> None:
        try:
            share()
        except (psycopg.Error, OutsparkError) as error:
            self._errors.append(error)


@dataclass(slots=True)
class SqlClients(Clients, ABC):
    """As many clients as lanes. Each calls a procedure, in which the server drains the table by itself."""

    url: str
    plan: Plan
    table: Table
    _conns: list[Connection] = field(default_factory=list, kw_only=True)

    def __enter__(self) -> Self:
        with psycopg.connect(self.url, autocommit=True) as conn:
            conn.execute(self._procedure())
        self._conns = [connect(self.url, f"ceiling {lane}") for lane in range(self.plan.lanes)]
        return self

    def __exit__(self, *exc: object) -> None:
        self.join()
        for conn in self._conns:
            conn.close()

    def go(self) -> None:
        self.start(partial(self._drain, lane, conn) for lane, conn in enumerate(self._conns))

    @abstractmethod
    def _procedure(self) -> sql.Composed: ...

    @abstractmethod
    def _drain(self, lane: int, conn: Connection) -> None: ...
