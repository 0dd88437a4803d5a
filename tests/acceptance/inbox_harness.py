"""A site where an inbox works: servers of its own that may be stopped, a service's handlers, and what they billed."""

from __future__ import annotations

import itertools
import json
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from nats.errors import Error as NatsError

from outspark.contracts.omnibox.table import kind
from outspark.tools.servers.nats import Nats
from outspark.tools.servers.postgres import Postgres
from tests.acceptance.relay_process import RelayProcess, StartRelay, relays
from tests.history.inbox.brokers import NatsBroker
from tests.history.inbox.drafts import Draft
from tests.waiting import wait_for

TOPIC = "orders"
RECOVERY = 90.0

# No key on it: an order that is billed twice shows.
BILLS = "CREATE TABLE bills (position bigserial, name text NOT NULL, pid integer NOT NULL)"

HANDLERS = """
import os

import psycopg

from outspark.inbox import Router

router = Router()


@router.otherwise
def bill(payload: dict, conn: psycopg.Connection) -> None:
    conn.execute("INSERT INTO bills (name, pid) VALUES (%s, %s)", [payload["name"], os.getpid()])
"""

CONFIG = """
[hosting]
lanes = 2
shift = "4s"

[relay]
id = "till"

[server]
health_check_interval = "500ms"

[inboxes.billing]
url = {url}
group = "billing"

[inboxes.billing.feed]
type = "nats"
url = {nats}
topics = ["orders.*"]
batch_size = 20
options = {{ ack_wait = "3s" }}

[inboxes.billing.work]
batch_size = 20
transaction_size = 5
retry = {{ base_delay = "100ms", max_delay = "500ms" }}
"""


@dataclass(slots=True, kw_only=True)
class InboxHarness(ABC):
    """`published` are the names of all orders that were sent."""

    postgres: Postgres
    folder: Path
    start: StartRelay
    published: set[str] = field(default_factory=set)
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    @property
    def url(self) -> str:
        return self.postgres.url()

    def inbox(self, command: str, *args: str) -> RelayProcess:
        """Start `outspark inbox <command>`."""
        return self.outspark("inbox", command, *args)

    def outspark(self, *command: str) -> RelayProcess:
        path = os.pathsep.join(filter(None, [str(self.folder), os.environ.get("PYTHONPATH")]))
        config = str(self.folder / "outspark.toml")
        return self.start("--config", config, command=command, environ={"PYTHONPATH": path})

    def publish(self, count: int) -> None:
        """Some orders, again and again until it is sure that they are sent."""
        names = [f"o{next(self._numbers)}" for _ in range(count)]
        self.published.update(names)
        wait_for(lambda: self._try_to_send(names), timeout=RECOVERY, what="the broker's answer")

    def ask(self, question: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url, autocommit=True, connect_timeout=5) as conn:
            return conn.execute(question.encode()).fetchall()

    def count(self) -> int:
        [(count,)] = self.ask("SELECT count(*) FROM bills")
        return int(count)

    def flow(self, more: int = 40, timeout: float = RECOVERY) -> None:
        """Until this many more orders than now are billed."""
        wanted = self.count() + more
        wait_for(lambda: self.count() >= wanted, timeout=timeout, what="flowing orders")

    def await_billed(self, timeout: float = RECOVERY) -> None:
        wait_for(lambda: self.count() >= len(self.published), timeout=timeout, what="a bill for each order")
        self.assert_billed_once()

    def assert_billed_once(self) -> None:
        """Every order has one bill, and nothing else has: by a query, not by what anybody remembers."""
        assert self.ask("SELECT name, count(*) FROM bills GROUP BY name HAVING count(*) > 1") == []
        billed = {name for (name,) in self.ask("SELECT name FROM bills")}
        assert billed == self.published

    def last_pid(self) -> int:
        """The process that wrote the last bill."""
        [(pid,)] = self.ask("SELECT pid FROM bills ORDER BY position DESC LIMIT 1")
        return int(pid)

    @contextmanager
    def publishing(self, rate: float = 20, batch: int = 3) -> Iterator[None]:
        """All the while, through outages of the broker too."""
        stopping = threading.Event()

        def publish() -> None:
            while not stopping.wait(1 / rate):
                self.publish(batch)

        with ThreadPoolExecutor() as pool:
            publishing = pool.submit(publish)
            try:
                yield
            finally:
                stopping.set()
            publishing.result(RECOVERY)

    @abstractmethod
    def _try_to_send(self, names: Sequence[str]) -> bool:
        """False when it is not sure that all are sent."""


@dataclass(slots=True, kw_only=True)
class NatsInboxHarness(InboxHarness):
    """Orders come from NATS, each twice, as from a relay after a crash."""

    nats: Nats

    @property
    def broker(self) -> NatsBroker:
        return NatsBroker(self.nats)

    def _try_to_send(self, names: Sequence[str]) -> bool:
        drafts = [(Draft(name, key=f"k{number % 5}", id=name), 0) for number, name in enumerate(names)]
        try:
            self.broker.publish(TOPIC, [*drafts, *drafts])
        except (NatsError, OSError):
            return False
        return True


@contextmanager
def open_inbox_harness(folder: Path) -> Iterator[NatsInboxHarness]:
    with Postgres(options={"fsync": "off"}) as postgres, Nats() as nats, relays(folder) as start:
        inbox_harness = NatsInboxHarness(postgres=postgres, nats=nats, folder=folder, start=start)
        inbox_harness.broker.open_topic(TOPIC)
        prepare(inbox_harness, CONFIG.format(url=json.dumps(inbox_harness.url), nats=json.dumps(nats.url)))
        yield inbox_harness


def prepare(inbox_harness: InboxHarness, config: str) -> None:
    """What the billing service has: an inbox, a table for its bills, handlers, and settings."""
    with psycopg.connect(inbox_harness.url, autocommit=True) as conn:
        for statement in kind(inbox=True, partitioned=False).statements():
            conn.execute(statement.encode())
        conn.execute(BILLS)
    (inbox_harness.folder / "billing_handlers.py").write_text(HANDLERS)
    (inbox_harness.folder / "outspark.toml").write_text(config)
