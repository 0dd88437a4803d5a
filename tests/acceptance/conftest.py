"""What acceptance tests share: a place with an outbox and a stream of its own, and relays that are cleaned up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from outspark.tools.servers.nats import Nats
from outspark.tools.servers.postgres import Postgres
from tests.acceptance.harness import Harness, open_harness
from tests.acceptance.relay_process import StartRelay, relays


@pytest.fixture
def start_relay(tmp_path: Path) -> Iterator[StartRelay]:
    with relays(tmp_path) as start:
        yield start


@pytest.fixture
def shop(request: pytest.FixtureRequest, postgres_server: Postgres, nats_server: Nats) -> Iterator[Harness]:
    """On the servers of the session: do not stop them."""
    with open_harness(postgres_server, nats_server, request.node.name) as made:
        yield made
