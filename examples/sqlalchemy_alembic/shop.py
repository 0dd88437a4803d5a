"""A service with SQLAlchemy: its models, and an order whose event is written in the same session."""

from __future__ import annotations

import os

from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from outspark import NewEvent, Outbox, migrations


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[str] = mapped_column(primary_key=True)
    customer: Mapped[str]
    total: Mapped[int]


TABLE = "order_events"
# The outbox is part of the metadata, so that autogenerate neither creates nor drops it.
migrations.metadata(Base.metadata, TABLE)

outbox = Outbox(TABLE)


def database_url() -> str:
    """The driver's name is SQLAlchemy's part of the URL; Outspark works with psycopg's, sync or async."""
    return os.environ["DATABASE_URL"].replace("postgresql://", "postgresql+psycopg://", 1)


def place_order(session: Session, order: Order) -> None:
    session.add(order)
    payload = {"order": order.id, "total": order.total}
    outbox.enqueue(session, NewEvent("order.placed", payload, key=order.customer))


def main() -> None:
    engine = create_engine(database_url())
    # `begin` commits the order and its event together, or rolls both back.
    with Session(engine) as session, session.begin():
        place_order(session, Order(id="o-1", customer="c-7", total=42))
    engine.dispose()
    print("placed o-1")


if __name__ == "__main__":
    main()
