"""A lane as a Spark task. Importable by name, so that what a worker process caches survives from task to task."""

from __future__ import annotations

import json
import logging
import os
import struct
from collections.abc import Iterator
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession

from outspark.config.settings import LogSettings
from outspark.errors import HandlerHung
from outspark.hosting import process
from outspark.hosting.spec import LaneSpec
from outspark.inbox.lane import InboxLane, InboxLaneSpec
from outspark.observability import logs, metrics
from outspark.relay.lane import Lane
from outspark.relay.spec import RelayLaneSpec
from outspark.spark.shutdown import watch_for_shutdown
from outspark.spark.watchdog import watch_lane

SCHEMA = "report string"
HUNG = 70
"""Exit code of a worker process whose lane or handlers hang."""


def open_lane(spec: LaneSpec) -> Lane | InboxLane:
    match spec:
        case RelayLaneSpec():
            return Lane(spec)
        case InboxLaneSpec():
            return InboxLane(spec)
    raise TypeError(f"there is no lane for {type(spec).__name__}")


def host(spec: LaneSpec, log: LogSettings, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Run one shift inside a Python worker process and return its report to the driver."""
    for _ in batches:
        pass
    logs.configure(log)
    process.tune_garbage_collector()
    lane = open_lane(spec)
    context = TaskContext.get()
    if context is not None and context.attemptNumber() > 0:
        # Spark retried the task by itself, and the worker process that crashed could not count its restart.
        lane.tally.add(metrics.LANE_RESTARTS_TOTAL, context.attemptNumber())
    try:
        with (
            watch_lane(spec, partial(os._exit, HUNG)) as moved,
            watch_for_shutdown(spec.hosting.shutdown_timeout) as shutdown_requested,
        ):
            report = lane.run(shutdown_requested, moved)
    except HandlerHung as error:
        # Python cannot kill a thread, but this process can exit: Spark retries the task in a new one.
        logging.getLogger(__name__).error(
            "the lane ends its process so that Spark starts it again", extra={"error": str(error)}
        )
        os._exit(HUNG)
    yield one_row(json.dumps(report.to_json()))


def one_row(report: str) -> pa.RecordBatch:
    """Built from its buffers, because `pa.array` would import pandas: a second of CPU at the end of a first shift."""
    text = report.encode()
    ends = pa.py_buffer(struct.pack("=ii", 0, len(text)))
    return pa.RecordBatch.from_arrays([pa.StringArray.from_buffers(1, ends, pa.py_buffer(text))], ["report"])


def run_shift(spark: SparkSession, spec: LaneSpec, log: LogSettings, tag: str) -> dict[str, Any]:
    """Submit one shift as a job of one task and block until its report. Call it from a thread of its own."""
    spark.addTag(tag)
    rows = spark.range(0, 1, 1, numPartitions=1).mapInArrow(partial(host, spec, log), SCHEMA).collect()
    report: dict[str, Any] = json.loads(rows[0]["report"])
    return report
