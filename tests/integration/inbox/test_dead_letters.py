"""One letter for each event that died in its handlers, in the transaction that made it dead."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from outspark import contracts
from outspark.config.inbox import InboxSettings
from outspark.config.settings import SourceSettings
from outspark.contracts.omnibox.table import kind
from outspark.database.names import TableName
from outspark.errors import Reject
from outspark.inbox import InboxEvent, Worker, WorkSettings, dead_letters
from outspark.inbox.dead_letters import HEADERS
from tests.databases import Database
from tests.integration.inbox.harness import Harness, message, messages, open_harness, write

TOPIC = "billing.dead"


@dataclass(frozen=True, slots=True)
class Letter:
    """In one form for all places that letters go to."""

    headers: dict[str, Any]
    payload: Any
    error: str
    group: str
    message_id: str
    key: str | None = None


@dataclass
class Office:
    """An inbox whose dead events leave letters in one kind of table."""

    harness: Harness
    table: str
    dead_letter: dict[str, str]
    outbox: SourceSettings | None
    statements: list[str]
    find: Callable[[Harness], list[Letter]]

    def create(self) -> None:
        for statement in self.statements:
            self.harness.conn.execute(statement.encode())

    def worker(self, **settings: Any) -> Worker:
        inbox = InboxSettings.model_validate(
            {"url": self.harness.database.url, "group": "billing", "dead_letter": self.dead_letter}
        )
        retry = {"base_delay": "20ms", "max_delay": "20ms", "jitter": 0.0}
        given = WorkSettings.model_validate(
            {"group": "billing", "maintenance_interval": "20ms", "retry": retry, **settings}
        )
        on_dead = dead_letters.writer(inbox, self.outbox)
        url, table = self.harness.database.url, self.harness.table
        worker = Worker(url, table, self.harness.router, given, on_dead=on_dead)
        self.harness.workers.append(worker)
        return worker

    def work_to_the_end(self, worker: Worker | None = None) -> None:
        self.harness.work_to_the_end(worker or self.worker())

    def letters(self) -> list[Letter]:
        return self.find(self.harness)


def in_table(harness: Harness) -> Office:
    def find(harness: Harness) -> list[Letter]:
        rows = harness.ask(
            "SELECT headers, payload, error, consumer_group, message_id FROM letters ORDER BY id"
        )
        return [Letter(*row) for row in rows]

    return Office(
        harness, "letters", {"table": "letters"}, None, dead_letters.statements(TableName("letters")), find
    )


def in_openoutbox(harness: Harness) -> Office:
    def find(harness: Harness) -> list[Letter]:
        rows = harness.ask(
            "SELECT headers, payload, partition_key, event_type FROM openoutbox_events ORDER BY created_at"
        )
        assert all(type == TOPIC for *_, type in rows)
        # Python reads whole numbers only up to some length.
        return [
            _with_headers(headers, json.loads(bytes(body), parse_int=float), key)
            for headers, body, key, _ in rows
        ]

    statements = contracts.get("openoutbox").statements(TableName("openoutbox_events"))
    return _in_outbox(harness, "openoutbox", "openoutbox_events", statements, find)


def in_omnibox(harness: Harness) -> Office:
    def find(harness: Harness) -> list[Letter]:
        rows = harness.ask(
            "SELECT headers, payload::text, partition_key, topic FROM outbox_events ORDER BY created_at"
        )
        assert all(topic == TOPIC for *_, topic in rows)
        return [
            _with_headers(headers, json.loads(payload, parse_int=float), key)
            for headers, payload, key, _ in rows
        ]

    statements = kind(inbox=False, partitioned=False).statements()
    return _in_outbox(harness, "omnibox", "outbox_events", list(statements), find)


def _in_outbox(
    harness: Harness,
    contract: str,
    table: str,
    statements: list[str],
    find: Callable[[Harness], list[Letter]],
) -> Office:
    source = SourceSettings.model_validate(
        {"url": harness.database.url, "contract": contract, "table": table}
    )
    return Office(harness, table, {"outbox": "letters", "topic": TOPIC}, source, statements, find)


def _with_headers(headers: dict[str, str], payload: Any, key: str | None) -> Letter:
    error, group, message_id = (headers[f"x-dead-{name}"] for name in ("error", "group", "message"))
    return Letter(headers, payload, error, group, message_id, key)


OUTBOXES = [in_openoutbox, in_omnibox]


@contextmanager
def open_office(database: Database, make: Callable[[Harness], Office]) -> Iterator[Office]:
    with closing(open_harness(database)) as harness:
        office = make(harness)
        office.create()

        @harness.router.on("orders")
        def handle(event: InboxEvent, conn: psycopg.Connection[Any]) -> None:
            write(conn, event.message_id)
            if event.message_id.startswith("bad"):
                raise ValueError("it is\nbad")
            if event.message_id.startswith("worse"):
                raise Reject("it is worse")

        yield office


@pytest.fixture(params=[in_table, *OUTBOXES], ids=lambda make: make.__name__)
def office(request: pytest.FixtureRequest, database: Database) -> Iterator[Office]:
    with open_office(database, request.param) as office:
        yield office


@pytest.fixture(params=OUTBOXES, ids=lambda make: make.__name__)
def outbox(request: pytest.FixtureRequest, database: Database) -> Iterator[Office]:
    """An office whose letters are relayed."""
    with open_office(database, request.param) as office:
        yield office


def test_a_death_leaves_one_letter(office: Office) -> None:
    body = b'{"n": 1}'
    office.harness.accept(*messages(["a", "b"]), message("bad", body, key=b"order-7"), max_attempts=2)

    office.work_to_the_end()

    [letter] = office.letters()
    assert (letter.message_id, letter.group, letter.payload) == ("bad", "billing", {"n": 1})
    assert letter.error == "gave up after 2 attempts: ValueError: it is bad"
    assert letter.key in (None, "order-7")
    assert sorted(office.harness.effects()) == ["a", "b"]


def test_each_death_has_its_own(office: Office) -> None:
    office.harness.accept(*messages(["worse-1", "a", "bad-2", "worse-3"]), max_attempts=1)

    office.work_to_the_end()

    assert {letter.message_id: letter.error for letter in office.letters()} == {
        "worse-1": "it is worse",
        "bad-2": "gave up after 1 attempts: ValueError: it is bad",
        "worse-3": "it is worse",
    }


def test_at_most_once_leaves_one_too(office: Office) -> None:
    office.harness.accept(*messages(["a", "bad"]))

    office.work_to_the_end(office.worker(strategy="at-most-once"))

    assert [letter.message_id for letter in office.letters()] == ["bad"]


@pytest.mark.faults
def test_without_a_letter_there_is_no_death(office: Office) -> None:
    """Both are one transaction: as long as no letter can be written, the event is not dead."""
    office.harness.accept(*messages(["a", "worse"]))
    office.harness.conn.execute(f"DROP TABLE {office.table}".encode())
    worker = office.worker()

    with pytest.raises(psycopg.errors.UndefinedTable):
        worker.run_once()

    assert office.harness.states()["worse"] == ("pending", 0)
    office.create()
    office.work_to_the_end(worker)
    assert office.harness.states()["worse"] == ("failed", 6)
    assert [letter.message_id for letter in office.letters()] == ["worse"]
    assert office.harness.effects() == ["a"]


@pytest.mark.faults
def test_an_event_whose_workers_vanish_has_a_letter_too(office: Office) -> None:
    office.harness.accept(message("lost"), max_attempts=1)
    office.harness.lock("lost", "outspark/inbox/12345/worker/1")

    office.work_to_the_end()

    [letter] = office.letters()
    assert letter.message_id == "lost"
    assert "vanished" in letter.error


def test_what_was_never_handled_leaves_none(office: Office) -> None:
    office.harness.accept(message("m1", b"no json"))

    office.work_to_the_end()

    assert office.harness.states() == {"m1": ("failed", 6)}
    assert office.letters() == []


def test_a_letter_has_a_name_of_its_own(outbox: Office) -> None:
    """What would let an inbox of letters take those of two groups for one is set apart."""
    headers = [("Idempotency-Key", "paid-7"), ("tenant", "a"), ("bytes", b"\xff")]
    outbox.harness.accept(message("worse", headers=headers))

    outbox.work_to_the_end()

    [letter] = outbox.letters()
    kept = {name: value for name, value in letter.headers.items() if name not in HEADERS}
    assert kept == {
        "x-dead-X-Event-ID": "worse",
        "x-dead-Idempotency-Key": "paid-7",
        "tenant": "a",
        "bytes": '{"base64": "/w=="}',
    }


ODD: dict[str, dict[str, Any]] = {
    "a line break": {"headers": [("note", "one\r\ntwo")]},
    "a long key": {"key": b"k" * 2000},
    "a blank key": {"key": b"  "},
    "a large body": {"body": b'"' + b"x" * 1_100_000 + b'"'},
    "large headers": {"headers": [("note", "x" * 70_000)]},
    "no name": {"headers": [("", "x")]},
    "a long number": {"body": b"1" * 5000},
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_no_message_is_too_odd_for_a_letter(outbox: Office, odd: dict[str, Any]) -> None:
    given = dict(odd)
    outbox.harness.accept(message("worse", given.pop("body", b"{}"), **given), message("a"))

    outbox.work_to_the_end()

    assert [letter.message_id for letter in outbox.letters()] == ["worse"]
    assert outbox.harness.effects() == ["a"]


def test_where_none_are_wanted_nobody_writes_them() -> None:
    inbox = InboxSettings.model_validate({"url": "postgresql://h/d", "group": "billing"})

    assert dead_letters.writer(inbox, None) is None
