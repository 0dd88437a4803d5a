"""One Spark session for all tests here, started when the first of them needs it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from outspark.config.settings import HostingSettings
from outspark.spark.session import open_session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    environ, interrupt = dict(os.environ), signal.getsignal(signal.SIGINT)
    session = open_session(HostingSettings(), "test", lanes=2)
    yield session
    session.stop()
    # Spark takes over Ctrl-C, and starting it sets variables for the workers.
    signal.signal(signal.SIGINT, interrupt)
    os.environ.clear()
    os.environ.update(environ)
