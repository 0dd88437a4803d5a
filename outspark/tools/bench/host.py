"""A child process of the bench: a bare lane, or the whole relay on Spark. It works until its stdin is closed.

The order comes as one line of JSON on stdin. A process apart has a CPU time and a memory of its own, and its end
is sure: when the bench dies, the pipe closes.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Any

from outspark.config.settings import Settings
from outspark.hosting import process
from outspark.observability import logs
from outspark.relay.lane import Lane
from outspark.relay.spec import assign_slots
from outspark.tools.bench.one_by_one import one_by_one


def main() -> None:
    order: dict[str, Any] = json.loads(sys.stdin.readline())
    settings = Settings.model_validate(order["settings"])
    logs.configure(settings.log)
    closed = threading.Event()
    threading.Thread(target=watch_stdin, args=(closed,), daemon=True).start()
    if order["host"] == "spark":
        _relay(settings, closed)
    else:
        process.tune_garbage_collector()
        lane = Lane(assign_slots(settings, order["instance"], {})[order["lane"]])
        if order["one_by_one"]:
            lane.destinations = one_by_one(process.destinations(settings.destinations))
        if order["profile"] is None:
            lane.run(closed.is_set)
        else:
            from outspark.tools.bench.profiling import profiled

            profiled(lambda: lane.run(closed.is_set), Path(order["profile"]))


def _relay(settings: Settings, closed: threading.Event) -> None:
    from outspark.spark.relay import RelayApp

    with RelayApp(settings):
        closed.wait()


def watch_stdin(closed: threading.Event) -> None:
    sys.stdin.read()
    closed.set()


if __name__ == "__main__":
    main()
