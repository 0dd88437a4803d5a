"""From one service to another: orders, their outbox, Kafka, an inbox, bills. Both applications die and come back."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest

from outspark.contracts.omnibox.table import kind
from outspark.outbox.omnibox import NewOutboxEvent, OmniboxOutbox
from outspark.tools.servers.postgres import Postgres
from tests.acceptance.inbox_harness import InboxHarness, prepare
from tests.acceptance.relay_process import START, RelayProcess, relays

pytestmark = [pytest.mark.needs("spark", "kafka"), pytest.mark.faults]

PARTITIONS = 4
AGAIN = 200

ORDERS = "CREATE TABLE orders (name text PRIMARY KEY)"

NOT_BILLED_ONCE = """\
-- Orders that were not billed exactly once, and bills that no order is behind
SELECT coalesce(o.name, b.name), count(b.name) FROM orders o FULL JOIN bills b ON b.name = o.name
GROUP BY 1 HAVING count(o.name) <> 1 OR count(b.name) <> 1"""

# Kafka keeps the place of a lane that was killed for as long as its session lasts, and the next one of its name must
# not wait for that: it would be longer than this test does.
CONFIG = """
[hosting]
lanes = 2
shift = "4s"

[relay]
id = "till"

[sources.shop]
url = {url}
contract = "omnibox"

[destinations.kafka]
type = "kafka"
url = {kafka}

[inboxes.billing]
url = {url}
group = {topic}

[inboxes.billing.feed]
type = "kafka"
url = {kafka}
topics = [{topic}]
batch_size = 20
options = {{ "session.timeout.ms" = 300000 }}

[inboxes.billing.work]
batch_size = 20
transaction_size = 5
"""


@dataclass(slots=True, kw_only=True)
class RoundTripSite(InboxHarness):
    """Orders are written into a table, with an event in the outbox beside it."""

    topic: str

    def _try_to_send(self, names: Sequence[str]) -> bool:
        events = [
            NewOutboxEvent(
                type="order.placed",
                payload={"name": name},
                aggregate_type="order",
                aggregate_id=uuid4(),
                topic=self.topic,
                key=f"k{number % 5}",
            )
            for number, name in enumerate(names)
        ]
        with psycopg.connect(self.url) as conn:
            conn.cursor().executemany("INSERT INTO orders VALUES (%s)", [[name] for name in names])
            OmniboxOutbox().enqueue(conn, *events)
        return True

    def both(self) -> list[RelayProcess]:
        """Start the relay and the inbox."""
        return [self.outspark("relay"), self.inbox("run", "--app", "billing_handlers:router")]


@pytest.fixture
def inbox_harness(tmp_path: Path) -> Iterator[RoundTripSite]:
    from confluent_kafka.admin import NewTopic

    from tests.integration.brokers.kafka_rig import create_topics, shared_server

    kafka, topic = shared_server(), f"orders-{uuid4().hex}"
    create_topics(kafka, [NewTopic(topic, num_partitions=PARTITIONS)])
    with Postgres(options={"fsync": "off"}) as postgres, relays(tmp_path) as start:
        made = RoundTripSite(postgres=postgres, folder=tmp_path, start=start, topic=topic)
        given = {"url": made.url, "kafka": kafka.url, "topic": topic}
        prepare(made, CONFIG.format(**{name: json.dumps(value) for name, value in given.items()}))
        with psycopg.connect(made.url, autocommit=True) as conn:
            for statement in kind(inbox=False, partitioned=False).statements():
                conn.execute(statement.encode())
            conn.execute(ORDERS)
        yield made


def test_every_order_is_billed_once_through_the_death_of_both_sides(inbox_harness: RoundTripSite) -> None:
    with inbox_harness.publishing():
        first = inbox_harness.both()
        inbox_harness.flow(timeout=START)
        for application in first:
            application.kill()
        second = inbox_harness.both()
        inbox_harness.flow(AGAIN, timeout=START)
    inbox_harness.await_billed()
    assert inbox_harness.ask("SELECT count(*) FROM orders") == [(len(inbox_harness.published),)]
    assert inbox_harness.ask(NOT_BILLED_ONCE) == []

    assert stopped(second) == [0, 0]

    assert inbox_harness.ask("SELECT DISTINCT status, locked_by FROM inbox_events") == [("completed", None)]
    for application in second:
        assert "Traceback" not in application.log


def stopped(applications: Sequence[RelayProcess]) -> list[int]:
    """Their exit codes."""
    for application in applications:
        application.send(signal.SIGTERM)
    return [application.wait() for application in applications]
