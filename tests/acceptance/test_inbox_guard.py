"""`outspark inbox run` with a handler that a deployment broke: its orders wait over several shifts, and none dies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.acceptance.inbox_site import RECOVERY, NatsSite, open_site
from tests.acceptance.relay_process import START
from tests.waiting import wait_for

pytestmark = [pytest.mark.needs("spark", "nats"), pytest.mark.faults]

HANDLERS = """
import os

import psycopg

from outspark.inbox import Reject, Router

router = Router()


@router.otherwise
def bill(payload: dict, conn: psycopg.Connection) -> None:
    if conn.execute("SELECT broken FROM deployment").fetchone()[0]:
        raise Reject(f"there is no total in order {payload['name']}")
    conn.execute("INSERT INTO bills (name, pid) VALUES (%s, %s)", [payload["name"], os.getpid()])
"""

SHIFTS = 6
"""That end while the handler is broken; there are two lanes for handling, and as many for taking in."""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[NatsSite]:
    with open_site(tmp_path) as site:
        (tmp_path / "billing_handlers.py").write_text(HANDLERS)
        with psycopg.connect(site.url) as conn:
            conn.execute("CREATE TABLE deployment AS SELECT true AS broken")
        yield site


def test_orders_wait_for_a_handler_that_works(site: NatsSite) -> None:
    site.publish(400)
    inbox = site.inbox("run", "--app", "billing_handlers:router")

    wait_for(
        lambda: site.ask("SELECT count(*) FROM inbox_events") == [(400,)], timeout=START, what="all orders"
    )
    wait_for(
        lambda: inbox.metric("outspark_handovers_total") >= SHIFTS, timeout=RECOVERY, what="several shifts"
    )

    assert site.ask("SELECT DISTINCT status, attempts_made FROM inbox_events") == [("pending", 0)]
    answer = inbox.get("/readyz")
    assert answer.status == 503
    assert "is paused since" in str(answer.json)
    assert "there is no total in order" in str(answer.json)
    assert inbox.get("/stats").json["inboxes"]["billing"]["paused"][0]["waiting"] > 300
    assert inbox.metric("outspark_inbox_paused_count") >= 1

    with psycopg.connect(site.url) as conn:
        conn.execute("UPDATE deployment SET broken = false")
    site.await_billed()
    assert site.ask("SELECT DISTINCT status FROM inbox_events") == [("completed",)]
    wait_for(lambda: inbox.get("/readyz").status == 200, timeout=RECOVERY, what="readiness")
