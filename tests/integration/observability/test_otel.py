"""OpenTelemetry against a collector: a real HTTP server that keeps what the exporters send."""

from __future__ import annotations

import http.server
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from outspark.errors import SettingsError
from outspark.event import Message
from outspark.observability import metrics, otel
from outspark.observability.metrics import Tally


class Collector(http.server.ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.bodies: dict[str, list[bytes]] = {}


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, Collector)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.bodies.setdefault(self.path, []).append(body)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    server = Collector()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def message(**headers: str) -> Message:
    return Message("1", "order.created", "k", b"{}", headers)


def endpoint(collector: Collector) -> dict[str, str]:
    return {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.server_port}"}


def test_one_span_a_batch_linked_to_the_events(collector: Collector) -> None:
    parent = f"00-{7:032x}-{9:016x}-01"
    messages = [
        message(traceparent=parent),
        message(traceparent=parent),
        message(),
        message(traceparent="junk"),
    ]
    tracing = otel.tracing(endpoint(collector))
    with tracing.publish("nats", messages):
        pass
    tracing.flush()

    request = ExportTraceServiceRequest.FromString(collector.bodies["/v1/traces"][0])
    [span] = request.resource_spans[0].scope_spans[0].spans
    assert span.name == "outspark.publish"
    assert [int.from_bytes(link.trace_id) for link in span.links] == [7]
    assert messages[0].headers["traceparent"] == parent
    assert messages[2].headers["traceparent"].startswith(f"00-{span.trace_id.hex()}-{span.span_id.hex()}-")


def test_links_are_limited(collector: Collector) -> None:
    tracing = otel.tracing(endpoint(collector))
    with tracing.publish("nats", [message(traceparent=f"00-{n:032x}-{n:016x}-01") for n in range(1, 100)]):
        pass
    tracing.flush()
    request = ExportTraceServiceRequest.FromString(collector.bodies["/v1/traces"][0])
    assert len(request.resource_spans[0].scope_spans[0].spans[0].links) == otel.MAX_LINKS


def test_metrics_leave_with_the_last_numbers_at_stop(collector: Collector) -> None:
    tally = Tally()
    export = otel.metrics_export(lambda: tally, endpoint(collector))
    assert export is not None
    tally.add(metrics.EVENTS_TOTAL, 7, source="orders", status="delivered")
    tally.observe(metrics.E2E_LATENCY, 0.003, source="orders")
    tally.set(metrics.PENDING_COUNT, 3, source="orders")
    export.stop()

    request = ExportMetricsServiceRequest.FromString(collector.bodies["/v1/metrics"][-1])
    [resource] = request.resource_metrics
    assert any(
        a.key == "service.name" and a.value.string_value == "outspark" for a in resource.resource.attributes
    )
    by_name = {metric.name: metric for metric in resource.scope_metrics[0].metrics}
    assert by_name["openoutbox.events.total"].sum.data_points[0].as_int == 7
    assert by_name["openoutbox.events.total"].sum.is_monotonic
    assert by_name["openoutbox.backlog.pending_count"].gauge.data_points[0].as_int == 3
    [point] = by_name["openoutbox.events.e2e_latency"].histogram.data_points
    assert point.count == 1
    assert not point.HasField("min")


@pytest.mark.parametrize(
    ("environ", "traces"),
    [
        ({}, None),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, None),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318"}, "otlp"),
        ({"OTEL_TRACES_EXPORTER": "console"}, "console"),
        ({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_SDK_DISABLED": "true"}, None),
    ],
)
def test_what_the_variables_ask_for(environ: dict[str, str], traces: str | None) -> None:
    assert otel.wanted("traces", environ) == traces


def test_an_unknown_exporter_is_refused() -> None:
    with pytest.raises(SettingsError, match="OTEL_TRACES_EXPORTER = 'zipkin'"):
        otel.tracing({"OTEL_TRACES_EXPORTER": "zipkin"})


def test_grpc_names_the_package_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.grpc", None)
    with pytest.raises(SettingsError, match="opentelemetry-exporter-otlp-proto-grpc"):
        otel.tracing({"OTEL_TRACES_EXPORTER": "otlp"})


def test_nothing_is_imported_when_nothing_is_asked_for() -> None:
    program = (
        "import sys; from outspark.observability import otel; t = otel.tracing({});"
        "t.publish('a', []).__enter__(); assert otel.metrics_export(None, {}) is None;"
        "assert not [m for m in sys.modules if m.startswith('opentelemetry')]"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
