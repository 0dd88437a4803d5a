"""Orders, and the outbox for their events."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from outspark import migrations

revision = "create_orders"
down_revision = None
branch_labels = None
depends_on = None

TABLE = "order_events"


def upgrade() -> None:
    op.create_table(
        "orders",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("customer", sa.String, nullable=False),
        sa.Column("total", sa.Integer, nullable=False),
    )
    migrations.upgrade(op, TABLE)


def downgrade() -> None:
    migrations.downgrade(op, TABLE)  # drops the events too
    op.drop_table("orders")
