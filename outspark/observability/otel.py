"""OpenTelemetry, configured by its standard `OTEL_*` variables; its packages are imported only if they request it.

The driver exports the metrics of its Tally; a lane creates one span `outspark.publish` per batch, linked to the traces
of its events.
"""

from __future__ import annotations

import importlib
import logging
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

from outspark.errors import ExtraMissing, SettingsError
from outspark.event import Message
from outspark.observability import trace_context
from outspark.observability.metrics import Tally
from outspark.version import __version__

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Link

log = logging.getLogger(__name__)

MAX_LINKS = 32
_TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")


def wanted(signal: str, environ: Mapping[str, str]) -> str | None:
    """The exporter that the variables request for `traces` or `metrics`: `otlp`, `console` or None."""
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    name = environ.get(f"OTEL_{signal.upper()}_EXPORTER", "").lower()
    endpoints = ("OTEL_EXPORTER_OTLP_ENDPOINT", f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT")
    if not name:
        return "otlp" if any(environ.get(endpoint) for endpoint in endpoints) else None
    if name in ("otlp", "console"):
        return name
    # Prometheus needs no exporter: the server has /metrics.
    if name in ("none", "prometheus"):
        return None
    variable = f"OTEL_{signal.upper()}_EXPORTER"
    raise SettingsError(f"{variable} = {name!r} (environment variable): must be otlp, console or none")


def variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that a lane on another machine needs to export to the same collector."""
    return {name: value for name, value in environ.items() if name.startswith("OTEL_")}


class Tracing(Protocol):
    def publish(self, destination: str, messages: Sequence[Message]) -> AbstractContextManager[object]:
        """A context around the publishing of one batch. Messages without `traceparent` get that of its span."""
        ...

    def flush(self) -> None:
        """Export the collected spans. A lane calls it before its shift ends."""
        ...


class NoTracing:
    def publish(self, destination: str, messages: Sequence[Message]) -> AbstractContextManager[object]:
        return nullcontext()

    def flush(self) -> None:
        pass


def tracing(environ: Mapping[str, str]) -> Tracing:
    """Create it once per process. Without OTEL_* variables it costs nothing."""
    exporter = wanted("traces", environ)
    if exporter is None:
        return NoTracing()
    # The exporters read their own variables from the process, which a Spark worker may not have inherited.
    for name, value in variables(environ).items():
        os.environ.setdefault(name, value)
    return SpanTracing(_tracer_provider(exporter))


class SpanTracing:
    """Spans of one process, through the given provider."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("outspark", __version__)

    @contextmanager
    def publish(self, destination: str, messages: Sequence[Message]) -> Iterator[object]:
        from opentelemetry.trace import SpanKind

        attributes: dict[str, str | int] = {
            "messaging.operation.type": "send",
            "messaging.batch.message_count": len(messages),
            "outspark.destination": destination,
        }
        links = list(_links(messages))
        with self._tracer.start_as_current_span(
            "outspark.publish", kind=SpanKind.PRODUCER, attributes=attributes, links=links
        ) as span:
            own = trace_context.current()
            for message in messages:
                if "traceparent" not in message.headers:
                    message.headers = {**message.headers, **own}
            yield span

    def flush(self) -> None:
        self._provider.force_flush()


def _links(messages: Iterable[Message]) -> Iterator[Link]:
    """One link per trace, for the first MAX_LINKS traces: links cost memory, and readers do not follow hundreds."""
    from opentelemetry.trace import Link, SpanContext, TraceFlags

    seen: set[str] = set()
    for message in messages:
        match = _TRACEPARENT.fullmatch(message.headers.get("traceparent", ""))
        if match is None or match[1] in seen:
            continue
        seen.add(match[1])
        context = SpanContext(int(match[1], 16), int(match[2], 16), True, TraceFlags(int(match[3], 16)))
        if context.is_valid:
            yield Link(context)
        if len(seen) == MAX_LINKS:
            return


def _tracer_provider(exporter: str) -> TracerProvider:
    trace, export = _sdk("trace"), _sdk("trace.export")
    kind = export.ConsoleSpanExporter if exporter == "console" else _otlp("trace_exporter").OTLPSpanExporter
    provider: TracerProvider = trace.TracerProvider(resource=resource())
    provider.add_span_processor(export.BatchSpanProcessor(kind()))
    return provider


class MetricsExport:
    """Sends the driver's Tally every OTEL_METRIC_EXPORT_INTERVAL (60 s) from a thread of its own."""

    def __init__(self, tally: Callable[[], Tally], exporter: Any, interval: float) -> None:
        self._tally, self._exporter, self._interval = tally, exporter, interval
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="outspark-otel-metrics", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Export the final values, then stop the thread."""
        self._stop.set()
        self._thread.join(10)
        self._exporter.shutdown()

    def _run(self) -> None:
        from outspark.observability.otlp import metrics_data

        while True:
            last = self._stop.wait(self._interval)
            try:
                self._exporter.export(metrics_data(self._tally(), resource()))
            except Exception:
                # A collector that does not answer must not end the loop.
                log.warning("the driver could not export metrics", exc_info=True)
            if last:
                return


def metrics_export(tally: Callable[[], Tally], environ: Mapping[str, str]) -> MetricsExport | None:
    """Start the export if the variables request it."""
    name = wanted("metrics", environ)
    if name is None:
        return None
    export = _sdk("metrics.export")
    kind = export.ConsoleMetricExporter if name == "console" else _otlp("metric_exporter").OTLPMetricExporter
    interval = float(environ.get("OTEL_METRIC_EXPORT_INTERVAL") or 60_000) / 1000
    return MetricsExport(tally, kind(), interval)


def resource() -> Resource:
    """`service.name` is outspark unless OTEL_SERVICE_NAME or OTEL_RESOURCE_ATTRIBUTES say otherwise."""
    found: Resource = _sdk("resources").Resource.create({"service.version": __version__})
    if str(found.attributes.get("service.name", "")).startswith("unknown_service"):
        found = found.merge(_sdk("resources").Resource({"service.name": "outspark"}))
    return found


def _sdk(module: str) -> Any:
    try:
        return importlib.import_module(f"opentelemetry.sdk.{module}")
    except ImportError as error:
        raise ExtraMissing("OpenTelemetry", "otel") from error


def _otlp(module: str) -> Any:
    protocol = os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    if protocol not in ("grpc", "http/protobuf"):
        raise SettingsError(f"OTEL_EXPORTER_OTLP_PROTOCOL = {protocol!r}: must be http/protobuf or grpc")
    kind = "grpc" if protocol == "grpc" else "http"
    try:
        return importlib.import_module(f"opentelemetry.exporter.otlp.proto.{kind}.{module}")
    except ImportError as error:
        if kind == "http":
            raise ExtraMissing("OpenTelemetry", "otel") from error
        raise SettingsError(
            "OTEL_EXPORTER_OTLP_PROTOCOL = 'grpc' needs the package opentelemetry-exporter-otlp-proto-grpc; "
            "install it, or set http/protobuf and the collector's HTTP port (4318)"
        ) from error
