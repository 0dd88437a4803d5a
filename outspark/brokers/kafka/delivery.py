"""Sends one batch to Kafka in passes that keep the order of every key even if messages are refused.

In one pass all messages of an order key go to one partition, and a topic gets no more than fits into one batch of the
producer. So each partition gets one producer batch, which the broker accepts or refuses as a whole: no message
overtakes a refused one. Messages with an order key but no Kafka key go to one random partition per topic and batch.
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

_BLOCKED = ("", None)
"""In place of topic and key: a message of the order key waits for a later pass, so all messages after it wait too."""
# Room for a producer batch's own header, which contains the topic.
_BATCH_FRAME = 1024


class Delivery:
    """Messages are identified by index. `limits` has the batch sizes, in bytes, that topics were found to accept."""

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
        self.abandoned = False

    def run(self, refusals: dict[str, Outcome], timeout: float) -> list[Outcome]:
        """`refusals`: topics that cannot be published to. After a timeout `abandoned` is set."""
        deadline = time.monotonic() + timeout
        waiting = list(range(len(self._messages)))
        took = 0.0
        while waiting:
            started = time.monotonic()
            if took and started + took > deadline:
                # The cluster answers, but another pass would not end before the deadline.
                self._hold(waiting)
                break
            chosen, later = self._choose(waiting, refusals)
            sent, unsent = self._send(chosen)
            if not self._client.flush(deadline):
                self._abandon(sent, [*unsent, *later], f"no answer within {timeout:.1f} s")
                break
            waiting = sorted([*self._apply_reports(), *unsent, *later])
            took = time.monotonic() - started
        # Only failures are reported, so a message that was sent and has no outcome was acknowledged.
        return [outcome or DELIVERED for outcome in self._outcomes]

    def _choose(self, waiting: Sequence[int], refusals: dict[str, Outcome]) -> tuple[list[int], list[int]]:
        """Split messages into the next pass and later passes; a message that can never be sent gets its outcome."""
        messages, wires, count = self._messages, self._wires, self._options.max_batch_count
        chosen: list[int] = []
        later: list[int] = []
        # The topic and key that each order key uses in this pass: another one might lead to another partition.
        targets: dict[str, tuple[str, str | None]] = {}
        room: dict[str, int] = {}
        parts: dict[str, int] = {}
        for index in waiting[:count]:
            message, wire = messages[index], wires[index]
            order_key, topic = message.order_key, message.topic
            if order_key is not None:
                if self._failed and self._is_behind_failure(index):
                    continue
                target = (topic, message.key)
                if targets.setdefault(order_key, target) != target:
                    targets[order_key] = _BLOCKED
                    later.append(index)
                    continue
            if isinstance(wire, Dead):
                self._fail(index, wire)
                continue
            if refusals and topic in refusals:
                self._fail(index, refusals[topic])
                continue
            left = room[topic] if topic in room else self._limit(topic, wire.size)
            if wire.size > left or (self._part and self._is_other_part(index, parts)):
                later.append(index)
                if order_key is not None:
                    targets[order_key] = _BLOCKED
                continue
            room[topic] = left - wire.size
            chosen.append(index)
        later.extend(waiting[count:])
        return chosen, later

    def _is_other_part(self, index: int, parts: dict[str, int]) -> bool:
        """True if this pass already sends another part of a refused batch to the topic."""
        part = self._part.get(index, 0)
        return parts.setdefault(self._messages[index].topic, part) != part

    def _limit(self, topic: str, first: int) -> int:
        """The bytes that the topic accepts in one batch; at least the first message."""
        return max(first, self._limits.get(topic, self._options.max_batch - _BATCH_FRAME))

    def _send(self, chosen: Sequence[int]) -> tuple[list[int], list[int]]:
        """Queue the messages; return those queued, and those for which the client's queue has no room now."""
        send, messages, wires, report = self._client.send, self._messages, self._wires, self._report
        sent: list[int] = []
        for position, index in enumerate(chosen):
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
                    return sent, list(chosen[position:])
                self._fail(index, Retry("the client's queue is too small; raise queue.buffering.max.kbytes"))
            except KafkaException as refusal:
                self._refuse(index, refusal.args[0], wire)
            else:
                sent.append(index)
        return sent, []

    def _partition(self, message: Message) -> int:
        """The partition for messages with an order key but no Kafka key: one per topic for this batch."""
        if message.topic not in self._partitions:
            self._partitions[message.topic] = randrange(self._client.partitions(message.topic))
        return self._partitions[message.topic]

    def _report(self, index: int, error: KafkaError | None, report: Report) -> None:
        if error is not None:
            self._reports[index] = error, report.partition() or 0

    def _refuse(self, index: int, error: KafkaError, wire: Wire) -> None:
        """The client refused to queue the message."""
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            limit = self._options.max_message
            self._fail(
                index, Dead(f"message of {wire.size} bytes is over message.max.bytes = {limit}", "size")
            )
        else:
            self._fail(index, self._meaning(index, error))

    def _apply_reports(self) -> list[int]:
        """Give failed messages their outcomes; return those to be sent again."""
        reports = self._reports
        if not reports:
            return []
        again = self._split()
        for index in sorted(reports.keys() - again):
            self._fail(index, self._meaning(index, reports[index][0]))
        reports.clear()
        return sorted(again)

    def _split(self) -> set[int]:
        """Halve batches that were refused because of one message, until that message is alone; return all to resend."""
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

    def _abandon(self, sent: Sequence[int], rest: Sequence[int], late: str) -> None:
        self.abandoned = True
        # After the purge nothing of this batch can be sent any more, so Retry cannot lead to a reordering.
        certain = self._client.purge()
        fault = self._client.fault()
        lost = [index for index in sent if self._is_lost(index, certain)]
        answered = len(lost) < len(sent)
        for index in lost:
            self._reports.pop(index, None)
        self._hold(self._apply_reports())
        # If some messages were acknowledged, the cluster is up and the lost ones count as failed attempts.
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
        """Whether an earlier message of the order key failed; then this one becomes Held instead of being sent."""
        order_key = self._messages[index].order_key
        if order_key is None or index <= self._failed.get(order_key, index):
            return False
        self._outcomes[index] = HELD
        return True
