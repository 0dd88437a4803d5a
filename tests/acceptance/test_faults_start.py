"""A relay that starts before its servers: it says what it waits for, and begins by itself when all is there."""

from __future__ import annotations

import pytest

from outspark.tools.servers.nats import Nats
from outspark.tools.servers.postgres import Postgres
from tests.acceptance.harness import open_harness
from tests.acceptance.relay_process import START, RelayProcess, StartRelay
from tests.acceptance.writer import enqueue
from tests.waiting import wait_for

pytestmark = [pytest.mark.needs("spark", "nats"), pytest.mark.faults]

# Only the role of the relay needs a password.
HBA = "host all postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n"
PASSWORD = "open-sesame"


def test_nothing_is_there_at_first(start_relay: StartRelay) -> None:
    with Postgres(options={"fsync": "off"}) as postgres, Nats() as nats:
        with open_harness(postgres, nats, "late") as late:
            with late.connect() as conn:
                conn.execute("CREATE ROLE app LOGIN SUPERUSER PASSWORD 'not yet'")
                conn.execute("ALTER TABLE openoutbox_events RENAME TO elsewhere")
            (postgres.folder / "pg_hba.conf").write_text(HBA)
            postgres.stop()
            nats.stop()
            relay = start_relay(
                *("--url", postgres.url("late").replace("postgres@", f"app:{PASSWORD}@")),
                *("--to", nats.url),
                environ={"OUTSPARK__SERVER__HEALTH_CHECK_INTERVAL": "200ms"},
            )
            await_problem(relay, "source default: connection failed")
            await_problem(relay, "destination default")
            relay.await_log("relay is running")

            postgres.start()
            await_problem(relay, 'password authentication failed for user "app"')

            with late.connect() as conn:
                conn.execute(f"ALTER ROLE app PASSWORD '{PASSWORD}'".encode())
            await_problem(relay, "there is no table openoutbox_events")

            with late.connect() as conn:
                conn.execute("ALTER TABLE elsewhere RENAME TO openoutbox_events")
                enqueue(conn, "late.order", 100)
            wait_for(lambda: "source" not in relay.get("/readyz").text, timeout=START, what="a ready source")
            assert relay.get("/readyz").status == 503
            assert relay.get("/healthz").status == 200

            nats.start()
            late.await_drained(START)
            late.assert_nothing_lost()
            assert late.ask("SELECT DISTINCT attempts FROM openoutbox_events") == [(0,)]
            wait_for(lambda: relay.get("/readyz").status == 200, timeout=START, what="readiness")

            assert PASSWORD not in relay.log
            assert "Traceback" not in relay.log
            assert relay.stop() == 0


def await_problem(relay: RelayProcess, text: str) -> None:
    def told() -> bool:
        answer = relay.get("/readyz")
        assert PASSWORD not in answer.text
        return answer.status == 503 and any(text in problem for problem in answer.json["problems"])

    wait_for(told, timeout=START, what=f"{text!r} as a reason in /readyz")
