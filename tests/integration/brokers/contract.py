"""What every publisher must do, against its real destination.

A suite subclasses `PublisherContract` and, where its destination can, `ReadBack`, `Limits` and `Outages`,
and provides the fixture `rig`.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pytest

from outspark.brokers import Publisher, open_publisher
from outspark.config.settings import DestinationSettings
from outspark.errors import DestinationDown
from outspark.event import Message
from outspark.outcome import DELIVERED, Dead, Outcome, Retry

TIMEOUT = 10.0
UNICODE = "Grüße, 世界 🌍"


@dataclass(frozen=True)
class Received:
    """One message as a reader of the destination sees it, without what the publisher added to its headers."""

    id: str
    topic: str
    key: str | None
    payload: bytes
    headers: dict[str, str] = field(default_factory=dict)


class Rig(Protocol):
    """A destination for one test, with a topic of its own."""

    topic: str

    def open(self) -> Publisher: ...


class ReadableRig(Rig, Protocol):
    def read(self) -> list[Received]:
        """Everything that arrived so far, in order."""
        ...


class LimitedRig(ReadableRig, Protocol):
    max_payload: int


class BrokerRig(ReadableRig, Protocol):
    """`secret` is part of the publisher's settings."""

    secret: str

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def kill(self) -> None: ...


def open_destination(type: str, **settings: Any) -> Publisher:
    return open_publisher("dest", DestinationSettings.model_validate({"type": type, **settings}))


def message(
    rig: Rig, payload: bytes = b"{}", key: str | None = "k", headers: dict[str, str] | None = None
) -> Message:
    return Message(str(uuid.uuid4()), rig.topic, key, payload, headers or {}, key)


def messages(rig: Rig, count: int, size: int = 100) -> list[Message]:
    return [message(rig, b"%06d" % number + b"x" * size, key=f"k{number % 7}") for number in range(count)]


def received(message: Message) -> Received:
    return Received(message.id, message.topic, message.key, message.payload, dict(message.headers))


def assert_all_delivered(outcomes: Sequence[Outcome], count: int) -> None:
    assert list(outcomes) == [DELIVERED] * count


def assert_all_waiting(outcomes: Sequence[Outcome], count: int) -> None:
    """No attempt is counted while the destination is at fault."""
    assert len(outcomes) == count
    assert all(isinstance(outcome, Retry) and not outcome.counted for outcome in outcomes), outcomes[:3]


class PublisherContract:
    def test_answers_each_message_in_a_batch(self, rig: Rig) -> None:
        publisher = rig.open()
        assert_all_delivered(publisher.publish(messages(rig, 3), TIMEOUT), 3)
        assert_all_delivered(publisher.publish(messages(rig, 1), TIMEOUT), 1)

    def test_answers_an_empty_batch_with_nothing(self, rig: Rig) -> None:
        assert rig.open().publish([], TIMEOUT) == []

    def test_takes_a_large_batch(self, rig: Rig) -> None:
        assert_all_delivered(rig.open().publish(messages(rig, 2000), TIMEOUT), 2000)

    def test_check_passes_before_and_after_a_publish(self, rig: Rig) -> None:
        publisher = rig.open()
        publisher.check(TIMEOUT)
        publisher.publish([message(rig)], TIMEOUT)
        publisher.check(TIMEOUT)

    def test_close_may_be_repeated_and_publishing_goes_on_afterwards(self, rig: Rig) -> None:
        publisher = rig.open()
        publisher.close()
        assert_all_delivered(publisher.publish([message(rig)], TIMEOUT), 1)
        publisher.close()
        publisher.close()
        assert_all_delivered(publisher.publish([message(rig)], TIMEOUT), 1)

    def test_says_whether_it_keeps_order(self, rig: Rig) -> None:
        assert isinstance(rig.open().keeps_order, bool)


class ReadBack:
    """The destination can be read."""

    @pytest.mark.parametrize(
        "payload",
        [b'{"a": 1}', b"", UNICODE.encode(), bytes(range(256)) * 3, b"a\r\nb\n"],
        ids=["json", "empty", "unicode", "binary", "lines"],
    )
    def test_carries_the_payload_byte_by_byte(self, rig: ReadableRig, payload: bytes) -> None:
        sent = message(rig, payload)
        assert_all_delivered(rig.open().publish([sent], TIMEOUT), 1)
        assert rig.read() == [received(sent)]

    def test_carries_id_key_and_headers(self, rig: ReadableRig) -> None:
        headers = {"traceparent": "00-abc-def-01", "note": UNICODE, "nested": '{"a": [1]}', "empty": ""}
        batch = [
            message(rig, key=UNICODE, headers=headers),
            message(rig, key=None),
            message(rig, key="", headers={"a": "b: c"}),
        ]
        assert_all_delivered(rig.open().publish(batch, TIMEOUT), 3)
        assert rig.read() == [received(sent) for sent in batch]

    def test_keeps_the_order_of_a_large_batch(self, rig: ReadableRig) -> None:
        batch = messages(rig, 2000)
        rig.open().publish(batch, TIMEOUT)
        assert rig.read() == [received(sent) for sent in batch]

    def test_two_publishers_do_not_disturb_each_other(self, rig: ReadableRig) -> None:
        first, second = messages(rig, 50), messages(rig, 50)
        one, two = rig.open(), rig.open()
        assert_all_delivered(one.publish(first, TIMEOUT), 50)
        assert_all_delivered(two.publish(second, TIMEOUT), 50)
        assert rig.read() == [received(sent) for sent in first + second]


