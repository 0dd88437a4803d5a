"""`outspark inbox run` through faults: orders from NATS are billed in PostgreSQL, each exactly once.

One application lives through all of them.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.inbox_site import RECOVERY, NatsSite, Site, open_site
from tests.acceptance.relay_process import START, RelayProcess
from tests.waiting import wait_for

pytestmark = [pytest.mark.needs("spark", "nats"), pytest.mark.faults]

BEFORE = 100


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsSite]:
    with open_site(tmp_path_factory.mktemp("site")) as site:
        site.publish(BEFORE)
        yield site


@pytest.fixture(scope="module")
def inbox(site: Site) -> RelayProcess:
    """At work, and through with what was there before it."""
    inbox = site.inbox("run", "--app", "billing_handlers:router")
    site.await_billed(START)
    return inbox


def test_it_bills_what_was_there_and_what_comes(site: Site, inbox: RelayProcess) -> None:
    with site.publishing():
        site.flow()
    site.await_billed()

    wait_for(lambda: inbox.get("/readyz").status == 200, timeout=RECOVERY, what="readiness")
    assert inbox.get("/healthz").status == 200
    stats = inbox.get("/stats").json
    assert stats["inboxes"]["billing"]["pending"] == 0
    assert [lane["running"] for lane in stats["lanes"]] == [True] * 4
    wait_for(
        lambda: inbox.metric("outspark_inbox_accepted_total", outcome="duplicate") >= BEFORE,
        timeout=RECOVERY,
        what="a count of duplicates",
    )


def test_a_python_worker_is_killed(site: Site, inbox: RelayProcess) -> None:
    with site.publishing():
        site.flow()
        os.kill(site.last_pid(), signal.SIGKILL)
        site.flow()
    site.await_billed()
    assert inbox.get("/healthz").status == 200


def test_all_python_workers_are_killed(site: Site, inbox: RelayProcess) -> None:
    """Also those that take in, whatever they had polled and not acknowledged."""
    with site.publishing():
        site.flow()
        for pid in python_workers(inbox):
            os.kill(pid, signal.SIGKILL)
        site.flow()
    site.await_billed()


def test_the_database_restarts(site: Site, inbox: RelayProcess) -> None:
    with site.publishing():
        site.flow()
        site.postgres.restart()
        site.flow()
        site.postgres.stop(immediate=True)
        wait_for(lambda: inbox.get("/readyz").status == 503, timeout=RECOVERY, what="not ready")
        assert "inbox billing" in inbox.get("/readyz").text
        site.postgres.start()
        site.flow()
    site.await_billed()


def test_the_broker_restarts(site: NatsSite, inbox: RelayProcess) -> None:
    with site.publishing():
        site.flow()
        site.nats.stop()
        wait_for(lambda: inbox.get("/readyz").status == 503, timeout=RECOVERY, what="not ready")
        assert "feed of billing" in inbox.get("/readyz").text
        site.nats.start()
        site.flow()
    site.await_billed()
    wait_for(lambda: inbox.get("/readyz").status == 200, timeout=RECOVERY, what="ready again")


def test_it_ends_in_good_order(site: Site, inbox: RelayProcess) -> None:
    """Nothing is half done: an order is billed and its event completed, or neither, and nobody holds anything."""
    with site.publishing():
        site.flow()
        assert inbox.stop(signal.SIGTERM) == 0

    assert site.ask("SELECT count(*) FROM inbox_events WHERE locked_by IS NOT NULL") == [(0,)]
    done = {name for (name,) in site.ask("SELECT message_id FROM inbox_events WHERE status = 'completed'")}
    assert done == {name for (name,) in site.ask("SELECT name FROM bills")}
    assert site.ask("SELECT count(*) FROM inbox_events WHERE status = 'failed'") == [(0,)]
    wait_for(lambda: not sessions(site), what="the end of all sessions")
    assert "Traceback" not in inbox.log


def sessions(site: Site) -> list[str]:
    return [
        name
        for (name,) in site.ask(
            "SELECT application_name FROM pg_stat_activity WHERE application_name LIKE 'outspark%'"
        )
    ]


def python_workers(inbox: RelayProcess) -> list[int]:
    """Forked by Spark's Python daemon, so they look like it, and so does their parent."""
    return [
        pid
        for pid in map(int, filter(str.isdigit, os.listdir("/proc")))
        if _is_daemon(pid, inbox.pid) and _is_daemon(_parent(pid), inbox.pid)
    ]


def _is_daemon(pid: int, session: int) -> bool:
    try:
        return os.getsid(pid) == session and b"pyspark.daemon" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (OSError, ProcessLookupError):
        return False


def _parent(pid: int) -> int:
    try:
        # The name of the program stands in parentheses and may hold anything.
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return 0
