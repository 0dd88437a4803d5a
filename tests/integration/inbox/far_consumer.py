"""A child process that takes messages in, on a machine whose clock is wrong by so many seconds.

Each line on stdin is the id of a message, whose first letter is its key. It answers once the message is kept.
"""

from __future__ import annotations

import sys
import time

import psycopg

from outspark.inbox import Acceptor, AcceptSettings
from tests.integration.inbox.harness import message


def main(url: str, table: str, wrong_by: str) -> None:
    right, seconds = time.time_ns, int(wrong_by)
    time.time_ns = lambda: right() + seconds * 1_000_000_000
    with psycopg.connect(url, autocommit=True) as conn:
        acceptor = Acceptor(conn, table, AcceptSettings(group="billing"))
        for line in sys.stdin:
            name = line.strip()
            acceptor.accept([message(name, key=name[0].encode())])
            sys.stdout.write(f"{name}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
