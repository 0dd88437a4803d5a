"""Kafka as a feed: a static member of a consumer group, whose offsets follow what the inbox has kept."""

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
from outspark.brokers.kafka.feed_errors import LATER, NOT_OURS, Faults, is_fatal, is_missing, text
from outspark.brokers.kafka.feed_options import kafka_feed_options
from outspark.brokers.kafka.tls import explained
from outspark.config.inbox import FeedSettings
from outspark.errors import DestinationError, FeedFailed

# Asked for by `check` where all topics are patterns. It need not exist: whatever the brokers answer, they are there.
_PROBE_TOPIC = "outspark.check"
_PATTERN = "^"
COMMIT_TIMEOUT = 10.0


class KafkaFeed:
    """Its consumer is made by the first poll. `Received.handle` is the round of assignments it was polled in."""

    def __init__(self, settings: FeedSettings, group: str, member: str) -> None:
        self._options = kafka_feed_options(settings, group, member)
        self._topics = list(settings.topics)
        self._group = group
        self._outage = Outage(group)
        self._faults = Faults(self._outage, self._describe)
        self._consumer: Consumer | None = None
        self._round = 0
        self._owned: dict[Partition, int] = {}
        """Partition -> the round since which it has been ours without a break."""
        self._due: dict[Partition, int] = {}
        """Offsets that the brokers have not heard of, though they were told: a rebalance was in progress."""
        self._reached: dict[Partition, int] = {}
        """The last offsets that were told: none before them must be told again."""
        self._soon = AsyncCommits()
        self._stock: list[Received] = []
        """Slipped in while nothing was to be taken."""
        self._held = False

    def poll(self, limit: int, timeout: float) -> Sequence[Received]:
        try:
            consumer = self._open()
            self._hear(consumer)
            self._resume(consumer)
            if self._stock:
                messages, self._stock = self._stock[:limit], self._stock[limit:]
                return messages
            return self._received(_take(consumer, limit, timeout))
        except (KafkaException, FeedFailed) as error:
            raise self._give_up(error) from None

    def hold(self, timeout: float) -> None:
        """Partitions are paused, so that polling tells the brokers that we are alive, and brings nothing."""
        try:
            consumer = self._open()
            self._hear(consumer)
            consumer.pause(consumer.assignment())
            self._held = True
            entry = consumer.poll(timeout)
            if entry is not None:
                self._stock += self._received([entry])
        except (KafkaException, FeedFailed) as error:
            raise self._give_up(error) from None

    def commit(self, messages: Sequence[Received]) -> None:
        self._note(messages)
        if self._due and self._consumer is not None:
            try:
                self._tell(self._consumer)
            except FeedFailed as error:
                raise self._give_up(error) from None

    def commit_soon(self, messages: Sequence[Received]) -> None:
        self._note(messages)
        if self._due and self._consumer is not None:
            due, self._due = self._due, {}
            self._soon.commit(self._consumer, due)

    def owns(self, message: Received) -> bool:
        since = self._owned.get((message.topic, message.partition))
        return since is not None and since <= message.handle

    def check(self, timeout: float) -> None:
        """Through a client of its own, which is no member of the group. A topic that is not there yet is no fault."""
        deadline = time.monotonic() + timeout
        topics = [topic for topic in self._topics if not topic.startswith(_PATTERN)]
        try:
            client = Client({**self._options.client, "allow.auto.create.topics": "false"})
            for topic in topics or [_PROBE_TOPIC]:
                error = client.ask(topic, deadline)
                if error is not None and not is_missing(error):
                    raise DestinationError(f"topic {topic}: {text(error)}")
        except DestinationError as error:
            # The cause may carry what must not be shown, so it is cut off.
            raise FeedFailed(self._describe(str(error))) from None

    def close(self) -> None:
        """The brokers keep a static member's partitions for its next shift, until its session times out."""
        if self._consumer is not None:
            with suppress(KafkaException):
                self._consumer.close()  # calls `_on_revoke`
        self._leave()

    def _leave(self) -> None:
        self._consumer = None
        self._owned.clear()
        self._due.clear()
        self._reached.clear()
        self._stock.clear()
        self._held = False

    def _open(self) -> Consumer:
        if self._consumer is None:
            self._faults = Faults(self._outage, self._describe)
            self._soon = AsyncCommits()
            ours = {"error_cb": self._faults, "logger": ClientLog(), "on_commit": self._soon}
            consumer = Consumer({**self._options.client, **ours})
            self._consumer = consumer
            consumer.subscribe(
                self._topics, on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
            )
        return self._consumer

    def _received(self, entries: Sequence[Any]) -> list[Received]:
        """Entries of the client are messages or errors. Typed Any: its stubs doubt that a message has a topic."""
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

    def _note(self, messages: Sequence[Received]) -> None:
        """What is due after these: of each partition the last, if it is still ours."""
        last = {(message.topic, message.partition): message for message in messages}
        for partition, message in last.items():
            if self.owns(message):
                self._due[partition] = max(self._due.get(partition, 0), message.offset + 1)
                self._reached[partition] = self._due[partition]

    def _tell(self, consumer: Consumer) -> None:
        """Commit what is due, and still is when a rebalance is in progress."""
        try:
            errors = commit(consumer, self._due, COMMIT_TIMEOUT)
        except TimeoutError:
            self._leave()
            raise self._not_answered() from None
        self._judge(errors)
        if all(error.code() not in LATER for error in errors):
            self._due.clear()

    def _hear(self, consumer: Consumer) -> None:
        """What became of commits that nobody waited for; what did not pass in a rebalance is told again."""
        refused = self._soon.refused()
        self._judge(error for _, error in refused)
        again = {(one.topic, one.partition) for one, error in refused if error.code() in LATER}
        self._due |= {partition: self._reached[partition] for partition in again & self._reached.keys()}
        if self._soon.takes_longer_than(COMMIT_TIMEOUT):
            self._leave()
            close_later(consumer)
            raise self._not_answered()
        due, self._due = self._due, {}
        self._soon.commit(consumer, due)

    def _judge(self, errors: Iterable[KafkaError]) -> None:
        """FeedFailed where the brokers refused a commit for another reason than that we are not asked any more."""
        for error in errors:
            if is_fatal(error):
                self._faults(error)  # for the next poll
            elif error.code() not in NOT_OURS | LATER:
                raise self._not_committed(text(error))

    def _not_answered(self) -> FeedFailed:
        return self._not_committed(f"no answer within {COMMIT_TIMEOUT:g} s")

    def _not_committed(self, why: str) -> FeedFailed:
        return FeedFailed(self._describe(f"offsets were not committed: {why}"))

    # A consumer that was left behind may still call these, from another thread: its partitions are not ours.

    def _on_assign(self, consumer: Consumer, partitions: Iterable[TopicPartition]) -> None:
        if consumer is self._consumer:
            self._round += 1
            self._owned.update({(one.topic, one.partition): self._round for one in partitions})
            self._outage.end()

    def _on_revoke(self, consumer: Consumer, partitions: Iterable[TopicPartition]) -> None:
        if consumer is self._consumer:
            self._soon.commit(consumer, self._forget(partitions))

    def _on_lost(self, consumer: Consumer, partitions: Iterable[TopicPartition]) -> None:
        if consumer is self._consumer:
            self._forget(partitions)

    def _forget(self, partitions: Iterable[TopicPartition]) -> dict[Partition, int]:
        """What of these was still to be told."""
        gone = {(one.topic, one.partition) for one in partitions}
        for partition in gone:
            self._owned.pop(partition, None)
            self._reached.pop(partition, None)
        self._stock = [message for message in self._stock if self.owns(message)]
        return {partition: self._due.pop(partition) for partition in gone & self._due.keys()}

    def _give_up(self, error: KafkaException | FeedFailed) -> FeedFailed:
        """A new consumer starts at what is committed, so nothing that this one had polled is passed over."""
        failure = error if isinstance(error, FeedFailed) else FeedFailed(self._describe(_said(error)))
        self.close()
        return failure

    def _describe(self, text: str) -> str:
        """What went wrong and where, without credentials, whatever the client put into its message."""
        text = self._options.hide_secrets(explained(text, self._options.client))
        return f"feed of {self._group}: Kafka at {self._options.brokers}: {text}"


def _take(consumer: Consumer, limit: int, timeout: float) -> list[Any]:
    """`consume` would wait for a whole batch, so the first is waited for alone."""
    entries: list[Any] = consumer.consume(limit, 0)
    if entries or timeout <= 0:
        return entries
    first = consumer.poll(timeout)
    if first is None:
        return []
    return [first, *consumer.consume(limit - 1, 0)] if limit > 1 else [first]


def _said(error: KafkaException) -> str:
    [said, *_] = error.args
    return text(said) if isinstance(said, KafkaError) else str(error)


@lru_cache(1024)
def _time(kind: int, milliseconds: int) -> datetime | None:
    """None too where it lies outside of the calendar: whoever sends may write anything. Many share a millisecond."""
    if kind == TIMESTAMP_NOT_AVAILABLE:
        return None
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return None
