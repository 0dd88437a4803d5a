"""Decides which database errors a start refuses and which it retries: a wrong password will not fix itself."""

from __future__ import annotations

import logging
import re

import psycopg

from outspark.errors import DatabaseRefused
from outspark.spark.databases import line

log = logging.getLogger(__name__)

# libpq does not expose the SQLSTATE of a failed connection, so the message is matched. A server with messages in
# another language matches nothing and is retried.
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
# With several hosts the message lists all failures, and one host may still come up. A name server that is down is
# temporary too.
_TEMPORARY = re.compile(
    r"""Connection[ ]refused | Is[ ]the[ ]server[ ]running | timeout[ ]expired | timed[ ]out | unreachable
      | No[ ]route[ ]to[ ]host | reset[ ]by[ ]peer | closed[ ]the[ ]connection[ ]unexpectedly
      | starting[ ]up | shutting[ ]down | recovery | too[ ]many | read-only | not[ ]accepting
      | \[Errno[ ]-3\] | Temporary[ ]failure""",
    re.VERBOSE,
)


def is_permanent(error: Exception) -> bool:
    """True when retrying cannot help until somebody changes the configuration or the database."""
    if isinstance(error, DatabaseRefused | psycopg.errors.InsufficientPrivilege):
        return True
    if not isinstance(error, psycopg.Error) or error.sqlstate is not None:
        return False
    if isinstance(error, psycopg.ProgrammingError):
        # libpq raises this before it connects: the URL itself is invalid.
        return True
    text = str(error)
    return bool(_PERMANENT.search(text)) and not _TEMPORARY.search(text)


class Preflight:
    """Collects the errors that prevent a start, so that one message reports all of them."""

    def __init__(self, kind: str, *, wait: bool) -> None:
        self._kind, self._wait = kind, wait
        self._refusals: list[str] = []

    def failed(self, name: str, error: Exception) -> None:
        """Collect a permanent error, log a temporary one, and re-raise any other."""
        if is_permanent(error) and not self._wait:
            self._refusals.append(f"{self._kind} {name!r}: {line(error)}")
        elif is_permanent(error) or isinstance(error, psycopg.OperationalError):
            log.warning(
                "the database does not answer yet, retrying", extra={self._kind: name, "error": line(error)}
            )
        else:
            raise error

    def refuse(self) -> None:
        """DatabaseRefused with all collected errors, if there are any."""
        if self._refusals:
            refused = "; ".join(self._refusals)
            raise DatabaseRefused(
                f"{refused} (with --wait-for-database the start retries until this is fixed)"
            )
