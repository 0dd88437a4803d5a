"""Health, stats and metrics over HTTP, beside the relay.

/healthz   200 while all lanes are alive, else 503 with the reasons
/readyz    200 while sources can be claimed from, events move and destinations answer, else 503 with the reasons
/stats     the state of sources, lanes and destinations as JSON
/metrics   all metrics, for Prometheus
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, Protocol

from outspark.errors import ExtraMissing, SettingsError
from outspark.observability.metrics import Histogram, Metric, Sample, Tally
from outspark.version import __version__

try:
    import uvicorn
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
    from prometheus_client.exposition import CONTENT_TYPE_LATEST
    from prometheus_client.metrics_core import Metric as Family
    from prometheus_client.registry import Collector
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse, PlainTextResponse, Response
    from starlette.routing import Route
except ImportError as error:
    raise ExtraMissing("the server", "server") from error

INDEX = f"""outspark {__version__}

/healthz   200 while all lanes are alive
/readyz    200 while sources can be claimed from, events move and destinations answer
/stats     state of sources, lanes and destinations, as JSON
/metrics   all metrics, for Prometheus
"""


class StatusView(Protocol):
    """What the server asks of a running relay or inbox. Called from several threads; methods may block on I/O."""

    def healthy(self) -> list[str]:
        """Problems of the lanes; empty when all are alive."""
        ...

    def ready(self) -> list[str]:
        """Databases, destinations and topics that keep events from moving, and why. Empty when all are healthy."""
        ...

    def stuck(self) -> list[str]:
        """Sources whose events do not move although `ready` finds no problem. Cheap: a background thread checks it."""
        ...

    def stats(self) -> dict[str, Any]:
        """The state for people and scripts, as plain JSON."""
        ...

    def metrics(self) -> Tally: ...


def create_app(view: StatusView, check_interval: timedelta = timedelta(seconds=5)) -> Starlette:
    """The web application. `view.ready` runs at most once per `check_interval`, however many probes there are."""
    ready = Cached(view.ready, check_interval)

    def index(request: Request) -> Response:
        return PlainTextResponse(INDEX)

    def healthz(request: Request) -> Response:
        return _verdict(view.healthy())

    def readyz(request: Request) -> Response:
        return _verdict([*ready(), *view.stuck()])

    def stats(request: Request) -> Response:
        return JSONResponse(view.stats())

    def metrics(request: Request) -> Response:
        return Response(exposition(view.metrics()), media_type=CONTENT_TYPE_LATEST)

    # Starlette runs plain functions in its thread pool, so a view that waits for a database blocks no other request.
    handlers = {"/": index, "/healthz": healthz, "/readyz": readyz, "/stats": stats, "/metrics": metrics}
    return Starlette(routes=[Route(path, handler) for path, handler in handlers.items()])


def exposition(tally: Tally) -> bytes:
    """The tally in the text format of Prometheus."""
    registry = CollectorRegistry()
    registry.register(_TallyCollector(tally))
    return generate_latest(registry)


class Cached:
    """Calls `check` at most once per interval; callers that arrive meanwhile wait and share its answer."""

    def __init__(self, check: Callable[[], list[str]], interval: timedelta) -> None:
        self._check, self._interval = check, interval.total_seconds()
        self._lock = threading.Lock()
        self._answer: list[str] = []
        self._expires = float("-inf")

    def __call__(self) -> list[str]:
        with self._lock:
            if time.monotonic() >= self._expires:
                self._answer = self._check()
                self._expires = time.monotonic() + self._interval
            return self._answer


class ServerThread:
    """Serves an app from a thread of its own; `port` is the port that was really bound."""

    def __init__(self, app: Starlette, host: str, port: int) -> None:
        self._socket = _bind(host, port)
        self.host: str = host
        self.port: int = self._socket.getsockname()[1]
        config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name="outspark-server", daemon=True)

    def start(self) -> None:
        """Connections are accepted as soon as this returns: the socket listens before the thread runs."""
        self._socket.listen(128)
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        """Let open requests finish, then stop. Harmless when not started."""
        self._server.should_exit = True
        if self._thread.ident is not None:
            self._thread.join(timeout)
        self._socket.close()

    def _run(self) -> None:
        self._server.run(sockets=[self._socket])


def _bind(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
    except OSError as error:
        raise SettingsError(
            f"server.host = {host!r}: {error.strerror}; set an address of this machine"
        ) from error
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise SettingsError(
            f"the server cannot bind to {host}:{port}: {error.strerror}; "
            "set server.port (--port) to a free one, 0 for any, or server.enabled = false"
        ) from error
    return bound


def _verdict(problems: list[str]) -> Response:
    if problems:
        return JSONResponse({"status": "unavailable", "problems": problems}, status_code=503)
    return JSONResponse({"status": "ok"})


class _TallyCollector(Collector):
    def __init__(self, tally: Tally) -> None:
        self._tally = tally

    def collect(self) -> Iterator[Family]:
        for metric, samples in self._tally.samples():
            yield _family(metric, samples)


def _family(metric: Metric, samples: list[Sample]) -> Family:
    name, labels = metric.prometheus_name, metric.labels
    if metric.kind == "histogram":
        histogram = HistogramMetricFamily(name, metric.help, labels=labels)
        for sample in samples:
            assert isinstance(sample.value, Histogram)
            histogram.add_metric(sample.labels, _cumulated(metric, sample.value), sample.value.total)
        return histogram
    family = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    numbers = family(name, metric.help, labels=labels)
    for sample in samples or ([] if labels else [Sample((), 0)]):
        assert not isinstance(sample.value, Histogram)
        numbers.add_metric(sample.labels, sample.value)
    return numbers


def _cumulated(metric: Metric, histogram: Histogram) -> list[tuple[str, float]]:
    bounds = [*(str(bound) for bound in metric.buckets), "+Inf"]
    running, pairs = 0, []
    for bound, count in zip(bounds, histogram.counts, strict=True):
        running += count
        pairs.append((bound, float(running)))
    return pairs
