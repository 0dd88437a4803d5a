"""What is wrong with a table, as its contract sees it, and the statement that mends it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from outspark.errors import TableInvalid


@dataclass(frozen=True, slots=True)
class Finding:
    """An error keeps the relay from working; a warning makes it slow or lets bad rows in."""

    level: Literal["error", "warning"]
    problem: str
    remedy: str
    lacks_index: bool = False
    """Statements that count on this index would read the whole table."""
    verb: str = "run"
    """What to do with the remedy: `run` a statement, or `set` a setting."""

    def __str__(self) -> str:
        return f"{self.problem}; {self.verb}: {self.remedy}"


def refuse_errors(table: object, findings: Sequence[Finding]) -> None:
    """TableInvalid with every error and its remedy, if there is an error at all."""
    errors = [finding for finding in findings if finding.level == "error"]
    if errors:
        lines = "\n".join(f"  {finding.problem}\n    {finding.remedy}" for finding in errors)
        raise TableInvalid(f"table {table} does not fulfil its contract:\n{lines}")
