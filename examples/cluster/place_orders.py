"""Fill the outbox: so many orders of ten customers, in transactions of a hundred."""

from __future__ import annotations

import os
import sys

import psycopg

from outspark import NewEvent, Outbox


def main(count: int) -> None:
    outbox = Outbox()
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as conn:
        for start in range(0, count, 100):
            numbers = range(start, min(start + 100, count))
            events = [NewEvent("order.placed", {"order": n}, key=f"c-{n % 10}") for n in numbers]
            with conn.transaction():
                outbox.enqueue(conn, *events)
    print(f"placed {count} orders")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
