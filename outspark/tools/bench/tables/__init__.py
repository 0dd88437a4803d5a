"""The tables that the bench drains: how each is filled, and how the result of a drain is read from it."""

from __future__ import annotations

from outspark.tools.bench.tables.inbox import INBOX
from outspark.tools.bench.tables.jeap import JEAP, JEAP_AS_IT_IS
from outspark.tools.bench.tables.openoutbox import OPENOUTBOX
from outspark.tools.bench.tables.table import Table

__all__ = ["INBOX", "JEAP", "JEAP_AS_IT_IS", "OPENOUTBOX", "Table"]
