"""The Spark session that hosts the lanes: a local one tuned for long, quiet tasks, or that of spark-submit."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from outspark.config.settings import HostingSettings
from outspark.spark.java import prepare_environment

log = logging.getLogger(__name__)

# The next task of a lane warms up while the current one is still working, so each lane needs two task slots. An idle
# slot costs nothing. The 4 is the number of attempts of a task; `local[n]` alone never retries.
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
    # A speculative copy of a lane would only wait for the baton of the first.
    "spark.speculation": "false",
    "spark.python.worker.reuse": "true",
}

SETTINGS = {
    **NEEDED,
    "spark.ui.showConsoleProgress": "false",
    # A relay runs for months and submits a job every few seconds: Spark must not retain them all.
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "50",
    "spark.ui.retainedTasks": "100",
    "spark.sql.ui.retainedExecutions": "20",
}

# The JVM only schedules tasks: the CPU that the C2 compiler takes in the first minutes is better spent in the lanes.
LEAN_JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"

LOCAL_SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "512m",
}


JVM_EXIT_TIMEOUT = 5.0


def open_session(hosting: HostingSettings, name: str, lanes: int) -> SparkSession:
    """Start a session called `outspark <name>` with room for the lanes, or join that of spark-submit.

    `hosting.spark` overrides all of Outspark's own Spark settings.
    """
    builder = SparkSession.builder.appName(f"outspark {name}")
    if _submitted():
        # The JVM of spark-submit runs already, with its own master and settings.
        settings = NEEDED | hosting.spark
        builder = builder if hosting.master == "local" else builder.master(hosting.master)
    else:
        settings = _own_settings(hosting) | hosting.spark
        master = LOCAL.format(slots=2 * lanes) if hosting.master == "local" else hosting.master
        if master.startswith("sc://"):
            builder = builder.remote(master)
        else:
            _start_jvm(SparkConf(loadDefaults=False).setAll([*settings.items()]).setMaster(master), name)
            builder = builder.master(master)
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _start_jvm(conf: SparkConf, name: str) -> None:
    """Start the JVM in a session of its own, out of reach of signals to the process group, and ignore SIGTERM in it.

    A supervisor may signal every process of the service, and the lanes need the JVM until they have finished.
    The JVM still ends with this process: its gateway exits when the pipe to its stdin breaks.
    """
    if SparkContext._active_spark_context is not None:
        return
    conf.setAppName(f"outspark {name}")
    gateway = SparkContext._gateway
    if gateway is None:
        gateway = launch_gateway(conf, {"start_new_session": True})  # type: ignore[no-untyped-call]
        atexit.register(_await_jvm_exit, gateway.proc)
        _ignore_sigterm(gateway.jvm)
    SparkContext(conf=conf, gateway=gateway)


def _ignore_sigterm(jvm: Any) -> None:
    signals = jvm.sun.misc.Signal
    signals.handle(signals("TERM"), jvm.sun.misc.SignalHandler.SIG_IGN)


def _await_jvm_exit(jvm: subprocess.Popen[bytes]) -> None:
    """Wait for the JVM to exit, so that it does not outlive a process that ended in good order."""
    assert jvm.stdin is not None
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        jvm.stdin.close()
        jvm.wait(JVM_EXIT_TIMEOUT)


def has_ended(spark: SparkSession) -> bool:
    """True when the JVM has exited or its application was stopped: no task will ever run again."""
    if not hasattr(spark, "sparkContext"):  # the application of a Spark Connect session lives on the server
        return False
    try:
        return bool(spark.sparkContext._jsc.sc().isStopped())
    except (Py4JError, OSError, AttributeError):
        return True


def close_session(spark: SparkSession) -> None:
    """Stop the session. Harmless when Spark has ended already or ends meanwhile."""
    if has_ended(spark):
        return
    try:
        spark.stop()
    except (Py4JError, OSError) as error:
        log.debug("Spark ended by itself", extra={"error": str(error)})


def cancel(spark: SparkSession, tag: str) -> None:
    """Cancel the tasks with this tag. Harmless when Spark has ended."""
    if has_ended(spark):
        return
    try:
        spark.interruptTag(tag)
    except (Py4JError, OSError) as error:
        log.debug("Spark ended by itself", extra={"error": str(error)})


def _submitted() -> bool:
    """Did spark-submit start this process? It passes the port of its JVM to the Python driver in this variable."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _own_settings(hosting: HostingSettings) -> dict[str, str]:
    java_options = {"spark.driver.extraJavaOptions": f"{LEAN_JVM} {_quiet()}"}
    if not hosting.master.startswith("local"):
        return SETTINGS | java_options
    prepare_environment()
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    return SETTINGS | LOCAL_SETTINGS | java_options


def _quiet() -> str:
    """Log settings for the JVM: errors only, without task failures, which the driver logs itself."""
    folder = Path(tempfile.mkdtemp(prefix="outspark-spark-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = folder / "log4j2.properties"
    path.write_text(QUIET)
    return f"-Dlog4j2.configurationFile={path.as_uri()}"
