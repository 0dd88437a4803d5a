"""Reads librdkafka's properties from options and brokers from a URL, for publishers and feeds."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from confluent_kafka import KafkaException

from outspark.brokers.kafka.tls import require_tls
from outspark.errors import SettingsError

_SCHEME = "kafka://"
_BROKER = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s/@:\[\]]+)(:\d{1,5})?")
_SECRET = re.compile(r"password|passphrase|secret|\.pem|oauthbearer\.config")


def flat(where: str, options: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Flatten nested options: `sasl.password = "x"` in TOML is a nested table, librdkafka wants dotted names.

    `where` is the settings table that a SettingsError names.
    """
    for key, value in options.items():
        match value:
            case Mapping():
                yield from flat(where, value, f"{prefix}{key}.")
            case bool():
                yield prefix + key, str(value).lower()
            case str() | int() | float():
                yield prefix + key, str(value)
            case _:
                raise SettingsError(f"{where}.options: {prefix}{key} must be text, a number or a boolean")


def brokers(where: str, url: str) -> str:
    """The brokers of the URL in librdkafka's form: `host:port,host:port`."""
    found = [broker.strip().removeprefix(_SCHEME).removesuffix("/") for broker in url.split(",")]
    if not all(_BROKER.fullmatch(broker) for broker in found):
        # The value is not shown: it may hold a password.
        raise SettingsError(
            f"{where}.url must be kafka://host:port,host:port; credentials belong in the options "
            "sasl.username and sasl.password"
        )
    return ",".join(found)


def try_out(where: str, properties: Mapping[str, str], make: Callable[[dict[str, Any]], Any]) -> None:
    """librdkafka is the one who knows its properties; without brokers it connects nowhere."""
    require_tls(where, properties)
    try:
        make({**properties, "log_level": "0"})
    except (KafkaException, TypeError, ValueError) as error:
        said = error.args[0].str() if isinstance(error, KafkaException) else str(error)
        raise SettingsError(f"{where}.options: {without_secrets(said, properties)}") from None


def without_secrets(text: str, properties: Mapping[str, str]) -> str:
    secrets = {value for name, value in properties.items() if value and _SECRET.search(name)}
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "***")
    return text
