"""The billing service of the demo: a handler that writes one bill an order, and its table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg
from pydantic import BaseModel

from outspark.inbox import InboxEvent, Router

COMPARE = """\
-- Every order beside its bills, and every bill beside its order
SELECT count(o.number)                                              AS orders,
       count(*) FILTER (WHERE o.number IS NOT NULL AND b.bills = 1) AS billed_once,
       count(*) FILTER (WHERE o.number IS NOT NULL AND b.bills > 1) AS billed_twice,
       count(*) FILTER (WHERE b.bills IS NULL)                      AS not_billed,
       count(*) FILTER (WHERE o.number IS NULL)                     AS billed_without_order
FROM orders o
FULL JOIN (SELECT order_number, count(*) AS bills FROM billing.bills GROUP BY order_number) b
  ON b.order_number = o.number"""

COUNT = """\
-- How many bills there are so far
SELECT count(*) FROM billing.bills"""


@dataclass(frozen=True, slots=True)
class Bills:
    """What COMPARE answers. An order that was rolled back is no order: its number is never given again."""

    orders: int
    billed_once: int
    billed_twice: int
    not_billed: int
    billed_without_order: int

    @property
    def all_once(self) -> bool:
        """False as well when nothing was ordered, which would prove nothing."""
        return 0 < self.orders == self.billed_once


def compare(conn: psycopg.Connection) -> Bills:
    row = conn.execute(COMPARE).fetchone()
    assert row is not None
    return Bills(*row)


def count(conn: psycopg.Connection) -> int:
    row = conn.execute(COUNT).fetchone()
    assert row is not None
    return int(row[0])


APP = "outspark.tools.demo.billing:router"
INBOX = "billing.inbox_events"

CREATE = (
    """\
-- The schema of the billing service
CREATE SCHEMA billing""",
    """\
-- A bill. No constraint keeps an order from being billed twice: that is the inbox's task
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
