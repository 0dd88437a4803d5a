"""A source as a command works on it: one connection, its table found, its contract's upkeep at hand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg

from outspark import contracts
from outspark.cli.exits import DatabaseUnreachable
from outspark.contracts.names import TableName, resolve
from outspark.contracts.upkeep import Upkeep
from outspark.maintenance import Maintenance
from outspark.redaction import redact
from outspark.settings import SourceSettings

CONNECT_TIMEOUT = 10


@dataclass(frozen=True, slots=True)
class OpenSource:
    name: str
    settings: SourceSettings
    conn: psycopg.Connection[Any]
    table: TableName
    upkeep: Upkeep
    maintenance: Maintenance


@contextmanager
def open_source(name: str, settings: SourceSettings) -> Iterator[OpenSource]:
    """TableInvalid with the remedy when the table is not there."""
    with connect(name, settings) as conn:
        table = resolve(conn, TableName.parse(settings.table))
        upkeep = contracts.get(settings.contract).upkeep(table)
        yield OpenSource(name, settings, conn, table, upkeep, Maintenance(conn, upkeep))


@contextmanager
def connect(name: str, settings: SourceSettings) -> Iterator[psycopg.Connection[Any]]:
    url = settings.url.get_secret_value()
    try:
        conn = psycopg.connect(
            url, autocommit=True, connect_timeout=CONNECT_TIMEOUT, fallback_application_name="outspark"
        )
    except psycopg.OperationalError as error:
        reason = " ".join(str(error).split())
        raise DatabaseUnreachable(f"source {name!r} at {redact(url)} cannot be reached: {reason}") from error
    except psycopg.ProgrammingError as error:
        raise DatabaseUnreachable(
            f"source {name!r}: the URL {redact(url)} is not understood: {error}"
        ) from error
    with conn:
        yield conn
