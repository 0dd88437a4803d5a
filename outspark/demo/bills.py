"""The proof of the second half: one query over the tables of both services, which the demo also shows."""

from __future__ import annotations

from dataclasses import dataclass

import psycopg

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
        """False too when nothing was ordered: that would prove nothing."""
        return 0 < self.orders == self.billed_once


def compare(conn: psycopg.Connection) -> Bills:
    row = conn.execute(COMPARE).fetchone()
    assert row is not None
    return Bills(*row)


def count(conn: psycopg.Connection) -> int:
    row = conn.execute(COUNT).fetchone()
    assert row is not None
    return int(row[0])
