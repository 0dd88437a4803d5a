"""One idempotent producer with the topics it knows and the errors of its connections.

After an error or a timeout the whole producer is discarded, so that it cannot send a message later that was answered
with Retry.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka import Message as Report
from confluent_kafka.admin import TopicMetadata

from outspark.brokers.kafka.tls import is_client_certificate_refusal
from outspark.brokers.kafka.wire import BEING_CREATED, Wire, topic_fault, topic_refusal
from outspark.errors import DestinationDown, DestinationError
from outspark.event import Message
from outspark.outcome import HELD, Outcome

log = logging.getLogger(__name__)

ANY = -1
"""The partition that the key leads to."""

# How often a wait checks whether the producer can still succeed.
_POLL_INTERVAL = 0.25
_LIST_INTERVAL = 3.0
_ASK_INTERVAL = 0.05
# Above this number, one request for all topics of the cluster is cheaper than one per topic.
_MANY_TOPICS = 20
# How long all brokers may be down before a batch is abandoned.
_RECONNECT_PATIENCE = 1.5
_PURGE_TIMEOUT = 2.0


class _Faults:
    """Errors that the client reports besides messages. Apart from `Client`: a cycle would keep the producer alive."""

    def __init__(self) -> None:
        self.refused = ""
        self.fatal = ""
        self.last = ""
        self.all_down = False

    def __call__(self, error: KafkaError) -> None:
        if error.fatal():
            self.fatal = f"the producer failed: {error.str()} ({error.name()})"
        elif error.code() in (KafkaError._AUTHENTICATION, KafkaError._SSL) or is_client_certificate_refusal(
            error.str()
        ):
            self.refused = error.str()
        elif error.code() == KafkaError._ALL_BROKERS_DOWN:
            self.all_down = True
        else:
            self.last = error.str()

    def raised(self, error: BaseException | None) -> None:
        if isinstance(error, KafkaException):
            self(error.args[0])
        self.fatal = self.fatal or f"the producer failed: {error}"

    def error(self) -> DestinationError | None:
        if self.refused:
            return DestinationError(self.refused)
        if self.fatal:
            return DestinationDown(self.fatal)
        return DestinationDown(self.last or "no broker can be reached") if self.all_down else None


class ClientLog:
    """The client's own log at level debug instead of on stderr; outcomes report every error that matters."""

    def log(self, level: int, template: str, *arguments: object) -> None:
        log.debug(template, *arguments)


