"""A database of its own for one test."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field

import psycopg


@dataclass(frozen=True, slots=True)
class Database:
    url: str
    _open: ExitStack = field(default_factory=ExitStack, repr=False)

    def connect(self) -> psycopg.Connection:
        """A new autocommit connection, closed at the end of the test."""
        return self._open.enter_context(psycopg.connect(self.url, autocommit=True))

    def close(self) -> None:
        self._open.close()
