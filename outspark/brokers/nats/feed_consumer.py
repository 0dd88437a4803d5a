"""The durable consumer of a group in a stream: its name, what it must be like, and how it is found or made."""

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
    """What the settings ask for. `ack_wait`, in seconds, only where they do."""

    group: str
    stream: str | None
    subjects: tuple[str, ...]
    max_ack_pending: int
    ack_wait: float | None


@dataclass(frozen=True, slots=True)
class Durable:
    """A consumer that is there. `ack_wait` in seconds."""

    stream: str
    name: str
    ack_wait: float


def consumer_name(group: str) -> str:
    """The group, percent-encoded as in a URL where NATS does not allow a character; the dot is one of these.

    No two groups share a name. One that is too long is known by its hash, `sha256=` and 64 digits; `=` stands in no
    encoded name. `billing.eu` -> `billing%2Eeu`
    """
    raw = group.encode(errors="surrogatepass")
    name = quote(raw, safe="").replace(".", "%2E")
    return name if len(name) <= _MAX_NAME else f"sha256={hashlib.sha256(raw).hexdigest()}"


async def find_stream(client: Client, wanted: Wanted, timeout: float) -> str:
    """The one that has all subjects. Not asked where it is given: a mirror has messages, and no subjects."""
    if wanted.stream is not None:
        return wanted.stream
    having = {subject: await _streams(client, subject, timeout) for subject in wanted.subjects}
    for subject, streams in having.items():
        if not streams:
            raise FeedFailed(f"no stream has subject {subject}; create one that does, or set feed.stream")
    common = sorted(set.intersection(*having.values()))
    if len(common) > 1:
        raise SettingsError(
            f"feed.stream is needed: {', '.join(having)} can be had from several streams: {', '.join(common)}"
        )
    if not common:
        found = "; ".join(f"{subject} in {', '.join(sorted(streams))}" for subject, streams in having.items())
        raise SettingsError(f"feed.topics must be of one stream, and these are not: {found}")
    return common[0]


async def _streams(client: Client, subject: str, timeout: float) -> set[str]:
    answer = await client.request(_STREAM_NAMES, json.dumps({"subject": subject}).encode(), timeout=timeout)
    found: dict[str, Any] = json.loads(answer.data)
    if "error" in found:
        raise APIError.from_error(found["error"])
    return set(found.get("streams") or ())


async def look_up(jetstream: JetStreamContext, stream: str, wanted: Wanted) -> ConsumerConfig | None:
    """The group's consumer, if there is one; SettingsError when it would not bring what is asked for."""
    name = consumer_name(wanted.group)
    try:
        config: ConsumerConfig = (await jetstream.consumer_info(stream, name)).config
    except NotFoundError:
        await _find(jetstream, stream)
        return None
    differences = list(_differences(config, wanted))
    if differences:
        raise SettingsError(
            f"stream {stream} has a consumer {name} already, and {'; '.join(differences)}. "
            "Take another group, change the settings, or delete the consumer: then all comes again"
        )
    return config


async def ensure(jetstream: JetStreamContext, stream: str, wanted: Wanted) -> Durable:
    """Make the group's consumer where it is missing, and let it have as much on the way as the settings need."""
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
    """The server does not say which of the two is missing."""
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
    """None where it may stay as it is."""
    changes: dict[str, Any] = {}
    if 0 < (config.max_ack_pending or 0) < wanted.max_ack_pending:
        changes["max_ack_pending"] = wanted.max_ack_pending
    if wanted.ack_wait is not None and config.ack_wait != wanted.ack_wait:
        changes["ack_wait"] = wanted.ack_wait
    return config.evolve(**changes) if changes else None


def _differences(config: ConsumerConfig, wanted: Wanted) -> Sequence[str]:
    found = []
    there = set(config.filter_subjects or ([config.filter_subject] if config.filter_subject else [">"]))
    if there != set(wanted.subjects):
        found.append(
            f"reads {', '.join(sorted(there))} where the settings say {', '.join(sorted(wanted.subjects))}"
        )
    if config.deliver_subject:
        found.append(f"pushes to {config.deliver_subject}, where it has to be a pull consumer")
    if config.ack_policy != AckPolicy.EXPLICIT:
        found.append(f"has ack policy {config.ack_policy}, where it has to be explicit")
    if (config.max_deliver or -1) > 0:
        found.append(f"gives a message up after {config.max_deliver} deliveries (max_deliver)")
    if config.headers_only:
        found.append("brings headers only")
    return found
