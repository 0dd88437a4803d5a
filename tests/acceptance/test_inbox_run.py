"""`outspark inbox run` through faults: orders from NATS are billed in PostgreSQL, each exactly once.

One application lives through all of them.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.inbox_harness import RECOVERY, InboxHarness, NatsInboxHarness, open_inbox_harness
from tests.acceptance.relay_process import START, RelayProcess
from tests.waiting import wait_for

pytestmark = [pytest.mark.needs("spark", "nats"), pytest.mark.faults]

BEFORE = 100


@pytest.fixture(scope="module")
def inbox_harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsInboxHarness]:
    with open_inbox_harness(tmp_path_factory.mktemp("site")) as inbox_harness:
        inbox_harness.publish(BEFORE)
        yield inbox_harness


@pytest.fixture(scope="module")
def inbox(inbox_harness: InboxHarness) -> RelayProcess:
    """At work, and through with what was there before it."""
    inbox = inbox_harness.inbox("run", "--app", "billing_handlers:router")
    inbox_harness.await_billed(START)
    return inbox


def test_it_bills_what_was_there_and_what_comes(inbox_harness: InboxHarness, inbox: RelayProcess) -> None:
    with inbox_harness.publishing():
        inbox_harness.flow()
    inbox_harness.await_billed()

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


def test_a_python_worker_is_killed(inbox_harness: InboxHarness, inbox: RelayProcess) -> None:
    with inbox_harness.publishing():
        inbox_harness.flow()
        os.kill(inbox_harness.last_pid(), signal.SIGKILL)
        inbox_harness.flow()
    inbox_harness.await_billed()
    assert inbox.get("/healthz").status == 200


def test_all_python_workers_are_killed(inbox_harness: InboxHarness, inbox: RelayProcess) -> None:
    """Also those that take in, whatever they had polled and not acknowledged."""
    with inbox_harness.publishing():
        inbox_harness.flow()
        for pid in python_workers(inbox):
            os.kill(pid, signal.SIGKILL)
        inbox_harness.flow()
    inbox_harness.await_billed()


def test_the_database_restarts(inbox_harness: InboxHarness, inbox: RelayProcess) -> None:
    with inbox_harness.publishing():
        inbox_harness.flow()
        inbox_harness.postgres.restart()
        inbox_harness.flow()
        inbox_harness.postgres.stop(immediate=True)
        wait_for(lambda: inbox.get("/readyz").status == 503, timeout=RECOVERY, what="not ready")
        assert "inbox billing" in inbox.get("/readyz").text
        inbox_harness.postgres.start()
        inbox_harness.flow()
    inbox_harness.await_billed()


def test_the_broker_restarts(inbox_harness: NatsInboxHarness, inbox: RelayProcess) -> None:
    with inbox_harness.publishing():
        inbox_harness.flow()
        inbox_harness.nats.stop()
        wait_for(lambda: inbox.get("/readyz").status == 503, timeout=RECOVERY, what="not ready")
        assert "feed of billing" in inbox.get("/readyz").text
        inbox_harness.nats.start()
        inbox_harness.flow()
    inbox_harness.await_billed()
    wait_for(lambda: inbox.get("/readyz").status == 200, timeout=RECOVERY, what="ready again")


def test_it_ends_in_good_order(inbox_harness: InboxHarness, inbox: RelayProcess) -> None:
    """Nothing is half done: an order is billed and its event completed, or neither, and nobody holds anything."""
    with inbox_harness.publishing():
        inbox_harness.flow()
        assert inbox.stop(signal.SIGTERM) == 0

    assert inbox_harness.ask("SELECT count(*) FROM inbox_events WHERE locked_by IS NOT NULL") == [(0,)]
    done = {
        name
        for (name,) in inbox_harness.ask("SELECT message_id FROM inbox_events WHERE status = 'completed'")
    }
    assert done == {name for (name,) in inbox_harness.ask("SELECT name FROM bills")}
    assert inbox_harness.ask("SELECT count(*) FROM inbox_events WHERE status = 'failed'") == [(0,)]
    wait_for(lambda: not sessions(inbox_harness), what="the end of all sessions")
    assert "Traceback" not in inbox.log


def sessions(inbox_harness: InboxHarness) -> list[str]:
    return [
        name
        for (name,) in inbox_harness.ask(
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
