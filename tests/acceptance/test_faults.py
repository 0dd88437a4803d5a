"""Faults while events flow: a worker killed, a database that restarts, a broker that goes away, the relay killed.

One relay lives through all of them, and after each it must work again with nothing lost.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from outspark.tools.servers.nats import Nats
from outspark.tools.servers.postgres import Postgres
from tests.acceptance.harness import Harness, open_harness
from tests.acceptance.relay_process import RelayProcess, StartRelay, relays
from tests.acceptance.writer import writing
from tests.waiting import wait_for

pytestmark = [pytest.mark.needs("spark", "nats"), pytest.mark.faults]

BATCH_SIZE = 20
LANES = 2
RECOVERY = 60.0


@dataclass(slots=True)
class InboxHarness:
    """Servers that may be stopped, and the relay at work on them."""

    postgres: Postgres
    nats: Nats
    harness: Harness
    start: StartRelay
    relay: RelayProcess

    def start_relay(self) -> RelayProcess:
        self.relay = self.start("--url", self.harness.url, "--to", self.nats.url, environ=ENVIRON)
        return self.relay

    def flow(self, more: int = 60) -> None:
        """Until this many more messages than now have arrived."""
        wanted = self.harness.stream.count() + more
        wait_for(lambda: self.harness.stream.count() >= wanted, timeout=RECOVERY, what="flowing events")


ENVIRON = {
    "OUTSPARK__RELAY__ID": "tough",
    "OUTSPARK__HOSTING__LANES": str(LANES),
    "OUTSPARK__HOSTING__SHIFT": "5s",
    "OUTSPARK__SOURCES__DEFAULT__BATCH_SIZE": str(BATCH_SIZE),
    "OUTSPARK__SERVER__HEALTH_CHECK_INTERVAL": "500ms",
}


@pytest.fixture(scope="module")
def inbox_harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InboxHarness]:
    options = {"fsync": "off", "max_connections": "100"}
    with Postgres(options=options) as postgres, Nats() as nats:
        with (
            open_harness(postgres, nats, "faults") as harness,
            relays(tmp_path_factory.mktemp("site")) as start,
        ):
            relay = start("--url", harness.url, "--to", nats.url, environ=ENVIRON)
            relay.await_working()
            yield InboxHarness(postgres, nats, harness, start, relay)


def duplicates(harness: Harness) -> int:
    arrivals = harness.assert_nothing_lost()
    return len(arrivals) - len({arrival.id for arrival in arrivals})


def settled(inbox_harness: InboxHarness, before: int) -> int:
    """Everything delivered, nothing lost, in order; how many came twice since `before`."""
    inbox_harness.harness.await_drained(RECOVERY)
    return duplicates(inbox_harness.harness) - before


def test_a_worker_is_killed(inbox_harness: InboxHarness) -> None:
    before, restarts = (
        duplicates(inbox_harness.harness),
        inbox_harness.relay.metric("outspark_lane_restarts_total"),
    )
    with writing(inbox_harness.harness.url, "faults.order", rate=50, batch=4):
        inbox_harness.flow()
        owners = inbox_harness.harness.owners()
        pid = pid_of(owners[0][0])
        victims = {slot for slot, (owner, _) in owners.items() if pid_of(owner) == pid}
        os.kill(pid, signal.SIGKILL)
        wait_for(
            lambda: pid not in {pid_of(inbox_harness.harness.owners()[slot][0]) for slot in victims},
            timeout=RECOVERY,
            what="a new owner of the dead worker's slots",
        )
        inbox_harness.flow()
    assert settled(inbox_harness, before) <= BATCH_SIZE
    wait_for(
        lambda: inbox_harness.relay.metric("outspark_lane_restarts_total") > restarts,
        timeout=RECOVERY,
        what="a counted restart",
    )
    assert inbox_harness.relay.get("/healthz").status == 200


def pid_of(owner: str) -> int:
    return int(owner.rpartition("pid=")[2].partition(" ")[0])


def test_the_database_restarts(inbox_harness: InboxHarness) -> None:
    before = duplicates(inbox_harness.harness)
    with writing(inbox_harness.harness.url, "faults.order", rate=50, batch=2):
        inbox_harness.flow()
        inbox_harness.postgres.restart()
        inbox_harness.flow()
        inbox_harness.postgres.stop(immediate=True)
        wait_for(lambda: inbox_harness.relay.get("/readyz").status == 503, timeout=RECOVERY, what="not ready")
        assert "source default" in inbox_harness.relay.get("/readyz").text
        inbox_harness.postgres.start()
        inbox_harness.flow()
    assert settled(inbox_harness, before) <= 2 * LANES * BATCH_SIZE
    wait_for(lambda: inbox_harness.relay.get("/readyz").status == 200, timeout=RECOVERY, what="ready again")


def test_the_broker_goes_away(inbox_harness: InboxHarness) -> None:
    before = duplicates(inbox_harness.harness)
    [(tried,)] = inbox_harness.harness.ask("SELECT coalesce(sum(attempts), 0) FROM openoutbox_events")
    with writing(inbox_harness.harness.url, "faults.order", rate=50, batch=2):
        inbox_harness.flow()
        inbox_harness.nats.stop()
        wait_for(lambda: inbox_harness.relay.get("/readyz").status == 503, timeout=RECOVERY, what="not ready")
        assert "destination default" in inbox_harness.relay.get("/readyz").text
        wait_for(
            lambda: inbox_harness.harness.statuses().get("PENDING", 0) > 200,
            timeout=RECOVERY,
            what="a backlog",
        )
        assert inbox_harness.relay.get("/healthz").status == 200
        inbox_harness.nats.start()
        inbox_harness.flow(400)
    assert settled(inbox_harness, before) <= LANES * BATCH_SIZE
    assert inbox_harness.harness.ask("SELECT sum(attempts) FROM openoutbox_events") == [(tried,)]
    assert inbox_harness.harness.ask("SELECT count(*) FROM openoutbox_events WHERE status = 'DEAD'") == [(0,)]


def test_the_relay_is_killed_and_another_takes_over(inbox_harness: InboxHarness) -> None:
    before = duplicates(inbox_harness.harness)
    with writing(inbox_harness.harness.url, "faults.order", rate=50, batch=2):
        inbox_harness.flow()
        orphans = {pid_of(owner) for owner, _ in inbox_harness.harness.owners().values()}
        inbox_harness.relay.kill()
        wait_for(lambda: not any(map(alive, orphans)), timeout=10, what="an end of the workers")
        inbox_harness.start_relay().await_working()
        inbox_harness.flow()
    assert settled(inbox_harness, before) <= LANES * BATCH_SIZE


def test_spark_itself_is_killed(inbox_harness: InboxHarness) -> None:
    """The JVM is gone, so the relay cannot host lanes any more: it must end and let its supervisor start it again."""
    os.kill(inbox_harness.relay.jvm, signal.SIGKILL)
    assert inbox_harness.relay.wait(RECOVERY) == 1
    assert "the Spark application has ended under the relay" in inbox_harness.relay.log.splitlines()[-1]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
