"""Two databases in one application, short shifts, one source with a doorbell: nothing lost, nothing doubled."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from uuid import UUID

import pytest

from outspark.database.names import TableName, lock_class
from outspark.tools.servers.nats import Nats
from outspark.tools.servers.postgres import Postgres
from tests.acceptance.harness import Harness, open_harness
from tests.acceptance.relay_process import CLI, RelayProcess, StartRelay, clean_environ
from tests.acceptance.writer import enqueue, writing
from tests.waiting import wait_for

pytestmark = pytest.mark.needs("spark", "nats")

FALLBACK = 20.0
PATIENCE = 60.0
BELL = lock_class("bell", TableName("openoutbox_events", "public"))

CONFIG = """
[hosting]
lanes = 2
shift = "2s"

[server]
health_check_interval = "200ms"

[sources.orders]
url = "{orders}"

[sources.bills]
url = "{bills}"
doorbell = true
poll_interval = "{fallback}s"

[destinations.file]
type = "stdout"
options = {{ path = "{file}" }}
"""


@dataclass(frozen=True, slots=True)
class Outlet:
    """The file that the relay writes to, one line for each time an event is published."""

    file: Path

    def counts(self) -> Counter[str]:
        lines = self.file.read_text().splitlines() if self.file.exists() else []
        return Counter(json.loads(line)["id"] for line in lines)

    def has(self, id: UUID) -> bool:
        return str(id) in self.counts()


@pytest.fixture
def outlet(tmp_path: Path) -> Outlet:
    return Outlet(tmp_path / "published")


@pytest.fixture
def billing() -> Iterator[Postgres]:
    """A server that may be stopped."""
    with Postgres(options={"fsync": "off"}) as server:
        yield server


def test_two_databases(
    shop: Harness,
    billing: Postgres,
    nats_server: Nats,
    outlet: Outlet,
    start_relay: StartRelay,
    tmp_path: Path,
) -> None:
    with open_harness(billing, nats_server, "bills") as bills:
        init = [*CLI, "init", "--apply", "--doorbell", "--lanes", "2", "--url", bills.url]
        subprocess.run(init, env=clean_environ(), cwd=tmp_path, check=True, capture_output=True)
        config = tmp_path / "outspark.toml"
        config.write_text(
            CONFIG.format(orders=shop.url, bills=bills.url, fallback=FALLBACK, file=outlet.file)
        )
        relay = start_relay("--config", str(config))
        relay.await_working(slots=16)
        for harness in (shop, bills):
            assert len({owner.split("lane=")[1][0] for owner, _ in harness.owners().values()}) == 2

        trickle_over_hand_overs(relay, shop, bills, outlet)
        ring_the_bell(bills, outlet)
        wait_for(
            lambda: relay.metric("outspark_doorbell_rings_total"), timeout=PATIENCE, what="counted rings"
        )
        lose_one(relay, shop, billing, outlet)


def trickle_over_hand_overs(relay: RelayProcess, shop: Harness, bills: Harness, outlet: Outlet) -> None:
    before = relay.metric("outspark_handovers_total")
    with writing(shop.url, "order", rate=20) as orders, writing(bills.url, "bill", rate=20) as paid:
        wait_for(
            lambda: relay.metric("outspark_handovers_total") >= before + 8,
            timeout=PATIENCE,
            what="hand-overs",
        )
    shop.await_drained()
    bills.await_drained()
    assert outlet.counts() == Counter(str(id) for id in [*orders.committed, *paid.committed])
    assert "lane failed" not in relay.log
    assert "vanished" not in relay.log


def ring_the_bell(bills: Harness, outlet: Outlet) -> None:
    """Each event finds the lanes asleep, and yet arrives long before they would have looked."""
    for _ in range(5):
        wait_for(lambda: sleeping(bills) == 2, timeout=PATIENCE, what="lanes that sleep")
        with bills.connect() as conn:
            [id] = enqueue(conn, "bill", 1)
        wait_for(partial(outlet.has, id), timeout=FALLBACK / 2, what="a prompt bill")


def sleeping(harness: Harness) -> int:
    [(count,)] = harness.ask(
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted AND mode = 'ExclusiveLock'"
        f" AND classid = {BELL & 0xFFFFFFFF}"
    )
    return int(count)


def lose_one(relay: RelayProcess, shop: Harness, billing: Postgres, outlet: Outlet) -> None:
    billing.stop()
    wait_for(
        lambda: "source bills" in relay.get("/readyz").text, timeout=PATIENCE, what="a reason in /readyz"
    )
    assert "source orders" not in relay.get("/readyz").text
    assert relay.get("/healthz").status == 200
    assert "problem" in relay.get("/stats").json["sources"]["bills"]
    with shop.connect() as conn:
        ids = enqueue(conn, "order", 40)
    shop.await_drained()
    assert all(outlet.counts()[str(id)] == 1 for id in ids)

    assert relay.stop() == 0
    assert all(clean for _, clean in shop.owners().values())
    assert shop.locks() == 0
    assert "cancelling" not in relay.log
