"""Messages come in once, whoever brings them and however often; what cannot be handled is kept."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import RFC_4122, UUID, uuid4

import pytest

from outspark.inbox import Acceptor, Duplicate, New, Received, Refused
from outspark.inbox.intake.acceptor import MIN_LOOKUP_BATCH
from outspark.inbox.intake.encoding import unwrap
from outspark.observability.metrics import INBOX_ACCEPTED_TOTAL
from outspark.uuid7 import uuid7
from tests.integration.inbox.harness import Harness, message, messages, uuid7_at
from tests.waiting import wait_for


def kinds(outcomes: list[Any]) -> list[str]:
    return [type(outcome).__name__ for outcome in outcomes]


def test_a_message_becomes_a_row(harness: Harness) -> None:
    at = datetime(2026, 11, 16, 7, 0, tzinfo=UTC)
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    headers = [
        ("event_type", "order.paid"),
        ("ce_source", "/shop"),
        ("traceparent", trace),
        ("correlation_id", "c-1"),
        ("causation_id", "c-0"),
        ("schema_version", "2.1"),
    ]

    [outcome] = harness.accept(message("m1", b'{"n": 1}', headers=headers, key=b"order-7", timestamp=at))

    row = harness.row("m1")
    assert outcome == New(str(row["id"]))
    assert (row["event_type"], row["source"], row["consumer_group"]) == ("order.paid", "/shop", "billing")
    assert (row["payload"], row["headers"]["partition_key"]) == ({"n": 1}, "order-7")
    assert (row["trace_id"], row["schema_version"]) == ("0af7651916cd43dd8448eb211c80319c", "2.1")
    assert (row["correlation_id"], row["causation_id"]) == ("c-1", "c-0")
    assert (row["status"], row["attempts_made"], row["max_attempts"]) == ("pending", 0, 6)
    assert row["created_at"] == at
    assert abs((row["scheduled_at"] - datetime.now(UTC)).total_seconds()) < 60


def test_a_redelivery_is_a_duplicate(either: Harness) -> None:
    first = message("m1")
    assert kinds(either.accept(first)) == ["New"]

    assert either.accept(first) == [Duplicate("message_id")]
    assert len(either.states()) == 1


@pytest.mark.parametrize("made", [uuid7, uuid4])
def test_a_message_of_omni_boxs_publisher_that_is_sent_twice_is_one_row(
    either: Harness, made: Callable[[], UUID]
) -> None:
    """It carries the event's own headers, and over them `event_id` and what else the table has columns for."""
    id = str(made())
    sent = {"source_service": "shop", "event_id": id, "event_type": "order.paid", "schema_version": "1.0.0"}
    headers = [(name, value.encode()) for name, value in sent.items()]

    outcomes = [
        *either.accept(message(None, headers=headers)),
        *either.accept(message(None, headers=headers)),
    ]

    assert kinds(outcomes) == ["New", "Duplicate"]
    row = either.row(id)
    assert (row["source"], row["event_type"], row["schema_version"]) == ("shop", "order.paid", "1.0.0")


def test_cloud_events_of_two_sources_may_share_an_id(either: Harness) -> None:
    shop, till = (
        message(None, headers=[("ce_id", b"7"), ("ce_source", source)]) for source in (b"/shop", b"/till")
    )

    assert kinds(either.accept(shop, till)) == ["New", "New"]
    assert either.accept(till, shop) == [Duplicate("message_id")] * 2
    assert sorted(either.states()) == ["/shop|7", "/till|7"]


@pytest.mark.parametrize("size", [8, MIN_LOOKUP_BATCH])
def test_in_a_storm_of_redeliveries_what_is_new_still_comes_in(either: Harness, size: int) -> None:
    """A large batch is looked up by its ids first."""
    acceptor = either.acceptor()
    old = [message(f"m{n}") for n in range(size)]
    acceptor.accept(old)
    assert acceptor.accept(old) == [Duplicate("message_id")] * size

    outcomes = acceptor.accept([*old, message("n1"), message("n1"), message("n2", b"no JSON")])

    assert kinds(outcomes) == ["Duplicate"] * size + ["New", "Duplicate", "Refused"]
    assert len(either.states()) == size + 2
    assert kinds(acceptor.accept([message(f"p{n}") for n in range(size)])) == ["New"] * size
    assert kinds(acceptor.accept([message("p1"), message("q1")])) == ["Duplicate", "New"]


