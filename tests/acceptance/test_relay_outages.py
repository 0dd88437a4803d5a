"""A relay whose stream, topic, exchange, room or endpoint is gone: it says so with the remedy, and the backlog waits.

With `make faults` a long backlog on every broker and contract; OUTSPARK_BACKLOG makes it longer still.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance import backlogs
from tests.acceptance.backlogs import LANES, LONG, SHORT, Backlog
from tests.acceptance.outages import OUTAGES, Outage
from tests.acceptance.relay_process import START, RelayProcess, StartRelay
from tests.databases import Database
from tests.integration.relay.backlog import KEYS
from tests.waiting import wait_for

pytestmark = [pytest.mark.needs("spark"), pytest.mark.faults, pytest.mark.timeout(7200)]

IN_THE_SUITE = {("nats", "openoutbox"), ("kafka", "jeap"), ("redis", "omnibox")}
"""All contracts, and both kinds of breakers: that of a topic, and that of a destination."""


def case(broker: str, contract: str) -> Any:
    long = [] if (broker, contract) in IN_THE_SUITE else [pytest.mark.long]
    return pytest.param(broker, contract, marks=[pytest.mark.needs(broker), *long], id=f"{broker}-{contract}")


@pytest.fixture
def is_long(request: pytest.FixtureRequest) -> bool:
    return "faults" in request.config.getoption("markexpr")


@pytest.fixture
def outage(broker: str) -> Iterator[Outage]:
    with OUTAGES[broker]() as outage:
        yield outage


@pytest.fixture
def backlog(outage: Outage, contract: str, database: Database, tmp_path: Path, is_long: bool) -> Backlog:
    return backlogs.write(contract, LONG if is_long else SHORT, outage, database, tmp_path)


@pytest.mark.parametrize(
    ("broker", "contract"),
    [case(broker, contract) for broker in OUTAGES for contract in ("openoutbox", "jeap", "omnibox")],
)
def test_a_backlog_waits_for_what_is_missing(
    backlog: Backlog, start_relay: StartRelay, is_long: bool
) -> None:
    outage = backlog.outage
    outage.begin()
    relay = backlog.start(start_relay)
    assert_told(relay, outage)
    if is_long:
        relay.await_log(": ongoing")
    failed = backlog.assert_waits()
    assert backlog.count("waits") == backlog.size - len(failed)
    assert_lines(relay, failed)

    outage.mend()
    started = time.monotonic()
    backlog.await_sent()
    took = time.monotonic() - started
    assert backlog.failed() == failed
    assert_ready(relay, outage)
    if failed:
        backlog.requeue()
        backlog.await_sent()
    assert_lines(relay, failed)
    assert relay.stop() == 0
    assert backlog.states() == {("sent", 0): backlog.size}
    backlogs.assert_in_order(outage.payloads(), backlog.size, failed)
    print(f"{backlog.size} events: {len(failed)} failed, drained in {took:.0f} s")


@pytest.mark.long
@pytest.mark.parametrize(
    ("broker", "contract"), [case(broker, "openoutbox") for broker in OUTAGES] + [case("kafka", "jeap")]
)
def test_what_goes_away_in_the_midst_of_a_backlog(backlog: Backlog, start_relay: StartRelay) -> None:
    outage = backlog.outage
    relay = backlog.start(start_relay)
    wait_for(lambda: backlog.count("sent") > 0, timeout=START, what="the first events")
    outage.begin()
    assert_told(relay, outage)
    failed = backlog.assert_waits()
    waiting = backlog.count("waits")
    assert waiting > 0

    outage.mend()
    started = time.monotonic()
    backlog.await_sent()
    took = time.monotonic() - started
    assert_ready(relay, outage)
    assert_lines(relay, failed)
    assert relay.stop() == 0
    assert_suffixes(outage.payloads(), backlog.size, set(failed))
    print(f"{waiting} of {backlog.size} events waited: {len(failed)} failed, drained in {took:.0f} s")


def assert_told(relay: RelayProcess, outage: Outage) -> None:
    """/readyz, /stats, /metrics and the log tell what is missing; /healthz has nothing to complain of."""
    wait_for(lambda: outage.lack in relay.get("/readyz").text, timeout=START, what=outage.lack)
    told = relay.get("/readyz")
    assert told.status == 503
    print(told.text)
    wait_for(lambda: gauge(relay, outage) == 1, timeout=START, what="the gauge")
    stats = relay.get("/stats").json
    if outage.whole:
        assert stats["destinations"]["broker"]["open"]
        assert outage.lack in stats["destinations"]["broker"]["reason"]
    else:
        (closed,) = stats["closed"]
        assert (closed["kind"], closed["name"]) == ("topic", outage.topic)
        assert outage.lack in closed["reason"]
    relay.await_log(outage.lack)
    assert relay.get("/healthz").status == 200


def assert_ready(relay: RelayProcess, outage: Outage) -> None:
    wait_for(lambda: relay.get("/readyz").status == 200, timeout=START, what="readiness")
    wait_for(lambda: gauge(relay, outage) == 0, timeout=START, what="the gauge at 0")
    stats = relay.get("/stats").json
    assert (stats["closed"], stats["destinations"]["broker"]["open"]) == ([], False)


def assert_lines(relay: RelayProcess, failed: list[int]) -> None:
    """One for the cause and at most one a minute of it, and one for the batch of a lane that failed."""
    found = relay.complaints
    minutes = relay.get("/stats").json["uptime_seconds"] / 60
    assert 1 <= len(found) <= 1 + minutes + (LANES if failed else 0), found
    print(f"{len(found)} lines in {minutes:.1f} minutes")


def gauge(relay: RelayProcess, outage: Outage) -> float:
    if outage.whole:
        return relay.metric("outspark_breaker_open", destination="broker")
    return relay.metric("outspark_topic_closed", destination="broker", topic=outage.topic)


def assert_suffixes(payloads: list[bytes], size: int, failed: set[int]) -> None:
    """What came before may have gone with its stream; from there on nothing is left out, and all is in order."""
    numbers = list(dict.fromkeys(map(int, payloads)))
    backlogs.assert_each_key_in_order(numbers)
    for key in range(KEYS):
        found = [number for number in numbers if number % KEYS == key]
        assert found == [n for n in range(found[0], size, KEYS) if n not in failed]
