"""A lane that hangs in its transform: the relay says so, and starts the lane again."""

from __future__ import annotations

from pathlib import Path

import pytest

from outspark.outbox.openoutbox import NewEvent, Outbox
from tests.acceptance.harness import Harness
from tests.acceptance.relay_process import START, StartRelay
from tests.waiting import wait_for

pytestmark = pytest.mark.needs("spark", "nats")

TRANSFORM = """
import threading
from pathlib import Path

HANG = Path(__file__).with_name("hang")

def enrich(event):
    if HANG.exists():
        HANG.with_name("hung").touch()
        threading.Event().wait()
    return event
"""


def test_a_transform_that_hangs_is_seen_and_its_lane_is_started_again(
    shop: Harness, start_relay: StartRelay, tmp_path: Path
) -> None:
    (tmp_path / "hanging.py").write_text(TRANSFORM)
    relay = start_relay(
        *("--url", shop.url, "--to", shop.stream.url, "--lanes", "2"),
        environ={
            "PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2]}",
            "OUTSPARK__HOSTING__SHIFT": "3s",
            "OUTSPARK__HOSTING__STUCK_AFTER": "12s",
            "OUTSPARK__RELAY__GRACE": "1s",
            "OUTSPARK__SOURCES__DEFAULT__TRANSFORM": "hanging:enrich",
        },
    )
    relay.await_working()
    hang, hung = tmp_path / "hang", tmp_path / "hung"
    hang.touch()
    with shop.connect() as conn:
        Outbox().enqueue(conn, NewEvent(f"{shop.stream.name}.order", b"1", key="k"))
    wait_for(hung.exists, timeout=30, what="a transform that hangs")
    hang.unlink()

    wait_for(lambda: relay.get("/healthz").status == 503, timeout=60, what="an unhealthy relay")
    [problem] = relay.get("/healthz").json["problems"]
    assert relay.get("/healthz").status == 503
    assert problem.startswith("lane ")
    assert "stuck in hanging.py:" in problem
    assert "enrich" in problem

    shop.await_drained(START)
    wait_for(lambda: relay.get("/healthz").status == 200, timeout=60, what="a healthy relay")
    relay.await_log("lane is stuck: over", timeout=60)
    assert relay.log.count("lane is stuck error=") == 1
    assert relay.log.count("the lane ends its process so that Spark starts it again") == 1
    assert relay.stop() == 0
    shop.assert_nothing_lost()
