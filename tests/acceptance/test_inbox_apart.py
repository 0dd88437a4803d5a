"""Taking in and handling as two applications, one after the other."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from tests.acceptance.inbox_harness import TOPIC, NatsInboxHarness, open_inbox_harness
from tests.acceptance.relay_process import START
from tests.waiting import wait_for

pytestmark = pytest.mark.needs("spark", "nats")

ORDERS = 200


@pytest.fixture(scope="module")
def inbox_harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsInboxHarness]:
    with open_inbox_harness(tmp_path_factory.mktemp("site")) as inbox_harness:
        yield inbox_harness


def test_take_then_work_until_empty(inbox_harness: NatsInboxHarness) -> None:
    inbox_harness.publish(ORDERS)
    consumer = inbox_harness.inbox("consume")
    # What was sent twice is acknowledged too.
    wait_for(
        lambda: inbox_harness.broker.drained(TOPIC, ["billing"]),
        timeout=START,
        what="acknowledgements of all orders",
    )
    assert consumer.stop() == 0
    assert inbox_harness.ask("SELECT status, count(*) FROM inbox_events GROUP BY status") == [
        ("pending", ORDERS)
    ]
    assert inbox_harness.count() == 0

    worker = inbox_harness.inbox("handle", "--app", "billing_handlers:router", "--until-empty")

    assert worker.wait(START) == 0
    inbox_harness.assert_billed_once()
    assert inbox_harness.ask("SELECT DISTINCT status, locked_by FROM inbox_events") == [("completed", None)]
    for process in (consumer, worker):
        assert "Traceback" not in process.log


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ([], "inboxes.billing.app is needed"),
        (["shipping", "--app", "billing_handlers:router"], "there is no inbox 'shipping'"),
    ],
)
def test_it_refuses_what_cannot_work(inbox_harness: NatsInboxHarness, args: list[str], says: str) -> None:
    """At once, and without Spark."""
    process = inbox_harness.inbox("run", *args)

    assert process.wait(START) == 2
    assert says in process.log
    assert "Traceback" not in process.log


def test_a_second_signal_ends_at_once(inbox_harness: NatsInboxHarness) -> None:
    process = inbox_harness.inbox("run", "--app", "billing_handlers:router")
    process.await_log("server is listening")
    process.send(signal.SIGTERM)
    process.await_log("shutting down; send the signal again to exit immediately")
    assert process.stop(signal.SIGTERM, timeout=5) == 128 + signal.SIGTERM
