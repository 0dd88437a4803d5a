"""A lane at work on a jEAP outbox: messages written as a Java service writes them, and the ShedLock row beside them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from psycopg import sql

from outspark.contracts.jeap.table import ddl
from outspark.database.names import TableName
from outspark.database.shedlock import RELAY, ShedLock, holder
from tests.databases import Database
from tests.integration.relay.harness import Broker, Harness

INSERT = """
INSERT INTO deferred_message ({columns})
VALUES (nextval('deferred_message_sequence'), {values}) RETURNING id"""

STATES = """
SELECT convert_from(message, 'UTF8'), CASE
  WHEN resend THEN 'resend' WHEN failed IS NOT NULL THEN coalesce(fail_reason, 'failed')
  WHEN sent_scheduled IS NOT NULL THEN 'sent' WHEN sent_immediately IS NOT NULL THEN 'sent immediately'
  ELSE 'waiting' END
FROM deferred_message"""

WAITING = """
SELECT count(*) FROM deferred_message
WHERE resend OR (sent_immediately IS NULL AND sent_scheduled IS NULL AND failed IS NULL)"""

HEADERS = """
CREATE TABLE {schema}deferred_message_header (
  deferred_message_id bigint NOT NULL REFERENCES {schema}deferred_message (id) {on_delete},
  header_index integer NOT NULL, header_name varchar(255) NOT NULL, header_value bytea,
  PRIMARY KEY (deferred_message_id, header_index)
)"""
"""What a jEAP service of 18.1 and later adds to its migrations for stored headers."""

QUICK = timedelta(seconds=6)
"""How long the lock holds here without being extended."""


@dataclass(slots=True)
class JeapHarness(Harness):
    def send(self, *names: str, key: bytes | None = None, topic: str = "t", **columns: Any) -> list[int]:
        """Messages whose payload is their name, in this order, by default to be sent by the relay; their row ids."""
        return [self._insert({"key": key, "topic": topic, **_columns(name), **columns}) for name in names]

    def change(self, name: str, **columns: Any) -> None:
        """Change the row of a message behind the relay's back."""
        for column, value in columns.items():
            query = sql.SQL("UPDATE deferred_message SET {} = %s WHERE message = %s")
            changed = self.conn.execute(query.format(sql.Identifier(column)), [value, name.encode()])
            assert changed.rowcount == 1

    def row(self, name: str, *columns: str) -> tuple[Any, ...]:
        query = sql.SQL("SELECT {} FROM deferred_message WHERE message = %s")
        chosen = query.format(sql.SQL(", ").join(map(sql.Identifier, columns)))
        (row,) = self.conn.execute(chosen, [name.encode()]).fetchall()
        return tuple(row)

    def make_header_table(self) -> None:
        self.conn.execute(header_ddl())

    def store(self, id: int, *headers: tuple[str, bytes | None]) -> None:
        """Write down the headers of a message, the last one first: only their index says the order."""
        for index, (name, value) in reversed(list(enumerate(headers))):
            row = (id, index, name, value)
            self.conn.execute("INSERT INTO deferred_message_header VALUES (%s, %s, %s, %s)", row)

    def now(self) -> Any:
        """The database's clock."""
        return self.ask("SELECT clock_timestamp()")[0][0]

    def waiting(self) -> int:
        return int(self.ask(WAITING)[0][0])

    def states(self) -> dict[str, Any]:
        """Of each message: waiting, sent, sent immediately, resend, or why it has failed."""
        return dict(self.ask(STATES))

    def lock(self, instance: str = "one", at_most: timedelta = QUICK) -> ShedLock:
        """The relay's lock as one run of ours holds it."""
        conn = self.database.connect()
        return ShedLock(conn, TableName("shedlock", "public"), RELAY, holder("test", instance), at_most)

    def _insert(self, columns: dict[str, Any]) -> int:
        names = sql.SQL(", ").join(map(sql.Identifier, ("id", *columns)))
        values = sql.SQL(", ").join(sql.Placeholder(name) for name in columns)
        query = sql.SQL(INSERT).format(columns=names, values=values)
        ((id,),) = self.conn.execute(query, columns).fetchall()
        return int(id)


def header_ddl(schema: str = "", on_delete: str = "ON DELETE CASCADE") -> bytes:
    return HEADERS.format(schema=schema, on_delete=on_delete).encode()


def _columns(name: str) -> dict[str, Any]:
    return {
        "message": name.encode(),
        "message_id": f"id of {name}",
        "message_idempotence_id": name,
        "message_type_name": "Named",
        "created": "now",
        "send_immediately": False,
    }


def open_jeap_harness(database: Database, *brokers: str) -> JeapHarness:
    conn = database.connect()
    conn.execute(ddl())
    return JeapHarness(
        database,
        conn,
        {name: Broker() for name in brokers or ("broker",)},
        source={"contract": "jeap", "jeap": {"lock_at_most": QUICK}},
        destination={"publish_timeout": "2s"},
    )
