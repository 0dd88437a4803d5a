"""A service with plain psycopg: an order and its events are one transaction."""

from __future__ import annotations

import os
import sys

import psycopg

from outspark import NewEvent, Outbox

# One outbox for the whole process: it holds no connection, so threads and tasks may share it.
outbox = Outbox()

TABLE = (
    "CREATE TABLE IF NOT EXISTS orders (id text PRIMARY KEY, customer text NOT NULL, total integer NOT NULL)"
)


def place_order(conn: psycopg.Connection, order: str, customer: str, total: int) -> None:
    """The caller's transaction decides: if it is rolled back, neither the order nor its events exist."""
    # Order per key is the order of commits, so two transactions of one customer must not overlap.
    conn.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [customer])
    conn.execute("INSERT INTO orders VALUES (%s, %s, %s)", [order, customer, total])
    outbox.enqueue(
        conn,
        NewEvent("order.placed", {"order": order, "total": total}, key=customer),
        NewEvent("invoice.requested", {"order": order}, key=customer),
    )


def main(arguments: list[str]) -> None:
    with psycopg.connect(os.environ["DATABASE_URL"]) as conn:
        conn.execute(TABLE)
        conn.commit()
        place_order(conn, "o-2" if "fail" in arguments else "o-1", "c-7", 42)
        if "fail" in arguments:
            raise SystemExit("the service fails before it commits: the order and its events are gone")
    # Leaving the `with` has committed.
    print("placed o-1")


if __name__ == "__main__":
    main(sys.argv[1:])
