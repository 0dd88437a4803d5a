from __future__ import annotations

import pytest

from outspark.tools.servers.nats import Nats
from tests.history.inbox.brokers import Broker, NatsBroker


@pytest.fixture
def nats_broker(nats_server: Nats) -> Broker:
    return NatsBroker(nats_server)


@pytest.fixture
def kafka_broker() -> Broker:
    """On the broker that all tests share, because one takes seconds to start."""
    from tests.history.inbox.kafka_broker import KafkaBroker
    from tests.integration.brokers.kafka_rig import shared_server

    return KafkaBroker(shared_server())