class Client:
    """Connects on first use. `patience` is how long, in seconds, a new topic may take to appear."""

    def __init__(self, config: Mapping[str, str], patience: float = 0.0) -> None:
        self._faults = _Faults()
        callbacks = {"delivery.report.only.error": True, "error_cb": self._faults, "logger": ClientLog()}
        self._producer = Producer({**config, **callbacks})
        self._patience = patience
        self._partition_counts: dict[str, int] = {}
        """Topics that the producer knows, with their numbers of partitions."""
        self._missing_since: dict[str, float] = {}

    def fault(self) -> DestinationError | None:
        """Why this client cannot be used any more. A new client detects faster whether the cluster is healthy again."""
        self._serve(self._producer.poll, 0)
        return self._faults.error()

    def resolve_topics(self, topics: Collection[str], until: float, deadline: float) -> dict[str, Outcome]:
        """Fetch the metadata of these topics; return those that cannot be published to now, with the reason.

        The producer would split messages for a topic without metadata into several batches, which could break their
        order. No request is sent after `until`, and no answer is awaited beyond `deadline`.
        """
        unknown = [topic for topic in topics if topic not in self._partition_counts]
        refusals: dict[str, Outcome] = {topic: fault for topic in unknown if (fault := topic_fault(topic))}
        pending = [topic for topic in unknown if topic not in refusals]
        if len(pending) > _MANY_TOPICS:
            answers = self._ask(None, deadline)
            self._partition_counts.update(
                {name: len(found.partitions) for name, found in answers.items() if not found.error}
            )
            pending = [topic for topic in pending if topic not in self._partition_counts]
        while pending:
            for topic in pending:
                refusals[topic] = HELD
                if time.monotonic() < until:
                    self._resolve(topic, refusals, deadline)
            pending = [topic for topic in pending if refusals.get(topic) is HELD]
            # The publisher waits for a new topic only if it has no messages for other topics.
            if len(refusals) < len(topics) or time.monotonic() >= until:
                break
            if pending:
                self._producer.poll(_ASK_INTERVAL)
        return refusals

    def _resolve(self, topic: str, refusals: dict[str, Outcome], deadline: float) -> None:
        """A missing topic is Held while it may still appear; after that each batch asks for it once and is refused."""
        found = self._ask(topic, deadline)[topic]
        error = found.error
        if error is None:
            del refusals[topic]
            self._partition_counts[topic] = len(found.partitions)
            self._missing_since.pop(topic, None)
            return
        since = self._missing_since.setdefault(topic, time.monotonic())
        if error.code() not in BEING_CREATED or time.monotonic() - since >= self._patience:
            refusals[topic] = topic_refusal(topic, error)

    def ask(self, topic: str, deadline: float) -> KafkaError | None:
        """Return the brokers' error about a topic; None if it is healthy. DestinationDown if no broker answers."""
        return self._ask(topic, deadline)[topic].error

    def partitions(self, topic: str) -> int:
        """The number of partitions of a topic that was resolved."""
        return max(self._partition_counts.get(topic, 1), 1)

    def _ask(self, topic: str | None, deadline: float) -> dict[str, TopicMetadata]:
        """Fetch the metadata of one topic, or of all topics."""
        while True:
            left = deadline - time.monotonic()
            wait = min(left, _LIST_INTERVAL if topic is None else _POLL_INTERVAL)
            try:
                answer = self._producer.list_topics(topic, timeout=max(wait, 0.001))
            except KafkaException as error:
                if fault := self.fault():
                    raise fault from None
                if left <= _POLL_INTERVAL:
                    raise DestinationDown(self._faults.last or error.args[0].str()) from None
            else:
                return dict(answer.topics)

    def forget(self, topic: str) -> None:
        self._partition_counts.pop(topic, None)

    def send(
        self,
        message: Message,
        wire: Wire,
        partition: int,
        report: Callable[[KafkaError | None, Report], None],
    ) -> None:
        """Add the message to the producer's queue. `report` is called only if it fails later."""
        # In the stub the list of headers is invariant, so a list with bytes only does not match.
        headers: Any = wire.headers
        self._producer.produce(message.topic, message.payload, wire.key, partition, report, None, 0, headers)

    def flush(self, deadline: float) -> bool:
        """Send the queue and wait; True if each message was acknowledged or reported as failed."""
        left, since = len(self._producer), time.monotonic()
        while left:
            wait = min(deadline - time.monotonic(), _POLL_INTERVAL)
            remaining = self._serve(self._producer.flush, max(wait, 0))
            now = time.monotonic()
            if self._cannot_finish(now - since) or (remaining and now >= deadline):
                return False
            # An acknowledgement proves that a broker is reachable again, so the outage's clock starts over.
            if remaining < left:
                left, since, self._faults.all_down = remaining, now, False
        return True

    def purge(self) -> bool:
        """Drop all messages that are not acknowledged; True if each of them was reported."""
        self._producer.purge()
        return not self._serve(self._producer.flush, _PURGE_TIMEOUT) and not self._faults.fatal

    def _cannot_finish(self, idle: float) -> bool:
        faults = self._faults
        return bool(faults.refused or faults.fatal or (faults.all_down and idle >= _RECONNECT_PATIENCE))

    def _serve(self, serve: Callable[[float], int], timeout: float) -> int:
        """Call `poll` or `flush`. The binding raises a producer's fatal error there, and then skips further reports."""
        try:
            return serve(timeout)
        except (KafkaException, SystemError) as error:
            cause = error if isinstance(error, KafkaException) else error.__cause__
            self._faults.raised(cause)
            return len(self._producer)
