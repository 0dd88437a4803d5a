"""A jEAP outbox relayed to Kafka on Spark: it waits for a Java relay's turn to end, and gives the lock back."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest

from outspark.database.shedlock import RELAY
from outspark.outbox.jeap import JeapOutbox, NewMessage
from tests.acceptance.relay_process import CLI, RelayProcess, StartRelay, clean_environ
from tests.databases import Database
from tests.history.brokers.kafka import KafkaBroker
from tests.waiting import wait_for

pytestmark = pytest.mark.needs("spark", "kafka")

TOPIC = "orders"
CONFIG = """
[hosting]
shift = "3s"

[sources.shop]
contract = "jeap"
url = {url}
poll_interval = "50ms"

[sources.shop.jeap]
lock_at_most = "8s"
sent_retention = "1s"

[destinations.kafka]
type = "kafka"
url = {kafka}
publish_timeout = "3s"
"""
LOCK = "SELECT locked_by, lock_until > timezone('utc', now()) FROM shedlock WHERE name = %s"
JAVA_TAKES_IT = """
INSERT INTO shedlock VALUES (%s, timezone('utc', now()) + interval '1 hour', timezone('utc', now()), 'java')"""
JAVA_LETS_GO = "UPDATE shedlock SET lock_until = timezone('utc', now()) WHERE locked_by = 'java'"


class Service:
    """A service with a jEAP outbox, its Kafka, and its own relay as far as the lock goes."""

    def __init__(self, conn: psycopg.Connection[Any], kafka: KafkaBroker, config: Path) -> None:
        self.conn, self.kafka, self.config = conn, kafka, config
        self._outbox = JeapOutbox()
        self._sent = 0

    def send(self, count: int) -> None:
        for number in range(self._sent, self._sent + count):
            message = NewMessage(TOPIC, b"%d" % number, "OrderPlaced", key=b"\xff%d" % (number % 7))
            with self.conn.transaction():
                self._outbox.send_scheduled(self.conn, message)
        self._sent += count

    def unsent(self) -> int:
        row = self.conn.execute(
            "SELECT count(*) FROM deferred_message WHERE sent_scheduled IS NULL"
        ).fetchone()
        assert row is not None
        return int(row[0])

    def await_sent(self, timeout: float = 60.0) -> None:
        wait_for(lambda: not self.unsent(), timeout=timeout, what="an empty outbox")

    def lock(self) -> tuple[str, bool] | None:
        row: tuple[str, bool] | None = self.conn.execute(LOCK, [RELAY]).fetchone()
        return row

    def terms(self) -> tuple[str, datetime, datetime]:
        """Who holds the lock, since when and until when."""
        [row] = self.conn.execute("SELECT locked_by, locked_at, lock_until FROM shedlock").fetchall()
        holder, since, until = row
        return holder, since, until

    def held_by_us(self) -> bool:
        lock = self.lock()
        return lock is not None and lock[0].startswith("outspark/") and lock[1]


@pytest.fixture
def service(database: Database, tmp_path: Path) -> Iterator[Service]:
    kafka = KafkaBroker()
    kafka.start()
    try:
        kafka.open_topic(TOPIC)
        config = tmp_path / "shop.toml"
        config.write_text(CONFIG.format(url=json.dumps(database.url), kafka=json.dumps(kafka.server.url)))
        subprocess.run([*CLI, "init", "--apply", "--config", config], env=clean_environ(), check=True)
        yield Service(database.connect(), kafka, config)
    finally:
        kafka.close()


def test_it_takes_turns_with_a_java_relay(service: Service, start_relay: StartRelay) -> None:
    service.conn.execute(JAVA_TAKES_IT, [RELAY])
    service.send(50)
    relay = start_relay("--config", str(service.config))
    relay.await_log("waiting for it")
    assert service.unsent() == 50

    service.conn.execute(JAVA_LETS_GO)
    service.await_sent()
    service.send(200)
    service.await_sent()
    assert service.held_by_us()
    _assert_metrics(relay)

    assert relay.stop() == 0
    assert service.lock() is not None
    assert not service.held_by_us()
    arrived = service.kafka.records(TOPIC)
    assert sorted(int(body) for _, body in arrived) == list(range(250))
    assert all(key == b"\xff%d" % (int(body) % 7) for key, body in arrived)
    for key in {key for key, _ in arrived}:
        numbers = [int(body) for of, body in arrived if of == key]
        assert numbers == sorted(numbers)


@pytest.mark.faults
@pytest.mark.long
def test_a_relay_that_is_killed_is_followed_when_its_lock_runs_out(
    service: Service, start_relay: StartRelay
) -> None:
    service.send(20)
    first = start_relay("--config", str(service.config))
    service.await_sent(150)
    first.kill()
    seen = [service.terms()]
    second = start_relay("--config", str(service.config))

    def is_followed() -> bool:
        # What it leaves behind, a lane without a driver, may work to the end of its shift.
        seen.append(service.terms())
        return seen[-1][0] != seen[0][0]

    wait_for(is_followed, timeout=150, what="another holder of the lock")
    service.send(20)
    service.await_sent()
    (_, _, until), (_, taken, _) = seen[-2:]
    assert taken >= until
    assert second.stop() == 0


def _assert_metrics(relay: RelayProcess) -> None:
    assert relay.metric("outbox_messages_ready_to_be_sent_count") == 0
    assert relay.metric("outbox_messages_failed_count", resend_status="resend_disabled") == 0
    wait_for(
        lambda: relay.metric("outbox_messages_transmit_seconds_count", delivery_type="scheduled") >= 50,
        timeout=90,
        what="the count of a shift",
    )
