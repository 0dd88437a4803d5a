"""The ceiling of handling: claim, the handler's one INSERT, and complete, as a loop in SQL inside the server.

The statements are those of a worker, in transactions as large as its own, one client per lane. They lack what
a worker must add: rows that travel to a client, Python, and care about other writers.
"""

from __future__ import annotations

from psycopg import sql

from outspark.config.inbox import HandlingSettings
from outspark.contracts.omnibox.inbox import WORKER_PREFIX, work_statements
from outspark.tools.bench.backlog import Connection
from outspark.tools.bench.ceiling import with_variables
from outspark.tools.bench.clients import SqlClients
from outspark.tools.bench.hosts import GROUP

PROCEDURE = """
-- Claim, write and complete until nothing is left; `_` names are the parameters of a worker's statements
CREATE PROCEDURE outspark_handling(_group text, _limit int, _size int) LANGUAGE plpgsql AS $loop$
DECLARE
  _slots int[] := '{{}}';
  _blocked text[] := '{{}}';
  _claims int := 0;
  _token text;
  _claimed text[];
  _times timestamptz[];
  _messages text[];
  _payloads text[];
  _ids text[];
  _created_ats timestamptz[];
  _notes text[];
  _last int;
  _changed bigint;
BEGIN
  LOOP
    _claims := _claims + 1;
    _token := format('%s%s/ceiling/%s', {prefix}, pg_backend_pid(), _claims);
    WITH claimed AS MATERIALIZED ({claim})
    SELECT array_agg(c.id), array_agg(c.created_at), array_agg(c.message_id), array_agg(c.payload)
    INTO _claimed, _times, _messages, _payloads FROM claimed c;
    COMMIT;
    EXIT WHEN _claimed IS NULL;
    FOR _first IN 1 .. cardinality(_claimed) BY _size LOOP
      _last := least(_first + _size - 1, cardinality(_claimed));
      FOR _number IN _first .. _last LOOP
        INSERT INTO bench_effects (message_id, number)
        VALUES (_messages[_number], (_payloads[_number]::jsonb ->> 'number')::bigint);
      END LOOP;
      _ids := _claimed[_first : _last];
      _created_ats := _times[_first : _last];
      _notes := array_fill(NULL::text, ARRAY[cardinality(_ids)]);
      WITH done AS ({complete}) SELECT count(*) INTO _changed FROM done;
      COMMIT;
      IF _changed <> cardinality(_ids) THEN
        RAISE EXCEPTION 'completed % of % events', _changed, cardinality(_ids);
      END IF;
    END LOOP;
  END LOOP;
END
$loop$"""

CALL = "CALL outspark_handling(%s, %s, %s)"


class HandlingCeiling(SqlClients):
    """Each client handles the events that it claims."""

    def _drain(self, lane: int, conn: Connection) -> None:
        worker = HandlingSettings()
        conn.execute(CALL, [GROUP, worker.batch_size, worker.transaction_size])

    def _procedure(self) -> sql.Composed:
        statements = work_statements(self.table.outbox, partitioned=False)
        return sql.SQL(PROCEDURE).format(
            prefix=sql.Literal(WORKER_PREFIX),
            claim=with_variables(statements.claim),
            complete=with_variables(statements.complete),
        )
