"""How every connection to a database is opened: what its URL says, and what holds where it says nothing.

A password may stand in a URL that libpq does not understand, and libpq repeats what it does not understand. So a URL is
parsed here first, and the error is ours.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict

from outspark.errors import SettingsError

CONNECT_TIMEOUT: Final = 10
"""Seconds, for each host."""
PEER_TIMEOUT: Final = 20
"""Seconds without a sign of the other side after which a connection is given up."""

# Keepalives find a silent peer while nothing is under way. While data is unacknowledged none are sent, and the kernel
# goes on for a quarter of an hour: `tcp_user_timeout` ends that, and where it is set it ends the keepalives, too.
_KEEPALIVES: Final = {"keepalives": 1, "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3}

_URI: Final = re.compile(r"postgres(?:ql)?://(.*)", re.DOTALL)
_PORTS: Final = re.compile(r"\d*(,\d*)*")

_ENCODE: Final = (
    "the URL of the database is not understood: a port has to be a number, and in a user name or password % is written "
    "as %25, / as %2F, @ as %40 and : as %3A"
)
_QUOTE: Final = (
    "the connection string of the database is not understood: it is postgresql://..., or host=... dbname=... with "
    "values that hold spaces in single quotes, and in them ' as \\' and \\ as \\\\"
)


def options(url: str, **overrides: Any) -> dict[str, Any]:
    """What to give psycopg's `connect` for this URL, `ours` above all. SettingsError where it is not understood."""
    parsed = _parse(url)
    defaults = {"connect_timeout": CONNECT_TIMEOUT, "tcp_user_timeout": PEER_TIMEOUT * 1000, **_KEEPALIVES}
    return {**defaults, **_writable(parsed), **parsed, **overrides}


def server_settings() -> dict[str, str]:
    """The same for the server's side: it holds the locks of a client that vanished until it notices.

    Its own defaults are two hours of silence, or a quarter of an hour for what it sent and nobody acknowledged.
    """
    return {
        "tcp_keepalives_idle": str(_KEEPALIVES["keepalives_idle"]),
        "tcp_keepalives_interval": str(_KEEPALIVES["keepalives_interval"]),
        "tcp_keepalives_count": str(_KEEPALIVES["keepalives_count"]),
        "tcp_user_timeout": str(PEER_TIMEOUT * 1000),
    }


def _writable(parsed: Mapping[str, Any]) -> dict[str, str]:
    """Of several hosts the one that can be written to. With one host this would say no more than a statement does."""
    hosts = [parsed.get(name) or os.environ.get(f"PG{name.upper()}", "") for name in ("host", "hostaddr")]
    several = any("," in str(one) for one in hosts)
    return (
        {"target_session_attrs": "read-write"} if several and "PGTARGETSESSIONATTRS" not in os.environ else {}
    )


def _parse(url: str) -> dict[str, Any]:
    uri = _URI.fullmatch(url)
    if uri is not None and "@" in _behind_user(uri[1]).partition("?")[0]:
        raise SettingsError(_ENCODE)
    try:
        parsed = dict(conninfo_to_dict(url))
    except psycopg.Error:
        # Not chained: its text may hold a piece of the password.
        raise SettingsError(_QUOTE if uri is None else _ENCODE + _in_the_rest(_behind_user(uri[1]))) from None
    # A piece of a password that libpq takes for a port would be repeated by it.
    if uri is not None and not _PORTS.fullmatch(str(parsed.get("port", ""))):
        raise SettingsError(_ENCODE)
    return parsed


def _behind_user(rest: str) -> str:
    """What libpq takes for hosts, database and parameters: all behind the first "@", if no "/" stands before it."""
    user, at, place = rest.partition("@")
    return place if at and "/" not in user else rest


def _in_the_rest(place: str) -> str:
    """What libpq says about the part behind user and password, where no piece of a password can be in it."""
    if "@" in place or "password" in place.lower():
        return ""
    try:
        conninfo_to_dict(f"postgresql://{place}")
    except psycopg.Error as error:
        return f"; behind them: {str(error).strip()}"
    return ""
