"""A relay whose stream is missing: it says so with the remedy, kills nothing, and drains when the stream is there."""

from __future__ import annotations

import time

import pytest

from outspark.embedded.nats import Nats
from tests.acceptance.arrivals import Stream
from tests.acceptance.place import Place
from tests.acceptance.relay_process import START, StartRelay
from tests.waiting import wait_for

pytestmark = [pytest.mark.needs("spark", "nats"), pytest.mark.faults]

SUBJECT = "absent.order.created"
FILL = """\
INSERT INTO openoutbox_events (event_id, event_type, partition_key, payload, created_at)
SELECT gen_random_uuid(), %(type)s, 'k' || n %% 20, convert_to(n::text, 'UTF8'),
       now() - interval '1 hour' + n * interval '1 microsecond'
FROM generate_series(1, %(count)s) AS n"""


def test_a_missing_stream_is_told_and_waited_for(
    shop: Place, nats_server: Nats, start_relay: StartRelay, request: pytest.FixtureRequest
) -> None:
    size = 200_000 if "faults" in request.config.getoption("markexpr") else 2000
    place = Place(shop.url, Stream(nats_server.url, "absent"))
    with place.connect() as conn:
        conn.execute(FILL, {"type": SUBJECT, "count": size})
    environ = {
        "STORAGE_URL": place.url,
        "PUBLISHER_TYPE": "nats",
        "PUBLISHER_URL": nats_server.url,
        "POLL_INTERVAL": "100ms",
        "HEALTH_CHECK_INTERVAL": "1s",
        "OUTSPARK__RELAY__SHIFT": "2s",
    }
    relay = start_relay(environ=environ)
    relay.await_log("topic takes no events", timeout=START)

    # A lane tells at the end of its shift: within two of them, and some seconds more on a busy machine.
    wait_for(lambda: SUBJECT in relay.get("/readyz").text, timeout=10, what="a word on the subject")
    told = relay.get("/readyz")
    assert told.status == 503
    assert f"no stream listens on subject '{SUBJECT}'; create one that does" in told.text
    (closed,) = relay.get("/stats").json["closed"]
    assert (closed["kind"], closed["name"]) == ("topic", SUBJECT)
    assert relay.metric("outspark_topic_closed", topic=SUBJECT) == 1
    assert place.statuses().keys() <= {"PENDING", "DELIVERING"}
    assert place.ask("SELECT DISTINCT attempts FROM openoutbox_events") == [(0,)]
    lines = relay.log.count("topic takes no events")

    place.stream.create()
    started = time.monotonic()
    place.await_drained(timeout=60 + size / 200)
    print(
        f"{size} events drained {time.monotonic() - started:.1f} s after the stream was there; {lines} lines"
    )
    wait_for(lambda: relay.get("/readyz").status == 200, timeout=30, what="readiness")
    assert relay.get("/stats").json["closed"] == []
    wait_for(lambda: relay.metric("outspark_topic_closed", topic=SUBJECT) == 0, what="the gauge at 0")
    assert relay.stop() == 0
    place.assert_nothing_lost()
    assert place.ask("SELECT DISTINCT status, attempts FROM openoutbox_events") == [("DELIVERED", 0)]
