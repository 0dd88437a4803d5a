"""What a webhook can do to a batch: answer slowly, wrongly, in part or not at all, or be where it must not be."""

from __future__ import annotations

import socket
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from outspark.errors import DestinationDown, DestinationError
from outspark.event import Message
from outspark.outcome import DELIVERED, HELD, Dead, Outcome, Retry
from tests.integration.brokers.contract import (
    TIMEOUT,
    assert_all_delivered,
    assert_all_waiting,
    message,
    messages,
    open_destination,
)
from tests.integration.brokers.http_rig import HttpRig
from tests.integration.brokers.receiver import Answer, Receiver
from tests.waiting import wait_for

pytestmark = pytest.mark.needs("http")


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    with Receiver() as receiver:
        yield receiver


@pytest.fixture
def rig(receiver: Receiver) -> Iterator[HttpRig]:
    rig = HttpRig(receiver)
    yield rig
    rig.close()


@pytest.fixture
def own_rig() -> Iterator[HttpRig]:
    """With a receiver that the test may stop or slow down."""
    with Receiver() as receiver:
        rig = HttpRig(receiver)
        yield rig
        rig.close()


def test_a_slow_webhook_costs_only_its_own_event_an_attempt(rig: HttpRig) -> None:
    slow, behind, fast = message(rig, key="slow"), message(rig, key="slow"), messages(rig, 30)
    rig.receiver.answer(slow.id, Answer(hang=True))
    publisher = rig.open(request_timeout="500ms")
    outcomes = publisher.publish([slow, behind, *fast], TIMEOUT)
    assert isinstance(outcomes[0], Retry)
    assert outcomes[0].counted
    assert "no answer within 0.5 s" in outcomes[0].error
    assert outcomes[1] == HELD
    assert_all_delivered(outcomes[2:], 30)
    assert behind.id not in rig.ids()
    assert_all_delivered(publisher.publish([slow, behind], TIMEOUT), 2)


def test_what_the_end_of_the_batch_leaves_unsent_costs_no_attempt(rig: HttpRig) -> None:
    slow, late = message(rig, key=None), message(rig, key=None)
    rig.receiver.answer(slow.id, Answer(hang=True))
    outcomes = rig.open(concurrency=1, request_timeout="300ms").publish([slow, late], 0.5)
    assert isinstance(outcomes[0], Retry)
    assert outcomes[1] == HELD
    assert rig.ids() == [slow.id]


def test_a_request_that_only_the_batch_cuts_short_costs_no_attempt(rig: HttpRig) -> None:
    slow = message(rig)
    rig.receiver.answer(slow.id, Answer(hang=True))
    started = time.monotonic()
    assert rig.open(request_timeout="1h").publish([slow], 0.5) == [HELD]
    assert time.monotonic() - started < TIMEOUT


@pytest.mark.parametrize("status", [408, 425, 429, 500, 503])
def test_retry_after_is_honoured(rig: HttpRig, status: int) -> None:
    busy = message(rig)
    rig.receiver.answer(busy.id, Answer(status, {"Retry-After": "7"}, "come back later"))
    [outcome] = rig.open().publish([busy], TIMEOUT)
    assert outcome == Retry(_shown(rig, f"HTTP {status}: come back later"), after=timedelta(seconds=7))


def test_retry_after_as_a_date(rig: HttpRig) -> None:
    busy = message(rig)
    until = format_datetime(datetime.now(UTC) + timedelta(minutes=10), usegmt=True)
    rig.receiver.answer(busy.id, Answer(429, {"Retry-After": until}))
    [outcome] = rig.open().publish([busy], TIMEOUT)
    assert isinstance(outcome, Retry)
    assert outcome.after is not None
    assert timedelta(minutes=9) < outcome.after <= timedelta(minutes=10)


def test_a_refusal_is_dead_and_shows_the_answer_without_secrets(rig: HttpRig) -> None:
    bad, good = message(rig, key="a"), message(rig, key="b")
    rig.receiver.answer(bad.id, Answer(400, {}, f"no total; you sent Bearer {rig.secret} to {rig.path}"))
    outcomes = rig.open().publish([bad, good], TIMEOUT)
    folder = rig.path.split("/")[1]
    assert outcomes == [Dead(_shown(rig, "HTTP 400: no total; you sent *** to /***/***")), DELIVERED]
    assert rig.secret not in str(outcomes)
    assert folder not in str(outcomes)


