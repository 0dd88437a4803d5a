"""The Spark session that hosts the lanes: a local one made for long, quiet tasks, or the one of spark-submit."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

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

SETTINGS = {
    "spark.ui.showConsoleProgress": "false",
    "spark.speculation": "false",
    "spark.python.worker.reuse": "true",
    # A relay runs for months and starts a job every few seconds: Spark must not keep them all.
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "50",
    "spark.ui.retainedTasks": "100",
    "spark.sql.ui.retainedExecutions": "20",
}

LOCAL_SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "512m",
}


def open_session(relay: RelaySettings) -> SparkSession:
    """Start a session, or join the one that exists. Settings of the user win over ours."""
    local = relay.master.startswith("local")
    if local:
        prepare_environment()
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    settings = {**SETTINGS, **(LOCAL_SETTINGS if local else {}), **relay.spark}
    settings.setdefault("spark.driver.extraJavaOptions", f"-XX:+UseSerialGC {_quiet()}")
    builder = SparkSession.builder.appName(f"outspark {relay.id}")
    if "SPARK_ENV_LOADED" not in os.environ or relay.master != "local":
        master = LOCAL.format(slots=2 * relay.lanes) if relay.master == "local" else relay.master
        builder = builder.remote(master) if master.startswith("sc://") else builder.master(master)
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _quiet() -> str:
    """Log settings for the JVM: errors only, and not those of tasks, which the driver reports itself."""
    folder = Path(tempfile.mkdtemp(prefix="outspark-spark-"))
    path = folder / "log4j2.properties"
    path.write_text(QUIET)
    return f"-Dlog4j2.configurationFile={path.as_uri()}"
