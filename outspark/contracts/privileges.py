"""Which tables a relay works on beside the outbox, what it and a writer must be allowed there, and what they lack."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import psycopg
from psycopg import sql
from psycopg.rows import tuple_row

from outspark.database import side_tables, slots
from outspark.database.names import TableName

if TYPE_CHECKING:
    from outspark.contracts.contract import Contract

Who = Literal["relay", "writer"]

# A grant on single columns counts: which of them a statement names is its own affair.
LOOK = """\
-- What this role may do: on each table that is there, or with the schema of one that is not
SELECT n.number, current_user::text, to_regclass(n.name) IS NOT NULL,
  CASE WHEN to_regclass(n.name) IS NULL THEN has_schema_privilege(n.schema, 'CREATE')
       WHEN n.privilege = 'DELETE' THEN has_table_privilege(to_regclass(n.name), n.privilege)
       ELSE has_any_column_privilege(to_regclass(n.name), n.privilege) END
FROM unnest(%(numbers)s::int[], %(names)s::text[], %(schemas)s::text[], %(privileges)s::text[])
  AS n(number, name, schema, privilege)"""


GRANT_IF_THERE = """\
-- A table that not every service has
DO $grant$ BEGIN IF to_regclass({name}) IS NOT NULL THEN {grant}; END IF; END $grant$"""


@dataclass(frozen=True, slots=True)
class Need:
    """`create` makes a table of Outspark that is not there; a lane does so itself unless `by_hand`.

    A table without `create` need not be there.
    """

    table: TableName
    privileges: tuple[str, ...]
    create: str = ""
    by_hand: bool = False


def side_needs(contract: Contract, table: TableName, *, ordered: bool, fans_out: bool) -> list[Need]:
    """Outspark's own small tables."""
    found = []
    if ordered:
        create = slots.compose(slots.CREATE, table)
        found.append(Need(slots.slots_table(table), ("SELECT", "INSERT", "UPDATE"), create))
    every = ("SELECT", "INSERT", "UPDATE", "DELETE")
    for name, create in contract.side_tables(table).items() if ordered else ():
        found.append(Need(TableName.parse(name), every, create))
    if fans_out:
        create = side_tables.compose(side_tables.CREATE_DELIVERIES, table)
        found.append(Need(side_tables.deliveries_table(table), every, create, by_hand=True))
    return found


def relay_needs(contract: Contract, table: TableName, *, ordered: bool, fans_out: bool) -> list[Need]:
    """All that a lane must be allowed to claim and settle."""
    lock, headers = contract.lock_table(table), contract.header_table(table)
    return [
        Need(table, ("SELECT", "UPDATE")),
        *([Need(headers, ("SELECT",))] if headers is not None else []),
        *([Need(lock, ("SELECT", "INSERT", "UPDATE"))] if lock is not None else []),
        *side_needs(contract, table, ordered=ordered, fans_out=fans_out),
    ]


def lacking(conn: psycopg.Connection[Any], needs: list[Need]) -> list[str]:
    """What this connection's role may not do, each with the statement that mends it. Tables are resolved."""
    flat = [(number, need, privilege) for number, need in enumerate(needs) for privilege in need.privileges]
    parameters = {
        "numbers": [number for number, _, _ in flat],
        "names": [need.table.identifier.as_string(conn) for _, need, _ in flat],
        "schemas": [need.table.schema for _, need, _ in flat],
        "privileges": [privilege for _, _, privilege in flat],
    }
    with psycopg.Cursor(conn, row_factory=tuple_row) as cursor:
        rows = cursor.execute(LOOK, parameters).fetchall()
    return [text for number, need in enumerate(needs) for text in _lacks(need, flat, rows, number)]


def _lacks(
    need: Need, flat: list[tuple[int, Need, str]], rows: list[tuple[Any, ...]], number: int
) -> Iterator[str]:
    answers = [
        (privilege, role, exists, allowed)
        for (_, _, privilege), (asked, role, exists, allowed) in zip(flat, rows, strict=True)
        if asked == number
    ]
    _, role, exists, allowed = answers[0]
    if not exists:
        if need.create and (need.by_hand or not allowed):
            yield f"there is no table {need.table}, and no lane makes it; run: {one_line(need.create)}"
        return
    missing = [privilege for privilege, _, _, allowed in answers if not allowed]
    if missing:
        grant = _grant(need.privileges, need.table, role)
        yield f"role {role} lacks {', '.join(missing)} on {need.table}; run: {grant};"


def grants(
    contract: Contract, table: TableName, role: str, who: Who, needs: list[Need], *, inbox: bool = False
) -> list[str]:
    """What an owner runs once for the role of a relay or of a writer; `needs` are those of our side tables."""
    statements = []
    if table.schema is not None:
        usage = sql.SQL("GRANT USAGE ON SCHEMA {} TO {}")
        statements.append(usage.format(sql.Identifier(table.schema), sql.Identifier(role)).as_string(None))
    if inbox:
        return [*statements, _grant(("SELECT", "INSERT", "UPDATE", "DELETE"), table, role)]
    if who == "writer":
        return [
            *statements,
            _grant(contract.writer_privileges, table, role),
            *(_grant_usage(sequence, role) for sequence in contract.sequences(table)),
        ]
    lock, headers = contract.lock_table(table), contract.header_table(table)
    # To delete is for `prune`, `dead discard` and housekeeping.
    statements.append(_grant(("SELECT", "UPDATE", "DELETE"), table, role))
    if headers is not None:
        statements.append(_grant_if_there(("SELECT", "DELETE"), headers, role))
    if lock is not None:
        statements.append(_grant(("SELECT", "INSERT", "UPDATE"), lock, role))
    return [*statements, *(_grant(need.privileges, need.table, role) for need in needs)]


def one_line(statement: str) -> str:
    """Ready to be pasted from a log: without its comments, which would swallow the rest of the line."""
    kept = [line for line in statement.splitlines() if not line.lstrip().startswith("--")]
    return " ".join(" ".join(kept).split()) + ";"


def _grant(privileges: tuple[str, ...], table: TableName, role: str) -> str:
    return _granting(privileges, table, role).as_string(None)


def _granting(privileges: tuple[str, ...], table: TableName, role: str) -> sql.Composed:
    return sql.SQL("GRANT {} ON {} TO {}").format(
        sql.SQL(", ".join(privileges)), table.identifier, sql.Identifier(role)
    )


def _grant_if_there(privileges: tuple[str, ...], table: TableName, role: str) -> str:
    name, grant = sql.Literal(table.identifier.as_string(None)), _granting(privileges, table, role)
    return sql.SQL(GRANT_IF_THERE).format(name=name, grant=grant).as_string(None)


def _grant_usage(sequence: TableName, role: str) -> str:
    grant = sql.SQL("GRANT USAGE ON SEQUENCE {} TO {}").format(sequence.identifier, sql.Identifier(role))
    return grant.as_string(None)
