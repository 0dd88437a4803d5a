"""What Redis refuses, for one stream or for all, and what a cluster redirects: only the events at fault pay for it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from redis.crc import key_slot

from outspark.brokers import Publisher
from outspark.errors import DestinationDown, DestinationError
from outspark.event import Message
from outspark.outcome import DELIVERED, Dead, Outcome, Retry
from outspark.tools.servers.redis import Redis
from outspark.tools.servers.server import HOST
from tests.integration.brokers.contract import (
    TIMEOUT,
    assert_all_delivered,
    assert_all_waiting,
    message,
    messages,
    received,
)
from tests.integration.brokers.redis_rig import RedisRig, command, error_of, message_to, read
from tests.waiting import wait_for

pytestmark = [pytest.mark.needs("redis"), pytest.mark.faults]

_HALF = 8192


@pytest.fixture(scope="module")
def server() -> Iterator[Redis]:
    with Redis() as server:
        yield server


@pytest.fixture
def rig(server: Redis) -> Iterator[RedisRig]:
    with closing(RedisRig(server)) as rig:
        yield rig


def with_user(rig: RedisRig, rules: str) -> str:
    """The URL of a user that may do nothing but what the rules say."""
    command(rig.server, "ACL", "SETUSER", "relay", "reset", "on", ">right", *rules.split())
    return rig.server.url.replace("//", "//relay:right@")


def refused_in_the_middle(publisher: Publisher, rig: RedisRig, bad: Message) -> Outcome:
    good = messages(rig, 2)
    outcomes = publisher.publish([good[0], bad, good[1]], TIMEOUT)
    assert [outcomes[0], outcomes[2]] == [DELIVERED, DELIVERED]
    assert rig.read() == [received(sent) for sent in good]
    return outcomes[1]


class TestOneStream:
    def test_a_key_that_is_no_stream_waits_with_the_remedy(self, rig: RedisRig) -> None:
        topic = f"list-{rig.topic}"
        command(rig.server, "LPUSH", topic, "x")
        outcome = refused_in_the_middle(rig.open(), rig, message_to(topic))
        assert isinstance(outcome, Retry)
        assert outcome.fault == "missing"
        assert outcome.error.startswith(f"stream {topic!r}: the key holds another type than a stream;")

    def test_a_forbidden_stream_waits_and_xadd_is_all_a_user_needs(self, rig: RedisRig) -> None:
        url = with_user(rig, f"~{rig.topic} +xadd")
        publisher, topic = rig.open_at(url), f"secret-{rig.topic}"
        outcome = refused_in_the_middle(publisher, rig, message_to(topic))
        error = f"stream {topic!r}: the user may not write to it; grant it XADD on this key (NOPERM)"
        assert outcome == Retry.of_topic("forbidden", error)
        publisher.check(TIMEOUT)

    def test_a_payload_over_the_servers_own_limit_is_dead_and_not_sent(self, rig: RedisRig) -> None:
        rig.max_payload = 10 * 1024 * 1024
        command(rig.server, "CONFIG", "SET", "proto-max-bulk-len", "1mb")
        try:
            outcome = refused_in_the_middle(rig.open(), rig, message(rig, b"x" * (1024 * 1024 + 1)))
        finally:
            command(rig.server, "CONFIG", "SET", "proto-max-bulk-len", "512mb")
        assert outcome == Dead("payload of 1048577 bytes is over the server's proto-max-bulk-len of 1048576")

    def test_another_refusal_counts_as_an_attempt(self, rig: RedisRig) -> None:
        topic = f"full-{rig.topic}"
        command(rig.server, "XADD", topic, "18446744073709551615-18446744073709551615", "a", "b")
        outcome = refused_in_the_middle(rig.open(), rig, message_to(topic))
        assert isinstance(outcome, Retry)
        assert outcome.counted
        assert "last possible ID" in outcome.error


class TestNoWrites:
    """The server is there and takes nothing: no attempt is counted, a probe tells, and it recovers by itself."""

    def assert_waits(self, publisher: Publisher, batch: Sequence[Message], words: str) -> None:
        outcomes = publisher.publish(batch, TIMEOUT)
        assert_all_waiting(outcomes, len(batch))
        assert words in error_of(outcomes[0])
        with pytest.raises(DestinationDown, match=words):
            publisher.check(TIMEOUT)

    def assert_recovers(self, publisher: Publisher, rig: RedisRig, batch: Sequence[Message]) -> None:
        publisher.check(TIMEOUT)
        assert_all_delivered(publisher.publish(batch, TIMEOUT), len(batch))
        assert rig.read()[-len(batch) :] == [received(sent) for sent in batch]

    def test_memory_is_used_up_then_freed(self, rig: RedisRig) -> None:
        publisher, batch = rig.open(), messages(rig, 400, size=20_000)
        used = int(command(rig.server, "INFO", "memory")["used_memory"])
        command(rig.server, "CONFIG", "SET", "maxmemory", used + 3 * 1024 * 1024)
        try:
            outcomes = publisher.publish(batch, TIMEOUT)
            waiting = [
                sent for sent, outcome in zip(batch, outcomes, strict=True) if outcome is not DELIVERED
            ]
            assert 0 < len(waiting) < 400
            assert_all_waiting([outcome for outcome in outcomes if outcome is not DELIVERED], len(waiting))
            command(rig.server, "CONFIG", "SET", "maxmemory", 1)
            self.assert_waits(publisher, waiting, "'maxmemory'; free memory or raise maxmemory")
        finally:
            command(rig.server, "CONFIG", "SET", "maxmemory", 0)
        self.assert_recovers(publisher, rig, waiting)
        assert {each.id for each in rig.read()} == {sent.id for sent in batch}

    def test_a_replica_then_a_master(self, rig: RedisRig) -> None:
        publisher, batch = rig.open(), messages(rig, 20)
        command(rig.server, "REPLICAOF", HOST, "1")
        try:
            self.assert_waits(publisher, batch, "READONLY")
        finally:
            command(rig.server, "REPLICAOF", "NO", "ONE")
        self.assert_recovers(publisher, rig, batch)

    def test_a_replica_is_left_for_the_master(self, rig: RedisRig) -> None:
        with Redis(config={"replicaof": f"{HOST} 1"}) as replica:
            publisher, batch = rig.open_at(f"{replica.url},{rig.server.url}"), messages(rig, 20)
            assert_all_waiting(publisher.publish(batch, TIMEOUT), 20)
            self.assert_recovers(publisher, rig, batch)

    def test_the_disk_does_not_take_the_data(self, tmp_path: Path) -> None:
        data = tmp_path / "data"
        data.mkdir()
        config = {"appendonly": "no", "save": "3600 1000000", "dir": str(data)}
        with Redis(config=config) as server, closing(RedisRig(server)) as rig:
            publisher, batch = rig.open(), messages(rig, 20)
            shutil.rmtree(data)
            command(server, "BGSAVE")
            wait_for(lambda: command(server, "INFO", "persistence")["rdb_last_bgsave_status"] == "err")
            self.assert_waits(publisher, batch, "MISCONF")
            command(server, "CONFIG", "SET", "stop-writes-on-bgsave-error", "no")
            self.assert_recovers(publisher, rig, batch)
            server.kill()  # it would not end by itself without saving

    def test_a_user_that_may_not_add_at_all(self, rig: RedisRig) -> None:
        publisher = rig.open_at(with_user(rig, "~* +ping"))
        outcomes = publisher.publish(messages(rig, 3), TIMEOUT)
        assert_all_waiting(outcomes, 3)
        assert "Redis refuses XADD" in error_of(outcomes[0])
        with pytest.raises(DestinationError, match="no permissions to run the 'xadd' command") as refused:
            publisher.check(TIMEOUT)
        assert not isinstance(refused.value, DestinationDown)


class TestCredentials:
    @pytest.mark.parametrize("credentials", ["relay:wr0ng-pw@", ":wr0ng-pw@", ""])
    def test_what_is_wrong_is_said_clearly_and_not_shown(self, credentials: str) -> None:
        with Redis(password="right") as server, closing(RedisRig(server)) as rig:
            publisher = rig.open_at(f"redis://{credentials}{HOST}:{server.port}")
            for attempt in (
                lambda: publisher.publish([message(rig)], TIMEOUT),
                lambda: publisher.check(TIMEOUT),
            ):
                with pytest.raises(DestinationError, match="refuses the user or password") as refused:
                    attempt()
                assert not isinstance(refused.value, DestinationDown)
                assert f"{HOST}:{server.port}" in str(refused.value)
                assert "wr0ng-pw" not in str(refused.value) + repr(refused.value)
                assert refused.value.__cause__ is None


class TestConnection:
    def test_one_that_was_closed_while_idle_is_not_noticed(self, rig: RedisRig) -> None:
        publisher = rig.open()
        first, second = messages(rig, 20), messages(rig, 20)
        assert_all_delivered(publisher.publish(first, TIMEOUT), 20)
        command(rig.server, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        assert_all_delivered(publisher.publish(second, TIMEOUT), 20)
        assert rig.read() == [received(sent) for sent in first + second]

    def test_a_stalled_server_is_given_up_and_what_was_not_sent_stays_unsent(self) -> None:
        with Redis() as server, closing(RedisRig(server)) as rig:
            publisher = rig.open()
            assert_all_delivered(publisher.publish([message(rig)], TIMEOUT), 1)
            batch = messages(rig, 2000, size=20_000)  # 40 MB, far more than the sockets' buffers hold
            os.kill(server.pid, signal.SIGSTOP)
            try:
                started = time.monotonic()
                assert_all_waiting(publisher.publish(batch, 0.5), 2000)
                assert time.monotonic() - started < TIMEOUT
            finally:
                os.kill(server.pid, signal.SIGCONT)
            assert_all_delivered(publisher.publish([message(rig)], TIMEOUT), 1)
            assert len(rig.read()) < 1500
            assert_all_delivered(publisher.publish(batch, TIMEOUT), 2000)
            assert {each.id for each in rig.read()} >= {sent.id for sent in batch}

    def test_answers_that_come_too_late_are_never_taken_for_those_of_a_later_batch(self) -> None:
        with Redis() as server, closing(RedisRig(server)) as rig:
            publisher, topic = rig.open(), f"list-{rig.topic}"
            command(server, "LPUSH", topic, "x")
            publisher.check(TIMEOUT)
            os.kill(server.pid, signal.SIGSTOP)
            try:
                assert_all_waiting(publisher.publish(messages(rig, 3), 0.2), 3)
            finally:
                os.kill(server.pid, signal.SIGCONT)
            outcomes = publisher.publish([message_to(topic)] * 3, TIMEOUT)
            assert [outcome.fault for outcome in outcomes if isinstance(outcome, Retry)] == ["missing"] * 3

    def test_a_server_that_does_not_greet_is_given_up_after_the_connect_timeout(self, rig: RedisRig) -> None:
        with socket.create_server((HOST, 0)) as silent:
            url = f"redis://{HOST}:{silent.getsockname()[1]}"
            publisher = rig.open_at(url, connect_timeout="300ms")
            started = time.monotonic()
            assert_all_waiting(publisher.publish(messages(rig, 2), TIMEOUT), 2)
            assert time.monotonic() - started < TIMEOUT / 2


@pytest.fixture(scope="module")
def nodes() -> Iterator[tuple[Redis, Redis]]:
    """A cluster of two masters with half of the slots each."""
    with ExitStack() as stack:
        first, second = (stack.enter_context(Redis(cluster=True)) for _ in range(2))
        command(first, "CLUSTER", "ADDSLOTSRANGE", 0, _HALF - 1)
        command(second, "CLUSTER", "ADDSLOTSRANGE", _HALF, 2 * _HALF - 1)
        command(first, "CLUSTER", "MEET", HOST, second.port)
        wait_until_whole(first, second)
        yield first, second


def wait_until_whole(*nodes: Redis) -> None:
    def whole() -> bool:
        infos = [command(node, "CLUSTER", "INFO") for node in nodes]
        return all(b"cluster_state:ok" in info and b"cluster_slots_ok:16384" in info for info in infos)

    wait_for(whole, timeout=20, what="a cluster whose nodes know each other")


class TestCluster:
    @pytest.fixture
    def rig(self, nodes: tuple[Redis, Redis]) -> Iterator[RedisRig]:
        with closing(RedisRig(nodes[0])) as rig:
            yield rig

    def test_streams_on_both_nodes_are_found_from_either(
        self, nodes: tuple[Redis, Redis], rig: RedisRig
    ) -> None:
        for number, seed in enumerate(nodes):
            batch = [message_to(f"{rig.topic}:{number}:{each % 50}", key=f"k{each}") for each in range(1000)]
            publisher = rig.open_at(seed.url)
            assert_all_delivered(publisher.publish(batch, TIMEOUT), 1000)
            assert_all_delivered(publisher.publish(batch, TIMEOUT), 1000)
            publisher.check(TIMEOUT)
            owners = set()
            for topic in {sent.topic for sent in batch}:
                owner = nodes[key_slot(topic.encode()) // _HALF]
                owners.add(owner)
                expected = [received(sent) for sent in batch if sent.topic == topic]
                assert read(owner, topic) == expected * 2
            assert len(owners) == 2

    def test_a_user_that_may_not_ask_for_the_slots_learns_them_one_by_one(
        self, nodes: tuple[Redis, Redis], rig: RedisRig
    ) -> None:
        for node in nodes:
            command(node, "ACL", "SETUSER", "relay", "reset", "on", ">right", "~*", "+xadd")
        publisher = rig.open_at(nodes[0].url.replace("//", "//relay:right@"))
        batch = [message_to(f"{rig.topic}:{number}") for number in range(20)]
        assert_all_delivered(publisher.publish(batch, TIMEOUT), 20)
        assert_all_delivered(publisher.publish(batch, TIMEOUT), 20)

    def test_a_stream_on_the_move_is_asked_for_where_it_goes(
        self, nodes: tuple[Redis, Redis], rig: RedisRig
    ) -> None:
        slot = key_slot(rig.topic.encode())
        source, target = nodes if slot < _HALF else nodes[::-1]
        source_id, target_id = (command(node, "CLUSTER", "MYID").decode() for node in (source, target))
        command(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", source_id)
        command(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", target_id)
        try:
            batch = messages(rig, 20)
            assert_all_delivered(rig.open().publish(batch, TIMEOUT), 20)
        finally:
            for node in (target, source):
                command(node, "CLUSTER", "SETSLOT", slot, "NODE", target_id)
        assert read(target, rig.topic) == [received(sent) for sent in batch]

    def test_a_node_that_is_gone_costs_no_attempt_and_is_found_again(
        self, nodes: tuple[Redis, Redis], rig: RedisRig
    ) -> None:
        publisher = rig.open()
        batch = [message_to(f"{rig.topic}:{number}", key=f"k{number}") for number in range(40)]
        assert_all_delivered(publisher.publish(batch, TIMEOUT), 40)
        nodes[0].stop()
        outcomes = publisher.publish(batch, TIMEOUT)
        gone = [outcome for outcome in outcomes if outcome is not DELIVERED]
        assert len(gone) > 0
        assert_all_waiting(gone, len(gone))
        nodes[0].start()
        wait_until_whole(*nodes)
        assert_all_delivered(publisher.publish(batch, TIMEOUT), 40)

    def test_a_cluster_without_slots_is_down(self) -> None:
        with Redis(cluster=True) as lonely, closing(RedisRig(lonely)) as rig:
            publisher = rig.open()
            outcomes = publisher.publish(messages(rig, 3), TIMEOUT)
            assert_all_waiting(outcomes, 3)
            assert "CLUSTERDOWN" in error_of(outcomes[0])
            with pytest.raises(DestinationDown, match="CLUSTERDOWN"):
                publisher.check(TIMEOUT)