def test_a_redirect_is_not_followed(rig: HttpRig) -> None:
    moved = message(rig)
    rig.receiver.answer(moved.id, Answer(302, {"Location": f"{rig.receiver.url}{rig.path}/elsewhere"}))
    [outcome] = rig.open().publish([moved], TIMEOUT)
    assert isinstance(outcome, Retry)
    assert outcome.fault == "missing"
    assert f"HTTP 302 redirects to {rig.receiver.url}, and redirects are not followed" in outcome.error
    assert [arrival.target for arrival in rig.arrivals()] == [rig.path]


def test_an_error_of_the_server_passes_the_next_time(rig: HttpRig) -> None:
    unlucky = message(rig)
    rig.receiver.answer(unlucky.id, Answer(500))
    publisher = rig.open()
    assert publisher.publish([unlucky], TIMEOUT) == [Retry(_shown(rig, "HTTP 500"))]
    assert_all_delivered(publisher.publish([unlucky], TIMEOUT), 1)


def test_a_connection_lost_in_mid_answer_is_tried_once_more_at_once(rig: HttpRig) -> None:
    unlucky = message(rig)
    rig.receiver.answer(unlucky.id, Answer(200, {}, "thank", cut=True))
    assert_all_delivered(rig.open().publish([unlucky], TIMEOUT), 1)
    assert rig.ids() == [unlucky.id] * 2


def test_an_event_that_breaks_each_connection_burns_its_own_attempts(rig: HttpRig) -> None:
    poison, others = message(rig, key="poison"), messages(rig, 10)
    rig.receiver.answer(poison.id, *[Answer(200, {}, "thank", cut=True)] * 2)
    outcomes = rig.open().publish([poison, *others], TIMEOUT)
    assert isinstance(outcomes[0], Retry)
    assert outcomes[0].counted
    assert "lost" in outcomes[0].error
    assert_all_delivered(outcomes[1:], 10)


@pytest.mark.parametrize("failure", [Answer(500), Answer(400)], ids=["retry", "dead"])
def test_nothing_of_a_key_is_sent_after_a_failure(rig: HttpRig, failure: Answer) -> None:
    batch = [message(rig, key=key) for key in "ababab"]
    rig.receiver.answer(batch[2].id, failure)
    publisher = rig.open()
    outcomes = publisher.publish(batch, TIMEOUT)
    assert [outcomes[index] for index in (0, 4)] == [DELIVERED, HELD]
    assert isinstance(outcomes[2], Retry | Dead)
    assert_all_delivered(outcomes[1::2], 3)
    arrived = rig.ids()
    assert [id for id in arrived if id in _ids(batch[::2])] == _ids(batch[:3:2])
    assert [id for id in arrived if id in _ids(batch[1::2])] == _ids(batch[1::2])


def test_as_many_requests_as_allowed_go_at_once_and_no_more(own_rig: HttpRig) -> None:
    own_rig.receiver.gather(4)
    batch = [message(own_rig, key=None) for _ in range(12)]
    assert_all_delivered(own_rig.open(concurrency=4).publish(batch, TIMEOUT), 12)
    assert max(arrival.at_once for arrival in own_rig.arrivals()) == 4


def test_one_request_per_key_at_once_and_in_order(own_rig: HttpRig) -> None:
    own_rig.receiver.gather(2)
    batch = [message(own_rig, key=key) for key in "ab" * 6]
    assert_all_delivered(own_rig.open().publish(batch, TIMEOUT), 12)
    arrivals = own_rig.arrivals()
    assert max(arrival.of_key for arrival in arrivals) == 1
    assert max(arrival.at_once for arrival in arrivals) == 2
    for start in (0, 1):
        assert [one.id for one in arrivals if one.id in _ids(batch[start::2])] == _ids(batch[start::2])


