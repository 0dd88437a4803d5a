"""What the bench has to know about a contract's table. All SQL calls the table `{table}`."""

from __future__ import annotations

from dataclasses import dataclass

from outspark.database.names import TableName
from outspark.database.shape import Index, Shape


@dataclass(frozen=True, slots=True)
class Table:
    name: str
    contract: str
    outbox: TableName
    """The table that lanes claim from, with its schema."""
    shape: Shape
    indexes: tuple[Index, ...]
    id: str
    """The column that a claim answers first."""
    sent_at: str
    """The column that says when an event was delivered."""
    load: str
    """Puts in `finished` events and then `pending` ones, numbered from `rows` on."""
    newest_left: str
    """The newest event that is not delivered: a drain delivers it last, so finding it reads one page."""
    count: str
    """Answers how many events were delivered since the reveal, and how many are not as they should be."""
    inbox: bool = False
    """Lanes of an inbox handle its events; otherwise a relay delivers them."""
    beside: str = ""
    """Creates the other table that lanes write to."""
    clear: str = ""
    """Empties the other table after each drain."""
    note: str = ""
    """What is special about the table, for the report."""
