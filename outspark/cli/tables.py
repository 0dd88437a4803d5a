"""A source or an inbox as a command uses it: one connection, the resolved table, the maintenance of its contract."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import psycopg

from outspark import contracts
from outspark.cli.exits import DatabaseUnreachable
from outspark.cli.options import TableOptions
from outspark.config.fields import PartitionSettings
from outspark.config.inbox import InboxSettings
from outspark.config.loading import pick_inbox, pick_source
from outspark.config.settings import SourceSettings
from outspark.contracts.maintenance import TableMaintenance
from outspark.contracts.omnibox.inbox import resolve_inbox
from outspark.contracts.omnibox.inbox_maintenance import InboxMaintenance
from outspark.database import conninfo
from outspark.database.names import TableName, resolve
from outspark.database.session import refuse_old
from outspark.database.tls import explained
from outspark.errors import SettingsError
from outspark.maintenance.operations import Maintenance
from outspark.redaction import redact

INBOX_REAP_BATCH = 100
Kind = Literal["source", "inbox"]


@dataclass(frozen=True, slots=True)
class OpenTable:
    """`reap` uses `lease`, `max_attempts` and `reap_batch`; `partitions keep` uses `partitions`."""

    kind: Kind
    name: str
    contract: str
    conn: psycopg.Connection[Any]
    table: TableName
    table_maintenance: TableMaintenance
    lease: timedelta
    max_attempts: int
    reap_batch: int
    partitions: PartitionSettings | None

    @property
    def maintenance(self) -> Maintenance:
        return Maintenance(self.conn, self.table_maintenance)


@contextmanager
def open_table(options: TableOptions) -> Iterator[OpenTable]:
    settings = options.load()
    if options.inbox is not None or (options.source is None and not settings.sources and settings.inboxes):
        with open_inbox(*pick_inbox(settings, options.inbox)) as one:
            yield one
    else:
        with open_source(*pick_source(settings, options.source)) as one:
            yield one


@contextmanager
def open_source(name: str, settings: SourceSettings) -> Iterator[OpenTable]:
    """TableInvalid with the remedy when the table is not there."""
    with connect("source", name, settings) as conn:
        table = resolve(conn, TableName.parse(settings.table))
        yield OpenTable(
            kind="source",
            name=name,
            contract=settings.contract,
            conn=conn,
            table=table,
            table_maintenance=contracts.get(settings.contract).maintenance(table),
            lease=settings.lease_timeout,
            max_attempts=settings.retry.max_attempts,
            reap_batch=settings.reap_batch_size,
            partitions=settings.partitions,
        )


@contextmanager
def open_inbox(name: str, settings: InboxSettings) -> Iterator[OpenTable]:
    """The events of its consumer group alone. TableInvalid with the remedy when the table is not there."""
    with connect("inbox", name, settings) as conn:
        table = resolve_inbox(conn, TableName.parse(settings.table))
        yield OpenTable(
            kind="inbox",
            name=name,
            contract=settings.contract,
            conn=conn,
            table=table,
            table_maintenance=InboxMaintenance(table, settings.group),
            lease=settings.work.lease,
            max_attempts=settings.max_attempts,
            reap_batch=INBOX_REAP_BATCH,
            partitions=settings.partitions,
        )


@contextmanager
def connect(
    kind: Kind, name: str, settings: SourceSettings | InboxSettings
) -> Iterator[psycopg.Connection[Any]]:
    url = settings.url.get_secret_value()
    try:
        parameters = conninfo.options(url)
    except SettingsError as error:
        raise SettingsError(f"{kind} {name!r}: {error}") from None
    parameters.setdefault("fallback_application_name", "outspark")
    try:
        conn = psycopg.connect(**parameters, autocommit=True)
    except psycopg.Error as error:
        reason = explained(" ".join(str(error).split()), url)
        raise DatabaseUnreachable(f"{kind} {name!r} at {redact(url)} cannot be reached: {reason}") from error
    with conn:
        refuse_old(conn)
        yield conn