def test_what_somebody_else_takes_in_between_look_and_insert_is_a_duplicate(either: Harness) -> None:
    batch = [message(f"m{n}") for n in range(MIN_LOOKUP_BATCH)]
    acceptor = either.acceptor()
    with ThreadPoolExecutor(1) as pool:
        with either.conn.transaction():
            Acceptor(either.conn, either.table, acceptor.settings).accept([batch[7]])
            late = pool.submit(acceptor.accept, batch)
            wait_for(lambda: _waits(either, acceptor), what="the insert to wait for the other")
        outcomes = late.result(20)

    assert [n for n, outcome in enumerate(outcomes) if outcome == Duplicate("message_id")] == [7]
    assert kinds(outcomes).count("New") == MIN_LOOKUP_BATCH - 1
    assert len(either.states()) == MIN_LOOKUP_BATCH


def test_a_large_batch_knows_idempotency_keys_of_others(either: Harness) -> None:
    def keyed(id: str) -> Received:
        return message(id, headers=[("idempotency_key", b"once")])

    either.accept(keyed("first"))

    outcomes = either.accept(*messages([f"m{n}" for n in range(MIN_LOOKUP_BATCH)]), keyed("second"))

    assert kinds(outcomes) == ["New"] * MIN_LOOKUP_BATCH + ["Duplicate"]
    assert outcomes[-1] == Duplicate("idempotency_key")


def _waits(harness: Harness, acceptor: Acceptor) -> bool:
    waiting = "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = %s"
    return harness.database.connect().execute(waiting, [acceptor.conn.info.backend_pid]).fetchone() == (True,)


def test_a_batch_may_hold_a_message_twice(either: Harness) -> None:
    twice = message("m1")

    assert kinds(either.accept(twice, message("m2"), twice)) == ["New", "New", "Duplicate"]


def test_order_of_acceptance_is_kept(either: Harness) -> None:
    ids = [f"m{number}" for number in range(50)]
    either.accept(*messages(ids))

    rows = either.ask(f"SELECT message_id FROM {either.table} ORDER BY scheduled_at, id")
    assert [row[0] for row in rows] == ids


def test_ids_of_rows_rise_with_the_databases_clock(either: Harness) -> None:
    """Also where many batches come in one millisecond. What an outcome says is the row's."""
    acceptor, sizes = either.acceptor(), [1] * 50 + [MIN_LOOKUP_BATCH, 1, 2 * MIN_LOOKUP_BATCH]
    batches = [messages(f"m{number}-{n}" for n in range(size)) for number, size in enumerate(sizes)]
    before = _clock(either)
    outcomes = [outcome for batch in batches for outcome in acceptor.accept(batch)]

    rows = either.ask(f"SELECT id, message_id FROM {either.table} ORDER BY id")
    assert [row[1] for row in rows] == [_id(one) for batch in batches for one in batch]
    assert outcomes == [New(str(row[0])) for row in rows]
    assert {(row[0].version, row[0].variant) for row in rows} == {(7, RFC_4122)}
    assert before <= rows[0][0].int >> 80 <= rows[-1][0].int >> 80 <= _clock(either)


