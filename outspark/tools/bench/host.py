"""A child process of the bench: a bare lane of a relay or an inbox, or all lanes on Spark.

The order comes as one line of JSON on stdin, and the process works until its stdin is closed. A separate process has a
CPU time and a memory of its own, and its end is certain: when the bench dies, the pipe closes.
"""

from __future__ import annotations

import json
import sys
import threading
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from outspark.config.settings import Settings
from outspark.hosting import process
from outspark.inbox.lane import InboxLane, inbox_lanes
from outspark.observability import logs
from outspark.relay.lane import Lane
from outspark.relay.spec import assign_slots
from outspark.tools.bench.one_by_one import one_by_one


def main() -> None:
    order: dict[str, Any] = json.loads(sys.stdin.readline())
    settings = Settings.model_validate(order["settings"])
    logs.configure(settings.log)
    closed = threading.Event()
    threading.Thread(target=_watch_stdin, args=(closed,), daemon=True).start()
    if order["host"] == "spark":
        with _application(order, settings):
            closed.wait()
        return
    process.tune_garbage_collector()
    lane = _lane(order, settings)
    if order["profile"] is None:
        lane.run(closed.is_set)
    else:
        from outspark.tools.bench.profiling import profiled

        profiled(lambda: lane.run(closed.is_set), Path(order["profile"]))


def _application(order: dict[str, Any], settings: Settings) -> AbstractContextManager[object]:
    if order["task"] is None:
        from outspark.spark.relay import RelayApp

        return RelayApp(settings)
    from outspark.spark.inbox import InboxApp

    return InboxApp(settings, list(settings.inboxes), [order["task"]])


def _lane(order: dict[str, Any], settings: Settings) -> Lane | InboxLane:
    number, instance = order["lane"], order["instance"]
    if order["task"] is not None:
        return InboxLane(inbox_lanes(settings, list(settings.inboxes), [order["task"]], instance, {})[number])
    lane = Lane(assign_slots(settings, instance, {})[number])
    if order["one_by_one"]:
        lane.destinations = one_by_one(process.destinations(settings.destinations))
    return lane


def _watch_stdin(closed: threading.Event) -> None:
    sys.stdin.read()
    closed.set()


if __name__ == "__main__":
    main()
