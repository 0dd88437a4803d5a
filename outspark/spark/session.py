"""The Spark session that hosts the lanes: a local one made for long, quiet tasks, or the one of spark-submit."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from outspark.embedded.java import prepare_environment
from outspark.settings import RelaySettings

# A lane's task hands over while the next one gets warm, so each lane needs two task slots; waiting costs nothing.
# The 4 lets a failed task be tried again, which `local[n]` alone does not.
LOCAL = "local[{slots}, 4]"

QUIET = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss.SSS} %-5p spark %m%n
logger.task.name = org.apache.spark.scheduler.TaskSetManager
logger.task.level = off
logger.executor.name = org.apache.spark.executor.Executor
logger.executor.level = off
logger.python.name = org.apache.spark.api.python
logger.python.level = off
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
"""

NEEDED = {
    # A second copy of a lane would only wait for the first.
    "spark.speculation": "false",
    "spark.python.worker.reuse": "true",
}

SETTINGS = {
    **NEEDED,
    "spark.ui.showConsoleProgress": "false",
    # A relay runs for months and starts a job every few seconds: Spark must not keep them all.
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "50",
    "spark.ui.retainedTasks": "100",
    "spark.sql.ui.retainedExecutions": "20",
}

# The JVM only hands out tasks: what its best compiler would cost in the first minutes is better spent in the lanes.
LEAN_JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"

LOCAL_SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "512m",
}


def open_session(relay: RelaySettings, lanes: int) -> SparkSession:
    """Start a session with room for so many lanes, or join the one of spark-submit. Settings of the user win."""
    builder = SparkSession.builder.appName(f"outspark {relay.id}")
    if _submitted():
        # Its JVM runs already, with the master and the settings that were given there.
        settings = NEEDED | relay.spark
        builder = builder if relay.master == "local" else builder.master(relay.master)
    else:
        settings = _own_settings(relay) | relay.spark
        master = LOCAL.format(slots=2 * lanes) if relay.master == "local" else relay.master
        builder = builder.remote(master) if master.startswith("sc://") else builder.master(master)
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def has_ended(spark: SparkSession) -> bool:
    """Has the JVM died, or has its application been stopped? Then no task will ever run again."""
    if not hasattr(spark, "sparkContext"):  # a session over Spark Connect lives on the server's side
        return False
    try:
        return bool(spark.sparkContext._jsc.sc().isStopped())
    except (Py4JError, OSError, AttributeError):
        return True


def _submitted() -> bool:
    """Did spark-submit start this process? It tells its Python driver so where to find its JVM."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _own_settings(relay: RelaySettings) -> dict[str, str]:
    java_options = {"spark.driver.extraJavaOptions": f"{LEAN_JVM} {_quiet()}"}
    if not relay.master.startswith("local"):
        return SETTINGS | java_options
    prepare_environment()
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    return SETTINGS | LOCAL_SETTINGS | java_options


def _quiet() -> str:
    """Log settings for the JVM: errors only, and not those of tasks, which the driver reports itself."""
    folder = Path(tempfile.mkdtemp(prefix="outspark-spark-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = folder / "log4j2.properties"
    path.write_text(QUIET)
    return f"-Dlog4j2.configurationFile={path.as_uri()}"
