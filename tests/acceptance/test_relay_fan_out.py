"""Kafka, RabbitMQ and Redis at once, on Spark: every event reaches all three, though one is away for a while."""

from __future__ import annotations

import json
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from outspark.outbox.openoutbox import NewEvent, Outbox
from tests.acceptance.relay_process import CLI, StartRelay, clean_environ
from tests.databases import Database
from tests.history.brokers import Broker, make_broker
from tests.history.passing import SEND_HEADER
from tests.waiting import wait_for

pytestmark = [pytest.mark.needs("spark", "kafka", "rabbitmq", "redis"), pytest.mark.faults]

BROKERS = ("kafka", "rabbitmq", "redis")
TOPIC = "orders"
KEYS = 10
CONFIG = """
[hosting]
shift = "3s"

[sources.shop]
url = {url}
poll_interval = "50ms"

[[routes]]
destination = {names}
topic = "{topic}"
"""


@dataclass(frozen=True, slots=True)
class InboxHarness:
    brokers: dict[str, Broker]
    config: Path
    conn: psycopg.Connection[tuple[object, ...]]

    def write(self, first: int, count: int) -> None:
        """Each event in a transaction of its own; its header says which it is, whatever the broker."""
        for number in range(first, first + count):
            headers = {SEND_HEADER: f"{number}"}
            Outbox().enqueue(
                self.conn, NewEvent("order.placed", b"{}", key=f"k{number % KEYS}", headers=headers)
            )

    def count(self, status: str) -> int:
        row = self.conn.execute(
            "SELECT count(*) FROM openoutbox_events WHERE status = %s", [status]
        ).fetchone()
        assert row is not None
        return int(str(row[0]))

    def remembered(self) -> int:
        row = self.conn.execute("SELECT count(*) FROM outspark_deliveries").fetchone()
        assert row is not None
        return int(str(row[0]))


@pytest.fixture
def inbox_harness(database: Database, tmp_path: Path) -> Iterator[InboxHarness]:
    with ExitStack() as stack:
        brokers = {name: make_broker(name) for name in BROKERS}
        parts = [CONFIG.format(url=json.dumps(database.url), names=json.dumps(list(BROKERS)), topic=TOPIC)]
        for name, broker in brokers.items():
            stack.callback(broker.close)
            broker.start()
            settings = broker.open_topic(TOPIC).settings
            url = settings.url.get_secret_value() if settings.url else ""
            parts.append(f'[destinations.{name}]\ntype = "{name}"\nurl = {json.dumps(url)}\n')
        config = tmp_path / "shop.toml"
        config.write_text("\n".join(parts))
        subprocess.run([*CLI, "init", "--apply", "--config", config], env=clean_environ(), check=True)
        yield InboxHarness(brokers, config, database.connect())


def test_one_of_three_is_away_and_nothing_is_sent_again_where_it_was(
    inbox_harness: InboxHarness, start_relay: StartRelay, request: pytest.FixtureRequest
) -> None:
    away = 60.0 if "faults" in request.config.getoption("markexpr") else 5.0
    relay = start_relay("--config", str(inbox_harness.config))
    inbox_harness.write(0, 200)
    wait_for(lambda: inbox_harness.count("DELIVERED") == 200, timeout=150, what="the first events everywhere")

    inbox_harness.brokers["redis"].stop()
    inbox_harness.write(200, 200)
    wait_for(inbox_harness.remembered, what="deliveries without Redis")
    relay.await_log("destination is down")
    with pytest.raises(AssertionError):
        wait_for(lambda: not inbox_harness.remembered(), timeout=away, what="an end of the outage")
    inbox_harness.brokers["redis"].start()
    inbox_harness.write(400, 200)
    wait_for(lambda: inbox_harness.count("DELIVERED") == 600, timeout=60, what="all events everywhere")

    assert relay.stop() == 0
    assert inbox_harness.remembered() == 0
    for name, broker in inbox_harness.brokers.items():
        arrived = [int(number) for number in broker.arrivals(TOPIC)]
        assert sorted(arrived) == list(range(600)), f"{name} got something twice or not at all"
        by_key: dict[int, list[int]] = defaultdict(list)
        for number in arrived:
            by_key[number % KEYS].append(number)
        assert all(numbers == sorted(numbers) for numbers in by_key.values()), name
    assert inbox_harness.conn.execute("SELECT DISTINCT attempts FROM openoutbox_events").fetchall() == [(0,)]
