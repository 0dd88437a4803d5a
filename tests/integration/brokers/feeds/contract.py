"""What every feed must do, against its real broker.

A suite subclasses `FeedContract` and `FeedOutages` and provides the fixture `rig`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any, Protocol

import pytest

from outspark.brokers import Feed
from outspark.errors import FeedFailed
from outspark.inbox import Received
from tests.waiting import wait_for

PATIENCE = 60.0
NOT_TEXT = b"\xff\xfe caf\xe9"


class Rig(Protocol):
    """A topic of its own, with one partition. `secret` is part of a feed's settings."""

    topic: str
    secret: str
    address: str
    repeats_in_order: bool
    """Does what comes again come in its order, over several polls too?"""

    def open(self, group: str = "billing", member: str = "lane-0", **options: Any) -> Feed: ...

    def open_dead(self) -> Feed:
        """At an address where nobody listens; `address` names it."""
        ...

    def send(self, *bodies: bytes, headers: Sequence[tuple[str, bytes]] = ()) -> None: ...


class ServerRig(Rig, Protocol):
    def start(self) -> None: ...

    def stop(self) -> None: ...

    def kill(self) -> None: ...


def gather(feed: Feed, count: int, limit: int = 1000) -> list[Received]:
    """What comes until there are so many, and then whatever came with them."""
    got: list[Received] = []

    def enough() -> bool:
        batch = feed.poll(limit, 0.2)
        assert len(batch) <= limit
        got.extend(batch)
        return len(got) >= count

    wait_for(enough, timeout=PATIENCE, what=f"{count} messages")
    return got


def gather_again(rig: Rig, count: int) -> list[Received]:
    """What a new feed brings of it, put in order only where the broker promises none."""
    got = gather(rig.open(), count)
    return got if rig.repeats_in_order else sorted(got, key=attrgetter("offset"))


def bodies(messages: Sequence[Received]) -> list[bytes | None]:
    return [message.body for message in messages]


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b'{"n": %d}' % number for number in range(first, first + count)]


class FeedContract:
    def test_brings_all_in_order_and_no_more_than_asked_for(self, rig: Rig) -> None:
        sent = numbered(2500)
        rig.send(*sent)
        feed = rig.open()
        assert bodies(gather(feed, 2500, limit=300)) == sent

    def test_one_at_a_time(self, rig: Rig) -> None:
        rig.send(b"1", b"2", b"3")
        assert bodies(gather(rig.open(), 3, limit=1)) == [b"1", b"2", b"3"]

    def test_what_is_committed_does_not_come_again(self, rig: Rig) -> None:
        rig.send(*numbered(50))
        feed = rig.open()
        feed.commit(gather(feed, 50))
        feed.close()
        rig.send(b"last")
        assert bodies(gather(rig.open(), 1)) == [b"last"]

    def test_what_is_not_committed_comes_again_the_same(self, rig: Rig) -> None:
        rig.send(*numbered(50), headers=[("a", b"b")])
        feed = rig.open()
        first = gather(feed, 50)
        feed.close()
        again = gather_again(rig, 50)
        assert [_identity(message) for message in again] == [_identity(message) for message in first]

    def test_what_comes_after_a_commit_comes_again(self, rig: Rig) -> None:
        sent = numbered(50)
        rig.send(*sent)
        feed = rig.open()
        feed.commit(gather(feed, 50)[:20])
        feed.close()
        assert bodies(gather_again(rig, 30)) == sent[20:]

    def test_commits_batch_by_batch_and_nothing_at_all(self, rig: Rig) -> None:
        sent = numbered(30)
        rig.send(*sent)
        feed = rig.open()
        got = gather(feed, 30)
        feed.commit(got[:10])
        feed.commit([])
        feed.commit(got[10:20])
        feed.commit(got[10:20])
        feed.close()
        assert bodies(gather_again(rig, 10)) == sent[20:]

    def test_owns_what_it_gave(self, rig: Rig) -> None:
        rig.send(b"1")
        feed = rig.open()
        [message] = gather(feed, 1)
        assert feed.owns(message)

    def test_two_groups_both_get_all(self, rig: Rig) -> None:
        rig.send(*numbered(20))
        one, two = rig.open("billing"), rig.open("shipping", "lane-1")
        one.commit(gather(one, 20))
        assert bodies(gather(two, 20)) == numbered(20)

    def test_a_header_that_is_no_text_is_carried_byte_by_byte(self, rig: Rig) -> None:
        rig.send(b"{}", headers=[("X-Event-ID", b"e1"), ("note", NOT_TEXT), ("empty", b"")])
        [message] = gather(rig.open(), 1)
        headers = dict(message.headers)
        assert (headers["X-Event-ID"], headers["note"], headers["empty"]) == (b"e1", NOT_TEXT, b"")

    @pytest.mark.parametrize("body", [b"", bytes(range(256)), b"a\r\nb\n", "Grüße 🌍".encode()])
    def test_carries_the_body_byte_by_byte(self, rig: Rig, body: bytes) -> None:
        rig.send(body)
        [message] = gather(rig.open(), 1)
        assert message.body == body

    def test_knows_topic_place_and_time(self, rig: Rig) -> None:
        rig.send(b"1", b"2")
        one, two = gather(rig.open(), 2)
        assert (one.topic, one.partition, one.key) == (rig.topic, 0, None)
        assert two.offset == one.offset + 1
        assert one.timestamp is not None
        assert one.timestamp.tzinfo is UTC
        assert abs(one.timestamp - datetime.now(UTC)) < timedelta(minutes=5)

    def test_waits_no_longer_than_it_is_told(self, rig: Rig) -> None:
        feed = rig.open()
        rig.send(b"1")
        gather(feed, 1)
        started = time.monotonic()
        assert list(feed.poll(10, 0.5)) == []
        assert 0.4 < time.monotonic() - started < 5
        started = time.monotonic()
        assert list(feed.poll(10, 0)) == []
        assert time.monotonic() - started < 0.4

    def test_the_first_message_ends_the_wait(self, rig: Rig) -> None:
        feed = rig.open()
        rig.send(b"1")
        gather(feed, 1)
        sender = threading.Timer(0.3, rig.send, [b"2"])
        sender.start()
        started = time.monotonic()
        assert bodies(feed.poll(1000, 20)) == [b"2"]
        assert time.monotonic() - started < 10
        sender.join()

    def test_while_held_it_takes_nothing_and_then_goes_on(self, rig: Rig) -> None:
        sent = numbered(3000)
        rig.send(*sent[:1500])
        feed = rig.open()
        got = gather(feed, 1, limit=100)
        for _ in range(3):
            feed.hold(0.2)
        rig.send(*sent[1500:])
        feed.hold(0.2)
        got += gather(feed, 3000 - len(got), limit=100)
        assert bodies(got) == sent
        assert feed.owns(got[0])
        feed.commit(got)
        feed.close()
        rig.send(b"last")
        assert bodies(gather(rig.open(), 1)) == [b"last"]

    def test_close_may_be_repeated_and_polling_opens_again(self, rig: Rig) -> None:
        feed = rig.open()
        feed.close()
        rig.send(b"1")
        gather(feed, 1)
        feed.close()
        feed.close()
        assert bodies(gather(feed, 1)) == [b"1"]

    def test_check_passes_before_and_after_a_poll(self, rig: Rig) -> None:
        feed = rig.open()
        feed.check(PATIENCE)
        rig.send(b"1")
        gather(feed, 1)
        feed.check(PATIENCE)

    def test_check_of_a_dead_broker_names_it_and_no_secret(self, rig: Rig) -> None:
        feed = rig.open_dead()
        with pytest.raises(FeedFailed) as failed:
            feed.check(3.0)
        said = str(failed.value) + repr(failed.value)
        assert rig.address in said
        assert rig.secret not in said
        assert failed.value.__cause__ is None
        assert rig.secret not in repr(feed)

    def test_a_dead_broker_gives_nothing_and_is_complained_of_once(
        self, rig: Rig, caplog: pytest.LogCaptureFixture
    ) -> None:
        feed = rig.open_dead()
        with caplog.at_level(logging.INFO):
            wait_for(lambda: list(feed.poll(10, 0.2)) == [] and _warnings(caplog), what="a complaint")
            for _ in range(5):
                assert list(feed.poll(10, 0.2)) == []
        feed.close()
        [warning] = _warnings(caplog)
        assert rig.address in warning.__dict__["error"]
        assert rig.secret not in warning.__dict__["error"]


