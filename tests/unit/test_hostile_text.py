"""Whatever text an event, a broker or an error carries: looking at it takes time in proportion to its length."""

from __future__ import annotations

import io
import json
import logging
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from types import FrameType
from typing import Any
from uuid import UUID

import pytest

from outspark import redaction
from outspark.brokers.http import wire as http_wire
from outspark.brokers.http.endpoint import parse
from outspark.brokers.nats import client
from outspark.brokers.nats import wire as nats_wire
from outspark.brokers.rabbitmq import wire as rabbitmq_wire
from outspark.config.settings import LogSettings, RouteSettings
from outspark.contracts.jeap import trace
from outspark.database.slots import Owner
from outspark.delivery.envelopes.cloudevents import Binary, binding
from outspark.delivery.routing import Router as Routes
from outspark.errors import EventInvalid
from outspark.event import Event, Message
from outspark.inbox import AcceptSettings, Received, Router
from outspark.inbox.intake.encoding import fault
from outspark.inbox.intake.message import Reader
from outspark.inbox.outcome import outcome_of
from outspark.observability import logs, otel
from outspark.outbox.new_event import Limits
from outspark.outbox.omnibox import NewOutboxEvent
from outspark.outbox.omnibox.new_event import to_row
from outspark.outcome import Dead
from outspark.redaction import redact

SIZE = 1_000_000
CEILING = 5.0
"""Seconds of CPU; each takes up to 0.5 s on one core, and what is quadratic would take hours."""


def full(part: str) -> str:
    return part * (SIZE // len(part) + 1)


@contextmanager
def cpu_ceiling() -> Iterator[None]:
    def over(number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"took more than {CEILING:g} s of CPU")

    before = signal.signal(signal.SIGVTALRM, over)
    signal.setitimer(signal.ITIMER_VIRTUAL, CEILING)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def message(**given: Any) -> Message:
    return Message(**{"id": "1", "topic": "t", "key": None, "payload": b"{}", "headers": {}, **given})


HOSTILE = {
    "letters": full("a"),
    "schemes": full("a+"),
    "addresses": full("a://b:"),
    "one address": "a" * SIZE + "://" + "b" * SIZE + ":" + "c" * SIZE,
    "colons": "a://" + full("b:"),
    "tokens": full("nats://a"),
    "passwords": full("password"),
    "spaces": full("password  "),
    "open spaces": "password" + " " * SIZE + "=" + " " * SIZE,
    "equals": full("token= "),
    "quotes": full("secret='"),
    "an open quote": "password='" + "a" * SIZE,
    "backslashes": full("\\"),
    "dots": full("a."),
    "lines": full("\r\n\0"),
    "halves": full("\ud800"),
    "rabbitmq sizes": full("message size 1 is larger than "),
    "rabbitmq topics": full("access to topic '"),
    "nats": full('permissions violation for publish to "'),
    "owners": full("a instance=b lane=1 host=c pid="),
    "hyphens": full("00-"),
}

SOME = {name: HOSTILE[name] for name in ("letters", "one address", "backslashes", "dots", "lines", "halves")}

READ: dict[str, Callable[[str], object]] = {
    "redact": redact,
    "storable": redaction.storable,
    "an error's text": lambda text: redaction.of(ValueError(text)),
    "a handler's error": lambda text: outcome_of(ValueError(text)),
    "rabbitmq's size": rabbitmq_wire.too_large_over,
    "rabbitmq's topic": rabbitmq_wire.forbidden_topic,
    "nats's violation": lambda text: client.violation(ValueError(text)),
    "http's answer": lambda text: http_wire.outcome(http_wire.Answer(500, {"retry-after": text}, b"")),
    "an owner": Owner.parse,
    "a route": lambda text: _routes().route(text, None),
    "a handler": lambda text: _router().find(text, text),
    "a trace": trace.columns,
    "links": otel._TRACEPARENT.fullmatch,
}


def _routes() -> Routes:
    rules = [RouteSettings(match="*a*a*a*b", topic="x"), RouteSettings(match="*", topic="y")]
    return Routes(rules, {"broker"}, "orders")


def _router() -> Router:
    router = Router()

    @router.on("*a*a*a*b")
    def handle(payload: Any) -> None: ...

    return router


@pytest.mark.parametrize("read", READ.values(), ids=READ)
def test_reading_it_is_linear(read: Callable[[str], object]) -> None:
    for text in HOSTILE.values():
        with cpu_ceiling():
            read(text)


@pytest.mark.parametrize("text", SOME.values(), ids=SOME)
@pytest.mark.parametrize("format", ["text", "json"])
def test_a_log_line_of_it_is_short_and_linear(format: Any, text: str) -> None:
    logger = logging.getLogger("outspark")
    before, out = (logger.handlers, logger.level, logger.propagate), io.StringIO()
    try:
        logs.configure(LogSettings(format=format), out)
        with cpu_ceiling():
            logging.getLogger("outspark.relay").error("event is dead: %s", text, extra={"error": text})
    finally:
        logger.handlers, logger.level, logger.propagate = before
    line = out.getvalue()
    assert len(line) < 100_000
    assert "\0" not in line
    line.encode()


@pytest.mark.parametrize("text", SOME.values(), ids=SOME)
def test_publishers_look_at_headers_in_linear_time(text: str) -> None:
    endpoint = parse("http://127.0.0.1/{topic}")
    with cpu_ceiling():
        for given in (message(headers={text: "x"}), message(headers={"x": text}), message(topic=text)):
            answers = [
                nats_wire.Encoder(1 << 20, None).encode(given),
                http_wire.Encoder(endpoint, {}, None, None).encode(given, 0),
            ]
            redact(" ".join(answer.error for answer in answers if isinstance(answer, Dead)))


@pytest.mark.parametrize("text", SOME.values(), ids=SOME)
def test_an_envelope_is_made_in_linear_time(text: str) -> None:
    event = Event("1", "t", None, b"{}", {}, 0, datetime.now(UTC))
    for headers in ({f"ce_{text}": "x"}, {"ce_subject": text}):
        with cpu_ceiling():
            try:
                Binary("shop", None, binding("nats"))(event, message(headers=headers))
            except EventInvalid as error:
                redact(str(error))


@pytest.mark.parametrize("text", SOME.values(), ids=SOME)
def test_a_message_is_read_in_linear_time(text: str) -> None:
    reader = Reader(AcceptSettings(group="billing"))
    raw = text.encode(errors="surrogatepass")
    names = ("X-Event-ID", "ce_type", "ce_time", "traceparent", text)
    received = Received(topic=text, body=b"{}", headers=[(name, raw) for name in names], key=raw)
    with cpu_ceiling():
        reader.read(received)
        fault(raw)
        fault(json.dumps(text).encode())


@pytest.mark.parametrize("text", SOME.values(), ids=SOME)
def test_an_event_is_checked_in_linear_time(text: str) -> None:
    for payload in (json.dumps(text), text):
        given = NewOutboxEvent("t", payload, "order", UUID(int=1), "t", headers={"traceparent": text})
        with cpu_ceiling():
            try:
                to_row(given, Limits())
            except (EventInvalid, UnicodeEncodeError) as error:
                redact(str(error))


def test_what_is_left_open_is_hidden_too() -> None:
    assert redact("password='s3cret") == "password=***"
    assert redact("1+x.y://ada:s3cret@db") == "1+x.y://ada:***@db"
