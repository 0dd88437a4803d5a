"""A FastAPI service: requests write into the outbox, and two threads receive messages and handle them."""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psycopg
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel

from outspark import NewEvent, Outbox, Router
from outspark.inbox import Consumer, Worker, load

DATABASE_URL = os.environ["DATABASE_URL"]
TABLES = """
CREATE TABLE IF NOT EXISTS orders (id text PRIMARY KEY, total integer NOT NULL);
CREATE TABLE IF NOT EXISTS bills (order_id text PRIMARY KEY, total integer NOT NULL)"""

settings = load(Path(__file__).with_name("outspark.toml"), os.environ).inboxes["billing"]
outbox = Outbox()
router = Router()


class Placed(BaseModel):
    order: str
    total: int


@router.on("order.placed")
def bill(placed: Placed, conn: psycopg.Connection) -> None:
    """Runs in the transaction that completes the message: the bill is written exactly once."""
    conn.execute("INSERT INTO bills VALUES (%s, %s)", [placed.order, placed.total])


def consume(stopping: threading.Event) -> None:
    """From NATS into the inbox table. The name belongs to this process alone."""
    Consumer(settings, member=f"app-{os.getpid()}").run(stopping)


def handle(stopping: threading.Event) -> None:
    """From the inbox table into the handlers."""
    with Worker(DATABASE_URL, settings.table, router, settings.work_settings(f"app-{os.getpid()}")) as worker:
        worker.run(stopping)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    with psycopg.connect(DATABASE_URL) as conn:
        conn.execute(TABLES)
    stopping = threading.Event()
    threads = [threading.Thread(target=loop, args=[stopping]) for loop in (consume, handle)]
    for thread in threads:
        thread.start()
    yield
    # Both loops end after the batch in hand; what they have not committed comes again.
    stopping.set()
    for thread in threads:
        thread.join()


app = FastAPI(lifespan=lifespan)


@app.post("/orders/{order}", status_code=201)
def place(order: str, total: int) -> None:
    with psycopg.connect(DATABASE_URL) as conn:
        conn.execute("INSERT INTO orders VALUES (%s, %s)", [order, total])
        outbox.enqueue(conn, NewEvent("order.placed", {"order": order, "total": total}, key=order))


@app.get("/bills/{order}")
def find_bill(order: str) -> dict[str, int]:
    with psycopg.connect(DATABASE_URL) as conn:
        row = conn.execute("SELECT total FROM bills WHERE order_id = %s", [order]).fetchone()
    if row is None:
        raise HTTPException(404, "there is no bill yet")
    return {"total": row[0]}
