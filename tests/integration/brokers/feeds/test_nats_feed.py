"""The NATS feed against a real server: the contract, its consumer, what keeps messages with it and what does not."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from nats.js.api import AckPolicy, DeliverPolicy, StreamSource

from outspark.brokers import Feed
from outspark.brokers.nats.feed_consumer import consumer_name
from outspark.errors import FeedFailed, SettingsError
from outspark.event import Message
from outspark.outcome import DELIVERED
from outspark.tools.servers.nats import Nats
from tests.integration.brokers.contract import open_destination
from tests.integration.brokers.feeds.contract import (
    PATIENCE,
    FeedContract,
    FeedOutages,
    bodies,
    gather,
    numbered,
)
from tests.integration.brokers.feeds.nats_rig import NatsFeedRig
from tests.integration.brokers.test_nats import ConfiguredNats
from tests.waiting import wait_for

pytestmark = pytest.mark.needs("nats")


@pytest.fixture
def rig(nats_server: Nats) -> Iterator[NatsFeedRig]:
    with closing(NatsFeedRig(nats_server)) as rig:
        yield rig


@pytest.fixture
def own_rig() -> Iterator[NatsFeedRig]:
    with Nats() as server, closing(NatsFeedRig(server)) as rig:
        yield rig


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """No task of the client is left behind to complain about when it is collected: warnings are errors."""
    yield
    gc.collect()


def poll(feed: Feed) -> None:
    feed.poll(10, 0.1)


def check(feed: Feed) -> None:
    feed.check(PATIENCE)


class TestNatsFeed(FeedContract):
    pass


class TestNatsFeedOutages(FeedOutages):
    @pytest.fixture
    def rig(self, own_rig: NatsFeedRig) -> NatsFeedRig:
        # What a feed could not give back comes again only after this.
        own_rig.options = {"ack_wait": "3s"}
        return own_rig


def test_the_place_of_a_message_is_in_its_stream(rig: NatsFeedRig) -> None:
    rig.send(b"1", b"2")
    assert [(each.log, each.offset) for each in gather(rig.open(), 2)] == [(rig.stream, 1), (rig.stream, 2)]


def test_several_subjects_and_no_others(rig: NatsFeedRig) -> None:
    for subject in ("order.created", "order.paid", "user.created", "order.paid.late"):
        rig.send(subject.encode(), subject=f"{rig.stream}.{subject}")
    feed = rig.open(topics=[f"{rig.stream}.order.paid", f"{rig.stream}.user.*"])
    rig.send(b"last", subject=f"{rig.stream}.user.last")
    assert bodies(gather(feed, 3)) == [b"order.paid", b"user.created", b"last"]
    assert set(rig.consumer().config.filter_subjects or ()) == {
        f"{rig.stream}.order.paid",
        f"{rig.stream}.user.*",
    }


def test_takes_the_stream_that_it_is_told(rig: NatsFeedRig) -> None:
    rig.send(b"1")
    assert bodies(gather(rig.open(stream=rig.stream), 1)) == [b"1"]


def test_what_our_relay_sends_has_its_key_and_its_id(rig: NatsFeedRig) -> None:
    with closing(open_destination("nats", url=rig.server.url)) as publisher:
        sent = [
            Message("e1", rig.topic, "käy", b"{}", {"note": "Grüße"}),
            Message("e2", rig.topic, None, b"{}", {}),
            Message("e3", rig.topic, "", b"{}", {"partition_key": "theirs"}),
        ]
        assert publisher.publish(sent, PATIENCE) == [DELIVERED] * 3
    one, two, three = gather(rig.open(), 3)
    assert (one.key, two.key, three.key) == ("käy".encode(), None, b"")
    assert dict(one.headers)["Nats-Msg-Id"] == b"e1"
    assert dict(one.headers)["note"] == "Grüße".encode()


def test_a_header_may_hold_the_key(rig: NatsFeedRig) -> None:
    rig.send(b"{}", headers=[("partition_key", b"k1")])
    [message] = gather(rig.open(), 1)
    assert message.key == b"k1"


def test_a_header_status_is_not_taken_for_a_word_of_the_server(rig: NatsFeedRig) -> None:
    rig.send(b"", headers=[("Status", b"404"), ("Description", b"No Messages")])
    rig.send(b"last")
    assert bodies(gather(rig.open(), 2)) == [b"", b"last"]


def test_members_share_what_there_is(rig: NatsFeedRig) -> None:
    one, two = rig.open(member="lane-0"), rig.open(member="lane-1")
    for feed in (one, two):
        feed.poll(10, 0.1)
    rig.send(*numbered(40))
    got: list[list[Any]] = [[], []]

    def enough() -> bool:
        for harness, feed in enumerate((one, two)):
            batch = feed.poll(10, 0.05)
            got[harness] += bodies(batch)
            feed.commit(batch)
        return len(got[0]) + len(got[1]) >= 40

    wait_for(enough, timeout=PATIENCE, what="all messages")
    assert sorted(got[0] + got[1]) == sorted(numbered(40))
    assert all(got)


def test_what_nobody_acknowledges_comes_again_after_ack_wait(rig: NatsFeedRig) -> None:
    rig.send(*numbered(10))
    silent = rig.open(member="lane-0", ack_wait="1s")
    gather(silent, 10)
    got = gather(rig.open(member="lane-1"), 10)
    assert sorted(each.offset for each in got) == list(range(1, 11))
    # A late acknowledgement does no harm.
    silent.commit(got)


def test_what_is_open_stays_with_whoever_goes_on_asking(rig: NatsFeedRig) -> None:
    rig.send(*numbered(10))
    busy, other = rig.open(member="lane-0", ack_wait="1s"), rig.open(member="lane-1")
    got = gather(busy, 10)
    deadline = time.monotonic() + 4
    while time.monotonic() < deadline:
        busy.hold(0.1)
        assert list(other.poll(10, 0.1)) == []
    busy.commit(got)
    wait_for(lambda: rig.consumer().num_ack_pending == 0, what="the acknowledgements")


def test_acknowledgements_reach_the_server(rig: NatsFeedRig) -> None:
    rig.send(*numbered(10))
    feed = rig.open()
    feed.commit(gather(feed, 10))
    info = rig.consumer()
    assert (info.num_ack_pending, info.num_pending) == (0, 0)


def test_an_open_message_can_be_acknowledged_over_another_connection(own_rig: NatsFeedRig) -> None:
    own_rig.send(*numbered(10))
    feed = own_rig.open()
    got = gather(feed, 10)
    own_rig.server.restart()
    assert list(feed.poll(10, 0.5)) == []
    feed.commit(got)
    assert own_rig.consumer().num_ack_pending == 0


def test_a_consumer_that_was_deleted_is_made_again_and_all_comes_again(rig: NatsFeedRig) -> None:
    rig.send(*numbered(5))
    feed = rig.open()
    feed.commit(gather(feed, 5))
    rig.on_jetstream(lambda jetstream: jetstream.delete_consumer(rig.stream, "billing"))
    assert bodies(gather(feed, 5)) == numbered(5)


def test_the_consumer_is_durable_and_has_room_for_all_that_may_be_open(rig: NatsFeedRig) -> None:
    rig.open(settings={"batch_size": 100, "max_open": 5000}).poll(10, 0.1)
    config = rig.consumer().config
    assert (config.durable_name, config.ack_policy) == ("billing", AckPolicy.EXPLICIT)
    assert (config.deliver_policy, config.filter_subject) == (DeliverPolicy.ALL, rig.topic)
    assert (config.max_ack_pending, config.ack_wait) == (5200, 60)


def test_a_consumer_that_is_there_is_given_more_room_and_otherwise_left_alone(rig: NatsFeedRig) -> None:
    rig.add_consumer(filter_subject=rig.topic, max_ack_pending=5, ack_wait=45, description="by hand")
    rig.open(settings={"batch_size": 100, "max_open": 5000}).poll(10, 0.1)
    config = rig.consumer().config
    assert (config.max_ack_pending, config.ack_wait, config.description) == (5200, 45, "by hand")


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        (
            {"filter_subject": "{stream}.other"},
            "reads {stream}.other where the settings say {stream}.order.created",
        ),
        ({}, "reads > where the settings say"),
        (
            {"filter_subject": "{topic}", "deliver_subject": "push.{stream}"},
            "is a push consumer (to push.{stream})",
        ),
        ({"filter_subject": "{topic}", "ack_policy": AckPolicy.ALL}, "must have explicit"),
        ({"filter_subject": "{topic}", "max_deliver": 3}, "drops a message after 3 deliveries"),
        ({"filter_subject": "{topic}", "headers_only": True}, "delivers headers only"),
    ],
)
def test_a_consumer_that_would_bring_something_else_is_refused(
    rig: NatsFeedRig, config: dict[str, Any], complaint: str
) -> None:
    names = {"stream": rig.stream, "topic": rig.topic}
    rig.add_consumer(
        **{key: value.format(**names) if type(value) is str else value for key, value in config.items()}
    )
    for attempt in (poll, check):
        with pytest.raises(SettingsError) as refused:
            attempt(rig.open())
        assert complaint.format(**names) in str(refused.value)
        assert "already has a consumer billing" in str(refused.value)


def test_a_stream_that_is_not_there_is_named_with_the_remedy(rig: NatsFeedRig) -> None:
    for attempt in (poll, check):
        with pytest.raises(FeedFailed, match=r"no stream has subject nowhere\.at\.all; create one"):
            attempt(rig.open(topics=["nowhere.at.all"]))
        with pytest.raises(FeedFailed, match="there is no stream NOWHERE; create it"):
            attempt(rig.open(stream="NOWHERE"))


def test_a_subject_in_several_streams_needs_the_name_of_one(own_rig: NatsFeedRig) -> None:
    async def add(jetstream: Any) -> None:
        await jetstream.add_stream(name="A", subjects=["x.a"])
        await jetstream.add_stream(name="B", subjects=["x.b"])

    own_rig.on_jetstream(add)
    with pytest.raises(SettingsError, match=r"feed\.stream is needed: several streams have x\.\*: A, B"):
        own_rig.open(topics=["x.*"]).poll(10, 0.1)
    with pytest.raises(
        SettingsError, match=r"must all be in one stream, but they are in several: x\.a in A; x\.b in B"
    ):
        own_rig.open(topics=["x.a", "x.b"]).poll(10, 0.1)


def test_a_mirror_is_read_by_its_name(rig: NatsFeedRig) -> None:
    mirror = f"M{rig.stream}"
    rig.on_jetstream(
        lambda jetstream: jetstream.add_stream(name=mirror, mirror=StreamSource(name=rig.stream))
    )
    rig.send(b"1")
    [message] = gather(rig.open(stream=mirror), 1)
    assert (message.body, message.log) == (b"1", mirror)


def test_subjects_that_one_consumer_cannot_have_are_refused(rig: NatsFeedRig) -> None:
    feed = rig.open(topics=[f"{rig.stream}.>", f"{rig.stream}.a"])
    with pytest.raises(SettingsError, match=f"stream {rig.stream} cannot have a consumer for"):
        feed.poll(10, 0.1)


@pytest.mark.parametrize("topic", ["", "a b", "a..b", ".a", "a.", "a*", "a.>.b", "a\n"])
def test_a_topic_that_is_no_subject_is_refused(rig: NatsFeedRig, topic: str) -> None:
    with pytest.raises(SettingsError, match="is not a NATS subject"):
        rig.open(topics=[topic])


@pytest.mark.parametrize(
    "group", ["billing.eu", "a b", "*", ">", "a/b\\c", "ünï", "100%", "x" * 255, "ü" * 255]
)
def test_any_group_has_a_consumer_of_its_own(rig: NatsFeedRig, group: str) -> None:
    rig.send(b"1")
    feed = rig.open(group)
    feed.commit(gather(feed, 1))
    assert rig.consumer(consumer_name(group)).num_ack_pending == 0


def test_no_two_groups_share_a_consumer() -> None:
    groups = ["a.b", "a%2Eb", "a_b", "a b", "a%20b", "a+b", "ü", "u", "ü" * 255, "ü" * 254, "%", "%25", "A.B"]
    assert len({consumer_name(group) for group in groups}) == len(groups)
    assert consumer_name("billing-eu_1~") == "billing-eu_1~"
    assert consumer_name("billing.eu") == "billing%2Eeu"
    assert consumer_name("ü" * 255).startswith("sha256=")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"tokn": "s3cr3t"}, "feed.options: tokn: Extra inputs are not permitted; allowed are: name, user"),
        ({"token": ["s3cr3t"]}, "feed.options: token: Input should be a valid string"),
        ({"max_ack_pending": 0}, "feed.options: max_ack_pending"),
    ],
)
def test_wrong_options_are_named_without_their_values(
    rig: NatsFeedRig, options: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(SettingsError) as wrong:
        rig.open(**options)
    assert complaint in str(wrong.value)
    assert "s3cr3t" not in str(wrong.value)


def test_a_wrong_password_is_said_clearly_and_not_shown() -> None:
    with ConfiguredNats('authorization { user: "taker", password: "right" }') as server:
        rig = NatsFeedRig.__new__(NatsFeedRig)
        rig.server, rig.topic, rig.options, rig._feeds = server, "a", {}, []
        for attempt in (poll, check):
            with pytest.raises(FeedFailed, match="Authorization Violation") as refused:
                attempt(rig.open())
            assert f"127.0.0.1:{server.port}" in str(refused.value)
            assert rig.secret not in str(refused.value) + repr(refused.value)


def test_without_jetstream_it_waits(caplog: pytest.LogCaptureFixture) -> None:
    with ConfiguredNats("", jetstream=False) as server:
        rig = NatsFeedRig.__new__(NatsFeedRig)
        rig.server, rig.topic, rig.options, rig._feeds = server, "a", {}, []
        with closing(rig.open()) as feed:
            assert list(feed.poll(10, 0.1)) == []
            with pytest.raises(FeedFailed, match="is it enabled"):
                feed.check(PATIENCE)
    assert "broker unreachable, retrying" in caplog.text


def test_a_user_who_may_not_read_is_told_so() -> None:
    may = '{publish: ["$JS.API.STREAM.NAMES"], subscribe: ["_INBOX.>"]}'
    users = f"{{user: reader, password: r-pw, permissions: {may}}}, {{user: all, password: all}}"
    with ConfiguredNats(f"authorization {{ users: [{users}] }}\nno_auth_user: all") as server:
        with closing(NatsFeedRig(server)) as rig:
            feed = rig._open(
                server.url.replace("//", "//reader:r-pw@"),
                "billing",
                "lane-0",
                options={"connect_timeout": "1s"},
            )
            with pytest.raises(FeedFailed, match="not authorised"):
                feed.poll(10, 0.1)


def test_a_missing_client_gives_the_line_to_install_it() -> None:
    program = """
import sys
sys.modules["nats"] = None
from outspark.brokers import open_feed
from outspark.config.inbox import FeedSettings
try:
    open_feed(FeedSettings(type="nats", url="nats://127.0.0.1", topics=("a",)), "g", "m")
except Exception as error:
    print(error)
"""
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert answer.stdout.strip() == (
        "a feed of type nats needs a package that is not installed; run: pip install 'outspark[nats]'"
    )


def test_leaves_no_thread_behind(rig: NatsFeedRig) -> None:
    rig.send(b"1")
    feed = rig.open()
    gather(feed, 1)
    feed.close()
    wait_for(
        lambda: not [thread for thread in threading.enumerate() if thread.name == "outspark-nats-feed"],
        what="the end of the connection's thread",
    )
