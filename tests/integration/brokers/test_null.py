"""The null publisher: the plain contract, and nothing to read back."""

from __future__ import annotations

import pytest

from outspark.brokers import Publisher
from outspark.outcome import DELIVERED
from tests.integration.brokers.contract import TIMEOUT, PublisherContract, messages, open_destination


class NullRig:
    topic = "order.created"

    def open(self) -> Publisher:
        return open_destination("null")


@pytest.fixture
def rig() -> NullRig:
    return NullRig()


class TestNull(PublisherContract):
    def test_keeps_order(self, rig: NullRig) -> None:
        assert rig.open().keeps_order

    def test_shares_one_outcome(self, rig: NullRig) -> None:
        assert all(outcome is DELIVERED for outcome in rig.open().publish(messages(rig, 10), TIMEOUT))
