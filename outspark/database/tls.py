"""Explains libpq's `certificate verify failed`, its one text for unknown CAs and expired certificates alike."""

from __future__ import annotations

import socket
import ssl
import struct
from pathlib import Path

import psycopg
from psycopg.conninfo import conninfo_to_dict

from outspark.tls import tls_verdict

# SSLRequest of PostgreSQL's protocol: its length and its code.
_SSL_REQUEST = struct.pack("!ii", 8, 80877103)
_UNCLEAR = "certificate verify failed"
_DEFAULT_CA = "~/.postgresql/root.crt"


def explained(reason: str, url: str) -> str:
    """libpq's reason of a failed connect, preceded by its meaning where libpq is vague. May connect to the server."""
    try:
        verdict = _verdict(url) if _UNCLEAR in reason else None
    except (psycopg.ProgrammingError, OSError, ValueError):
        verdict = None
    return reason if verdict is None else f"{verdict}: {reason}"


def _verdict(url: str) -> str | None:
    given = conninfo_to_dict(url)
    host, port = str(given.get("host") or ""), int(given.get("port") or 5432)
    # With several hosts, libpq names the one that failed only in its text. A folder is a Unix socket.
    if not host or "," in host or host.startswith("/"):
        return None
    trusted = str(given.get("sslrootcert") or _DEFAULT_CA)
    context = ssl.create_default_context(
        cafile=None if trusted == "system" else str(Path(trusted).expanduser())
    )
    context.check_hostname = given.get("sslmode") == "verify-full"
    return tls_verdict(str(given.get("hostaddr") or host), port, context, _ask_for_tls, name=host)


def _ask_for_tls(connection: socket.socket) -> None:
    connection.sendall(_SSL_REQUEST)
    connection.recv(1)
