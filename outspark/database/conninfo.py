"""The parameters of every database connection: those of its URL, and defaults for all others.

libpq quotes the part of a URL that it cannot parse, and that part may contain the password. So Outspark parses the URL
first, and raises an error of its own.
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
"""Seconds to connect to each host."""
PEER_TIMEOUT: Final = 20
"""Seconds without a packet from the peer after which a connection counts as lost."""

# Keepalives detect a silent peer on an idle connection. While data is unacknowledged, the kernel sends none and
# retransmits for about 15 minutes; `tcp_user_timeout` limits that, and where it is set it limits the keepalives too.
_KEEPALIVES: Final = {"keepalives": 1, "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3}

_URI: Final = re.compile(r"postgres(?:ql)?://(.*)", re.DOTALL)
_PORTS: Final = re.compile(r"\d*(,\d*)*")

_ENCODE: Final = (
    "the URL of the database is not valid: a port has to be a number, and in a user name or password write % as %25, "
    "/ as %2F, @ as %40 and : as %3A"
)
_QUOTE: Final = (
    "the connection string of the database is not valid: write postgresql://..., or host=... dbname=... with values "
    "that contain spaces in single quotes, and in them ' as \\' and \\ as \\\\"
)


def options(url: str, **overrides: Any) -> dict[str, Any]:
    """Arguments of psycopg's `connect` for this URL; `overrides` win. SettingsError when the URL is not valid."""
    parsed = _parse(url)
    defaults = {"connect_timeout": CONNECT_TIMEOUT, "tcp_user_timeout": PEER_TIMEOUT * 1000, **_KEEPALIVES}
    return {**defaults, **_writable(parsed), **parsed, **overrides}


def server_settings() -> dict[str, str]:
    """The same time limits for the server's side: it holds the locks of a disconnected client until it notices.

    By default it notices after two hours of silence, or after about 15 minutes if data is unacknowledged.
    """
    return {
        "tcp_keepalives_idle": str(_KEEPALIVES["keepalives_idle"]),
        "tcp_keepalives_interval": str(_KEEPALIVES["keepalives_interval"]),
        "tcp_keepalives_count": str(_KEEPALIVES["keepalives_count"]),
        "tcp_user_timeout": str(PEER_TIMEOUT * 1000),
    }


def _writable(parsed: Mapping[str, Any]) -> dict[str, str]:
    """Of several hosts, connect to the primary. With one host the check adds nothing: a statement fails as clearly."""
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
        # Not chained: libpq's text may contain a part of the password.
        raise SettingsError(_QUOTE if uri is None else _ENCODE + _in_the_rest(_behind_user(uri[1]))) from None
    # libpq would quote an invalid port, and that may be a part of a password.
    if uri is not None and not _PORTS.fullmatch(str(parsed.get("port", ""))):
        raise SettingsError(_ENCODE)
    return parsed


def _behind_user(rest: str) -> str:
    """The part that libpq takes for hosts, database and parameters: after the first "@" that no "/" precedes."""
    user, at, address = rest.partition("@")
    return address if at and "/" not in user else rest


def _in_the_rest(address: str) -> str:
    """libpq's error for the part after user and password, where that cannot contain a part of a password."""
    if "@" in address or "password" in address.lower():
        return ""
    try:
        conninfo_to_dict(f"postgresql://{address}")
    except psycopg.Error as error:
        return f"; in the part after them: {str(error).strip()}"
    return ""
