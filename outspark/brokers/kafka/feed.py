"""The Kafka feed: a static member of a consumer group that commits offsets after the inbox has stored the messages."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, KafkaError, KafkaException, TopicPartition

from outspark.brokers.feed import Outage, Received
from outspark.brokers.kafka.client import Client, ClientLog
from outspark.brokers.kafka.feed_commit import AsyncCommits, Partition, close_later, commit
from outspark.brokers.kafka.feed_errors import (
    COMMIT_LATER,
    PARTITION_LOST,
    Faults,
    is_fatal,
    is_missing,
    text,
)
from outspark.brokers.kafka.feed_options import kafka_feed_options
from outspark.brokers.kafka.tls import explained
from outspark.config.inbox import FeedSettings
from outspark.errors import DestinationError, FeedFailed

# `check` requests its metadata if all topics are patterns. It need not exist: any answer proves a reachable broker.
_PROBE_TOPIC = "outspark.check"
_PATTERN = "^"
COMMIT_TIMEOUT = 10.0


class KafkaFeed:
    """The first poll creates the consumer. `Received.handle` is the assignment round in which a message was polled."""

    def __init__(self, settings: FeedSettings, group: str, member: str) -> None:
        self._options = kafka_feed_options(settings, group, member)
        self._topics = list(settings.topics)
        self._group = group
        self._outage = Outage(group)
        self._faults = Faults(self._outage, self._describe)
        self._consumer: Consumer | None = None
        self._round = 0
        self._owned: dict[Partition, int] = {}
        """Partition -> the assignment round since which this consumer has owned it without interruption."""
        self._due: dict[Partition, int] = {}
        """Offsets to commit, including those that the brokers did not store because a rebalance was in progress."""
        self._last_due: dict[Partition, int] = {}
        """The highest offset that was due per partition: a repeated commit must not set the group back."""
        self._async_commits = AsyncCommits()
        self._prefetched: list[Received] = []
        """Messages that `hold` received although the partitions were paused; the next `poll` returns them."""
        self._held = False

    def poll(self, limit: int, timeout: float) -> Sequence[Received]:
        try:
            consumer = self._open()
            self._check_async_commits(consumer)
            self._resume(consumer)
            if self._prefetched:
                messages, self._prefetched = self._prefetched[:limit], self._prefetched[limit:]
                return messages
            return self._received(_consume(consumer, limit, timeout))
        except (KafkaException, FeedFailed) as error:
            raise self._closed_after(error) from None

    def hold(self, timeout: float) -> None:
        """Poll with paused partitions, so that the brokers see a live consumer and deliver nothing."""
        try:
            consumer = self._open()
            self._check_async_commits(consumer)
            consumer.pause(consumer.assignment())
            self._held = True
            entry = consumer.poll(timeout)
            if entry is not None:
                self._prefetched += self._received([entry])
        except (KafkaException, FeedFailed) as error:
            raise self._closed_after(error) from None

    def commit(self, messages: Sequence[Received]) -> None:
        self._mark_due(messages)
        if self._due and self._consumer is not None:
            try:
                self._commit_due(self._consumer)
            except FeedFailed as error:
                raise self._closed_after(error) from None

    def commit_soon(self, messages: Sequence[Received]) -> None:
        self._mark_due(messages)
        if self._due and self._consumer is not None:
            due, self._due = self._due, {}
            self._async_commits.commit(self._consumer, due)

    def owns(self, message: Received) -> bool:
        since = self._owned.get((message.topic, message.partition))
        return since is not None and since <= message.handle

    def check(self, timeout: float) -> None:
        """Ask through a separate client, which does not join the group. A topic that does not exist yet is no fault."""
        deadline = time.monotonic() + timeout
        topics = [topic for topic in self._topics if not topic.startswith(_PATTERN)]
        try:
            client = Client({**self._options.client, "allow.auto.create.topics": "false"})
            for topic in topics or [_PROBE_TOPIC]:
                error = client.ask(topic, deadline)
                if error is not None and not is_missing(error):
                    raise DestinationError(f"topic {topic}: {text(error)}")
        except DestinationError as error:
            # `from None`: the cause may contain credentials.
            raise FeedFailed(self._describe(str(error))) from None

    def close(self) -> None:
        """The brokers keep a static member's partitions for the lane's next shift until its session times out."""
        if self._consumer is not None:
            with suppress(KafkaException):
                self._consumer.close()  # calls `_on_revoke`
        self._reset()

    def _reset(self) -> None:
        self._consumer = None
        self._owned.clear()
        self._due.clear()
        self._last_due.clear()
        self._prefetched.clear()
        self._held = False

    def _open(self) -> Consumer:
        if self._consumer is None:
            self._faults = Faults(self._outage, self._describe)
            self._async_commits = AsyncCommits()
            callbacks = {"error_cb": self._faults, "logger": ClientLog(), "on_commit": self._async_commits}
            consumer = Consumer({**self._options.client, **callbacks})
            self._consumer = consumer
            consumer.subscribe(
                self._topics, on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
            )
        return self._consumer

    def _received(self, entries: Sequence[Any]) -> list[Received]:
        """The client returns messages and errors in one list. Typed Any: its stubs make a message's topic optional."""
        current = self._round
        messages = [
            Received(
                entry.topic(),
                entry.value(),
                entry.headers() or (),
                entry.key(),
                _time(*entry.timestamp()),
                None,
                entry.partition(),
                entry.offset(),
                current,
            )
            for entry in entries
            if entry.error() is None
        ]
        if len(messages) < len(entries):
            for entry in entries:
                if (error := entry.error()) is not None:
                    self._faults(error)
        self._faults.check(got_messages=bool(messages))
        if messages:
            self._outage.end()
        return messages

    def _resume(self, consumer: Consumer) -> None:
        if self._held:
            consumer.resume(consumer.assignment())
            self._held = False

    def _mark_due(self, messages: Sequence[Received]) -> None:
        """Mark the last message of each partition as due, if this consumer still owns the partition."""
        last = {(message.topic, message.partition): message for message in messages}
        for partition, message in last.items():
            if self.owns(message):
                self._due[partition] = max(self._due.get(partition, 0), message.offset + 1)
                self._last_due[partition] = self._due[partition]

    def _commit_due(self, consumer: Consumer) -> None:
        """Commit the due offsets; they stay due if a rebalance is in progress."""
        try:
            errors = commit(consumer, self._due, COMMIT_TIMEOUT)
        except TimeoutError:
            # The commit's thread still uses the consumer, and closes it when the answer comes.
            self._reset()
            raise self._not_answered() from None
        self._raise_refusal(errors)
        if all(error.code() not in COMMIT_LATER for error in errors):
            self._due.clear()

    def _check_async_commits(self, consumer: Consumer) -> None:
        """Read the answers to asynchronous commits, and repeat those that failed because of a rebalance."""
        refused = self._async_commits.refused()
        self._raise_refusal(error for _, error in refused)
        again = {(one.topic, one.partition) for one, error in refused if error.code() in COMMIT_LATER}
        self._due |= {partition: self._last_due[partition] for partition in again & self._last_due.keys()}
        if self._async_commits.takes_longer_than(COMMIT_TIMEOUT):
            self._reset()
            close_later(consumer)
            raise self._not_answered()
        due, self._due = self._due, {}
        self._async_commits.commit(consumer, due)

    def _raise_refusal(self, errors: Iterable[KafkaError]) -> None:
        """FeedFailed if the brokers refused a commit for another reason than a lost partition or a rebalance."""
        for error in errors:
            if is_fatal(error):
                self._faults(error)  # for the next poll
            elif error.code() not in PARTITION_LOST | COMMIT_LATER:
                raise self._not_committed(text(error))

    def _not_answered(self) -> FeedFailed:
        return self._not_committed(f"no answer within {COMMIT_TIMEOUT:g} s")

    def _not_committed(self, why: str) -> FeedFailed:
        return FeedFailed(self._describe(f"offsets were not committed: {why}"))

    # A consumer that this feed has abandoned may still call these from another thread. The feed then has another
    # consumer or none, and the callback is ignored.

    def _on_assign(self, consumer: Consumer, partitions: Iterable[TopicPartition]) -> None:
        if consumer is self._consumer:
            self._round += 1
            self._owned.update({(one.topic, one.partition): self._round for one in partitions})
            self._outage.end()

    def _on_revoke(self, consumer: Consumer, partitions: Iterable[TopicPartition]) -> None:
        if consumer is self._consumer:
            self._async_commits.commit(consumer, self._drop_partitions(partitions))

    def _on_lost(self, consumer: Consumer, partitions: Iterable[TopicPartition]) -> None:
        if consumer is self._consumer:
            # Another consumer may own the partitions already, so the due offsets must not be committed any more.
            self._drop_partitions(partitions)

    def _drop_partitions(self, partitions: Iterable[TopicPartition]) -> dict[Partition, int]:
        """Forget these partitions and return the offsets that were still due."""
        gone = {(one.topic, one.partition) for one in partitions}
        for partition in gone:
            self._owned.pop(partition, None)
            self._last_due.pop(partition, None)
        self._prefetched = [message for message in self._prefetched if self.owns(message)]
        return {partition: self._due.pop(partition) for partition in gone & self._due.keys()}

    def _closed_after(self, error: KafkaException | FeedFailed) -> FeedFailed:
        """Close the consumer. The next one starts at the committed offsets, so no polled message is skipped."""
        failure = error if isinstance(error, FeedFailed) else FeedFailed(self._describe(_error_text(error)))
        self.close()
        return failure

    def _describe(self, text: str) -> str:
        """The error text with group and brokers, and without any credentials that the client put into it."""
        text = self._options.hide_secrets(explained(text, self._options.client))
        return f"feed of {self._group}: Kafka at {self._options.brokers}: {text}"


def _consume(consumer: Consumer, limit: int, timeout: float) -> list[Any]:
    """`Consumer.consume` would wait for a full batch, so this waits with `poll` for the first message only."""
    entries: list[Any] = consumer.consume(limit, 0)
    if entries or timeout <= 0:
        return entries
    first = consumer.poll(timeout)
    if first is None:
        return []
    return [first, *consumer.consume(limit - 1, 0)] if limit > 1 else [first]


def _error_text(error: KafkaException) -> str:
    [cause, *_] = error.args
    return text(cause) if isinstance(cause, KafkaError) else str(error)


@lru_cache(1024)
def _time(kind: int, milliseconds: int) -> datetime | None:
    """None if the time is outside of the calendar: a producer may send any number. Cached: many share a millisecond."""
    if kind == TIMESTAMP_NOT_AVAILABLE:
        return None
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return None
