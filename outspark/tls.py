"""Explains why a TLS handshake failed: whose certificate is wrong, and how.

Client libraries lose the reason, so `tls_verdict` asks the server again: a handshake after which nothing is sent.
"""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Callable, Iterator
from typing import Final

_UNKNOWN_CA = "unknown CA: none of the trusted CA certificates signed the server's certificate"
_EXPIRED = "the server's certificate has expired"
_WRONG_NAME = "the server's certificate is not for the host name or address that was connected to"
NOT_OFFERED = "the server does not offer TLS"
NO_CLIENT_CERTIFICATE = "the server asks for a client certificate, and none was given"
# Codes of OpenSSL's X509_verify_cert.
_VERIFY_CODES = {
    9: "the server's certificate is not valid yet",
    10: _EXPIRED,
    18: _UNKNOWN_CA,
    19: _UNKNOWN_CA,
    20: _UNKNOWN_CA,
    21: _UNKNOWN_CA,
    62: _WRONG_NAME,
    64: _WRONG_NAME,
}
REFUSES_OURS = "the server refuses the client certificate"
# Substrings of OpenSSL's reasons; the first match wins. Most of them are alerts that the server sent.
_REASONS = {
    "CERTIFICATE_REQUIRED": NO_CLIENT_CERTIFICATE,
    "ALERT_CERTIFICATE_EXPIRED": f"{REFUSES_OURS}: it has expired",
    "ALERT_CERTIFICATE_REVOKED": f"{REFUSES_OURS}: it was revoked",
    "ALERT_UNKNOWN_CA": f"{REFUSES_OURS}: it does not know the CA that signed it",
    "ALERT_BAD_CERTIFICATE": f"{REFUSES_OURS}, or asks for one",
    "ALERT_CERTIFICATE_UNKNOWN": REFUSES_OURS,
    "ALERT_UNSUPPORTED_CERTIFICATE": REFUSES_OURS,
    "ALERT_HANDSHAKE_FAILURE": "the server found no TLS version or cipher in common, or asks for a client certificate",
    "ALERT_PROTOCOL_VERSION": "the server and this client have no version of TLS in common",
    "WRONG_VERSION_NUMBER": NOT_OFFERED,
    "HTTP_REQUEST": NOT_OFFERED,
}
_SOURCE_LINE = re.compile(r"\.? \(_ssl\.c:\d+\)")


def tls_fault(error: BaseException) -> str | None:
    """The TLS fault that caused this error, followed by OpenSSL's own words; None when TLS is not the cause."""
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            fault = _VERIFY_CODES.get(cause.verify_code, "the server's certificate is not trusted")
            return f"TLS: {fault} ({_said(cause)})"
        if isinstance(cause, ssl.SSLError) and (reason := _reason(cause)):
            return f"TLS: {reason} ({_said(cause)})"
    return None


def _reason(error: ssl.SSLError) -> str | None:
    return next((words for part, words in _REASONS.items() if part in (error.reason or "")), None)


def _said(error: ssl.SSLError) -> str:
    """OpenSSL's own words, without the source line of Python's ssl module."""
    return _SOURCE_LINE.sub("", str(error.args[-1]))


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and its chain of causes and contexts."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or cause.__context__


_TIMEOUT: Final = 2.0
# Seconds to wait for an alert: in TLS 1.3 the client's handshake ends before the server checks the client certificate.
_VERDICT: Final = 0.5


def tls_verdict(
    host: str,
    port: int,
    context: ssl.SSLContext,
    begin: Callable[[socket.socket], None] | None = None,
    name: str | None = None,
) -> str | None:
    """The fault of a TLS handshake with this server, or None. `begin` sends what a protocol needs before the handshake.

    `name` is the name that the certificate must have, if it is not the host.
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
