"""`outspark inbox` with a handler that a deployment broke: its orders wait over several shifts, and none dies."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from outspark.contracts.omnibox.inbox_guard import REMEDY
from outspark.inbox import Acceptor, AcceptSettings
from tests.acceptance.backlogs import LONG
from tests.acceptance.inbox_harness import RECOVERY, NatsInboxHarness, open_inbox_harness
from tests.acceptance.relay_process import START, RelayProcess
from tests.integration.inbox.harness import message
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
KEYS = 500
"""More than a batch tries, so that the first one tells."""
PORTION = 2000
IN_ORDER = {
    "transaction_size = 5": 'transaction_size = 50\nordering = "key"',
    "batch_size = 20": "batch_size = 200",
}

OVERTAKEN = f"""\
-- Of how many orders was the one before it in its key billed later?
SELECT count(*) FROM (
  SELECT position, lag(position) OVER (PARTITION BY number % {KEYS} ORDER BY number) AS before
  FROM (SELECT position, substr(name, 2)::int AS number FROM bills) numbered
) b WHERE position < before"""


@pytest.fixture
def inbox_harness(tmp_path: Path) -> Iterator[NatsInboxHarness]:
    with open_inbox_harness(tmp_path) as inbox_harness:
        (tmp_path / "billing_handlers.py").write_text(HANDLERS)
        with psycopg.connect(inbox_harness.url) as conn:
            conn.execute("CREATE TABLE deployment AS SELECT true AS broken")
        yield inbox_harness


def test_orders_wait_for_a_handler_that_works(inbox_harness: NatsInboxHarness) -> None:
    inbox_harness.publish(400)
    inbox = inbox_harness.inbox("run", "--app", "billing_handlers:router")

    wait_for(
        lambda: inbox_harness.ask("SELECT count(*) FROM inbox_events") == [(400,)],
        timeout=START,
        what="all orders",
    )
    await_shifts(inbox)
    assert_waits(inbox_harness, inbox)

    mend(inbox_harness)
    inbox_harness.await_billed()
    assert inbox_harness.ask("SELECT DISTINCT status FROM inbox_events") == [("completed",)]
    wait_for(lambda: inbox.get("/readyz").status == 200, timeout=RECOVERY, what="readiness")


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_very_many_orders_wait_in_order(inbox_harness: NatsInboxHarness) -> None:
    config = inbox_harness.folder / "outspark.toml"
    text = config.read_text()
    for one, other in IN_ORDER.items():
        text = text.replace(one, other)
    config.write_text(text)
    accept(inbox_harness, LONG)
    inbox = inbox_harness.inbox("handle", "--app", "billing_handlers:router")

    inbox.await_log(": ongoing", timeout=START + RECOVERY)
    await_shifts(inbox)
    assert_waits(inbox_harness, inbox)

    mend(inbox_harness)
    started = time.monotonic()
    wait_for(
        lambda: inbox_harness.count() >= LONG, timeout=120 + LONG / 50, what="a bill for each order", every=1
    )
    print(f"{LONG} orders were billed within {time.monotonic() - started:.0f} s")
    assert inbox_harness.ask("SELECT status, attempts_made, count(*) FROM inbox_events GROUP BY 1, 2") == [
        ("completed", 0, LONG)
    ]
    assert inbox_harness.ask(OVERTAKEN) == [(0,)]
    inbox_harness.assert_billed_once()
    wait_for(lambda: inbox.get("/readyz").status == 200, timeout=RECOVERY, what="readiness")
    assert_lines(inbox)


def accept(inbox_harness: NatsInboxHarness, count: int) -> None:
    """Orders that were taken in before anybody handles them."""
    names = [f"o{number}" for number in range(count)]
    inbox_harness.published.update(names)
    with psycopg.connect(inbox_harness.url, autocommit=True) as conn:
        acceptor = Acceptor(conn, "inbox_events", AcceptSettings(group="billing"))
        for start in range(0, count, PORTION):
            acceptor.accept(
                [
                    message(
                        name, json.dumps({"name": name}).encode(), key=f"k{int(name[1:]) % KEYS}".encode()
                    )
                    for name in names[start : start + PORTION]
                ]
            )


def mend(inbox_harness: NatsInboxHarness) -> None:
    with psycopg.connect(inbox_harness.url) as conn:
        conn.execute("UPDATE deployment SET broken = false")


def await_shifts(inbox: RelayProcess) -> None:
    wait_for(
        lambda: inbox.metric("outspark_handovers_total") >= SHIFTS, timeout=RECOVERY, what="several shifts"
    )


def assert_waits(inbox_harness: NatsInboxHarness, inbox: RelayProcess) -> None:
    """Nothing was lost by it, and everybody is told; of thousands of failures there is one line, and one a minute."""
    waiting = len(inbox_harness.published)
    assert inbox_harness.ask("SELECT DISTINCT status, attempts_made FROM inbox_events") == [("pending", 0)]
    answer = inbox.get("/readyz")
    assert answer.status == 503
    print(answer.text)
    assert "is paused since" in answer.text
    assert "there is no total in order" in answer.text
    assert REMEDY in answer.text
    assert inbox.get("/stats").json["inboxes"]["billing"]["paused"][0]["waiting"] > waiting * 3 / 4
    assert inbox.metric("outspark_inbox_paused_count") >= 1
    assert_lines(inbox)


def assert_lines(inbox: RelayProcess) -> None:
    # Lanes tell at the end of a shift.
    inbox.await_log(REMEDY, timeout=RECOVERY)
    minutes = inbox.get("/stats").json["uptime_seconds"] / 60
    print(f"{len(inbox.complaints)} lines in {minutes:.1f} minutes")
    assert 1 <= len(inbox.complaints) <= 1 + minutes, inbox.complaints[:10]
    assert "there is no total in order" in inbox.complaints[0]
    assert REMEDY in inbox.complaints[0]
