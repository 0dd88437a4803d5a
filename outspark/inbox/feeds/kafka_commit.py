"""Commits that end in time. librdkafka knows no limit: it looks for a coordinator for as long as there is none."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from threading import Thread

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition


def commit(consumer: Consumer, offsets: Sequence[TopicPartition], patience: float) -> list[KafkaError]:
    """What the brokers have against it.

    After `patience` seconds TimeoutError, and the consumer is not the caller's any more: it is closed when an answer
    comes, and until then the brokers may hear of the offsets.
    """
    answer: Future[list[KafkaError]] = Future()

    def ask() -> None:
        try:
            told = consumer.commit(offsets=list(offsets), asynchronous=False)
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


def _close(consumer: Consumer) -> None:
    with suppress(KafkaException):
        consumer.close()
