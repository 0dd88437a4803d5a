"""A password that has every printable character of ASCII, and what must never be seen of it."""

from __future__ import annotations

import logging
import random
import traceback
from contextlib import closing
from typing import Any
from urllib.parse import quote

import pytest

from outspark.brokers import Publisher, open_publisher
from outspark.config.settings import DestinationSettings
from outspark.errors import DestinationDown, DestinationError
from outspark.outcome import DELIVERED, Outcome
from tests.integration.tls.refusals import TIMEOUT, event

_PRINTABLE = [chr(code) for code in range(32, 127)]
_PIECE = 6


def _shuffled(seed: int) -> str:
    """In no order that could be seen by accident, and with no space at an end, which some configurations drop."""
    characters = [one for one in _PRINTABLE if one != " "]
    random.Random(seed).shuffle(characters)
    return "".join([*characters[:40], " ", *characters[40:]])


EVERY, WRONG = _shuffled(1), _shuffled(2)


def encoded(password: str) -> str:
    return quote(password, safe="")


def assert_not_echoed(password: str, *texts: str) -> None:
    """Not even a piece of it, as it is or as it stands in a URL."""
    for form in (password, encoded(password)):
        pieces = {form[start : start + _PIECE] for start in range(len(form) - _PIECE + 1)}
        for text in texts:
            found = sorted(piece for piece in pieces if piece in text)
            assert not found, f"{found[:5]} of the password in: {text}"


def assert_password_works(
    type: str, topic: str, url: str, password: str, caplog: pytest.LogCaptureFixture, **options: Any
) -> None:
    """The right one, which is EVERY, delivers; another is refused; neither is seen anywhere."""
    caplog.set_level(logging.DEBUG)
    given = {"type": type, "url": url, "options": options}
    settings = DestinationSettings.model_validate(given)
    with closing(open_publisher("bus", settings)) as publisher:
        said = [_said(publisher, topic, password == EVERY)]
        # Options of Kafka are librdkafka's own, so nobody can know which of them are secret.
        said += [repr(publisher), *([repr(settings), str(settings)] if type != "kafka" else [])]
    assert_not_echoed(password, *said, caplog.text)


def _said(publisher: Publisher, topic: str, right: bool) -> str:
    if right:
        publisher.check(TIMEOUT)
        outcomes: list[Outcome] = publisher.publish([event(topic)], TIMEOUT)
        assert outcomes == [DELIVERED]
        return ""
    with pytest.raises(DestinationError) as refused:
        publisher.publish([event(topic)], TIMEOUT)
    assert not isinstance(refused.value, DestinationDown)
    return "".join(traceback.format_exception(refused.value))
