"""Reads the options of publishers and feeds: validation errors, TLS contexts, and removal of secrets from texts."""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from outspark.errors import DestinationError, SettingsError

Options = TypeVar("Options", bound=BaseModel)


def read_options(model: type[Options], name: str, given: dict[str, Any]) -> Options:
    """Validate the options of destination `name`; SettingsError names the faults and the allowed options."""
    return read_options_at(f"destinations.{name}", model, given)


def read_options_at(where: str, model: type[Options], given: dict[str, Any]) -> Options:
    """Validate the options of the settings table `where`."""
    try:
        return model.model_validate(given)
    except ValidationError as error:
        faults = "; ".join(_fault(fault["loc"], fault["msg"]) for fault in error.errors(include_input=False))
        allowed = ", ".join(model.model_fields)
        # `from None`: the original error quotes its input, including passwords.
        raise SettingsError(f"{where}.options: {faults}; allowed are: {allowed}") from None


def tls_context(ca_file: str | None, cert_file: str | None, key_file: str | None) -> ssl.SSLContext:
    """Make a TLS context; DestinationError if a file cannot be read. Without `ca_file` the system's CAs are trusted."""
    try:
        context = ssl.create_default_context(cafile=ca_file)
        if cert_file is not None:
            context.load_cert_chain(cert_file, key_file)
    except OSError as error:
        raise DestinationError(f"the certificates cannot be read: {error}") from error
    return context


def hide(secrets: Iterable[str], text: str) -> str:
    """Replace secrets in the text, the longest first, because one may be part of another."""
    for secret in sorted({secret for secret in secrets if secret}, key=len, reverse=True):
        text = text.replace(secret, "***")
    return text


def _fault(location: tuple[int | str, ...], message: str) -> str:
    return f"{'.'.join(map(str, location))}: {message}" if location else message
