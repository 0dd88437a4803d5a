"""The durable consumer of a group in a stream: its name, its required configuration, and how to find or create it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from nats.js.errors import APIError, NotFoundError

from outspark.errors import FeedFailed, SettingsError

_MAX_NAME = 255
_STREAM_NAMES = "$JS.API.STREAM.NAMES"
ACK_WAIT: Final = 60.0


@dataclass(frozen=True, slots=True)
class Wanted:
    """The consumer that the settings ask for. `ack_wait`, in seconds, is None if the settings do not name it."""

    group: str
    stream: str | None
    subjects: tuple[str, ...]
    max_ack_pending: int
    ack_wait: float | None


@dataclass(frozen=True, slots=True)
class Durable:
    """A consumer that exists in the server. `ack_wait` is in seconds."""

    stream: str
    name: str
    ack_wait: float


def consumer_name(group: str) -> str:
    """The group, with characters that NATS does not allow percent-encoded: `billing.eu` -> `billing%2Eeu`.

    No two groups have the same name. If the name is too long, it is `sha256=` and 64 digits; no encoded name contains
    a `=`.
    """
    raw = group.encode(errors="surrogatepass")
    name = quote(raw, safe="").replace(".", "%2E")
    return name if len(name) <= _MAX_NAME else f"sha256={hashlib.sha256(raw).hexdigest()}"


async def find_stream(client: Client, wanted: Wanted, timeout: float) -> str:
    """Find the stream with all subjects. A configured stream is not checked: a mirror has messages but no subjects."""
    if wanted.stream is not None:
        return wanted.stream
    by_subject = {subject: await _streams(client, subject, timeout) for subject in wanted.subjects}
    for subject, streams in by_subject.items():
        if not streams:
            raise FeedFailed(f"no stream has subject {subject}; create one that does, or set feed.stream")
    common = sorted(set.intersection(*by_subject.values()))
    if len(common) > 1:
        raise SettingsError(
            f"feed.stream is needed: several streams have {', '.join(by_subject)}: {', '.join(common)}"
        )
    if not common:
        found = "; ".join(
            f"{subject} in {', '.join(sorted(streams))}" for subject, streams in by_subject.items()
        )
        raise SettingsError(f"feed.topics must all be in one stream, but they are in several: {found}")
    return common[0]


async def _streams(client: Client, subject: str, timeout: float) -> set[str]:
    answer = await client.request(_STREAM_NAMES, json.dumps({"subject": subject}).encode(), timeout=timeout)
    found: dict[str, Any] = json.loads(answer.data)
    if "error" in found:
        raise APIError.from_error(found["error"])
    return set(found.get("streams") or ())


async def look_up(jetstream: JetStreamContext, stream: str, wanted: Wanted) -> ConsumerConfig | None:
    """Look up the group's consumer; None if there is none, SettingsError if it contradicts the settings."""
    name = consumer_name(wanted.group)
    try:
        config: ConsumerConfig = (await jetstream.consumer_info(stream, name)).config
    except NotFoundError:
        await _find(jetstream, stream)
        return None
    differences = list(_differences(config, wanted))
    if differences:
        raise SettingsError(
            f"stream {stream} already has a consumer {name}, which {'; '.join(differences)}. "
            "Use another group, change the settings, or delete the consumer; the server then redelivers all messages"
        )
    return config


async def ensure(jetstream: JetStreamContext, stream: str, wanted: Wanted) -> Durable:
    """Create the group's consumer if it is missing; raise its max_ack_pending if the settings need more."""
    config = await look_up(jetstream, stream, wanted)
    changed = _config(wanted) if config is None else _changed(config, wanted)
    if changed is not None:
        try:
            config = (await jetstream.add_consumer(stream, changed)).config
        except APIError as error:
            if error.code == 400:
                raise SettingsError(
                    f"stream {stream} cannot have a consumer for {', '.join(wanted.subjects)}: {error.description}"
                ) from error
            raise
    assert config is not None
    return Durable(stream, consumer_name(wanted.group), config.ack_wait or ACK_WAIT)


async def _find(jetstream: JetStreamContext, stream: str) -> None:
    """FeedFailed if the stream does not exist: the server does not say whether stream or consumer is missing."""
    try:
        await jetstream.stream_info(stream)
    except NotFoundError:
        raise FeedFailed(
            f"there is no stream {stream}; create it, or leave feed.stream out to have it found by its subjects"
        ) from None


def _config(wanted: Wanted) -> ConsumerConfig:
    name = consumer_name(wanted.group)
    several = len(wanted.subjects) > 1
    return ConsumerConfig(
        name=name,
        durable_name=name,
        description=f"Outspark inbox, group {wanted.group}"[:200],
        deliver_policy=DeliverPolicy.ALL,
        ack_policy=AckPolicy.EXPLICIT,
        ack_wait=wanted.ack_wait or ACK_WAIT,
        max_ack_pending=wanted.max_ack_pending,
        filter_subject=None if several else wanted.subjects[0],
        filter_subjects=list(wanted.subjects) if several else None,
    )


def _changed(config: ConsumerConfig, wanted: Wanted) -> ConsumerConfig | None:
    """The configuration to update the consumer to; None if it may stay as it is."""
    changes: dict[str, Any] = {}
    if 0 < (config.max_ack_pending or 0) < wanted.max_ack_pending:
        changes["max_ack_pending"] = wanted.max_ack_pending
    if wanted.ack_wait is not None and config.ack_wait != wanted.ack_wait:
        changes["ack_wait"] = wanted.ack_wait
    return config.evolve(**changes) if changes else None


def _differences(config: ConsumerConfig, wanted: Wanted) -> Sequence[str]:
    found = []
    subjects = set(config.filter_subjects or ([config.filter_subject] if config.filter_subject else [">"]))
    if subjects != set(wanted.subjects):
        found.append(
            f"reads {', '.join(sorted(subjects))} where the settings say {', '.join(sorted(wanted.subjects))}"
        )
    if config.deliver_subject:
        found.append(f"is a push consumer (to {config.deliver_subject}), but must be a pull consumer")
    if config.ack_policy != AckPolicy.EXPLICIT:
        found.append(f"has ack policy {config.ack_policy}, but must have explicit")
    if (config.max_deliver or -1) > 0:
        found.append(f"drops a message after {config.max_deliver} deliveries (max_deliver)")
    if config.headers_only:
        found.append("delivers headers only")
    return found
