"""Asks a server why it does not take us: one handshake, in which nothing is sent, after a connection that failed.

Clients lose the reason on their way. With TLS 1.3 a server looks at our certificate when we take the connection for
established, so whoever writes first sees a reset and not the server's words; and librdkafka has one text for all.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from typing import Final

from outspark.publishers.tls_faults import tls_fault

_TIMEOUT: Final = 2.0
# How long the server's verdict on our certificate may take, once the handshake is through on our side.
_VERDICT: Final = 0.5


def tls_verdict(
    host: str,
    port: int,
    context: ssl.SSLContext,
    begin: Callable[[socket.socket], None] | None = None,
    name: str | None = None,
) -> str | None:
    """None where no fault of TLS is found. `begin` says what a protocol wants to hear before the handshake.

    `name` is what the certificate must name, where that is not the host.
    """
    try:
        with socket.create_connection((host, port), _TIMEOUT) as plain:
            if begin is not None:
                begin(plain)
            with context.wrap_socket(plain, server_hostname=name or host) as encrypted:
                encrypted.settimeout(_VERDICT)
                encrypted.recv(1)
    except OSError as error:
        return tls_fault(error)
    return None
