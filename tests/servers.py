"""Which tests run on which PostgreSQL: all on the embedded one, those of our SQL also on the oldest we support."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack

import pytest

from outspark.tools.servers.postgres import Postgres

# Each executes statements of ours.
SQL_SUITES = (
    "tests.integration.contracts.",
    "tests.integration.inbox.test_",
    "tests.integration.outbox.jeap.",
    "tests.integration.outbox.omnibox.",
    "tests.integration.relay.",
    "tests.integration.maintenance.test_operations",
    "tests.integration.database.",
    "tests.integration.outbox.test_openoutbox",
)

# The same statements again, around brokers, signals and faults.
NOT_ABOUT_SQL = (
    "tests.integration.inbox.test_intake",
    "tests.integration.inbox.test_dead_letters",
    "tests.integration.inbox.test_signals",
    "tests.integration.inbox.test_strategies",
    "tests.integration.inbox.test_consumer",
    "tests.integration.inbox.test_work_faults",
    "tests.integration.outbox.jeap.test_kafka",
    "tests.integration.relay.test_breaker",
    "tests.integration.relay.test_jeap_kafka",
    "tests.integration.relay.test_pooler",
    "tests.integration.relay.test_server_crash",
    "tests.integration.relay.test_shifts",
)


def kinds(metafunc: pytest.Metafunc) -> Sequence[object]:
    """The servers of one test, as parameters: None is the embedded one, and does not show in the test's name."""
    embedded = pytest.param(None, id=pytest.HIDDEN_PARAM)
    name = metafunc.module.__name__
    if not name.startswith(SQL_SUITES) or name.startswith(NOT_ABOUT_SQL):
        return [embedded]
    return [embedded, pytest.param(15, id="postgres15", marks=pytest.mark.needs("postgres-15"))]


class Servers:
    """Started when they are first asked for, and stopped together."""

    def __init__(self, servers: Mapping[int | None, Postgres]) -> None:
        self._servers = servers
        self._started = ExitStack()
        self._running: set[int | None] = set()

    def __enter__(self) -> Servers:
        return self

    def __exit__(self, *exc: object) -> None:
        self._started.close()

    def started(self, kind: int | None) -> Postgres:
        if kind not in self._running:
            self._started.enter_context(self._servers[kind])
            self._running.add(kind)
        return self._servers[kind]
