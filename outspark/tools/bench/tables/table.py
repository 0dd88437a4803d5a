"""What the bench has to know of a contract's table. All SQL names it `{table}`."""

from __future__ import annotations

from dataclasses import dataclass

from outspark.database.names import TableName
from outspark.database.shape import Index, Shape


@dataclass(frozen=True, slots=True)
class Table:
    name: str
    contract: str
    outbox: TableName
    """What lanes look at, with its schema."""
    shape: Shape
    indexes: tuple[Index, ...]
    id: str
    """The column that a claim answers first."""
    sent_at: str
    """The column that says when an event was delivered."""
    load: str
    """Puts in `finished` events and then `pending` ones, numbered from `rows` on."""
    newest_left: str
    """The newest event that is not delivered: the one a drain comes to last, so finding it reads one page."""
    count: str
    """Answers how many events were delivered since the reveal, and how many are not as they should be."""
    inbox: bool = False
    """Handled by lanes of an inbox, and not relayed."""
    beside: str = ""
    """Makes what else lanes write to."""
    clear: str = ""
    """Empties that, after each drain."""
    note: str = ""
    """What is special about it, for the report."""
