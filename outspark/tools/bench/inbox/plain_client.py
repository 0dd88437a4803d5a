"""A child process of the bench: a plain client that inserts rows that it holds in memory, batch by batch.

The client runs the statement with which an inbox stores messages, and does nothing else. Orders come as lines of JSON
on stdin: where to write, then for each round what to load. The client answers `ready`, waits for another line, works,
and answers `done`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any

from outspark.config.inbox import AcceptSettings
from outspark.contracts.omnibox.inbox import accept_statements
from outspark.database.names import TableName
from outspark.database.session import connect
from outspark.hosting import process
from outspark.inbox import Received
from outspark.inbox.intake.acceptor import parameters
from outspark.inbox.intake.message import Reader
from outspark.tools.bench.inbox.messages import Load


def main() -> None:
    order: dict[str, Any] = json.loads(sys.stdin.readline())
    settings = AcceptSettings(group=order["group"])
    read = Reader(settings).read
    client, clients = order["client"], order["clients"]
    accept = accept_statements(TableName.parse(order["table"])).accept.encode()
    process.tune_garbage_collector()
    with connect(order["url"], f"outspark bench client {client}") as conn:
        while line := sys.stdin.readline():
            load = Load(**json.loads(line))
            batches = [
                parameters([read(message) for message in batch], settings)
                for batch in _batches(load.share(client, clients), load.batch)
            ]
            _answer("ready")
            sys.stdin.readline()
            for batch in batches:
                conn.execute(accept, batch)
            _answer("done")


def _batches(messages: Iterator[Received], size: int) -> Iterator[list[Received]]:
    while batch := list(islice(messages, size)):
        yield batch


def _answer(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
