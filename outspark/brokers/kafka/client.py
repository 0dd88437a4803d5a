"""One idempotent producer: what it knows of topics, what it is told about its connections, how it is given up.

Once it is lost or late it is thrown away as a whole: nothing that was answered with Retry is sent afterwards.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka import Message as Report
from confluent_kafka.admin import TopicMetadata

from outspark.brokers.kafka.tls import is_about_our_certificate
from outspark.brokers.kafka.wire import BEING_CREATED, Wire, topic_fault, topic_refusal
from outspark.errors import DestinationDown, DestinationError
from outspark.event import Message
from outspark.outcome import HELD, Outcome

log = logging.getLogger(__name__)

ANY = -1
"""The partition that the key leads to."""

# How often we look whether a wait still makes sense.
_LOOK_INTERVAL = 0.25
_LIST_INTERVAL = 3.0
_ASK_INTERVAL = 0.05
# From here on it is cheaper to ask for all topics of the cluster.
_MANY_TOPICS = 20
# How long a cluster that has just gone away may take to come back before a batch is given up.
_RECONNECT_PATIENCE = 1.5
_PURGE_TIMEOUT = 2.0


class _Faults:
    """What the client reports besides messages. Not part of `Client`: a cycle would keep the producer alive."""

    def __init__(self) -> None:
        self.refused = ""
        self.fatal = ""
        self.last = ""
        self.all_down = False

    def __call__(self, error: KafkaError) -> None:
        if error.fatal():
            self.fatal = f"the producer gave up: {error.str()} ({error.name()})"
        elif error.code() in (KafkaError._AUTHENTICATION, KafkaError._SSL) or is_about_our_certificate(
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
        self.fatal = self.fatal or f"the producer gave up: {error}"

    def error(self) -> DestinationError | None:
        if self.refused:
            return DestinationError(self.refused)
        if self.fatal:
            return DestinationDown(self.fatal)
        return DestinationDown(self.last or "no broker can be reached") if self.all_down else None


class ClientLog:
    """The client's own log, which it would otherwise print on stderr: outcomes tell all that matters."""

    def log(self, level: int, template: str, *arguments: object) -> None:
        log.debug(template, *arguments)


class Client:
    """Connects by itself when it is asked for something. `patience` is how long a new topic may take to appear."""

    def __init__(self, config: Mapping[str, str], patience: float = 0.0) -> None:
        self._faults = _Faults()
        ours = {"delivery.report.only.error": True, "error_cb": self._faults, "logger": ClientLog()}
        self._producer = Producer({**config, **ours})
        self._patience = patience
        self._known: dict[str, int] = {}
        """Topic -> its partitions."""
        self._missing_since: dict[str, float] = {}

    def fault(self) -> DestinationError | None:
        """Why this client cannot work any more; a new one finds out faster whether that is still so."""
        self._serve(self._producer.poll, 0)
        return self._faults.error()

    def learn(self, topics: Collection[str], until: float, deadline: float) -> dict[str, Outcome]:
        """Which of these topics cannot be sent to now, and why. The producer knows the others from then on.

        Messages for a topic that it does not know would leave in more than one piece. No question is asked after
        `until`, and no answer is waited for beyond `deadline`.
        """
        unknown = [topic for topic in topics if topic not in self._known]
        refusals: dict[str, Outcome] = {topic: fault for topic in unknown if (fault := topic_fault(topic))}
        pending = [topic for topic in unknown if topic not in refusals]
        if len(pending) > _MANY_TOPICS:
            answers = self._ask(None, deadline)
            self._known.update(
                {name: len(found.partitions) for name, found in answers.items() if not found.error}
            )
            pending = [topic for topic in pending if topic not in self._known]
        while pending:
            for topic in pending:
                refusals[topic] = HELD
                if time.monotonic() < until:
                    self._learn(topic, refusals, deadline)
            pending = [topic for topic in pending if refusals.get(topic) is HELD]
            # A topic that may still appear is waited for only where there is nothing else to do.
            if len(refusals) < len(topics) or time.monotonic() >= until:
                break
            if pending:
                self._producer.poll(_ASK_INTERVAL)
        return refusals

    def _learn(self, topic: str, refusals: dict[str, Outcome], deadline: float) -> None:
        """A missing topic stays Held while it may still appear; from then on it costs one question each time."""
        found = self._ask(topic, deadline)[topic]
        error = found.error
        if error is None:
            del refusals[topic]
            self._known[topic] = len(found.partitions)
            self._missing_since.pop(topic, None)
            return
        since = self._missing_since.setdefault(topic, time.monotonic())
        if error.code() not in BEING_CREATED or time.monotonic() - since >= self._patience:
            refusals[topic] = topic_refusal(topic, error)

    def ask(self, topic: str, deadline: float) -> KafkaError | None:
        """What the brokers say about a topic; None when it is well. DestinationDown when none of them answers."""
        return self._ask(topic, deadline)[topic].error

    def partitions(self, topic: str) -> int:
        """Of a topic that was learnt."""
        return max(self._known.get(topic, 1), 1)

    def _ask(self, topic: str | None, deadline: float) -> dict[str, TopicMetadata]:
        """About one topic or about all of them."""
        while True:
            left = deadline - time.monotonic()
            wait = min(left, _LIST_INTERVAL if topic is None else _LOOK_INTERVAL)
            try:
                answer = self._producer.list_topics(topic, timeout=max(wait, 0.001))
            except KafkaException as error:
                if fault := self.fault():
                    raise fault from None
                if left <= _LOOK_INTERVAL:
                    raise DestinationDown(self._faults.last or error.args[0].str()) from None
            else:
                return dict(answer.topics)

    def forget(self, topic: str) -> None:
        self._known.pop(topic, None)

    def send(
        self,
        message: Message,
        wire: Wire,
        partition: int,
        report: Callable[[KafkaError | None, Report], None],
    ) -> None:
        """Put it into the producer's queue. `report` is called only if it fails later."""
        # The stub's list of headers is invariant, so one of bytes alone is not of its kind.
        headers: Any = wire.headers
        self._producer.produce(message.topic, message.payload, wire.key, partition, report, None, 0, headers)

    def flush(self, deadline: float) -> bool:
        """Send what is queued and wait; True when each message was acknowledged or reported as failed."""
        left, since = len(self._producer), time.monotonic()
        while left:
            wait = min(deadline - time.monotonic(), _LOOK_INTERVAL)
            remaining = self._serve(self._producer.flush, max(wait, 0))
            now = time.monotonic()
            if self._hopeless(now - since) or (remaining and now >= deadline):
                return False
            if remaining < left:
                left, since, self._faults.all_down = remaining, now, False
        return True

    def give_up(self) -> bool:
        """Drop what is not acknowledged; True when each of these messages was reported."""
        self._producer.purge()
        return not self._serve(self._producer.flush, _PURGE_TIMEOUT) and not self._faults.fatal

    def _hopeless(self, idle: float) -> bool:
        faults = self._faults
        return bool(faults.refused or faults.fatal or (faults.all_down and idle >= _RECONNECT_PATIENCE))

    def _serve(self, serve: Callable[[float], int], timeout: float) -> int:
        """The binding raises the fatal error of a producer, and then breaks off the reports it was at."""
        try:
            return serve(timeout)
        except (KafkaException, SystemError) as error:
            cause = error if isinstance(error, KafkaException) else error.__cause__
            self._faults.raised(cause)
            return len(self._producer)
