"""Stored headers of a jEAP outbox: they go along in their order, or their message does not go at all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from outspark import contracts
from outspark.contracts.privileges import grants, side_needs
from outspark.database.names import TableName
from outspark.errors import TableInvalid
from outspark.event import Message
from outspark.hosting import process
from outspark.outcome import Retry
from outspark.relay.lane import Lane
from outspark.spark.monitor import Monitor
from tests.integration.relay.harness import Broker
from tests.integration.relay.jeap_harness import JeapHarness
from tests.integration.relay.test_jeap import TRACE, TRACEPARENT
from tests.waiting import wait_for

STORED: list[tuple[str, bytes | None]] = [
    ("target", b"\x00\xff\xfe"),
    ("a", b"first"),
    ("target", None),
    ("target", b""),
    ("\N{GREEK SMALL LETTER OMEGA}", "grün".encode()),
]
ROLE = "modest_reader"


@pytest.fixture(autouse=True)
def kafka(jeap: JeapHarness) -> None:
    """The broker keeps order and headers, as Kafka does."""
    jeap.brokers["broker"] = Broker(keeps_order=True, keeps_headers=True)


@pytest.fixture
def role(jeap: JeapHarness) -> Iterator[str]:
    jeap.conn.execute(f"CREATE ROLE {ROLE} LOGIN".encode())
    url = jeap.database.url.replace("postgres@", f"{ROLE}@")
    jeap.source["url"] = url
    yield ROLE
    process.discard(url)
    jeap.conn.execute(f"DROP OWNED BY {ROLE}".encode())
    jeap.conn.execute(f"DROP ROLE {ROLE}".encode())


def send(jeap: JeapHarness, name: str, *headers: tuple[str, bytes | None], **columns: Any) -> None:
    with jeap.conn.transaction():
        (id,) = jeap.send(name, **columns)
        jeap.store(id, *headers)


def arrived(jeap: JeapHarness) -> dict[str, Message]:
    return {message.payload.decode(): message for message in jeap.broker.messages}


def looks(lane: Lane) -> int:
    """How often it has looked for messages."""
    return sum(loop._claims for session in lane.sessions for loop in session.loops)


def test_they_go_along_in_their_order_and_others_have_none(jeap: JeapHarness) -> None:
    jeap.make_header_table()
    send(jeap, "with", *STORED, key=b"k", **TRACE)
    send(jeap, "without", key=b"k")
    send(jeap, "one", ("a", b"x"), key=b"k")

    jeap.work_to_the_end()

    assert jeap.broker.delivered() == ["with", "without", "one"]
    messages = arrived(jeap)
    assert {name: list(message.stored) for name, message in messages.items()} == {
        "with": STORED,
        "without": [],
        "one": [("a", b"x")],
    }
    assert messages["with"].headers == {"traceparent": TRACEPARENT}


def test_they_go_along_when_a_message_is_tried_again(jeap: JeapHarness) -> None:
    jeap.make_header_table()
    jeap.broker.answers["a"] = [Retry("no luck"), Retry("no luck")]
    send(jeap, "a", *STORED, key=b"k")

    jeap.work_to_the_end()

    assert jeap.broker.published() == ["a", "a", "a"]
    assert list(arrived(jeap)["a"].stored) == STORED


def test_another_broker_gets_text_and_what_it_cannot_carry_fails(jeap: JeapHarness) -> None:
    jeap.broker.keeps_headers = False
    jeap.make_header_table()
    send(jeap, "text", ("b", "grün".encode()), ("a", b""), key=b"k", **TRACE)
    send(jeap, "binary", ("a", b"\xff"), key=b"k")
    send(jeap, "null", ("a", None), key=b"k")
    send(jeap, "twice", ("a", b"1"), ("a", b"1"), key=b"k")
    send(jeap, "trace twice", ("traceparent", b"1"), key=b"k", **TRACE)
    send(jeap, "none", key=b"k")

    jeap.work_to_the_end()

    failed = dict.fromkeys(("binary", "null", "twice", "trace twice"), "GENERAL")
    assert jeap.states() == {"text": "sent", "none": "sent", **failed}
    assert jeap.broker.delivered() == ["text", "none"]
    assert list(arrived(jeap)["text"].headers.items()) == [
        ("b", "grün"),
        ("a", ""),
        ("traceparent", TRACEPARENT),
    ]


def test_a_table_made_during_a_shift_is_read_from_the_next_one_on(jeap: JeapHarness) -> None:
    """Until then its messages wait, and those without headers too: nobody can tell them apart."""
    with jeap.working() as lane:
        jeap.send("before", key=b"k")
        wait_for(lambda: not jeap.waiting(), what="the message before")
        jeap.make_header_table()
        send(jeap, "with", *STORED, key=b"k")
        send(jeap, "without", key=b"k")
        seen = looks(lane)
        wait_for(lambda: looks(lane) >= seen + 3, what="three looks")
    assert jeap.states() == {"before": "sent", "with": "waiting", "without": "waiting"}

    jeap.work_to_the_end()

    assert jeap.broker.delivered() == ["before", "with", "without"]
    assert list(arrived(jeap)["with"].stored) == STORED


def test_a_message_that_is_tried_again_waits_for_the_next_shift_too(jeap: JeapHarness) -> None:
    """Its headers may have been added since it was read first."""
    jeap.broker.answers["a"] = [Retry("no luck")] * 100
    with jeap.working() as lane:
        (id,) = jeap.send("a", key=b"k")
        wait_for(jeap.broker.published, what="the first try")
        jeap.make_header_table()
        jeap.store(id, *STORED)
        seen = looks(lane)
        wait_for(lambda: looks(lane) >= seen + 3, what="three looks")
        jeap.broker.answers.clear()
        seen = looks(lane)
        wait_for(lambda: looks(lane) >= seen + 3, what="three looks")
    assert jeap.states() == {"a": "waiting"}

    jeap.work_to_the_end()

    assert list(arrived(jeap)["a"].stored) == STORED


def test_what_is_unknown_is_refused_by_its_name_unless_it_is_ignored(jeap: JeapHarness) -> None:
    jeap.conn.execute("ALTER TABLE deferred_message ADD COLUMN tenant text")
    jeap.conn.execute("CREATE TABLE audit (message bigint REFERENCES deferred_message)")
    jeap.send("a", key=b"k")
    looking = Monitor(jeap.settings(), "one", "outspark_one")
    with pytest.raises(
        TableInvalid, match=r'unknown to this contract: tenant, audit; (.|\n)*\["tenant", "audit"\]'
    ):
        looking.preflight()
    looking.close()
    with jeap.working() as lane:
        wait_for(
            lambda: bool(lane.sessions and "tenant, audit" in lane.sessions[0].problem), what="the refusal"
        )
    assert jeap.states() == {"a": "waiting"}

    jeap.source["jeap"] = {**jeap.source["jeap"], "ignore": ["tenant", "audit"]}
    looking = Monitor(jeap.settings(), "one", "outspark_one")
    looking.preflight()
    looking.close()
    jeap.work_to_the_end()

    assert jeap.states() == {"a": "sent"}


def test_the_grants_are_enough_to_read_headers(jeap: JeapHarness, role: str) -> None:
    jeap.make_header_table()
    table, contract = TableName("deferred_message", "public"), contracts.get("jeap")
    needs = side_needs(contract, table, ordered=True, fans_out=False)
    for statement in [*(need.create for need in needs), *grants(contract, table, role, "relay", needs)]:
        jeap.conn.execute(statement.encode())
    send(jeap, "a", *STORED, key=b"k")

    jeap.work_to_the_end()

    assert list(arrived(jeap)["a"].stored) == STORED


def test_a_relay_that_may_not_read_headers_sends_nothing_and_says_what_to_run(
    jeap: JeapHarness, role: str
) -> None:
    table, contract = TableName("deferred_message", "public"), contracts.get("jeap")
    needs = side_needs(contract, table, ordered=True, fans_out=False)
    for statement in [*(need.create for need in needs), *grants(contract, table, role, "relay", needs)]:
        jeap.conn.execute(statement.encode())
    jeap.make_header_table()
    send(jeap, "a", *STORED, key=b"k")
    looking = Monitor(jeap.settings(), "one", "outspark_one")
    (problem,) = looking.problems()
    assert f"role {role} lacks SELECT on public.deferred_message_header" in problem
    with jeap.working() as lane:
        wait_for(lambda: bool(lane.sessions and lane.sessions[0].problem), what="the lane's problem")
        assert jeap.states() == {"a": "waiting"}
        jeap.conn.execute(problem.partition("run: ")[2].encode())
        wait_for(lambda: not jeap.waiting(), what="the message")
    looking.close()

    assert list(arrived(jeap)["a"].stored) == STORED
