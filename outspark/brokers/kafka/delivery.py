"""One batch on its way to Kafka, in passes that keep the order of every key whatever is refused.

In one pass an order key goes to one partition only, and a topic gets no more than fits into one batch of the producer.
So each partition gets one batch, and the broker takes or refuses that as a whole: nothing overtakes what it refuses.
What has an order but no key goes to one partition for the whole of a batch, another one for the next.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from random import randrange

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import Message as Report

from outspark.brokers.kafka.client import ANY, Client
from outspark.brokers.kafka.options import KafkaOptions
from outspark.brokers.kafka.wire import NO_TOPIC, ONE_OF_THEM, TOO_LARGE, UNSENT, Wire, outcome
from outspark.event import Message
from outspark.outcome import DELIVERED, HELD, Dead, Outcome, Retry

_BEHIND = ("", None)
"""Stands for a topic and a key: the order key has a message that waits for a later pass, so all after it wait too."""
# A batch has a header of its own, with the name of the topic.
_BATCH_FRAME = 1024


class Delivery:
    """Messages are named by their place in the batch. `limits` is what topics were found to take in one batch."""

    def __init__(
        self,
        client: Client,
        options: KafkaOptions,
        messages: Sequence[Message],
        wires: Sequence[Wire | Dead],
        limits: dict[str, int],
        describe: Callable[[Exception | str], str],
    ) -> None:
        self._client, self._options = client, options
        self._messages, self._wires = messages, wires
        self._limits = limits
        self._describe = describe
        self._outcomes: list[Outcome | None] = [None] * len(messages)
        self._failed: dict[str, int] = {}  # order key -> its first message that failed
        self._reports: dict[int, tuple[KafkaError, int]] = {}  # failed in this pass, with the partition
        self._part: dict[int, int] = {}  # which half of which refused batch a message belongs to
        self._parts = 0
        self._partitions: dict[str, int] = {}
        self.given_up = False

    def run(self, refusals: dict[str, Outcome], timeout: float) -> list[Outcome]:
        """`refusals`: topics that cannot be sent to. What is not answered in time makes the client unusable."""
        deadline = time.monotonic() + timeout
        waiting = list(range(len(self._messages)))
        took = 0.0
        while waiting:
            started = time.monotonic()
            if took and started + took > deadline:
                # The cluster answers, but not in time for another pass.
                self._hold(waiting)
                break
            chosen, later = self._choose(waiting, refusals)
            sent, unsent = self._send(chosen)
            if not self._client.flush(deadline):
                self._give_up(sent, [*unsent, *later], f"no answer within {timeout:.1f} s")
                break
            waiting = sorted([*self._sort_out(), *unsent, *later])
            took = time.monotonic() - started
        # Only failures are reported, so what was sent and has no outcome was acknowledged.
        return [outcome or DELIVERED for outcome in self._outcomes]

    def _choose(self, waiting: Sequence[int], refusals: dict[str, Outcome]) -> tuple[list[int], list[int]]:
        """What goes out in the next pass and what after it; what cannot go out at all gets its outcome."""
        messages, wires, count = self._messages, self._wires, self._options.max_batch_count
        chosen: list[int] = []
        later: list[int] = []
        places: dict[str, tuple[str, str | None]] = {}
        room: dict[str, int] = {}
        parts: dict[str, int] = {}
        for index in waiting[:count]:
            message, wire = messages[index], wires[index]
            order_key, topic = message.order_key, message.topic
            if order_key is not None:
                if self._failed and self._is_behind_failure(index):
                    continue
                place = (topic, message.key)
                if places.setdefault(order_key, place) != place:
                    places[order_key] = _BEHIND
                    later.append(index)
                    continue
            if isinstance(wire, Dead):
                self._fail(index, wire)
                continue
            if refusals and topic in refusals:
                self._fail(index, refusals[topic])
                continue
            left = room[topic] if topic in room else self._limit(topic, wire.size)
            if wire.size > left or (self._part and self._is_apart(index, parts)):
                later.append(index)
                if order_key is not None:
                    places[order_key] = _BEHIND
                continue
            room[topic] = left - wire.size
            chosen.append(index)
        later.extend(waiting[count:])
        return chosen, later

    def _is_apart(self, index: int, parts: dict[str, int]) -> bool:
        """True when another part of a batch that was refused goes to the topic in this pass."""
        part = self._part.get(index, 0)
        return parts.setdefault(self._messages[index].topic, part) != part

    def _limit(self, topic: str, first: int) -> int:
        """What the topic takes at once; the first message in any case."""
        return max(first, self._limits.get(topic, self._options.max_batch - _BATCH_FRAME))

    def _send(self, chosen: Sequence[int]) -> tuple[list[int], list[int]]:
        """Queue them all; returns those that are queued, and those for which the client's queue has no room now."""
        send, messages, wires, report = self._client.send, self._messages, self._wires, self._report
        sent: list[int] = []
        for place, index in enumerate(chosen):
            if self._failed and self._is_behind_failure(index):
                continue
            message, wire = messages[index], wires[index]
            assert isinstance(wire, Wire)
            partition = (
                ANY if message.key is not None or message.order_key is None else self._partition(message)
            )
            try:
                send(message, wire, partition, partial(report, index))
            except BufferError:
                if sent:
                    return sent, list(chosen[place:])
                self._fail(index, Retry("the client's queue is too small; raise queue.buffering.max.kbytes"))
            except KafkaException as refusal:
                self._refuse(index, refusal.args[0], wire)
            else:
                sent.append(index)
        return sent, []

    def _partition(self, message: Message) -> int:
        """Of messages that have an order and no key: the same for all of a topic, until this batch is through."""
        if message.topic not in self._partitions:
            self._partitions[message.topic] = randrange(self._client.partitions(message.topic))
        return self._partitions[message.topic]

    def _report(self, index: int, error: KafkaError | None, report: Report) -> None:
        if error is not None:
            self._reports[index] = error, report.partition() or 0

    def _refuse(self, index: int, error: KafkaError, wire: Wire) -> None:
        """The client did not take it."""
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            limit = self._options.max_message
            self._fail(
                index, Dead(f"message of {wire.size} bytes is over message.max.bytes = {limit}", "size")
            )
        else:
            self._fail(index, self._meaning(index, error))

    def _sort_out(self) -> list[int]:
        """Give failed messages their outcomes; returns those to be sent again."""
        reports = self._reports
        if not reports:
            return []
        again = self._split()
        for index in sorted(reports.keys() - again):
            self._fail(index, self._meaning(index, reports[index][0]))
        reports.clear()
        return sorted(again)

    def _split(self) -> set[int]:
        """Of a batch that was refused for one of its messages each half is tried again, until that one is alone."""
        batches: dict[tuple[str, int], list[int]] = {}
        for index, (error, partition) in self._reports.items():
            if error.code() in ONE_OF_THEM:
                batches.setdefault((self._messages[index].topic, partition), []).append(index)
        again: set[int] = set()
        for (topic, _), batch in batches.items():
            if len(batch) > 1:
                again.update(batch)
                self._halve(topic, sorted(batch))
        return again

    def _halve(self, topic: str, batch: Sequence[int]) -> None:
        middle = len(batch) // 2
        for half in (batch[:middle], batch[middle:]):
            self._parts += 1
            self._part.update(dict.fromkeys(half, self._parts))
        if all(self._reports[index][0].code() in TOO_LARGE for index in batch):
            size = sum(wire.size for index in batch if isinstance(wire := self._wires[index], Wire))
            self._limits[topic] = min(size // 2, self._limits.get(topic, size))

    def _give_up(self, sent: Sequence[int], rest: Sequence[int], late: str) -> None:
        self.given_up = True
        certain = self._client.give_up()
        fault = self._client.fault()
        lost = [index for index in sent if self._is_lost(index, certain)]
        answered = len(lost) < len(sent)
        for index in lost:
            self._reports.pop(index, None)
        self._hold(self._sort_out())
        # Where some were answered the cluster is up, so the others failed by themselves.
        failure = Retry(self._describe(fault or late), counted=answered and fault is None)
        for index in lost:
            self._outcomes[index] = failure
        for index in rest:
            self._outcomes[index] = HELD if failure.counted else failure

    def _hold(self, indices: Sequence[int]) -> None:
        for index in indices:
            self._outcomes[index] = HELD

    def _is_lost(self, index: int, certain: bool) -> bool:
        if index not in self._reports:
            return not certain
        return self._reports[index][0].code() in UNSENT

    def _meaning(self, index: int, error: KafkaError) -> Outcome:
        topic = self._messages[index].topic
        if error.code() in NO_TOPIC:
            self._client.forget(topic)
        return outcome(error, topic)

    def _fail(self, index: int, outcome: Outcome) -> None:
        self._outcomes[index] = outcome
        order_key = self._messages[index].order_key
        if order_key is not None:
            self._failed[order_key] = min(index, self._failed.get(order_key, index))

    def _is_behind_failure(self, index: int) -> bool:
        """Then it is held: nothing of its order key goes out after what failed."""
        order_key = self._messages[index].order_key
        if order_key is None or index <= self._failed.get(order_key, index):
            return False
        self._outcomes[index] = HELD
        return True
