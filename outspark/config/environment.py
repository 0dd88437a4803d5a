"""Settings from environment variables: `OUTSPARK__SECTION__KEY`, and the variables of an Open Outbox Relay.

The second form lets a deployment of that relay run Outspark unchanged: its variables define one source and one
destination, both called `default`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from outspark.config import describe, layers
from outspark.config.brokers import BROKERS
from outspark.config.layers import Given, Layer, Path

OWN_PREFIX = "OUTSPARK__"
DEFAULT = "default"

# Variables of an Open Outbox Relay that have the meaning of one of Outspark's settings.
OPEN_OUTBOX: dict[str, Path] = {
    "STORAGE_URL": ("sources", DEFAULT, "url"),
    "STORAGE_TABLE_NAME": ("sources", DEFAULT, "table"),
    "POLL_INTERVAL": ("sources", DEFAULT, "poll_interval"),
    "BATCH_SIZE": ("sources", DEFAULT, "batch_size"),
    "LEASE_TIMEOUT": ("sources", DEFAULT, "lease_timeout"),
    "REAP_BATCH_SIZE": ("sources", DEFAULT, "reap_batch_size"),
    "RETRY_MAX_ATTEMPTS": ("sources", DEFAULT, "retry", "max_attempts"),
    "RETRY_BASE_DELAY": ("sources", DEFAULT, "retry", "base_delay"),
    "RETRY_MAX_DELAY": ("sources", DEFAULT, "retry", "max_delay"),
    "RETRY_JITTER": ("sources", DEFAULT, "retry", "jitter"),
    "PUBLISHER_TYPE": ("destinations", DEFAULT, "type"),
    "RELAY_ID": ("relay", "id"),
    "HEALTH_CHECK_INTERVAL": ("server", "health_check_interval"),
}
# NATS_CONNECTION_TIMEOUT has no counterpart: in Outspark, connecting counts towards the publish timeout.
NATS: dict[str, Path] = {"NATS_PUBLISH_TIMEOUT": ("destinations", DEFAULT, "publish_timeout")}
REDIS: dict[str, Path] = {
    "REDIS_WRITE_TIMEOUT": ("destinations", DEFAULT, "publish_timeout"),
    "REDIS_CONNECTION_TIMEOUT": ("destinations", DEFAULT, "options", "connect_timeout"),
}
# Outspark sends a batch whole and immediately, and retries it until the publish timeout, so KAFKA_BATCH_SIZE,
# KAFKA_BATCH_TIMEOUT, KAFKA_MAX_ATTEMPTS, KAFKA_READ_TIMEOUT and KAFKA_CONNECTION_TIMEOUT have no counterpart.
KAFKA: dict[str, Path] = {
    "KAFKA_WRITE_TIMEOUT": ("destinations", DEFAULT, "publish_timeout"),
    "KAFKA_BATCH_BYTES": ("destinations", DEFAULT, "options", "message.max.bytes"),
    "KAFKA_COMPRESSION": ("destinations", DEFAULT, "options", "compression.type"),
}
OF_PUBLISHER = {"kafka": KAFKA, "nats": NATS, "redis": REDIS}
DEFAULTS: dict[str, str] = {
    "BATCH_SIZE": "100",
    "PUBLISHER_TYPE": "stdout",
    "KAFKA_BATCH_BYTES": "10485760",
    "KAFKA_COMPRESSION": "snappy",
}
# URL parameters of pgx, the driver of that relay; libpq rejects them.
_PGX_ONLY = ("pool_", "default_query_exec_mode", "statement_cache_capacity", "description_cache_capacity")


def speaks_open_outbox(environ: Mapping[str, str]) -> bool:
    return bool(environ.get("STORAGE_URL") or environ.get("PUBLISHER_TYPE"))


def open_outbox(environ: Mapping[str, str]) -> Layer:
    """An empty variable counts as unset, as it does for that relay."""
    given = {name: value for name, value in environ.items() if value}
    defaults = DEFAULTS if "STORAGE_URL" in given else {}
    names = OPEN_OUTBOX | OF_PUBLISHER.get(given.get("PUBLISHER_TYPE", ""), {})
    layer = {path: _given(name, defaults[name]) for name, path in names.items() if name in defaults}
    layer |= {path: _given(name, given[name]) for name, path in names.items() if name in given}
    if "STORAGE_URL" in given:
        layer["sources", DEFAULT, "url"] = _given("STORAGE_URL", _without_pgx_options(given["STORAGE_URL"]))
    if "PUBLISHER_URL" in given and given.get("PUBLISHER_TYPE", "") in BROKERS:
        layer["destinations", DEFAULT, "url"] = _given("PUBLISHER_URL", given["PUBLISHER_URL"])
    if given.get("PUBLISHER_TYPE") == "kafka":
        # The hash of that relay's client: a key keeps its partition when Outspark replaces the relay.
        layer["destinations", DEFAULT, "options", "partitioner"] = _given("PUBLISHER_TYPE", "fnv1a_random")
    if "SERVER_PORT" in given:
        layer |= _address(given["SERVER_PORT"])
    if given.get("ENVIRONMENT") == "development":
        layer["log", "level"] = _given("ENVIRONMENT", "debug")
    return layer


def refused(environ: Mapping[str, str]) -> Iterator[str]:
    """Errors for options of that relay that Outspark does not support."""
    storage = environ.get("STORAGE_TYPE") or "postgres"
    if storage not in ("postgres", "postgresql"):
        yield f"STORAGE_TYPE = {storage!r} (environment variable): must be postgres"
    if environ.get("PUBLISHER_TYPE") != "kafka":
        return
    sending = environ.get("KAFKA_ASYNC") or "false"
    if sending.lower() not in ("false", "f", "0"):
        yield (
            f"KAFKA_ASYNC = {sending!r} (environment variable): must be false; sending without waiting for the "
            "acknowledgement marks events as delivered that a crash or a rejection loses"
        )
    acks = environ.get("KAFKA_REQUIRED_ACKS") or "all"
    if acks.lower() not in ("all", "-1"):
        yield (
            f"KAFKA_REQUIRED_ACKS = {acks!r} (environment variable): must be all; with fewer acknowledgements "
            "events are marked as delivered that a failure of one broker loses"
        )


def own(environ: Mapping[str, str], below: Layer) -> Layer:
    """`OUTSPARK__SOURCES__BILLING_EVENTS__URL` matches a source that a lower layer names `Billing-Events`."""
    layer: Layer = {}
    for name in sorted(environ):
        if name.startswith(OWN_PREFIX):
            path = _resolve(name.removeprefix(OWN_PREFIX).lower().split("__"), below)
            layer[path] = _given(name, _value(path, environ[name]))
    return layer


def _given(name: str, value: Any) -> Given:
    return Given(value, f"environment variable {name}")


def _without_pgx_options(url: str) -> str:
    parts = urlsplit(url)
    query = parse_qsl(parts.query, keep_blank_values=True)
    kept = [(key, value) for key, value in query if not key.startswith(_PGX_ONLY)]
    return url if kept == query else urlunsplit(parts._replace(query=urlencode(kept)))


def _address(text: str) -> Layer:
    """`:8080` sets only the port: the server stays on 127.0.0.1 unless the variable contains an address."""
    host, colon, port = text.rpartition(":")
    layer: Layer = {("server", "port"): _given("SERVER_PORT", port if colon else text)}
    if host:
        layer["server", "host"] = _given("SERVER_PORT", host.strip("[]"))
    return layer


def _resolve(words: list[str], below: Layer) -> Path:
    path: Path = ()
    for word in words:
        known = {_plain(name): name for name in layers.children(below, path)}
        part = int(word) if path == ("routes",) and word.isdigit() else known.get(_plain(word), word)
        path = (*path, part)
    return path


def _plain(name: str) -> str:
    return name.lower().replace("-", "_")


def _value(path: Path, text: str) -> Any:
    """Parse JSON for routes and free-form options, and commas for lists; pydantic parses all other values from text."""
    field = describe.field_at(path)
    if field is not None and describe.is_list(field) and not text.lstrip().startswith("["):
        return [item.strip() for item in text.split(",") if item.strip()]
    if path[0] != "routes" and "options" not in path and (field is None or not describe.is_list(field)):
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text
