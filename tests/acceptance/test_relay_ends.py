"""How a relay ends: when all is done, by a signal, by a second one; and who goes on after it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from outspark.outbox.openoutbox import NewEvent, Outbox
from tests.acceptance.harness import Harness
from tests.acceptance.relay_process import START, RelayProcess, StartRelay
from tests.acceptance.writer import writing
from tests.waiting import wait_for

pytestmark = pytest.mark.needs("spark", "nats")


def test_until_empty_from_a_file(shop: Harness, start_relay: StartRelay, tmp_path: Path) -> None:
    config = tmp_path / "outspark.toml"
    config.write_text(
        f"""
        [sources.shop]
        url = "{shop.url}"
        lease = "slot"
        retry = {{ max_attempts = 3 }}

        [destinations.screen]
        type = "stdout"

        [[routes]]
        match = "order.*"
        topic = "shop.{{type}}"
        """
    )
    with shop.connect() as conn:
        Outbox().enqueue(
            conn,
            *(NewEvent("order.created", f"{n}", key="42") for n in range(50)),
            NewEvent("refund", b"\xff"),
        )
        conn.execute(
            "INSERT INTO openoutbox_events (event_id, event_type, payload, headers) VALUES"
            " (gen_random_uuid(), 'order.odd', 'nested', '{\"trace\": {\"id\": 7}}'),"
            " (gen_random_uuid(), 'order.bad', 'array', '[1]')"
        )
    relay = start_relay("--config", str(config), "--until-empty")
    assert relay.wait(START) == 0
    lines = [json.loads(line) for line in relay.stdout.splitlines()]
    assert [line["payload"] for line in lines if line["key"] == "42"] == [f"{n}" for n in range(50)]
    assert {line["topic"] for line in lines} == {"shop.order.created", "shop.order.odd"}
    [odd] = [line for line in lines if line["topic"] == "shop.order.odd"]
    assert odd["headers"] == {"trace": '{"id": 7}'}
    dead = shop.ask("SELECT event_type, last_error FROM openoutbox_events WHERE status = 'DEAD' ORDER BY 1")
    assert dead[0] == ("order.bad", "headers must be a JSON object of strings, not list")
    assert dead[1][0] == "refund"
    assert "no route" in dead[1][1]
    assert shop.statuses() == {"DELIVERED": 51, "DEAD": 2}


def test_a_standby_takes_over_when_the_first_is_stopped(shop: Harness, start_relay: StartRelay) -> None:
    """SIGTERM for the first and Ctrl-C for the second, each for the whole process group: both give their slots back
    and lose nothing."""
    with writing(shop.url, f"{shop.stream.name}.order"):
        first = _start(start_relay, shop, "first")
        first.await_working()
        second = _start(start_relay, shop, "second")
        second.await_log("relay is running")
        _await_delivered(shop, 200)
        assert {owner.split()[0] for owner, _ in shop.owners().values()} == {"first"}

        first.send_to_group(signal.SIGTERM)
        assert first.wait() == 0
        second.await_working()
        assert {owner.split()[0] for owner, _ in shop.owners().values()} == {"second"}
        _await_delivered(shop, len(shop.stream.arrivals()) + 100)

        second.send_to_group(signal.SIGINT)
        assert second.wait() == 0

    assert all(clean for _, clean in shop.owners().values())
    assert shop.locks() == 0
    assert shop.ask("SELECT count(*) FROM openoutbox_events WHERE status = 'DELIVERING'") == [(0,)]
    for relay in (first, second):
        assert "Traceback" not in relay.log
        assert "vanished" not in relay.log

    arrived = [arrival.id for arrival in shop.stream.arrivals()]
    delivered = shop.ask("SELECT event_id::text FROM openoutbox_events WHERE status = 'DELIVERED'")
    assert sorted(arrived) == sorted(id for (id,) in delivered)


def test_a_second_signal_ends_at_once(shop: Harness, start_relay: StartRelay) -> None:
    relay = _start(start_relay, shop, "hasty")
    relay.await_log("server is listening")
    relay.send(signal.SIGTERM)
    relay.await_log("shutting down; send the signal again to exit immediately")
    assert relay.stop(signal.SIGTERM, timeout=5) == 128 + signal.SIGTERM


def test_a_supervisor_tells_every_process_to_end(shop: Harness, start_relay: StartRelay) -> None:
    with writing(shop.url, f"{shop.stream.name}.order"):
        relay = _at_work(start_relay, shop)
        _terminate(relay.family())
        assert relay.wait() == 0
    _assert_finished(shop, relay)


def test_spark_is_gone_when_the_relay_is_told_to_end(shop: Harness, start_relay: StartRelay) -> None:
    """The batches in flight are finished all the same."""
    with writing(shop.url, f"{shop.stream.name}.order"):
        relay = _at_work(start_relay, shop)
        os.kill(relay.jvm, signal.SIGKILL)
        _terminate([relay.pid])
        assert relay.wait() == 0
    _assert_finished(shop, relay)


def _at_work(start_relay: StartRelay, shop: Harness) -> RelayProcess:
    relay = _start(start_relay, shop, "told")
    relay.await_working()
    _await_delivered(shop, 100)
    return relay


def _terminate(pids: Sequence[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)


def _assert_finished(shop: Harness, relay: RelayProcess) -> None:
    """Slots given back, nothing in flight, nothing sent twice."""
    assert "Traceback" not in relay.log
    assert all(clean for _, clean in shop.owners().values())
    assert shop.locks() == 0
    assert shop.ask("SELECT count(*) FROM openoutbox_events WHERE status = 'DELIVERING'") == [(0,)]
    arrived = [arrival.id for arrival in shop.stream.arrivals()]
    delivered = shop.ask("SELECT event_id::text FROM openoutbox_events WHERE status = 'DELIVERED'")
    assert sorted(arrived) == sorted(id for (id,) in delivered)


def _start(start_relay: StartRelay, shop: Harness, id: str, *args: str) -> RelayProcess:
    return start_relay("--url", shop.url, "--to", shop.stream.url, *args, environ={"OUTSPARK__RELAY__ID": id})


def _await_delivered(shop: Harness, count: int) -> None:
    wait_for(lambda: shop.stream.count() >= count, timeout=60, what=f"{count} messages")
