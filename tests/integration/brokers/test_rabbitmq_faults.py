"""A RabbitMQ that goes away, stalls, or takes no messages because of an alarm."""

from __future__ import annotations

import gc
import logging
import os
import signal
import threading
from collections.abc import Iterator

import pytest

from outspark.errors import DestinationDown
from outspark.outcome import DELIVERED, Outcome, Retry
from outspark.tools.servers.rabbitmq import RabbitMQ
from tests.integration.brokers.contract import (
    TIMEOUT,
    Outages,
    assert_all_delivered,
    assert_all_waiting,
    message,
    messages,
    received,
)
from tests.integration.brokers.rabbitmq_rig import MAX_MESSAGE_SIZE, RabbitMQRig, write_definitions
from tests.waiting import wait_for

pytestmark = [pytest.mark.needs("rabbitmq"), pytest.mark.faults]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMQ]:
    """Tests may stop and kill it: the next one starts it again."""
    options = write_definitions(tmp_path_factory.mktemp("rabbitmq") / "definitions.json")
    with RabbitMQ(options={**options, "max_message_size": str(MAX_MESSAGE_SIZE)}) as server:
        yield server


@pytest.fixture
def rig(server: RabbitMQ) -> Iterator[RabbitMQRig]:
    rig = RabbitMQRig(server.start())
    yield rig
    rig.close()


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Neither the client nor asyncio complains in the log: outcomes tell all."""
    yield
    gc.collect()
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


class TestRabbitMQOutages(Outages):
    def test_killed_in_the_middle_of_a_batch(self, rig: RabbitMQRig) -> None:
        publisher = rig.open()
        assert_all_delivered(publisher.publish([message(rig)], TIMEOUT), 1)
        batch = messages(rig, 2000, size=20_000)
        rig.await_disk()
        killer = threading.Thread(target=lambda: _kill_after(rig, 200))
        killer.start()
        outcomes = publisher.publish(batch, TIMEOUT)
        killer.join()
        unsure = [sent for sent, outcome in zip(batch, outcomes, strict=True) if outcome is not DELIVERED]
        assert unsure
        assert_all_waiting([outcome for outcome in outcomes if outcome is not DELIVERED], len(unsure))
        rig.start()
        assert_all_delivered(publisher.publish(unsure, TIMEOUT), len(unsure))
        arrived = [each.id for each in rig.read()][1:]
        assert set(arrived) == {sent.id for sent in batch}
        assert len(arrived) <= 2000 + len(unsure)

    def test_a_stalled_server_is_given_up_and_what_was_not_sent_stays_unsent(self, rig: RabbitMQRig) -> None:
        publisher = rig.open()
        assert_all_delivered(publisher.publish([message(rig)], TIMEOUT), 1)
        batch = messages(rig, 2000, size=20_000)  # 40 MB, far more than the sockets' buffers hold
        os.kill(rig.server.pid, signal.SIGSTOP)
        try:
            outcomes = publisher.publish(batch, 0.5)
        finally:
            os.kill(rig.server.pid, signal.SIGCONT)
        assert_all_waiting(outcomes, 2000)
        assert "no answer within" in error_of(outcomes[0])
        assert_all_delivered(publisher.publish([message(rig)], TIMEOUT), 1)
        assert len(rig.read()) < 1500


def error_of(outcome: Outcome) -> str:
    assert isinstance(outcome, Retry), outcome
    return outcome.error


def _kill_after(rig: RabbitMQRig, count: int) -> None:
    wait_for(lambda: rig.count() >= count, timeout=TIMEOUT, what="part of the batch")
    rig.kill()


def test_an_alarm_costs_no_attempt_and_passes(rig: RabbitMQRig) -> None:
    """The broker still connects and answers, but reads nothing from those who publish."""
    rig.stop()
    rig.server.options["disk_free_limit.absolute"] = "1000000GB"
    rig.start()
    publisher = rig.open()
    lost = messages(rig, 20)
    blocked = "blocked: the broker is low on memory or disk and accepts no messages"
    assert publisher.publish(lost, 1.0) == [Retry(blocked, counted=False)] * 20
    with pytest.raises(DestinationDown, match=blocked):
        publisher.check(1.0)
    rig.stop()
    del rig.server.options["disk_free_limit.absolute"]
    rig.start()
    publisher.check(TIMEOUT)
    later = messages(rig, 20)
    assert_all_delivered(publisher.publish(later, TIMEOUT), 20)
    assert rig.read() == [received(sent) for sent in later]
