"""What a right destination must do and a wrong one must not, whatever its type."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from outspark.brokers import Publisher, open_publisher
from outspark.config.settings import DestinationSettings
from outspark.errors import DestinationDown, DestinationError
from outspark.event import Message
from outspark.outcome import DELIVERED, Retry

TIMEOUT = 10.0
PASSWORD = "pw-that-stays"
PAYLOAD = b"payload-that-stays"
UNKNOWN_CA = "unknown CA"
EXPIRED = "certificate has expired"
WRONG_HOST = "not for the host name"
NOT_OFFERED = "does not offer TLS"
NO_CLIENT_CERTIFICATE = "asks for a client certificate"
NOT_OURS = "refuses the client certificate"


def event(topic: str) -> Message:
    return Message(str(uuid.uuid4()), topic, "k", PAYLOAD, {}, "k")


def open_at(type: str, url: str, options: dict[str, Any]) -> Publisher:
    given = {"type": type, "url": url, "options": options}
    return open_publisher("bus", DestinationSettings.model_validate(given))


def assert_delivers(type: str, topic: str, url: str, **options: Any) -> None:
    with closing(open_at(type, url, options)) as publisher:
        publisher.check(TIMEOUT)
        assert publisher.publish([event(topic)], TIMEOUT) == [DELIVERED]


def assert_refused(type: str, topic: str, reason: str, url: str, **options: Any) -> None:
    """Both by a batch and by a check, and not as something that waiting could mend."""
    with closing(open_at(type, url, options)) as publisher:
        attempts: list[Callable[[], object]] = [
            lambda: publisher.publish([event(topic)], TIMEOUT),
            lambda: publisher.check(TIMEOUT),
        ]
        for attempt in attempts:
            with pytest.raises(DestinationError, match=reason) as refused:
                _attempt(attempt)
            assert not isinstance(refused.value, DestinationDown)
            assert PASSWORD not in str(refused.value)


def _attempt(attempt: Callable[[], object]) -> None:
    """A client may take the first hang-up for a lost connection, now and then: the event waits, and meets it again."""
    for _ in range(3):
        answer = attempt()
        if answer is None:
            return
        assert isinstance(answer, list)
        assert all(isinstance(outcome, Retry) and not outcome.counted for outcome in answer), answer


def assert_waits(publisher: Publisher, topic: str, reason: str) -> None:
    """Nothing is delivered, it costs no attempt, and the reason is told."""
    (outcome,) = publisher.publish([event(topic)], TIMEOUT)
    assert isinstance(outcome, Retry)
    assert not outcome.counted
    assert reason in outcome.error, outcome.error
    with pytest.raises(DestinationDown, match=reason):
        publisher.check(TIMEOUT)
