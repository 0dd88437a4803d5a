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
from tests.acceptance.place import Place, open_place
from tests.acceptance.relay_process import RelayProcess, StartRelay, relays
from tests.acceptance.writer import writing
from tests.waiting import wait_for

pytestmark = [pytest.mark.needs("spark", "nats"), pytest.mark.faults]

BATCH_SIZE = 20
LANES = 2
RECOVERY = 60.0


@dataclass(slots=True)
class Site:
    """Servers that may be stopped, and the relay at work on them."""

    postgres: Postgres
    nats: Nats
    place: Place
    start: StartRelay
    relay: RelayProcess

    def start_relay(self) -> RelayProcess:
        self.relay = self.start("--url", self.place.url, "--to", self.nats.url, environ=ENVIRON)
        return self.relay

    def flow(self, more: int = 60) -> None:
        """Until this many more messages than now have arrived."""
        wanted = self.place.stream.count() + more
        wait_for(lambda: self.place.stream.count() >= wanted, timeout=RECOVERY, what="flowing events")


ENVIRON = {
    "OUTSPARK__RELAY__ID": "tough",
    "OUTSPARK__RELAY__LANES": str(LANES),
    "OUTSPARK__RELAY__SHIFT": "5s",
    "OUTSPARK__SOURCES__DEFAULT__BATCH_SIZE": str(BATCH_SIZE),
    "OUTSPARK__SERVER__HEALTH_CHECK_INTERVAL": "500ms",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    options = {"fsync": "off", "max_connections": "100"}
    with Postgres(options=options) as postgres, Nats() as nats:
        with open_place(postgres, nats, "faults") as place, relays(tmp_path_factory.mktemp("site")) as start:
            relay = start("--url", place.url, "--to", nats.url, environ=ENVIRON)
            relay.await_working()
            yield Site(postgres, nats, place, start, relay)


def duplicates(place: Place) -> int:
    arrivals = place.assert_nothing_lost()
    return len(arrivals) - len({arrival.id for arrival in arrivals})


def settled(site: Site, before: int) -> int:
    """Everything delivered, nothing lost, in order; how many came twice since `before`."""
    site.place.await_drained(RECOVERY)
    return duplicates(site.place) - before


def test_a_worker_is_killed(site: Site) -> None:
    before, restarts = duplicates(site.place), site.relay.metric("outspark_lane_restarts_total")
    with writing(site.place.url, "faults.order", rate=50, batch=4):
        site.flow()
        owners = site.place.owners()
        pid = pid_of(owners[0][0])
        victims = {slot for slot, (owner, _) in owners.items() if pid_of(owner) == pid}
        os.kill(pid, signal.SIGKILL)
        wait_for(
            lambda: pid not in {pid_of(site.place.owners()[slot][0]) for slot in victims},
            timeout=RECOVERY,
            what="a new owner of the dead worker's slots",
        )
        site.flow()
    assert settled(site, before) <= BATCH_SIZE
    wait_for(
        lambda: site.relay.metric("outspark_lane_restarts_total") > restarts,
        timeout=RECOVERY,
        what="a counted restart",
    )
    assert site.relay.get("/healthz").status == 200


def pid_of(owner: str) -> int:
    return int(owner.rpartition("pid=")[2].partition(" ")[0])


def test_the_database_restarts(site: Site) -> None:
    before = duplicates(site.place)
    with writing(site.place.url, "faults.order", rate=50, batch=2):
        site.flow()
        site.postgres.restart()
        site.flow()
        site.postgres.stop(immediate=True)
        wait_for(lambda: site.relay.get("/readyz").status == 503, timeout=RECOVERY, what="not ready")
        assert "source default" in site.relay.get("/readyz").text
        site.postgres.start()
        site.flow()
    assert settled(site, before) <= 2 * LANES * BATCH_SIZE
    wait_for(lambda: site.relay.get("/readyz").status == 200, timeout=RECOVERY, what="ready again")


def test_the_broker_goes_away(site: Site) -> None:
    before = duplicates(site.place)
    [(tried,)] = site.place.ask("SELECT coalesce(sum(attempts), 0) FROM openoutbox_events")
    with writing(site.place.url, "faults.order", rate=50, batch=2):
        site.flow()
        site.nats.stop()
        wait_for(lambda: site.relay.get("/readyz").status == 503, timeout=RECOVERY, what="not ready")
        assert "destination default" in site.relay.get("/readyz").text
        wait_for(lambda: site.place.statuses().get("PENDING", 0) > 200, timeout=RECOVERY, what="a backlog")
        assert site.relay.get("/healthz").status == 200
        site.nats.start()
        site.flow(400)
    assert settled(site, before) <= LANES * BATCH_SIZE
    assert site.place.ask("SELECT sum(attempts) FROM openoutbox_events") == [(tried,)]
    assert site.place.ask("SELECT count(*) FROM openoutbox_events WHERE status = 'DEAD'") == [(0,)]


def test_the_relay_is_killed_and_another_takes_over(site: Site) -> None:
    before = duplicates(site.place)
    with writing(site.place.url, "faults.order", rate=50, batch=2):
        site.flow()
        orphans = {pid_of(owner) for owner, _ in site.place.owners().values()}
        site.relay.kill()
        wait_for(lambda: not any(map(alive, orphans)), timeout=10, what="an end of the workers")
        site.start_relay().await_working()
        site.flow()
    assert settled(site, before) <= LANES * BATCH_SIZE


def test_spark_itself_is_killed(site: Site) -> None:
    """The JVM is gone, so the relay cannot host lanes any more: it must end and let its supervisor start it again."""
    os.kill(site.relay.jvm, signal.SIGKILL)
    assert site.relay.wait(RECOVERY) == 1
    assert "the Spark application has ended under the relay" in site.relay.log.splitlines()[-1]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
