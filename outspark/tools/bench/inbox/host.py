"""A child process of the bench: a bare lane of an inbox, or an inbox on Spark. It works until its stdin is closed."""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

from outspark.config.settings import Settings
from outspark.hosting import process
from outspark.inbox.lane import InboxLane, inbox_lanes
from outspark.observability import logs
from outspark.tools.bench.host import watch_stdin


def main() -> None:
    order: dict[str, Any] = json.loads(sys.stdin.readline())
    settings = Settings.model_validate(order["settings"])
    logs.configure(settings.log)
    closed = threading.Event()
    threading.Thread(target=watch_stdin, args=(closed,), daemon=True).start()
    names, tasks = [order["inbox"]], [order["task"]]
    if order["host"] == "spark":
        from outspark.spark.inbox import InboxApp

        with InboxApp(settings, names, tasks):
            closed.wait()
    else:
        process.tune_garbage_collector()
        InboxLane(inbox_lanes(settings, names, tasks, order["instance"], {})[order["lane"]]).run(
            closed.is_set
        )


if __name__ == "__main__":
    main()
