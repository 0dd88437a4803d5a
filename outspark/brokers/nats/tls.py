"""A NATS client that sends nothing unencrypted if TLS is configured, and decodes the credentials in a URL.

In NATS the server's greeting announces TLS, and it is unencrypted: an attacker between client and server can remove
the announcement. nats-py then continues without TLS, so this client checks before it sends CONNECT with the password.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from typing import Any
from urllib.parse import unquote

import nats.errors
from nats.aio.client import Client

from outspark.tls import NOT_OFFERED, tls_verdict

# Names of the credentials in CONNECT, and in the arguments of `connect`.
_CREDENTIALS = {"user": "user", "pass": "password", "auth_token": "token"}


class TlsNotOffered(nats.errors.Error):
    def __str__(self) -> str:
        return f"TLS: {NOT_OFFERED}, and tls://, ca_file or cert_file asks for it; nothing was sent to it"


class TlsRefused(nats.errors.Error):
    """The server refused the TLS handshake; a second handshake found out why."""


class TlsClient(Client):
    """TLS is required if `connect` gets an SSL context."""

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        # A server with optional TLS announces `tls_available`, which nats-py does not know.
        if initial_connection and self._tls_wanted and info.get("tls_available"):
            info["tls_required"] = True
        await super()._process_info(info, initial_connection)

    async def _process_connect_init(self) -> None:
        try:
            await super()._process_connect_init()
        except OSError as error:
            # With TLS 1.3 the server checks the client's certificate after the handshake has ended for the client, so
            # its refusal arrives as a connection reset.
            reader = getattr(self._transport, "_io_reader", None)
            refusal = None if reader is None else reader.exception()
            if isinstance(refusal, ssl.SSLError):
                raise refusal from error
            if self._tls_wanted and (fault := await asyncio.to_thread(self._ask_again)):
                raise TlsRefused(fault) from error
            raise

    def _ask_again(self) -> str | None:
        """Repeat the handshake to find out why TLS failed: a write that fails early discards the server's alert."""
        server = self._current_server
        if server is None or server.uri.hostname is None or server.uri.port is None:
            return None
        begin = None if self.options.get("tls_handshake_first") else _read_greeting
        context, name = self.options["tls"], self.options.get("tls_hostname")
        return tls_verdict(server.uri.hostname, server.uri.port, context, begin, name)

    def _connect_command(self) -> bytes:
        """Called for the first command to the server, after the point at which TLS is established, if at all."""
        if self._tls_wanted and not self._encrypted:
            raise TlsNotOffered
        return self._with_credentials_decoded(super()._connect_command())

    def _with_credentials_decoded(self, command: bytes) -> bytes:
        """nats-py sends credentials of a URL percent-encoded, as they are in the URL."""
        if self._current_server is None or self._current_server.uri.username is None:
            return command
        verb, _, words = command.partition(b" ")
        given = json.loads(words)
        for name, option in _CREDENTIALS.items():
            if name in given and self.options.get(option) is None:
                given[name] = unquote(given[name])
        return verb + b" " + json.dumps(given).encode() + b"\r\n"

    @property
    def _tls_wanted(self) -> bool:
        return self.options.get("tls") is not None

    @property
    def _encrypted(self) -> bool:
        if self._current_server is not None and self._current_server.uri.scheme == "wss":
            return True  # from its first byte
        writer = getattr(self._transport, "_io_writer", None)
        return writer is not None and writer.get_extra_info("ssl_object") is not None


def _read_greeting(server: socket.socket) -> None:
    """A NATS server sends INFO, one unencrypted line, before the TLS handshake."""
    while server.recv(1) not in (b"\n", b""):
        pass
