"""Bad input from a real broker to the handlers of two groups: each message has its end, and the broker moves on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from outspark.inbox import Accepted, Duplicate, InboxEvent, Intake
from tests.integration.brokers.feeds.contract import NOT_TEXT, PATIENCE, Rig, bodies, gather
from tests.integration.inbox.harness import Harness, uuid7_at, write
from tests.waiting import wait_for

GROUPS = ("billing", "shipping")


@pytest.fixture(
    params=[
        pytest.param("nats", marks=pytest.mark.needs("nats")),
        pytest.param("kafka", marks=pytest.mark.needs("kafka")),
    ]
)
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    with closing(_rig(request)) as rig:
        yield rig


def _rig(request: pytest.FixtureRequest) -> Any:
    if request.param == "nats":
        from tests.integration.brokers.feeds.nats_rig import NatsFeedRig

        return NatsFeedRig(request.getfixturevalue("nats_server"))
    from tests.integration.brokers.feeds.kafka_rig import KafkaFeedRig
    from tests.integration.brokers.kafka_rig import shared_server

    return KafkaFeedRig(shared_server())


LONG_AGO, FAR_AHEAD = (uuid7_at(datetime.now(UTC) + timedelta(days=days)) for days in (-400, 400))


def send(rig: Rig, name: str, id: bytes | None, *headers: tuple[str, bytes], body: bytes = b"") -> None:
    """`name` is for the handler, who writes it down."""
    given = [] if id is None else [("X-Event-ID", id)]
    rig.send(body or b'{"name": "%s"}' % name.encode(), headers=[*given, *headers])


def send_all(rig: Rig) -> list[str]:
    """Eleven, nine of which make a row; the names of those that are fit to be handled, wherever they go."""
    key = ("Idempotency-Key", b"order-7")
    send(rig, "no id", None)
    send(rig, "long id", b"x" * 300)
    send(rig, "", b"no json", body=b"{]")
    send(rig, "odd id", NOT_TEXT)
    send(rig, "odd header", b"odd header", ("note", NOT_TEXT))
    send(rig, "key", b"key", key)
    send(rig, "same key", b"same key", key)
    send(rig, "long ago", LONG_AGO.encode())
    send(rig, "far ahead", FAR_AHEAD.encode())
    send(rig, "key", b"key", key)
    send(rig, "last", b"last")
    return ["no id", "long id", "odd id", "odd header", "key", "last"]


def take(rig: Rig, harness: Harness, reader: str, group: str) -> list[Accepted]:
    """All that the broker has for `reader`, into the inbox of `group`."""
    outcomes: list[Accepted] = []
    with closing(rig.open(reader)) as feed:
        intake = Intake(feed, harness.acceptor(group))

        def all_taken() -> bool:
            outcomes.extend(intake.run_once(0.2))
            return len(outcomes) >= 11

        wait_for(all_taken, timeout=PATIENCE, what="all messages in the inbox")
    return outcomes


def test_each_message_has_its_end_and_the_broker_moves_on(rig: Rig, either: Harness) -> None:
    @either.router.otherwise
    def handle(event: InboxEvent, conn: psycopg.Connection[Any]) -> None:
        write(conn, f"{event.group} {event.payload['name']}")

    fit = send_all(rig)
    strays = [] if either.partitioned else ["long ago", "far ahead"]
    for group in GROUPS:
        outcomes = take(rig, either, group, group)
        assert outcomes.count(Duplicate("idempotency_key")) == outcomes.count(Duplicate("message_id")) == 1
        either.work_to_the_end(either.worker(group=group))
        # What comes again, to another reader of the same inbox, is known by now.
        again = take(rig, either, f"again-{group}", group)
        assert {type(outcome) for outcome in again} == {Duplicate}
    for group in GROUPS:
        either.worker(group=group).run_once()

    assert sorted(either.effects()) == sorted(f"{group} {name}" for group in GROUPS for name in fit + strays)
    failed = either.ask(f"SELECT message_id, last_error FROM {either.table} WHERE status = 'failed'")
    dead = {"no json"} if strays else {"no json", LONG_AGO, FAR_AHEAD}
    assert sorted(id for id, _ in failed) == sorted([*dead, *dead])
    assert all("not JSON" in error or "no partition covers" in error for _, error in failed)
    rig.send(b"after")
    for group in GROUPS:
        assert bodies(gather(rig.open(group), 1)) == [b"after"]
