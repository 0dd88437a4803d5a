"""A service on a jEAP table: one message is sent right after the commit, the other is left to the relay."""

from __future__ import annotations

import json
import os

import psycopg

from outspark.outbox.jeap import JeapOutbox, NewMessage

TABLE = "CREATE TABLE IF NOT EXISTS orders (id text PRIMARY KEY, total integer NOT NULL)"


def message(topic: str, kind: str, order: str) -> NewMessage:
    # Payload and key are bytes and go out as they are; AvroSerializer writes Avro where consumers expect it.
    return NewMessage(topic, json.dumps({"order": order}).encode(), kind, key=order.encode())


def place_order(conn: psycopg.Connection, outbox: JeapOutbox, order: str, total: int) -> None:
    """The `with` commits the order with both messages, and then sends the first."""
    with outbox.transaction(conn) as tx:
        conn.execute("INSERT INTO orders VALUES (%s, %s)", [order, total])
        tx.send(message("shop-order-placed", "OrderPlacedEvent", order))
        tx.send_scheduled(message("shop-order-archive", "ArchiveOrderCommand", order))
    # If the first message could not be sent, nothing is raised: the relay sends it a little later.


def main() -> None:
    # With jEAP this is Kafka: {"type": "kafka", "url": "kafka://localhost:9092"}.
    outbox = JeapOutbox(destination={"type": "stdout"})
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as conn:
        conn.execute(TABLE)
        place_order(conn, outbox, "o-1", 42)
    outbox.close()


if __name__ == "__main__":
    main()
