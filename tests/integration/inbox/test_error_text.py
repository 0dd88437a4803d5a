"""Whatever a handler raises or a broker hands over: it is kept as far as a table can, and stops nobody's work."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from outspark.errors import Reject, RetryLater
from outspark.inbox import InboxEvent, New
from tests.databases import Database
from tests.integration.inbox.harness import Harness, message, messages, write
from tests.integration.inbox.test_dead_letters import Office, in_omnibox, in_openoutbox, in_table, open_office

TEXTS = {"nul": "a \0 b", "half": "a \ud800 b", "all": "\0\udfff" * 500_000}
KEPT = {"nul": "a \ufffd b", "half": "a ? b", "all": "\ufffd?"}


class Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.fixture(params=[in_table, in_openoutbox, in_omnibox])
def office(request: pytest.FixtureRequest, database: Database) -> Iterator[Office]:
    with open_office(database, request.param) as office:
        yield office


def handler(harness: Harness, error: Callable[[], Exception], topic: str = "orders") -> list[str]:
    """One that fails for the event called `bad`; answers which events it was called for."""
    called: list[str] = []

    @harness.router.on(topic)
    def handle(event: InboxEvent, conn: psycopg.Connection[Any]) -> None:
        called.append(event.message_id)
        if event.message_id == "bad":
            raise error()
        write(conn, event.message_id)

    return called


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("kind", [ValueError, Reject])
def test_what_a_handler_raises_is_kept(harness: Harness, kind: type[Exception], text: str) -> None:
    handler(harness, lambda: kind(TEXTS[text]))
    harness.accept(*messages(["a", "bad", "b"]), max_attempts=2)

    harness.work_to_the_end()

    assert harness.effects() == ["a", "b"]
    assert harness.states()["bad"] == ("failed", 2)
    assert KEPT[text] in harness.row("bad")["last_error"]


@pytest.mark.parametrize("text", TEXTS)
def test_what_a_handler_puts_off_is_kept(harness: Harness, text: str) -> None:
    errors = itertools.chain([RetryLater(TEXTS[text], after=0.02)], itertools.repeat(Reject("enough")))
    called = handler(harness, lambda: next(errors))
    harness.accept(*messages(["a", "bad", "b"]))

    harness.work_to_the_end()

    assert harness.effects() == ["a", "b"]
    assert called.count("bad") >= 2


def test_an_error_without_words(harness: Harness) -> None:
    handler(harness, Speechless)
    harness.accept(*messages(["a", "bad", "b"]), max_attempts=1)

    harness.work_to_the_end()

    assert harness.effects() == ["a", "b"]
    assert "Speechless" in harness.row("bad")["last_error"]


@pytest.mark.parametrize("text", TEXTS)
def test_a_letter_is_written_whatever_a_handler_raised(office: Office, text: str) -> None:
    handler(office.harness, lambda: Reject(TEXTS[text]), "bills")
    office.harness.accept(*messages(["a", "bad", "b"], topic="bills"))

    office.work_to_the_end()

    assert office.harness.effects() == ["a", "b"]
    assert [letter.message_id for letter in office.letters()] == ["bad"]


@pytest.mark.parametrize("text", TEXTS)
def test_a_message_may_have_it_in_every_field(either: Harness, text: str) -> None:
    raw = TEXTS[text][:50].encode(errors="surrogatepass")
    names = ("X-Event-ID", "event_type", "ce_source", "ce_time", "Idempotency-Key", "correlation_id")
    more = ("causation_id", "schema_version", "traceparent", "trace_id", TEXTS[text][:50])
    headers = [(name, raw) for name in (*names, *more)]
    strange = message(None, topic=TEXTS[text][:50], headers=headers, key=raw, log=TEXTS[text][:50])
    bodies = [message(f"body {n}", body) for n, body in enumerate((raw, b'"\\u0000"', b'"\\ud800"'))]

    accepted = either.accept(message("a"), strange, *bodies, message("b"))

    handler(either, Speechless, "*")
    either.work_to_the_end()
    assert [type(one) for one in accepted[:2]] == [New, New]
    assert {"a", "b"} <= set(either.effects())
    states = either.states()
    assert len(states) == 6
    assert all(states[f"body {n}"][0] == "failed" for n in range(3))
