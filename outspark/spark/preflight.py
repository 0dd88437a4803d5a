"""Tells a database that may come from one that no waiting brings: a wrong password, name or privilege."""

from __future__ import annotations

import logging
import re

import psycopg

from outspark.errors import DatabaseRefused
from outspark.spark.databases import line

log = logging.getLogger(__name__)

# libpq keeps the SQLSTATE of a failed connection to itself, so its words have to do. A server that speaks another
# language is waited for.
_PERMANENT = re.compile(
    r"""password[ ]authentication[ ]failed | no[ ]password[ ]supplied
      | authentication[ ]failed[ ]for[ ]user | is[ ]not[ ]permitted[ ]to[ ]log[ ]in
      | no[ ]pg_hba\.conf[ ]entry | pg_hba\.conf[ ]rejects
      | (?:role|database)[ ]"[^"]*"[ ]does[ ]not[ ]exist | permission[ ]denied[ ]for[ ]database
      | could[ ]not[ ]translate[ ]host[ ]name | failed[ ]to[ ]resolve[ ]host
      | certificate[ ]verify[ ]failed | does[ ]not[ ]match[ ]host[ ]name
      | root[ ]certificate[ ]file[ ]"[^"]*"[ ]does[ ]not[ ]exist
      | server[ ]does[ ]not[ ]support[ ]SSL""",
    re.VERBOSE,
)
# Of several hosts one may yet come; and a name server that is away says so.
_TEMPORARY = re.compile(
    r"""Connection[ ]refused | Is[ ]the[ ]server[ ]running | timeout[ ]expired | timed[ ]out | unreachable
      | No[ ]route[ ]to[ ]host | reset[ ]by[ ]peer | closed[ ]the[ ]connection[ ]unexpectedly
      | starting[ ]up | shutting[ ]down | recovery | too[ ]many | read-only | not[ ]accepting
      | \[Errno[ ]-3\] | Temporary[ ]failure""",
    re.VERBOSE,
)


def is_permanent(error: Exception) -> bool:
    """Can no waiting mend this?"""
    if isinstance(error, DatabaseRefused | psycopg.errors.InsufficientPrivilege):
        return True
    if not isinstance(error, psycopg.Error) or error.sqlstate is not None:
        return False
    if isinstance(error, psycopg.ProgrammingError):
        # Nothing was asked of a server yet: the URL itself is not understood.
        return True
    text = str(error)
    return bool(_PERMANENT.search(text)) and not _TEMPORARY.search(text)


class Preflight:
    """Collects what keeps a start from going on, so that all of it is said at once."""

    def __init__(self, kind: str, *, wait: bool) -> None:
        self._kind, self._wait = kind, wait
        self._refusals: list[str] = []

    def failed(self, name: str, error: Exception) -> None:
        """The error again, unless it is one that is waited for or collected."""
        if is_permanent(error) and not self._wait:
            self._refusals.append(f"{self._kind} {name!r}: {line(error)}")
        elif is_permanent(error) or isinstance(error, psycopg.OperationalError):
            log.warning(
                "the database does not answer yet, retrying", extra={self._kind: name, "error": line(error)}
            )
        else:
            raise error

    def refuse(self) -> None:
        """DatabaseRefused when something was collected."""
        if self._refusals:
            told = "; ".join(self._refusals)
            raise DatabaseRefused(f"{told} (--wait-for-database waits for this to be mended)")
