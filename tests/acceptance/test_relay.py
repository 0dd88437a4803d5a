"""A relay that runs well: what arrives and how, and what it says of itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from outspark.observability.metrics import METRICS
from outspark.outbox.openoutbox import NewEvent, Outbox
from outspark.tools.servers.nats import Nats
from outspark.tools.servers.postgres import Postgres
from tests.acceptance.harness import Harness, open_harness
from tests.acceptance.relay_process import START, RelayProcess, relays
from tests.waiting import wait_for

pytestmark = pytest.mark.needs("spark", "nats")

EVENTS = 300


@dataclass(frozen=True, slots=True)
class Running:
    harness: Harness
    relay: RelayProcess


@pytest.fixture(scope="module")
def running(
    postgres_server: Postgres, nats_server: Nats, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    """A relay that knows nothing but the environment of an Open Outbox Relay, and has delivered all there is."""
    with (
        open_harness(postgres_server, nats_server, "shop") as shop,
        relays(tmp_path_factory.mktemp("running")) as start,
    ):
        _write(shop)
        environ = {
            "STORAGE_URL": shop.url,
            "PUBLISHER_TYPE": "nats",
            "PUBLISHER_URL": nats_server.url,
            "RELAY_ID": "till-1",
            "POLL_INTERVAL": "100ms",
            "BATCH_SIZE": "50",
            "LEASE_TIMEOUT": "1m",
            "RETRY_MAX_ATTEMPTS": "3",
            "SERVER_PORT": ":0",
            "HEALTH_CHECK_INTERVAL": "1s",
            "OUTSPARK__HOSTING__SHIFT": "2s",
        }
        relay = start(environ=environ)
        relay.await_working()
        wait_for(
            lambda: relay.metric("openoutbox_events_total", status="delivered") >= EVENTS,
            timeout=START,
            what="a report of all events",
        )
        yield Running(shop, relay)


def _write(shop: Harness) -> None:
    with shop.connect() as conn, conn.transaction():
        for number in range(EVENTS):
            event = NewEvent(
                "shop.order.created", {"n": number}, key=f"k{number % 7}", headers={"tenant": "a"}
            )
            Outbox().enqueue(conn, event)


def test_messages_arrive_as_documented(running: Running) -> None:
    rows = running.harness.ask("SELECT event_id::text, partition_key, payload FROM openoutbox_events")
    arrivals = {arrival.id: arrival for arrival in running.harness.stream.arrivals()}
    assert len(arrivals) == len(rows) == EVENTS
    for id, key, payload in rows:
        arrival = arrivals[id]
        assert (arrival.subject, arrival.payload) == ("shop.order.created", bytes(payload))
        assert arrival.headers == {
            "tenant": "a",
            "content-type": "application/json",
            "X-Partition-Key": key,
        }


def test_the_table_says_delivered(running: Running) -> None:
    rows = running.harness.ask(
        "SELECT DISTINCT status, attempts, locked_by, delivered_at IS NULL FROM openoutbox_events"
    )
    assert rows == [("DELIVERED", 0, None, False)]


def test_health_and_readiness(running: Running) -> None:
    assert running.relay.get("/healthz") == (200, '{"status":"ok"}')
    assert running.relay.get("/readyz") == (200, '{"status":"ok"}')


def test_stats(running: Running) -> None:
    stats = running.relay.get("/stats").json
    assert stats["relay"] == "till-1"
    assert stats["delivered"] == EVENTS
    assert stats["sources"]["default"]["pending"] == 0
    assert [lane["running"] for lane in stats["lanes"]] == [True, True]
    assert stats["destinations"] == {"default": {"open": False, "reason": ""}}


def test_metrics(running: Running) -> None:
    exposed = running.relay.get("/metrics").text
    for metric in METRICS.values():
        name = metric.prometheus_name
        assert f"# TYPE {name} {metric.kind}" in exposed, name
    assert running.relay.metric("outspark_lanes_running") == 2
    assert running.relay.metric("openoutbox_events_batch_size_sum") == EVENTS
    assert running.relay.metric("openoutbox_backlog_pending_count", source="default") == 0
