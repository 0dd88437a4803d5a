"""What tests share: a PostgreSQL and a NATS a session, a fresh database a test, and the parts it needs."""

from __future__ import annotations

import itertools
import os
from collections.abc import Generator, Iterator

import psycopg
import pytest
from psycopg import sql

from outspark.tools.servers.nats import Nats
from outspark.tools.servers.postgres import Postgres
from tests.databases import Database
from tests.parts import OLDEST_PROGRAMS, missing
from tests.servers import Servers, kinds

# No test loses power, so nothing here needs fsync; a crash of the server alone is survived without it.
_OPTIONS = {"max_connections": "300", "fsync": "off"}
_numbers = itertools.count(1)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "faults: kills, outages and restarts on purpose; `make faults` runs these"
    )
    config.addinivalue_line(
        "markers",
        "long: of `faults`, what takes minutes and has a short form in the suite; only `make faults` runs it",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "faults" in config.getoption("markexpr"):
        return
    long = [item for item in items if item.get_closest_marker("long")]
    config.hook.pytest_deselected(items=long)
    items[:] = [item for item in items if item not in long]


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in item.iter_markers("needs"):
        for part in marker.args:
            if lack := missing(part):
                _skip_or_fail(f"needs {part}: {lack}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Make captured text valid UTF-8: xdist cannot send the lone surrogates that some tests log on purpose."""
    report = yield
    report.sections = [(name, text.encode(errors="replace").decode()) for name, text in report.sections]
    return report


def _skip_or_fail(reason: str) -> None:
    if os.environ.get("OUTSPARK_REQUIRE_ALL") == "1":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "postgres_server" in metafunc.fixturenames:
        metafunc.parametrize("postgres_server", kinds(metafunc), indirect=True, scope="session")


@pytest.fixture(scope="session")
def postgres_servers() -> Iterator[Servers]:
    """Those that tests asked for, each started once and kept: files take turns between them."""
    with Servers(
        {None: Postgres(options=_OPTIONS), 15: Postgres(options=_OPTIONS, programs=OLDEST_PROGRAMS)}
    ) as all:
        yield all


@pytest.fixture(scope="session")
def postgres_server(request: pytest.FixtureRequest, postgres_servers: Servers) -> Postgres:
    """Shared by all tests of the session: do not stop it, start your own `Postgres()` for that."""
    return postgres_servers.started(request.param)


@pytest.fixture
def database(postgres_server: Postgres) -> Iterator[Database]:
    name = f"test_{next(_numbers)}"
    with psycopg.connect(postgres_server.url(), autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        fresh = Database(postgres_server.url(name))
        yield fresh
        fresh.close()
        admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture(scope="session")
def nats_server() -> Iterator[Nats]:
    """Shared by all tests of the session: name streams and subjects after the test, and do not stop it."""
    with Nats() as server:
        yield server
