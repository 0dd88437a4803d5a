"""One connection to NATS that pulls from a durable consumer: the server sends messages while others are processed.

After an error the whole connection is discarded; acknowledgements may go over the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import deque
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import nats.errors
from nats.aio.subscription import Subscription
from nats.js import JetStreamContext
from nats.js.errors import APIError

from outspark.brokers.loop_thread import LoopThread
from outspark.brokers.nats.client import (
    CLOSE_TIMEOUT,
    ERRORS,
    Faults,
    as_destination_error,
    connect,
    text,
    whole_seconds,
)
from outspark.brokers.nats.feed_consumer import Durable, Wanted, ensure, find_stream, look_up
from outspark.brokers.nats.tls import TlsClient
from outspark.errors import DestinationDown, FeedFailed, OutsparkError, SettingsError

ACK, NAK, IN_PROGRESS = b"+ACK", b"-NAK", b"+WPI"

# How long the server keeps a request for messages. A lost request is repeated after the margin.
_EXPIRES: Final = 5.0
_MARGIN: Final = 1.0
_POLL_INTERVAL: Final = 0.25
_CHUNK: Final = 1000
_ACKED = b"$JS.ACK."
# The consumer or its stream was deleted, or JetStream does not respond: the feed connects and looks it up again.
_GONE = (b" 503", b"consumer deleted")
_TOO_MUCH = b"exceeded maxrequest"
_OVER = (b" 404", b" 408")

T = TypeVar("T")


class Raw(NamedTuple):
    """A message as the server sent it."""

    subject: bytes
    reply: bytes
    data: bytes
    headers: bytes | None


class _Client(TlsClient):
    """Passes messages of one subscription on unparsed.

    The client's own parsing replaces header bytes that are not UTF-8, and takes a message with a header `Status` for a
    status message of the server.
    """

    def __init__(self, pull: Pull) -> None:
        super().__init__()
        self._pull = pull
        self.pulling: int | None = None
        """Id of the subscription that receives the pulled messages."""

    async def _process_msg(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes | None
    ) -> None:
        if sid == self.pulling:
            self._pull.arrived(Raw(bytes(subject), bytes(reply), bytes(data), headers))
        else:
            await super()._process_msg(sid, subject, reply, data, headers)  # type: ignore[arg-type]


class Pull:
    """Connects on construction; DestinationDown if a later try may succeed, another error if not.

    `durable` is set by `start`, which creates the consumer if it is missing.
    """

    def __init__(self, options: Mapping[str, Any], wanted: Wanted, timeout: float) -> None:
        self._wanted = wanted
        self._client = _Client(self)
        self._jetstream: JetStreamContext = self._client.jetstream(timeout=timeout)
        self._faults = Faults()
        self._discarded = False
        self._stream = ""
        self._deliver = ""
        self._subscription: Subscription | None = None
        self._buffer: deque[Raw] = deque()
        self._arrival = asyncio.Event()
        self._requested = 0
        """Messages that the server may still send in answer to the current request."""
        self._request_ends = 0.0
        self._not_before = 0.0
        self._refusal = ""
        self.durable: Durable | None = None
        self._thread = LoopThread("outspark-nats-feed")
        try:
            self._run(self._open(options, timeout), timeout)
        except BaseException:
            self.drop()
            raise

    @property
    def usable(self) -> bool:
        return not self._discarded and self._client.is_connected

    def start(self, timeout: float) -> Durable:
        if self.durable is None:
            self.durable = self._run(self._start(timeout), timeout)
        return self.durable

    def check(self, timeout: float) -> None:
        self._run(self._check(timeout), timeout)

    def take(self, limit: int, timeout: float) -> list[Raw]:
        """Return at most `limit` messages, waiting for the first; request the next ones before returning."""
        return self._run(self._take(limit, timeout), timeout)

    def acknowledge(self, kind: bytes, replies: Sequence[str], timeout: float) -> None:
        """Publish `kind` (ACK, NAK, IN_PROGRESS) to these reply subjects; return once the server has received it."""
        self._run(self._acknowledge(kind, replies, timeout), timeout)

    def keep_alive(self, replies: Sequence[str], timeout: float) -> None:
        """Restart `ack_wait` of these messages and of the buffered ones, so that the server does not redeliver them."""
        self._run(self._keep_alive(replies, timeout), timeout)

    def leave(self, replies: Sequence[str], timeout: float) -> None:
        """Give back these messages and the buffered ones for immediate redelivery, then close the connection."""
        with contextlib.suppress(OutsparkError):
            self._run(self._leave(replies, timeout), timeout)
        self.drop()

    def drop(self) -> None:
        self._discarded = True
        self._thread.stop()

    def arrived(self, raw: Raw) -> None:
        """Called by the client in the loop's thread."""
        if raw.reply.startswith(_ACKED):
            self._buffer.append(raw)
            self._requested = max(0, self._requested - 1)
        else:
            self._request_ended(raw.headers or b"")
        self._arrival.set()

    def _request_ended(self, status: bytes) -> None:
        self._requested = 0
        line = status.partition(b"\r\n")[0].lower()
        if any(word in line for word in _GONE):
            self._discarded = True
        elif _TOO_MUCH in line:
            self._refusal = line.decode(errors="replace")
        elif not any(word in line for word in _OVER):
            self._not_before = time.monotonic() + _POLL_INTERVAL

    def _run(self, work: Coroutine[Any, Any, T], timeout: float) -> T:
        try:
            return self._thread.run(work, timeout)
        except ERRORS as error:  # before ValueError, because a certificate error is a ValueError too
            self._discarded = True
            raise self._as_feed_error(error) from error
        except ValueError as error:
            raise SettingsError(f"feed: {text(error)}") from error

    def _as_feed_error(self, error: Exception) -> Exception:
        if self._faults.forbidden("publish", "$JS."):
            return FeedFailed(f"not authorised: {text(self._faults.last() or error)}")
        if isinstance(error, APIError):
            if error.code not in (None, 503):
                return FeedFailed(f"JetStream: {error.description or error} ({error.err_code})")
            return DestinationDown("JetStream does not answer; is it enabled on this server and account?")
        if isinstance(error, nats.errors.NoRespondersError):
            return DestinationDown("JetStream does not answer; is it enabled on this server and account?")
        return as_destination_error(self._faults.last() or error)

    async def _open(self, options: Mapping[str, Any], timeout: float) -> None:
        async with asyncio.timeout(timeout):
            await connect(self._client, options, timeout, error_cb=self._on_fault, closed_cb=self._on_closed)
            self._deliver = self._client.new_inbox()
            self._subscription = await self._client.subscribe(self._deliver)
            self._client.pulling = self._subscription._id
            await self._client.flush(whole_seconds(timeout))
            if self._faults.forbidden("subscription", self._deliver):
                raise FeedFailed(f"not authorised to subscribe to {self._deliver}, on which messages arrive")
            self._stream = await find_stream(self._client, self._wanted, timeout)

    async def _start(self, timeout: float) -> Durable:
        async with asyncio.timeout(timeout):
            return await ensure(self._jetstream, self._stream, self._wanted)

    async def _check(self, timeout: float) -> None:
        async with asyncio.timeout(timeout):
            await look_up(self._jetstream, self._stream, self._wanted)

    async def _take(self, limit: int, timeout: float) -> list[Raw]:
        deadline = time.monotonic() + timeout
        await self._request(limit)
        while not self._buffer and (left := deadline - time.monotonic()) > 0 and self.usable:
            self._arrival.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._arrival.wait(), min(left, _POLL_INTERVAL))
            await self._request(limit)
        if self._refusal:
            raise FeedFailed(f"JetStream refuses a request for {limit} messages: {self._refusal}")
        taken = [self._buffer.popleft() for _ in range(min(limit, len(self._buffer)))]
        # The server fills the next request while the inbox accepts these messages.
        await self._request(limit)
        return taken

    async def _request(self, limit: int) -> None:
        """Request `limit` messages, unless a request is pending or messages are buffered."""
        now = time.monotonic()
        if self._buffer or (self._requested and now < self._request_ends) or now < self._not_before:
            return
        if not self.usable or self.durable is None:
            return
        request = {"batch": limit, "expires": int(_EXPIRES * 1_000_000_000)}
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self.durable.stream}.{self.durable.name}"
        self._requested, self._request_ends = limit, now + _EXPIRES + _MARGIN
        await self._client.publish(subject, json.dumps(request).encode(), self._deliver)

    async def _acknowledge(self, kind: bytes, replies: Sequence[str], timeout: float) -> None:
        async with asyncio.timeout(timeout):
            for number, reply in enumerate(replies, 1):
                await self._client.publish(reply, kind)
                if number % _CHUNK == 0:
                    await asyncio.sleep(0)
            await self._client.flush(whole_seconds(timeout))

    async def _keep_alive(self, replies: Sequence[str], timeout: float) -> None:
        await self._acknowledge(IN_PROGRESS, [*replies, *self._buffered()], timeout)

    def _buffered(self) -> list[str]:
        return [raw.reply.decode() for raw in self._buffer]

    async def _leave(self, replies: Sequence[str], timeout: float) -> None:
        async with asyncio.timeout(timeout):
            if self._subscription is not None:
                # Without the subscription the server drops the pending request. After the flush, every message that
                # it had sent before is in the buffer and is given back, too.
                await self._subscription.unsubscribe()
                await self._client.flush(whole_seconds(timeout))
            await self._acknowledge(NAK, [*replies, *self._buffered()], timeout)
            await asyncio.wait_for(self._client.close(), CLOSE_TIMEOUT)

    async def _on_fault(self, error: Exception) -> None:
        self._faults.add(error)

    async def _on_closed(self) -> None:
        self._arrival.set()