def test_killed_while_requests_are_in_flight(own_rig: HttpRig) -> None:
    batch = [message(own_rig, key=None) for _ in range(40)]
    for sent in batch[10:20]:
        own_rig.receiver.answer(sent.id, Answer(hang=True))

    def kill() -> None:
        wait_for(lambda: set(_ids(batch[10:20])) <= set(own_rig.ids()), what="the requests that hang")
        own_rig.kill()

    killer = threading.Thread(target=kill)
    killer.start()
    publisher = own_rig.open(concurrency=10)
    outcomes = publisher.publish(batch, TIMEOUT)
    killer.join()
    assert_all_delivered(outcomes[:10], 10)
    assert_all_waiting(outcomes[10:], 30)
    own_rig.start()
    assert_all_delivered(publisher.publish(batch[10:], TIMEOUT), 30)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "2130706433"])
def test_without_the_opt_in_nothing_is_sent_to_this_machine(rig: HttpRig, host: str) -> None:
    url = f"{rig.receiver.url}{rig.path}".replace("127.0.0.1", host)
    publisher = rig.open(url, allow_private=False)
    for attempt in (lambda: publisher.publish(messages(rig, 3), TIMEOUT), lambda: publisher.check(TIMEOUT)):
        with pytest.raises(DestinationError, match=r"loopback address.*allow_private = true") as refused:
            attempt()
        assert not isinstance(refused.value, DestinationDown)
    assert rig.arrivals() == []


def test_a_name_without_an_address_costs_no_attempt(rig: HttpRig) -> None:
    publisher = rig.open("http://nowhere.invalid/")
    outcomes = publisher.publish(messages(rig, 3), TIMEOUT)
    assert_all_waiting(outcomes, 3)
    assert "the name has no address" in _error(outcomes[0])


def test_a_refused_connection_is_said(rig: HttpRig) -> None:
    outcomes = rig.open("http://127.0.0.1:1/").publish(messages(rig, 2), TIMEOUT)
    assert_all_waiting(outcomes, 2)
    assert _error(outcomes[0]) == "destination dest: http://127.0.0.1:1: Connection refused"


def test_a_server_that_does_not_shake_hands_is_given_up_after_the_connect_timeout(rig: HttpRig) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"https://127.0.0.1:{silent.getsockname()[1]}/"
        publisher = rig.open(url, connect_timeout="300ms")
        started = time.monotonic()
        assert_all_waiting(publisher.publish(messages(rig, 2), TIMEOUT), 2)
        with pytest.raises(DestinationDown):
            publisher.check(0.3)
        assert time.monotonic() - started < TIMEOUT


@pytest.mark.parametrize("answer", [b"SSH-2.0-OpenSSH_9.6\r\n", b"HTTP/1.1 banana\r\n\r\n", b""])
def test_an_answer_that_is_not_http_counts(answer: bytes) -> None:
    with _answering(answer) as port:
        options = {"allow_private": True}
        with closing(open_destination("http", url=f"http://127.0.0.1:{port}/", options=options)) as publisher:
            [outcome] = publisher.publish([Message("id", "t", None, b"{}", {})], TIMEOUT)
    assert isinstance(outcome, Retry)
    assert outcome.counted
    assert "lost before an answer" in outcome.error


def test_each_topic_has_its_own_address(rig: HttpRig) -> None:
    topics = [f"topic/{number}" for number in range(200)]
    batch = [Message(str(uuid.uuid4()), topic, None, b"{}", {}) for topic in topics]
    publisher = rig.open(f"{rig.receiver.url}{rig.path}/{{topic}}")
    assert_all_delivered(publisher.publish(batch, TIMEOUT), 200)
    assert {arrival.target for arrival in rig.arrivals()} == {
        f"{rig.path}/topic%2F{number}" for number in range(200)
    }


@contextmanager
def _answering(answer: bytes) -> Iterator[int]:
    """A server that takes each request, answers with these bytes and closes the connection."""

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection:
                connection.recv(65536)
                connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def _shown(rig: HttpRig, text: str) -> str:
    return f"destination dest: {rig.receiver.url}: {text}"


def _ids(batch: Sequence[Message]) -> list[str]:
    return [sent.id for sent in batch]


def _error(outcome: Outcome) -> str:
    assert isinstance(outcome, Retry | Dead), outcome
    return outcome.error
