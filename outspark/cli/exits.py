"""Exit codes that scripts can rely on, and which error leads to which."""

from __future__ import annotations

import sys
from typing import Final

from outspark.errors import DatabaseRefused, DestinationDown, ExtraMissing, OutsparkError, SettingsError

FAILED: Final = 1
WRONG: Final = 2
UNREACHABLE: Final = 3
NO_MATCH: Final = 4

EPILOG: Final = (
    "Exit codes: **0** done, **1** failed, **2** a flag or setting is wrong, "
    "**3** the database or the broker cannot be reached, **4** no event matched."
)


class DatabaseUnreachable(OutsparkError):
    """The message names the source and the redacted URL."""


class NoMatch(OutsparkError):
    """There was no event to show or to change."""


def code(error: Exception) -> int:
    match error:
        case SettingsError() | ExtraMissing():
            return WRONG
        case DatabaseUnreachable() | DatabaseRefused() | DestinationDown():
            return UNREACHABLE
        case NoMatch():
            return NO_MATCH
        case _:
            return FAILED


def expected(error: Exception) -> bool:
    """True for an error that is printed as one line; any other is a bug of Outspark and gets its traceback."""
    psycopg = sys.modules.get("psycopg")
    return isinstance(error, OutsparkError) or (psycopg is not None and isinstance(error, psycopg.Error))