@pytest.mark.parametrize("size", [1, MIN_LOOKUP_BATCH])
def test_after_the_databases_clock_went_back_the_order_of_acceptance_is_kept(
    either: Harness, size: int
) -> None:
    """As when a standby takes over whose clock is behind."""
    ahead = datetime.now(UTC) + timedelta(seconds=5)
    either.accept(message("m0"))
    either.set("m0", id=uuid7_at(ahead), scheduled_at=ahead)
    acceptor = either.acceptor()
    batches = [messages(f"m{number}-{n}" for n in range(size)) for number in range(3)]
    for batch in batches:
        acceptor.accept(batch)

    names = ["m0", *(_id(one) for batch in batches for one in batch)]
    for order in ("id", "scheduled_at"):
        rows = either.ask(f"SELECT message_id FROM {either.table} ORDER BY {order}")
        assert [row[0] for row in rows] == names
    assert either.row(names[-1])["scheduled_at"] < ahead + timedelta(seconds=1)


def test_an_id_far_ahead_holds_up_nobody(either: Harness) -> None:
    """Somebody else made it."""
    either.accept(message("m0"))
    either.set("m0", id=uuid7_at(datetime.now(UTC) + timedelta(minutes=1)))
    either.accept(message("m1"))

    assert either.row("m1")["scheduled_at"] <= either.ask("SELECT clock_timestamp()")[0][0]


def _clock(harness: Harness) -> int:
    return int(harness.ask("SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint")[0][0])


def test_a_message_without_an_id_is_known_by_its_place(either: Harness) -> None:
    nameless = message(None, offset=42, partition=3)
    assert kinds(either.accept(nameless)) == ["New"]

    assert either.accept(nameless) == [Duplicate("message_id")]
    assert list(either.states()) == ["orders-3-42"]


def test_a_long_id_is_hashed(either: Harness) -> None:
    long = message("x" * 300)
    assert kinds(either.accept(long, message("x" * 301))) == ["New", "New"]

    assert either.accept(long) == [Duplicate("message_id")]
    assert all(id.startswith("sha256:") for id in either.states())


def test_a_body_that_is_no_json_is_kept_as_dead(either: Harness) -> None:
    bodies = [b"\xff\x00\x01", b"hello", b'{"a": NaN}', b"{", b'"\\u0000"', b'"\\ud83d"', b"[" * 5000]

    outcomes = either.accept(*(message(f"m{n}", body) for n, body in enumerate(bodies)), message("sound"))

    assert kinds(outcomes) == ["Refused"] * len(bodies) + ["New"]
    for number, body in enumerate(bodies):
        row = either.row(f"m{number}")
        assert row["status"] == "failed"
        assert unwrap(row["payload"]) == body
        assert "JSON" in row["last_error"]


def test_what_only_postgresql_refuses_is_found_and_kept(either: Harness) -> None:
    wrong = b'{"n": 1' + b"0" * 200_000 + b"}"
    batch = [message(f"m{n}", wrong if n == 7 else b'{"n": 1}') for n in range(20)]

    outcomes = either.accept(*batch)

    assert [n for n, outcome in enumerate(outcomes) if isinstance(outcome, Refused)] == [7]
    assert kinds(outcomes).count("New") == 19
    assert unwrap(either.row("m7")["payload"]) == wrong


def test_odd_but_sound_bodies_pass(harness: Harness) -> None:
    bodies = [
        b"",
        None,
        b"null",
        b'"\\ud83d\\ude00"',
        b'"\\\\u0000"',
        json.dumps({"a": "\u00e4" * 10}).encode(),
    ]

    outcomes = harness.accept(*(message(f"m{n}", body) for n, body in enumerate(bodies)))

    assert kinds(outcomes) == ["New"] * len(bodies)
    assert harness.row("m0")["payload"] is None
    assert harness.row("m3")["payload"] == "\U0001f600"


def test_a_header_that_is_not_utf8_is_kept(harness: Harness) -> None:
    harness.accept(message("m1", headers=[("weird", b"\xff\xfe"), ("nul", b"a\0b"), ("fine", b"x")]))

    headers = harness.row("m1")["headers"]
    assert headers["weird"] == {"base64": "//4="}
    assert headers["nul"] == {"base64": "YQBi"}
    assert headers["fine"] == "x"


