"""Synchronous and asynchronous commits of offsets, with a time limit.

librdkafka has no limit: while there is no group coordinator, its commit waits for one.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from threading import Thread

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

Partition = tuple[str, int]


class AsyncCommits:
    """Asynchronous commits of one consumer, with their answers. Apart from the feed, which may replace its consumer."""

    def __init__(self) -> None:
        self._sent_at: deque[float] = deque()
        self._refused: list[tuple[TopicPartition, KafkaError]] = []

    def commit(self, consumer: Consumer, offsets: Mapping[Partition, int]) -> None:
        if offsets:
            with suppress(KafkaException):
                consumer.commit(offsets=positions(offsets), asynchronous=True)
                self._sent_at.append(time.monotonic())

    def __call__(self, error: KafkaError | None, offsets: Iterable[TopicPartition]) -> None:
        """librdkafka calls this while the consumer is polled, with one answer per commit and in their order."""
        if self._sent_at:
            self._sent_at.popleft()
        answers = [(one, error or one.error) for one in offsets]
        self._refused += [(one, fault) for one, fault in answers if fault is not None]

    def refused(self) -> list[tuple[TopicPartition, KafkaError]]:
        """Return the refused commits since the last call."""
        refused, self._refused = self._refused, []
        return refused

    def takes_longer_than(self, patience: float) -> bool:
        return bool(self._sent_at) and self._sent_at[0] < time.monotonic() - patience


def positions(offsets: Mapping[Partition, int]) -> list[TopicPartition]:
    return [TopicPartition(topic, number, offset) for (topic, number), offset in offsets.items()]


def commit(consumer: Consumer, offsets: Mapping[Partition, int], patience: float) -> list[KafkaError]:
    """Commit and wait for the answer; return the errors of partitions that were refused.

    TimeoutError after `patience` seconds. The caller must not use the consumer after that: it is closed when the answer
    comes, and until then the brokers may still store the offsets.
    """
    answer: Future[list[KafkaError]] = Future()

    def ask() -> None:
        try:
            answers = consumer.commit(offsets=positions(offsets), asynchronous=False)
            answer.set_result([one.error for one in answers if one.error is not None])
        except KafkaException as error:
            answer.set_result([error.args[0]])
        except Exception as error:  # noqa: BLE001 - raised in the caller's thread by `result`
            answer.set_exception(error)

    # A daemon thread: the process must be able to exit while the commit still waits.
    Thread(target=ask, name="commit of offsets", daemon=True).start()
    try:
        return answer.result(patience)
    except TimeoutError:
        answer.add_done_callback(lambda _: _close(consumer))
        raise


def close_later(consumer: Consumer) -> None:
    """Close the consumer in a thread of its own, because `close` may block as long as a commit."""
    Thread(target=_close, args=(consumer,), name="end of a consumer", daemon=True).start()


def _close(consumer: Consumer) -> None:
    with suppress(KafkaException):
        consumer.close()
