"""The billing service of the demo: a bill for every order that was placed, written by a handler of its inbox.

`outspark inbox run` finds the handlers by name, `outspark.demo.billing:router`, in processes of its own.
"""

from __future__ import annotations

from typing import Any

import psycopg
from pydantic import BaseModel

from outspark.inbox import InboxEvent, Router

APP = "outspark.demo.billing:router"
INBOX = "billing.inbox_events"

CREATE = (
    """\
-- All that belongs to the billing service
CREATE SCHEMA billing""",
    """\
-- A bill. Nothing here keeps an order from being billed twice: that is left to the inbox
CREATE TABLE billing.bills (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    order_number bigint NOT NULL,
    message_id text NOT NULL,
    billed_at timestamptz NOT NULL DEFAULT clock_timestamp()
)""",
)

BILL = """\
-- Bill an order
INSERT INTO billing.bills (order_number, message_id) VALUES (%(order)s, %(message_id)s)"""

router = Router()


class Placed(BaseModel):
    order: int


@router.on("order.placed")
def bill(placed: Placed, event: InboxEvent, conn: psycopg.Connection[Any]) -> None:
    """The bill and the completion of the event are committed together, or neither is."""
    conn.execute(BILL, {"order": placed.order, "message_id": event.message_id})


def create_tables(conn: psycopg.Connection) -> None:
    for statement in CREATE:
        conn.execute(statement.encode())