class FeedOutages:
    """The server is this test's own."""

    def test_goes_on_after_the_server_was_away_while_it_polled(self, rig: ServerRig) -> None:
        rig.send(*numbered(20))
        feed = rig.open()
        feed.commit(gather(feed, 20))
        rig.stop()
        for _ in range(5):
            assert list(feed.poll(100, 0.3)) == []
        rig.start()
        rig.send(*numbered(20, first=20))
        got = gather(feed, 20)
        assert bodies(got) == numbered(20, first=20)
        feed.commit(got)
        feed.close()
        rig.send(b"last")
        assert bodies(gather(rig.open(), 1)) == [b"last"]

    def test_begins_when_the_server_comes_up(self, rig: ServerRig) -> None:
        rig.send(*numbered(20))
        rig.stop()
        feed = rig.open()
        assert list(feed.poll(100, 0.5)) == []
        with pytest.raises(FeedFailed):
            feed.check(2.0)
        rig.start()
        assert bodies(gather(feed, 20)) == numbered(20)

    def test_what_could_not_be_committed_is_committed_later_or_comes_again(self, rig: ServerRig) -> None:
        rig.send(*numbered(20))
        feed = rig.open()
        got = gather(feed, 20)
        rig.kill()
        with pytest.raises(FeedFailed) as failed:
            feed.commit(got)
        assert rig.secret not in str(failed.value)
        rig.start()
        rig.send(b"last")
        rest = gather(feed, 1)
        while rest[-1].body != b"last":
            rest += gather(feed, 1)
        # Never less than what is not committed, and never anything else.
        assert set(bodies(rest)) <= {*numbered(20), b"last"}
        feed.commit(rest)

    def test_closes_while_the_server_is_away(self, rig: ServerRig) -> None:
        rig.send(b"1")
        feed = rig.open()
        gather(feed, 1)
        rig.stop()
        feed.poll(10, 0.3)
        feed.close()
        rig.start()
        assert bodies(gather(rig.open(), 1)) == [b"1"]


def _identity(message: Received) -> tuple[Any, ...]:
    harness = (message.topic, message.log, message.partition, message.offset)
    return (*harness, message.timestamp, message.body, tuple(message.headers))


def _warnings(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.levelno >= logging.WARNING]
