"""The relay under spark-submit, on a cluster of two executors on this machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pyspark
import pytest

from outspark import __main__
from outspark.spark.java import java_home
from tests.acceptance.harness import Harness
from tests.acceptance.relay_process import START, StartRelay
from tests.acceptance.writer import enqueue

pytestmark = [pytest.mark.needs("spark", "nats"), pytest.mark.timeout(3 * START)]

# Two executors with two cores each: a lane needs two, one at work and one for its relief.
MASTER = "local-cluster[2,2,1024]"


@pytest.fixture
def spark_home(tmp_path: Path) -> Path:
    """The installed Spark by another name, because its workers write into the folder it is in."""
    home = tmp_path / "spark"
    home.mkdir()
    for part in Path(pyspark.__file__).parent.iterdir():
        (home / part.name).symlink_to(part)
    return home


def test_spark_submit_on_a_cluster(shop: Harness, start_relay: StartRelay, spark_home: Path) -> None:
    with shop.connect() as conn:
        enqueue(conn, f"{shop.stream.name}.order", 300)
    relay = start_relay(
        *("--url", shop.url, "--to", shop.stream.url, "--until-empty"),
        launcher=[str(spark_home / "bin" / "spark-submit"), "--master", MASTER, __main__.__file__],
        environ={
            "SPARK_HOME": str(spark_home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
            "JAVA_HOME": str(java_home()),
        },
    )
    assert relay.wait(2 * START) == 0, relay.stdout
    assert len(shop.assert_nothing_lost()) == 300
    owners = shop.owners().values()
    assert all(clean for _, clean in owners)
    assert len({owner.rpartition("pid=")[2] for owner, _ in owners}) == 2
    assert len(os.listdir(spark_home / "work")) == 1
