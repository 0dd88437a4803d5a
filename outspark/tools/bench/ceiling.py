"""The ceiling: claim and settle as a loop in SQL inside the server, one client per lane.

Its claim is a fixed yardstick, the plain statement that is usually written for a lease on rows: lock the oldest
ready events, mark them, return them. So the ceiling does not move when a lane's own statements get better. Those,
too, run inside the server beside it (`own`), with a low-water mark that rises with every batch. Where a claim only
reads, there is nothing to mark, and a lane's own statements are the ceiling. All have the planner settings of a
lane's session and its fenced settle, claim and settle each in a transaction of its own; those of a lane's own
statements do not wait for the disk, as in a lane, and those of the yardstick do.
They lack what a relay must add: rows that travel to a client, Python, a destination, and care about other writers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Self

import psycopg
from psycopg import sql

from outspark import contracts
from outspark.config.settings import Lease, SourceSettings
from outspark.database import slots as slot_statements
from outspark.tools.bench.backlog import Connection
from outspark.tools.bench.clients import SqlClients

PROCEDURE = """
-- Claim and settle until nothing is left; `_` names are the parameters of a lane's statements
CREATE PROCEDURE outspark_ceiling(_slots int[], _epochs bigint[], _source text, _limit int) LANGUAGE plpgsql AS $loop$
DECLARE
  _low timestamptz := '-infinity';
  _blocked text[] := '{{}}';
  _types text[] := '{{}}';
  _claims int := 0;
  _token text;
  _ids text[];
  _leased_at timestamptz;
  _changed bigint;
BEGIN
  LOOP
    _claims := _claims + 1;
    _token := format('outspark/ceiling/%s/%s', _slots[1], _claims);
    WITH claimed AS MATERIALIZED ({claim})
    SELECT array_agg({id}), {low}, {leased} INTO _ids, _low, _leased_at FROM claimed;
    COMMIT;
    EXIT WHEN _ids IS NULL;
    {deliver};
    GET DIAGNOSTICS _changed = ROW_COUNT;
    COMMIT;
    IF _changed <> cardinality(_ids) THEN
      RAISE EXCEPTION 'settled % of % events', _changed, cardinality(_ids);
    END IF;
  END LOOP;
END
$loop$"""

PLAIN_CLAIM = """
-- Lock the oldest ready events of the slots, mark them and return them
WITH next AS (
  SELECT e.event_id FROM {table} e
  WHERE e.status = 'PENDING' AND e.available_at <= now()
    AND mod(hashtextextended(coalesce(e.partition_key, e.event_id::text), 0) & 255, {slots})::int = ANY(_slots)
    AND (e.partition_key IS NULL OR e.partition_key <> ALL(_blocked))
  ORDER BY e.created_at, e.event_id LIMIT _limit FOR UPDATE
)
UPDATE {table} e SET status = 'DELIVERING', locked_by = _token, locked_at = now(), updated_at = now()
FROM next WHERE e.event_id = next.event_id
RETURNING e.event_id::text, e.payload, e.created_at"""

CALL = "CALL outspark_ceiling(%s::int[], %s::bigint[], %s, %s)"

_PARAMETER = re.compile(r"%\((\w+)\)s")


@dataclass(slots=True)
class Ceiling(SqlClients):
    """Each client drains slots of its own."""

    lease: Lease = "row"
    own: bool = False
    _epochs: list[dict[int, int]] = field(default_factory=list)

    def __enter__(self) -> Self:
        with psycopg.connect(self.url, autocommit=True) as conn:
            conn.execute(slot_statements.compose(slot_statements.CREATE, self.table.outbox).encode())
        SqlClients.__enter__(self)
        lanes, slots = self.plan.lanes, self.plan.slots
        self._epochs = [self._take(conn, range(lane, slots, lanes)) for lane, conn in enumerate(self._conns)]
        return self

    def _drain(self, lane: int, conn: Connection) -> None:
        epochs = self._epochs[lane]
        conn.execute(CALL, [list(epochs), list(epochs.values()), str(self.table.outbox), self.plan.batch])

    def _take(self, conn: Connection, slots: Iterable[int]) -> dict[int, int]:
        """Own the slots as a lane does, so that the fence of each settle has the same to check; slot -> epoch."""
        outbox = self.table.outbox
        take = slot_statements.compose(slot_statements.TAKE, outbox).encode()
        mine = {"source": str(outbox), "slots": list(slots), "owner": "ceiling"}
        return {slot: epoch for slot, epoch, *_ in conn.execute(take, mine).fetchall()}

    def _procedure(self) -> sql.Composed:
        table, slots = self.table, self.plan.slots
        source = {"url": self.url, "contract": table.contract, "lease": self.lease, "slots": slots}
        statements = contracts.get(table.contract).relay_statements(
            table.outbox, SourceSettings.model_validate(source)
        )
        own = self.own or self.lease == "slot"
        plain = sql.SQL(PLAIN_CLAIM).format(table=table.outbox.identifier, slots=sql.Literal(slots))
        rises = own and statements.low_water
        return sql.SQL(PROCEDURE).format(
            claim=with_variables(statements.claim.text) if own else plain,
            id=sql.Identifier(table.id),
            low=sql.SQL("min(created_at)" if rises else "'-infinity'::timestamptz"),
            leased=sql.SQL("max(locked_at)" if own and self.lease == "row" else "NULL::timestamptz"),
            deliver=with_variables((statements.deliver_all if own else statements.deliver).text),
        )


def with_variables(statement: str) -> sql.SQL:
    """`%(slots)s` becomes the variable `_slots`. The text is the contract's own, so it is safe as SQL."""
    return sql.SQL(_PARAMETER.sub(r"_\1", statement))