def test_an_id_that_is_not_utf8_still_counts(harness: Harness) -> None:
    def odd() -> Any:
        return message(None, headers=[("X-Event-ID", b"\xff\xfe")])

    assert kinds(harness.accept(odd(), odd())) == ["New", "Duplicate"]


def test_a_type_that_is_too_long_is_kept_as_dead(harness: Harness) -> None:
    [outcome] = harness.accept(message("m1", topic="t" * 120))

    assert isinstance(outcome, Refused)
    assert outcome.error == "type has 120 characters, allowed: 100"


def test_two_groups_both_get_theirs(either: Harness) -> None:
    keyed = message("m1", headers=[("Idempotency-Key", "order-7")])

    assert kinds(either.accept(keyed, group="billing")) == ["New"]
    assert kinds(either.accept(keyed, group="shipping")) == ["New"]


def test_another_message_with_a_known_idempotency_key_is_a_duplicate(either: Harness) -> None:
    def keyed(id: str) -> Any:
        return message(id, headers=[("Idempotency-Key", "order-7")])

    assert kinds(either.accept(keyed("m1"))) == ["New"]

    outcomes = either.accept(message("m2"), keyed("m3"), keyed("m1"), message("m4"), keyed("m5"))

    assert kinds(outcomes) == ["New", "Duplicate", "Duplicate", "New", "Duplicate"]
    by = [outcome.by for outcome in outcomes if isinstance(outcome, Duplicate)]
    assert by == ["idempotency_key", "message_id", "idempotency_key"]
    assert either.tally.value(INBOX_ACCEPTED_TOTAL, outcome="duplicate_key") == 2


def test_of_two_new_messages_with_one_idempotency_key_the_first_counts(either: Harness) -> None:
    headers = [("Idempotency-Key", "order-7")]

    outcomes = either.accept(message("m1", headers=headers), message("m2", headers=headers))

    assert kinds(outcomes) == ["New", "Duplicate"]
    assert list(either.states()) == ["m1"]


def test_a_refused_message_does_not_use_up_its_idempotency_key(either: Harness) -> None:
    headers = [("Idempotency-Key", "order-7")]

    outcomes = either.accept(message("m1", b"no json", headers=headers), message("m2", headers=headers))

    assert kinds(outcomes) == ["Refused", "New"]


def test_accept_is_part_of_the_callers_transaction(harness: Harness) -> None:
    acceptor = harness.acceptor()
    with acceptor.conn.transaction(force_rollback=True):
        assert kinds(acceptor.accept([message("m1")])) == ["New"]

    assert harness.states() == {}


def test_two_processes_at_once_take_each_message_once(either: Harness) -> None:
    batch = [message(str(uuid7())) for _ in range(500)]
    # Ids that say nothing about their time, published twice: on a partitioned table only a look helps.
    batch += [message(f"order-{n}") for n in range(100)]
    start = threading.Barrier(4)

    def take(acceptor: Acceptor) -> int:
        again = [message(_id(one)) for one in batch]
        start.wait()
        outcomes = [outcome for n in range(0, 600, 60) for outcome in acceptor.accept(again[n : n + 60])]
        return kinds(outcomes).count("New")

    acceptors = [either.acceptor() for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        new = list(pool.map(take, acceptors))

    assert sum(new) == 600
    assert len(either.states()) == 600


def _id(one: Any) -> str:
    id: bytes = dict(one.headers)["X-Event-ID"]
    return id.decode()


def test_bodies_are_looked_into_only_where_some_are_no_json(harness: Harness) -> None:
    """Nested deeper than Python reads, not deeper than PostgreSQL does: so it shows who looked."""
    deep = b"[" * 3000 + b"]" * 3000

    accept = harness.acceptor().accept

    assert kinds(accept([message("m1", deep)])) == ["New"]
    assert kinds(accept([message("m2", b"no json"), message("m3", deep)])) == ["Refused", "Refused"]
    assert kinds(accept([message("m4", deep)])) == ["Refused"]
    assert kinds(accept([message("m5")])) == ["New"]
    assert kinds(accept([message("m6", deep)])) == ["New"]
