"""The server over real HTTP: health, readiness, stats, metrics, and a port that is taken."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from outspark.errors import SettingsError
from outspark.observability import metrics
from outspark.observability.metrics import Tally
from outspark.server import ServerThread, create_app


@dataclass
class View:
    """A relay as the server sees it, its state set by the test."""

    loops: list[str] = field(default_factory=list)
    parts: list[str] = field(default_factory=list)
    unmoved: list[str] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)
    checks: int = 0

    def healthy(self) -> list[str]:
        return self.loops

    def ready(self) -> list[str]:
        self.checks += 1
        return self.parts

    def stuck(self) -> list[str]:
        return self.unmoved

    def stats(self) -> dict[str, Any]:
        return {"sources": {"orders": {"pending": 3}}}

    def metrics(self) -> Tally:
        return self.tally


@pytest.fixture
def view() -> View:
    return View()


@pytest.fixture
def server(view: View) -> Iterator[ServerThread]:
    thread = ServerThread(create_app(view, timedelta(hours=1)), "127.0.0.1", 0)
    thread.start()
    yield thread
    thread.stop()


def get(server: ServerThread, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_all_is_well(server: ServerThread) -> None:
    assert get(server, "/healthz") == (200, '{"status":"ok"}')
    assert get(server, "/readyz") == (200, '{"status":"ok"}')
    assert json.loads(get(server, "/stats")[1]) == {"sources": {"orders": {"pending": 3}}}
    assert "/metrics" in get(server, "/")[1]
    assert get(server, "/nothing")[0] == 404


def test_what_is_wrong_is_said_with_503(server: ServerThread, view: View) -> None:
    view.loops = ["lane 1: no shift for 60s"]
    view.parts = ["destination nats: connection refused"]
    assert get(server, "/healthz") == (
        503,
        '{"status":"unavailable","problems":["lane 1: no shift for 60s"]}',
    )
    status, text = get(server, "/readyz")
    assert status == 503
    assert json.loads(text)["problems"] == view.parts


def test_what_stands_still_is_told_whenever_the_rest_was_checked(server: ServerThread, view: View) -> None:
    assert get(server, "/readyz")[0] == 200
    view.unmoved = ["source orders: its lanes deliver nothing"]
    status, text = get(server, "/readyz")
    assert (status, json.loads(text)["problems"], view.checks) == (503, view.unmoved, 1)


def test_many_probes_cost_one_check(server: ServerThread, view: View) -> None:
    probes = [threading.Thread(target=get, args=(server, "/readyz")) for _ in range(8)]
    for probe in probes:
        probe.start()
    for probe in probes:
        probe.join(10)
    assert view.checks == 1


def test_metrics_are_what_prometheus_reads(server: ServerThread, view: View) -> None:
    view.tally.add(metrics.EVENTS_TOTAL, 7, source="orders", status="delivered")
    view.tally.observe_many(metrics.E2E_LATENCY, [0.0004, 0.003, 200_000], source="orders")
    view.tally.set(metrics.PENDING_COUNT, 3, source="orders")
    lines = get(server, "/metrics")[1].splitlines()
    assert 'openoutbox_events_total{source="orders",status="delivered"} 7.0' in lines
    assert 'openoutbox_events_e2e_latency_seconds_bucket{le="0.0005",source="orders"} 1.0' in lines
    assert 'openoutbox_events_e2e_latency_seconds_bucket{le="0.005",source="orders"} 2.0' in lines
    assert 'openoutbox_events_e2e_latency_seconds_bucket{le="+Inf",source="orders"} 3.0' in lines
    assert 'openoutbox_events_e2e_latency_seconds_count{source="orders"} 3.0' in lines
    assert 'openoutbox_backlog_pending_count{source="orders"} 3.0' in lines
    assert "outspark_lanes_running 0.0" in lines
    assert "# TYPE outspark_handovers_total counter" in lines


def test_a_port_in_use_says_what_to_do(server: ServerThread, view: View) -> None:
    with pytest.raises(
        SettingsError, match=rf"cannot bind to 127.0.0.1:{server.port}: Address already in use"
    ):
        ServerThread(create_app(view), "127.0.0.1", server.port)


def test_an_address_of_another_machine_is_refused(view: View) -> None:
    with pytest.raises(SettingsError, match=r"cannot bind to 192\.0\.2\.1:0"):
        ServerThread(create_app(view), "192.0.2.1", 0)


def test_stopping_frees_the_port(view: View) -> None:
    first = ServerThread(create_app(view), "127.0.0.1", 0)
    first.start()
    assert get(first, "/healthz")[0] == 200
    first.stop()
    second = ServerThread(create_app(view), "127.0.0.1", first.port)
    second.start()
    assert get(second, "/healthz")[0] == 200
    second.stop()
