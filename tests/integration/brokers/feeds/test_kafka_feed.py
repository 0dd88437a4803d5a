"""The Kafka feed against a real broker: the contract, its place in the group, and what brokers refuse."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import pytest
from confluent_kafka import KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AclOperation, ResourceType

from outspark.brokers import Feed
from outspark.brokers.kafka.feed import KafkaFeed
from outspark.brokers.kafka.feed_options import instance_id
from outspark.errors import FeedFailed, SettingsError
from outspark.event import Message
from outspark.inbox import Received
from outspark.outcome import DELIVERED
from outspark.tools.servers.kafka import Kafka
from tests.integration.brokers.contract import open_destination
from tests.integration.brokers.feeds.contract import (
    PATIENCE,
    FeedContract,
    FeedOutages,
    bodies,
    gather,
    numbered,
)
from tests.integration.brokers.feeds.kafka_rig import KafkaFeedRig
from tests.integration.brokers.kafka_rig import KafkaRig, acl, acls, sasl, shared_server
from tests.waiting import wait_for

pytestmark = pytest.mark.needs("kafka")

SOON: dict[str, Any] = {"topic.metadata.refresh.interval.ms": 500}
# Members hear of a rebalance by their heartbeats.
LIVELY: dict[str, Any] = {"heartbeat.interval.ms": 300}
# The shortest session that a broker allows.
SHORT: dict[str, Any] = {"session.timeout.ms": 6000, **LIVELY}


@pytest.fixture
def rig() -> Iterator[KafkaFeedRig]:
    with closing(KafkaFeedRig(shared_server())) as rig:
        yield rig


@pytest.fixture
def wide() -> Iterator[KafkaFeedRig]:
    """A topic with two partitions."""
    with closing(KafkaFeedRig(shared_server(), partitions=2)) as rig:
        yield rig


@pytest.fixture(scope="module")
def own_server() -> Iterator[Kafka]:
    with Kafka(quick=True) as server:
        yield server


@pytest.fixture(autouse=True)
def quiet(capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    """The client complains in our log, not on stderr."""
    yield
    assert "rdkafka" not in capfd.readouterr().err


class TestKafkaFeed(FeedContract):
    pass


class TestKafkaFeedOutages(FeedOutages):
    @pytest.fixture
    def rig(self, own_server: Kafka, monkeypatch: pytest.MonkeyPatch) -> Iterator[KafkaFeedRig]:
        monkeypatch.setattr("outspark.brokers.kafka.feed.COMMIT_TIMEOUT", 5.0)
        own_server.start()
        with closing(KafkaFeedRig(own_server)) as rig:
            yield rig

    def test_a_commit_that_nobody_answers_is_given_up_in_time(self, rig: KafkaFeedRig) -> None:
        rig.send(*numbered(20))
        feed = rig.open()
        got = gather(feed, 20)
        with frozen(rig.server):
            with pytest.raises(FeedFailed, match=r"not committed: no answer within 5 s"):
                feed.commit(got)
            assert not feed.owns(got[0])
            assert list(feed.poll(100, 0.2)) == []
        rig.send(b"last")
        rest = gather(feed, 1)
        while rest[-1].body != b"last":
            rest += gather(feed, 1)
        # The answer may have come in time for the new consumer or not.
        assert bodies(rest) in ([b"last"], [*numbered(20), b"last"])
        feed.commit(rest)
        assert rig.committed() == [21]

    def test_a_commit_that_nobody_waits_for_is_given_up_in_time_too(self, rig: KafkaFeedRig) -> None:
        rig.send(*numbered(20))
        feed = rig.open()
        got = gather(feed, 20)
        with frozen(rig.server):
            feed.commit_soon(got)
            with pytest.raises(FeedFailed, match=r"not committed: no answer within 5 s"):
                wait_for(lambda: bool(feed.poll(100, 0.2)), timeout=20, what="the end of patience")
            assert not feed.owns(got[0])


def test_commits_that_nobody_waits_for_come_in_their_order(rig: KafkaFeedRig) -> None:
    rig.send(*numbered(20))
    feed = rig.open()
    got = gather(feed, 20)
    for message in got:
        feed.commit_soon([message])
    feed.close()
    assert rig.committed() == [20]


def test_a_commit_that_is_told_again_takes_none_back_that_passed_since(rig: KafkaFeedRig) -> None:
    rig.send(*numbered(20))
    feed = rig.open()
    got = gather(feed, 20)
    feed.commit(got)
    assert isinstance(feed, KafkaFeed)

    # As the answer to a commit of offset 5 comes, if it was made during a rebalance.
    feed._async_commits(KafkaError(KafkaError.REBALANCE_IN_PROGRESS), [TopicPartition(rig.topic, 0, 5)])
    assert list(feed.poll(100, 0.2)) == []
    feed.close()

    assert rig.committed() == [20]


@contextmanager
def frozen(server: Kafka) -> Iterator[None]:
    """It takes connections and answers nothing."""
    pid = server.pid
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_tombstone_has_no_body(rig: KafkaFeedRig) -> None:
    rig.send(None, headers=[("none", None)], key=b"k\xff")
    [message] = gather(rig.open(), 1)
    assert (message.body, message.key, list(message.headers)) == (None, b"k\xff", [("none", None)])


def test_of_headers_with_one_name_all_are_there(rig: KafkaFeedRig) -> None:
    rig.send(b"{}", headers=[("a", b"1"), ("b", b"2"), ("a", b"3")])
    [message] = gather(rig.open(), 1)
    assert list(message.headers) == [("a", b"1"), ("b", b"2"), ("a", b"3")]


@pytest.mark.parametrize("milliseconds", [9_223_372_036_854_775_000, 253_402_300_800_000])
def test_a_time_beyond_the_calendar_is_none(rig: KafkaFeedRig, milliseconds: int) -> None:
    topic = f"any.time.{rig.id}"
    rig.create(topic, message_timestamp_after_max_ms=str(2**63 - 1))
    rig.send(b"{}", topic=topic, timestamp=milliseconds)
    [message] = gather(rig.open(topics=[topic]), 1)
    assert message.timestamp is None


def test_time_is_exact_to_the_millisecond(rig: KafkaFeedRig) -> None:
    rig.send(b"{}", timestamp=1_763_280_000_123)
    [message] = gather(rig.open(), 1)
    assert message.timestamp is not None
    assert message.timestamp.isoformat() == "2025-11-16T08:00:00.123000+00:00"


def test_what_our_relay_sends_has_its_key_and_its_id(rig: KafkaFeedRig) -> None:
    with closing(open_destination("kafka", url=rig.server.url)) as publisher:
        sent = Message("e1", rig.topic, "käy", b"{}", {"note": "Grüße"})
        assert publisher.publish([sent], PATIENCE) == [DELIVERED]
    [message] = gather(rig.open(), 1)
    assert (message.key, message.log) == ("käy".encode(), None)
    assert dict(message.headers) == {"X-Event-ID": b"e1", "note": "Grüße".encode()}


def test_offsets_follow_commits_by_partition(wide: KafkaFeedRig) -> None:
    wide.send(*numbered(10), partition=0)
    wide.send(*numbered(20), partition=1)
    feed = wide.open()
    got = gather(feed, 30)
    for partition, count in ((0, 10), (1, 20)):
        of_one = [message for message in got if message.partition == partition]
        assert bodies(of_one) == numbered(count)
    feed.commit([message for message in got if message.partition == 1][:5])
    assert wide.committed(partitions=(0, 1))[1] == 5
    assert wide.committed(partitions=(0, 1))[0] < 0
    feed.commit(got)
    assert wide.committed(partitions=(0, 1)) == [10, 20]


def test_topics_by_pattern_also_those_that_come_later(rig: KafkaFeedRig) -> None:
    rig.create(f"events.{rig.id}.a")
    rig.send(b"a", topic=f"events.{rig.id}.a")
    rig.send(b"other")
    feed = rig.open(topics=[rf"^events\.{rig.id}\..*"], **SOON)
    feed.commit(got := gather(feed, 1))
    assert bodies(got) == [b"a"]
    rig.create(f"events.{rig.id}.b")
    rig.send(b"b", topic=f"events.{rig.id}.b")
    [message] = gather(feed, 1)
    assert (message.topic, message.body) == (f"events.{rig.id}.b", b"b")
    feed.check(PATIENCE)


def test_a_topic_that_is_not_there_is_waited_for(rig: KafkaFeedRig, caplog: pytest.LogCaptureFixture) -> None:
    later = f"later.{rig.id}"
    rig.send(b"1")
    feed = rig.open(topics=[rig.topic, later], **SOON)
    feed.commit(got := gather(feed, 1))
    assert bodies(got) == [b"1"]
    feed.check(PATIENCE)
    wait_for(
        lambda: not feed.poll(10, 0.1) and "waits for" in caplog.text, timeout=PATIENCE, what="a complaint"
    )
    for _ in range(20):
        feed.poll(10, 0.1)
    assert caplog.text.count("waits for") == 1
    rig.create(later)
    rig.send(b"2", topic=later)
    assert bodies(gather(feed, 1)) == [b"2"]


def test_reads_only_what_is_committed(rig: KafkaFeedRig) -> None:
    producer = Producer({"bootstrap.servers": rig.server.address, "transactional.id": rig.id, "log_level": 0})
    producer.init_transactions(PATIENCE)
    for body, commit in ((b"aborted", False), (b"committed", True)):
        producer.begin_transaction()
        producer.produce(rig.topic, body)
        producer.flush(PATIENCE)
        producer.commit_transaction(PATIENCE) if commit else producer.abort_transaction(PATIENCE)
    assert bodies(gather(rig.open(), 1)) == [b"committed"]


def poll_both(one: Feed, two: Feed, until: Any) -> tuple[list[Received], list[Received]]:
    """By turns, as two lanes would; what each of them gets."""
    got: tuple[list[Received], list[Received]] = ([], [])

    def turn() -> bool:
        got[0].extend(one.poll(1000, 0.1))
        got[1].extend(two.poll(1000, 0.1))
        return bool(until(*got))

    wait_for(turn, timeout=PATIENCE, what="the end of polling by turns")
    return got


def partitions(messages: Sequence[Received]) -> set[int]:
    return {message.partition for message in messages}


def owned(feed: Feed, messages: Sequence[Received]) -> set[int]:
    return partitions([message for message in messages if feed.owns(message)])


@pytest.mark.parametrize("strategy", ["roundrobin", "cooperative-sticky"])
def test_a_partition_that_moves_with_a_batch_in_flight_is_committed_by_its_new_owner(
    wide: KafkaFeedRig, strategy: str
) -> None:
    for partition in (0, 1):
        wide.send(*numbered(10), partition=partition)
    options = {"partition.assignment.strategy": strategy, **LIVELY}
    first, second = (wide.open(member=member, **options) for member in ("lane-0", "lane-1"))
    in_flight = gather(first, 20)
    # By default all are given out anew, and what stays where it was comes again there too.
    stays = strategy == "cooperative-sticky"

    more, again = poll_both(
        first, second, lambda ours, theirs: len(theirs) >= 10 and (stays or len(ours) >= 10)
    )

    assert bodies(more) == ([] if stays else numbered(10))
    [moved] = partitions(again)
    assert bodies(again) == numbered(10)
    assert owned(first, in_flight) == ({1 - moved} if stays else set())
    first.commit(in_flight)
    assert wide.committed(partitions=(moved,))[0] < 0
    first.commit(in_flight + more)
    assert wide.committed(partitions=(moved,))[0] < 0
    assert wide.committed(partitions=(1 - moved,)) == [10]
    second.commit(again)
    assert wide.committed(partitions=(moved,)) == [10]


def test_a_partition_that_comes_back_is_not_committed_for_what_was_open_before(wide: KafkaFeedRig) -> None:
    for partition in (0, 1):
        wide.send(*numbered(10), partition=partition)
    first, second = wide.open(member="lane-0", **SHORT), wide.open(member="lane-1", **SHORT)
    before = gather(first, 20)
    ours, theirs = poll_both(first, second, lambda ours, theirs: len(ours) >= 10 and len(theirs) >= 10)
    first.commit(ours)
    second.close()

    back = gather(first, 10)

    [moved] = partitions(back)
    assert {moved} == partitions(theirs)
    assert not any(first.owns(message) for message in before + ours)
    first.commit(before)
    assert wide.committed(partitions=(moved,))[0] < 0
    first.commit(back)
    assert wide.committed(partitions=(moved,)) == [10]


def test_the_next_shift_takes_over_and_nobody_else_notices(wide: KafkaFeedRig) -> None:
    wide.send(b"0", partition=0)
    wide.send(b"1", partition=1)
    one, two = wide.open(member="lane-0", **LIVELY), wide.open(member="lane-1", **LIVELY)
    got = poll_both(one, two, lambda ones, twos: len(owned(one, ones)) == len(owned(two, twos)) == 1)
    [twos] = owned(two, got[1])
    for feed, messages in ((one, got[0]), (two, got[1])):
        feed.commit(messages)
    one.close()

    for partition in (0, 1):
        wide.send(b"next", partition=partition)
    assert partitions(gather(two, 1)) == {twos}
    deadline = time.monotonic() + 1
    while time.monotonic() < deadline:
        assert list(two.poll(10, 0.2)) == []
    [taken_over] = gather(wide.open(member="lane-0"), 1)
    assert taken_over.partition == 1 - twos
    assert taken_over.body == b"next"
    assert two.owns(got[1][-1])


@pytest.mark.parametrize("heard_by", ["commit", "heartbeat"])
def test_a_member_whose_place_was_taken_says_so(rig: KafkaFeedRig, heard_by: str) -> None:
    rig.send(b"1")
    old = rig.open(**SHORT)
    in_flight = gather(old, 1)
    new = rig.open()
    assert bodies(gather(new, 1)) == [b"1"]
    if heard_by == "commit":
        old.commit(in_flight)
    with pytest.raises(FeedFailed, match="fenced: another consumer uses this member's name"):
        wait_for(lambda: old.poll(10, 0.2), timeout=PATIENCE, what="the end of the old one")
    old.close()
    rig.send(b"2")
    assert bodies(gather(new, 1)) == [b"2"]


def test_the_newer_group_protocol_can_be_had(rig: KafkaFeedRig) -> None:
    rig.send(*numbered(10))
    feed = rig.open(**{"group.protocol": "consumer"})
    feed.commit(gather(feed, 10))
    assert rig.committed() == [10]
    feed.close()
    rig.send(b"last")
    assert bodies(gather(rig.open(**{"group.protocol": "consumer"}), 1)) == [b"last"]


def test_a_wrong_password_is_said_clearly_and_not_shown(rig: KafkaFeedRig) -> None:
    for attempt in (_poll_on, _check):
        feed = rig.open(url=rig.server.sasl_url, **sasl("relay", "wr0ng-pw"))
        with pytest.raises(FeedFailed, match=r"(?i)authentication") as refused:
            attempt(feed)
        assert rig.server.sasl_url.removeprefix("kafka://") in str(refused.value)
        assert "wr0ng-pw" not in str(refused.value) + repr(refused.value)
        feed.close()


def test_what_a_user_may_not_read_is_named(rig: KafkaFeedRig) -> None:
    other = KafkaRig(rig.server)
    deny = acl("mute", ResourceType.TOPIC, rig.topic, AclOperation.READ)
    with acls(other, deny):
        feed = rig.open(url=rig.server.sasl_url, **sasl("mute"))
        with pytest.raises(FeedFailed, match="authorization failed"):
            _poll_on(feed)
        feed.close()
    group = acl("mute", ResourceType.GROUP, rig.group("billing"), AclOperation.READ)
    with acls(other, group):
        feed = rig.open(url=rig.server.sasl_url, **sasl("mute"))
        with pytest.raises(FeedFailed, match="authorization failed"):
            _poll_on(feed)
        feed.close()


def _check(feed: Feed) -> None:
    feed.check(PATIENCE)


def _poll_on(feed: Feed) -> None:
    wait_for(lambda: feed.poll(10, 0.2), timeout=PATIENCE, what="messages or a refusal")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"group.id": "x"}, "feed.options: group.id cannot be set: the inbox's group"),
        ({"group.instance.id": "x"}, "group.instance.id cannot be set: it is the name of the lane"),
        ({"enable.auto.commit": True}, "enable.auto.commit cannot be set: offsets are committed when"),
        ({"enable": {"auto": {"commit": True}}}, "enable.auto.commit cannot be set"),
        (
            {"bootstrap.servers": "x"},
            "bootstrap.servers cannot be set: the brokers are set in the feed's url",
        ),
        ({"no.such.option": "s3cr3t"}, 'No such configuration property: "no.such.option"'),
        ({"auto.offset.reset": "sometimes"}, "auto.offset.reset"),
        ({"client.id": ["a"]}, "feed.options: client.id must be text, a number or a boolean"),
    ],
)
def test_wrong_options_are_refused_with_the_reason(
    rig: KafkaFeedRig, options: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(SettingsError) as wrong:
        rig.open(**options)
    assert complaint in str(wrong.value)
    assert "s3cr3t" not in str(wrong.value)


def test_a_url_with_credentials_is_refused_and_not_shown(rig: KafkaFeedRig) -> None:
    with pytest.raises(SettingsError, match=r"feed\.url must be kafka://host:port") as wrong:
        rig.open(url="kafka://ada:s3cr3t@127.0.0.1:9092")
    assert "s3cr3t" not in str(wrong.value)


def test_no_two_members_share_a_name() -> None:
    names = [
        "host-orders-0",
        "host/orders-0",
        "host_orders-0",
        "host orders-0",
        "ä" * 300,
        "ä" * 301,
        "x" * 201,
    ]
    ids = [instance_id(name) for name in names]
    assert len(set(ids)) == len(names)
    assert ids[0] == "host-orders-0"
    assert all(len(id) <= 200 for id in ids)


def test_the_clients_own_words_are_for_debugging(rig: KafkaFeedRig, caplog: pytest.LogCaptureFixture) -> None:
    rig.send(b"1")
    feed = rig.open()
    feed.commit(gather(feed, 1))
    feed.close()
    assert [record for record in caplog.records if record.levelno >= logging.INFO] == []


def test_a_missing_client_gives_the_line_to_install_it() -> None:
    program = """
import sys
sys.modules["confluent_kafka"] = None
from outspark.brokers import open_feed
from outspark.config.inbox import FeedSettings
try:
    open_feed(FeedSettings(type="kafka", url="kafka://127.0.0.1", topics=("a",)), "g", "m")
except Exception as error:
    print(error)
"""
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert answer.stdout.strip() == (
        "a feed of type kafka needs a package that is not installed; run: pip install 'outspark[kafka]'"
    )