class SizeLimit:
    """The destination has a largest message."""

    def test_only_the_message_over_the_limit_is_dead(self, rig: LimitedRig) -> None:
        small, large = messages(rig, 6), message(rig, b"x" * (rig.max_payload + 1))
        publisher = rig.open()
        outcomes = publisher.publish([*small[:3], large, *small[3:]], TIMEOUT)
        assert [type(outcome) for outcome in outcomes] == [type(DELIVERED)] * 3 + [Dead] + [
            type(DELIVERED)
        ] * 3
        assert str(rig.max_payload) in _error(outcomes[3])
        assert_all_delivered(publisher.publish([message(rig)], TIMEOUT), 1)
        assert len(rig.read()) == 7


class HeaderLimit:
    """The destination has headers that it cannot carry."""

    @pytest.mark.parametrize(
        "headers",
        [
            {"a": "b\r\nNats-Msg-Id: other"},
            {"a": "b\nc"},
            {"a\r\nb": "c"},
            {"a b": "c"},
            {"": "c"},
            {"ä": "c"},
        ],
        ids=["crlf", "lf", "crlf in name", "space in name", "empty name", "name not ascii"],
    )
    def test_only_the_message_with_a_bad_header_is_dead(
        self, rig: LimitedRig, headers: dict[str, str]
    ) -> None:
        good, bad = messages(rig, 2), message(rig, headers=headers)
        publisher = rig.open()
        outcomes = publisher.publish([good[0], bad, good[1]], TIMEOUT)
        assert [type(outcome) for outcome in outcomes] == [type(DELIVERED), Dead, type(DELIVERED)]
        assert "header" in _error(outcomes[1])
        assert rig.read() == [received(sent) for sent in good]


class Limits(SizeLimit, HeaderLimit):
    """The destination has a largest message, and headers that it cannot carry."""


class Outages:
    """The destination is a server that can go away and come back."""

    def test_down_at_start_then_up(self, rig: BrokerRig) -> None:
        rig.stop()
        publisher = rig.open()
        lost = messages(rig, 20)
        assert_all_waiting(publisher.publish(lost, TIMEOUT), 20)
        with pytest.raises(DestinationDown):
            publisher.check(TIMEOUT)
        rig.start()
        publisher.check(TIMEOUT)
        later = messages(rig, 20)
        assert_all_delivered(publisher.publish(later, TIMEOUT), 20)
        assert rig.read() == [received(sent) for sent in later], (
            "a message answered with Retry was sent later"
        )

    def test_down_between_batches_then_up(self, rig: BrokerRig) -> None:
        publisher = rig.open()
        before, lost, later = messages(rig, 20), messages(rig, 20), messages(rig, 20)
        assert_all_delivered(publisher.publish(before, TIMEOUT), 20)
        rig.stop()
        started = time.monotonic()
        assert_all_waiting(publisher.publish(lost, TIMEOUT), 20)
        assert_all_waiting(publisher.publish(lost, TIMEOUT), 20)
        assert time.monotonic() - started < 2 * TIMEOUT
        rig.start()
        assert_all_delivered(publisher.publish(later, TIMEOUT), 20)
        assert rig.read() == [received(sent) for sent in before + later]

    def test_restart_between_batches_is_not_noticed(self, rig: BrokerRig) -> None:
        publisher = rig.open()
        before, after = messages(rig, 20), messages(rig, 20)
        assert_all_delivered(publisher.publish(before, TIMEOUT), 20)
        rig.kill()
        rig.start()
        _publish_until_delivered(publisher, after)
        assert rig.read() == [received(sent) for sent in before + after]

    def test_errors_show_no_secret(self, rig: BrokerRig) -> None:
        rig.stop()
        publisher = rig.open()
        [outcome] = publisher.publish([message(rig)], TIMEOUT)
        with pytest.raises(DestinationDown) as down:
            publisher.check(TIMEOUT)
        assert rig.secret not in _error(outcome)
        assert rig.secret not in str(down.value) + repr(down.value)
        assert down.value.__cause__ is None
        assert rig.secret not in repr(publisher)


def _publish_until_delivered(publisher: Publisher, batch: Sequence[Message]) -> None:
    """The first batch after a loss may only find out about it."""
    outcomes = publisher.publish(batch, TIMEOUT)
    if outcomes != [DELIVERED] * len(batch):
        assert_all_waiting(outcomes, len(batch))
        assert_all_delivered(publisher.publish(batch, TIMEOUT), len(batch))


def _error(outcome: Outcome) -> str:
    assert isinstance(outcome, Retry | Dead), outcome
    return outcome.error
