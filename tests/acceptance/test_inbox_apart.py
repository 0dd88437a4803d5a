"""Taking in and handling as two applications, one after the other."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from tests.acceptance.inbox_site import TOPIC, NatsSite, open_site
from tests.acceptance.relay_process import START
from tests.waiting import wait_for

pytestmark = pytest.mark.needs("spark", "nats")

ORDERS = 200


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsSite]:
    with open_site(tmp_path_factory.mktemp("site")) as site:
        yield site


def test_take_then_work_until_empty(site: NatsSite) -> None:
    site.publish(ORDERS)
    taker = site.inbox("take")
    # What was sent twice is acknowledged too.
    wait_for(
        lambda: site.broker.drained(TOPIC, ["billing"]), timeout=START, what="acknowledgements of all orders"
    )
    assert taker.stop() == 0
    assert site.ask("SELECT status, count(*) FROM inbox_events GROUP BY status") == [("pending", ORDERS)]
    assert site.count() == 0

    worker = site.inbox("work", "--app", "billing_handlers:router", "--until-empty")

    assert worker.wait(START) == 0
    site.assert_billed_once()
    assert site.ask("SELECT DISTINCT status, locked_by FROM inbox_events") == [("completed", None)]
    for process in (taker, worker):
        assert "Traceback" not in process.log


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ([], "inboxes.billing.app is needed"),
        (["shipping", "--app", "billing_handlers:router"], "there is no inbox 'shipping'"),
    ],
)
def test_it_refuses_what_cannot_work(site: NatsSite, args: list[str], says: str) -> None:
    """At once, and without Spark."""
    process = site.inbox("run", *args)

    assert process.wait(START) == 2
    assert says in process.log
    assert "Traceback" not in process.log


def test_a_second_signal_ends_at_once(site: NatsSite) -> None:
    process = site.inbox("run", "--app", "billing_handlers:router")
    process.await_log("server is listening")
    process.send(signal.SIGTERM)
    process.await_log("stopping; once more stops at once")
    assert process.stop(signal.SIGTERM, timeout=5) == 128 + signal.SIGTERM
