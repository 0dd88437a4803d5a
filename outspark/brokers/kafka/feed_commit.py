"""Commits of offsets, waited for or not, that end in time.

librdkafka knows no limit: it looks for a coordinator for as long as there is none.
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
    """Commits of one consumer that nobody waits for. Not part of the feed, which may have another consumer by then."""

    def __init__(self) -> None:
        self._asked: deque[float] = deque()
        self._refused: list[tuple[TopicPartition, KafkaError]] = []

    def commit(self, consumer: Consumer, offsets: Mapping[Partition, int]) -> None:
        if offsets:
            with suppress(KafkaException):
                consumer.commit(offsets=positions(offsets), asynchronous=True)
                self._asked.append(time.monotonic())

    def __call__(self, error: KafkaError | None, offsets: Iterable[TopicPartition]) -> None:
        """The answer, which comes while the consumer is polled."""
        if self._asked:
            self._asked.popleft()
        answers = [(one, error or one.error) for one in offsets]
        self._refused += [(one, fault) for one, fault in answers if fault is not None]

    def refused(self) -> list[tuple[TopicPartition, KafkaError]]:
        """What the brokers had against commits, since this was asked last."""
        refused, self._refused = self._refused, []
        return refused

    def takes_longer_than(self, patience: float) -> bool:
        return bool(self._asked) and self._asked[0] < time.monotonic() - patience


def positions(offsets: Mapping[Partition, int]) -> list[TopicPartition]:
    return [TopicPartition(topic, number, offset) for (topic, number), offset in offsets.items()]


def commit(consumer: Consumer, offsets: Mapping[Partition, int], patience: float) -> list[KafkaError]:
    """What the brokers have against it.

    After `patience` seconds TimeoutError, and the consumer is not the caller's any more: it is closed when an answer
    comes, and until then the brokers may hear of the offsets.
    """
    answer: Future[list[KafkaError]] = Future()

    def ask() -> None:
        try:
            told = consumer.commit(offsets=positions(offsets), asynchronous=False)
            answer.set_result([one.error for one in told if one.error is not None])
        except KafkaException as error:
            answer.set_result([error.args[0]])
        except Exception as error:  # noqa: BLE001 - it is the caller's, who waits for it
            answer.set_exception(error)

    # A daemon: where no answer comes, the process ends nevertheless.
    Thread(target=ask, name="commit of offsets", daemon=True).start()
    try:
        return answer.result(patience)
    except TimeoutError:
        answer.add_done_callback(lambda _: _close(consumer))
        raise


def close_later(consumer: Consumer) -> None:
    """Close it whenever that is possible; nobody waits for it."""
    Thread(target=_close, args=(consumer,), name="end of a consumer", daemon=True).start()


def _close(consumer: Consumer) -> None:
    with suppress(KafkaException):
        consumer.close()
