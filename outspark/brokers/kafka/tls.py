"""Explains librdkafka's TLS errors, which have one text for every certificate that it does not trust."""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from pathlib import Path

from outspark.errors import SettingsError
from outspark.tls import NO_CLIENT_CERTIFICATE, NOT_OFFERED, REFUSES_OURS, tls_verdict

_BROKER = re.compile(r"ssl://(\[[0-9A-Fa-f:.]+\]|[^\s/:\[\]]+):(\d{1,5})/")
_ALERT = re.compile(r"alert number (?:4[2-68]|116)\b")
_OUR_CERTIFICATE = ("ssl.certificate.location", "ssl.certificate.pem", "ssl.keystore.location")
_NEED_TLS = (*_OUR_CERTIFICATE, "ssl.ca.location", "ssl.ca.pem", "ssl.key.location", "ssl.key.pem")


def require_tls(where: str, properties: Mapping[str, str]) -> None:
    """SettingsError for certificates without TLS: librdkafka would ignore them and send unencrypted data."""
    given = [name for name in _NEED_TLS if properties.get(name)]
    if given and not _wanted(properties):
        raise SettingsError(f"{where}.options: {given[0]} needs security.protocol = ssl or sasl_ssl")


def is_client_certificate_refusal(said: str) -> bool:
    """Whether the text has a TLS alert that refuses the client. librdkafka reports it as a lost connection."""
    return _ALERT.search(said) is not None


def explained(said: str, properties: Mapping[str, str]) -> str:
    """The text, with an explanation in front if it is about TLS. May connect to the broker, as `tls_verdict` does."""
    meaning = _meaning(said, properties) if _wanted(properties) else None
    return said if meaning is None else f"{meaning}: {said}"


def _meaning(said: str, properties: Mapping[str, str]) -> str | None:
    if is_client_certificate_refusal(said):
        ours = any(properties.get(name) for name in _OUR_CERTIFICATE)
        return f"TLS: {REFUSES_OURS if ours else NO_CLIENT_CERTIFICATE}"
    if "wrong version number" in said:
        return f"TLS: {NOT_OFFERED}"
    broker = _BROKER.search(said)
    if "certificate verify failed" not in said or broker is None:
        return f"TLS: {NOT_OFFERED}, or hung up" if "SSL_HANDSHAKE" in said else None
    return tls_verdict(broker[1].strip("[]"), int(broker[2]), _context(properties))


def _context(properties: Mapping[str, str]) -> ssl.SSLContext:
    location = properties.get("ssl.ca.location", "")
    context = ssl.create_default_context(
        cafile=location if Path(location).is_file() else None,
        capath=location if Path(location).is_dir() and location else None,
        cadata=properties.get("ssl.ca.pem"),
    )
    context.check_hostname = properties.get("ssl.endpoint.identification.algorithm", "https") != "none"
    return context


def _wanted(properties: Mapping[str, str]) -> bool:
    return properties.get("security.protocol", "").lower() in ("ssl", "sasl_ssl")
