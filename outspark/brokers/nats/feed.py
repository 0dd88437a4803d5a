"""The NATS JetStream feed: all members of a group share one durable consumer and acknowledge each message."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Final

from pydantic import Field

from outspark.brokers.feed import Outage, Received
from outspark.brokers.nats.client import NatsAddress, NatsLogin
from outspark.brokers.nats.feed_consumer import Wanted
from outspark.brokers.nats.feed_pull import ACK, Pull, Raw
from outspark.brokers.nats.wire import PARTITION_KEY
from outspark.brokers.options import read_options_at
from outspark.config.fields import Duration
from outspark.config.inbox import FeedSettings
from outspark.errors import DestinationDown, DestinationError, FeedFailed, OutsparkError, SettingsError

_CONNECT_TIMEOUT: Final = 5.0
_CLOSE_TIMEOUT: Final = 2.0
_KEY_HEADERS: Final = (PARTITION_KEY, "partition_key")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SUBJECT = re.compile(r"(?:(?:\*|[^\s.*>\x00]+)(?:\.(?:\*|[^\s.*>\x00]+))*(?:\.>)?|>)")
# Indexes of tokens in a reply subject, `$JS.ACK.…`; newer servers insert domain and account before them.
_SHORT_REPLY, _STREAM, _SEQUENCE, _TIME = 9, 2, 5, 7


class NatsFeedOptions(NatsLogin):
    """The `options` of a feed of type nats."""

    ack_wait: Duration | None = Field(
        None, description="After this time an unacknowledged message is delivered again; default: 60s."
    )
    max_ack_pending: int | None = Field(
        None,
        ge=1,
        description="Messages that may be on their way to all members together; default: max_open + 2 × batch_size.",
    )


class NatsFeed:
    """The first poll connects. `Received.handle` is the subject that an acknowledgement is published to."""

    def __init__(self, settings: FeedSettings, group: str) -> None:
        self._options = read_options_at("feed", NatsFeedOptions, settings.options)
        for subject in settings.topics:
            if not _SUBJECT.fullmatch(subject):
                raise SettingsError(
                    f"feed.topics: {subject!r} is not a NATS subject: tokens separated by single dots, without spaces; "
                    "* stands for a token, and > at the end for all that follow"
                )
        ack_wait = self._options.ack_wait
        self._wanted = Wanted(
            group=group,
            stream=settings.stream,
            subjects=settings.topics,
            # The inbox accepts one batch while the server sends the next one.
            max_ack_pending=self._options.max_ack_pending or settings.max_open + 2 * settings.batch_size,
            ack_wait=None if ack_wait is None else ack_wait.total_seconds(),
        )
        self._address = NatsAddress(settings.url.get_secret_value(), self._options)
        self._outage = Outage(group)
        self._pull: Pull | None = None
        self._open: dict[int, str] = {}
        """Sequence -> reply subject of messages that `poll` returned and that are not committed."""
        self._due: list[str] = []
        """Reply subjects of acknowledgements that the server has not received."""
        self._kept_alive = time.monotonic()
        """When the feed last told the server that the open messages are still in progress."""

    def poll(self, limit: int, timeout: float) -> Sequence[Received]:
        # The server redelivers messages in any order.
        messages = sorted(map(_received, self._fetch(limit, timeout)), key=attrgetter("offset"))
        for message in messages:
            self._open[message.offset] = message.handle
        return messages

    def hold(self, timeout: float) -> None:
        self._fetch(0, timeout)

    def commit(self, messages: Sequence[Received]) -> None:
        for message in messages:
            self._open.pop(message.offset, None)
        self._due += [message.handle for message in messages]
        try:
            self._acknowledge(self._connect())
        except DestinationError as error:
            raise self._failure(error) from None

    def commit_soon(self, messages: Sequence[Received]) -> None:
        self.commit(messages)

    def owns(self, message: Received) -> bool:
        # JetStream has no partitions to lose: an acknowledgement counts whichever member sends it.
        return True

    def check(self, timeout: float) -> None:
        """Check without creating the consumer, so that a process that does not poll may call this."""
        try:
            self._connect(timeout).check(timeout)
        except (DestinationError, FeedFailed) as error:
            raise self._failure(error) from None

    def close(self) -> None:
        """Give uncommitted messages back, so that the server redelivers them immediately to the next poll."""
        pull, self._pull = self._pull, None
        if pull is not None:
            if pull.usable:
                with suppress(OutsparkError):
                    self._acknowledge(pull)
                pull.leave([self._open[sequence] for sequence in sorted(self._open)], _CLOSE_TIMEOUT)
            else:
                pull.drop()
        self._open.clear()
        self._due.clear()

    def _fetch(self, limit: int, timeout: float) -> list[Raw]:
        """Acknowledge, keep open messages alive, fetch up to `limit` messages; none if the server is unreachable."""
        deadline = time.monotonic() + timeout
        fetched: list[Raw] = []
        try:
            pull = self._connect()
            ack_wait = pull.start(self._connect_timeout).ack_wait
            self._acknowledge(pull)
            self._keep_alive(pull, ack_wait)
            if limit:
                # A third of ack_wait at most, so that the next call keeps the open messages alive in time.
                fetched = pull.take(limit, min(max(deadline - time.monotonic(), 0), ack_wait / 3))
            self._outage.end()
        except DestinationDown as down:
            self._drop()
            self._outage.begin(self._describe(down))
        except (DestinationError, FeedFailed) as error:
            raise self._failure(error) from None
        if not fetched and (not limit or self._pull is None):
            time.sleep(max(deadline - time.monotonic(), 0))
        return fetched

    def _acknowledge(self, pull: Pull) -> None:
        # If this fails, the acknowledgements stay due and go over the next connection.
        if self._due:
            pull.acknowledge(ACK, self._due, self._connect_timeout)
            self._due.clear()

    def _keep_alive(self, pull: Pull, ack_wait: float) -> None:
        now = time.monotonic()
        if now - self._kept_alive >= ack_wait / 3:
            pull.keep_alive(list(self._open.values()), self._connect_timeout)
            self._kept_alive = now

    def _connect(self, timeout: float | None = None) -> Pull:
        if self._pull is not None and not self._pull.usable:
            self._drop()
        if self._pull is None:
            options = self._address.client_options()
            self._pull = Pull(options, self._wanted, min(timeout or _CONNECT_TIMEOUT, self._connect_timeout))
        return self._pull

    @property
    def _connect_timeout(self) -> float:
        given = self._options.connect_timeout
        return _CONNECT_TIMEOUT if given is None else given.total_seconds()

    def _drop(self) -> None:
        """Drop the connection. Open messages stay open: they may be acknowledged over the next connection."""
        pull, self._pull = self._pull, None
        if pull is not None:
            pull.drop()

    def _failure(self, error: Exception) -> FeedFailed:
        self._drop()
        return FeedFailed(self._describe(error))

    def _describe(self, error: Exception) -> str:
        return f"feed of {self._wanted.group}: {self._address.describe(error)}"


def _received(raw: Raw) -> Received:
    reply = raw.reply.decode()
    tokens = reply.split(".")
    shift = 0 if len(tokens) == _SHORT_REPLY else 2
    headers = _headers(raw.headers) if raw.headers else []
    return Received(
        raw.subject.decode(errors="replace"),
        raw.data,
        headers,
        _key(headers),
        _EPOCH + timedelta(microseconds=int(tokens[_TIME + shift]) // 1000),
        tokens[_STREAM + shift],
        0,
        int(tokens[_SEQUENCE + shift]),
        reply,
    )


def _headers(block: bytes) -> list[tuple[str, bytes]]:
    """Parse the header block: `NATS/1.0`, then one line per header. Values are bytes in any encoding."""
    lines = (line.partition(b":") for line in block.split(b"\r\n")[1:])
    return [(name.strip().decode(errors="replace"), value.strip()) for name, colon, value in lines if colon]


def _key(headers: list[tuple[str, bytes]]) -> bytes | None:
    given = dict(headers)
    return next((given[name] for name in _KEY_HEADERS if name in given), None)
