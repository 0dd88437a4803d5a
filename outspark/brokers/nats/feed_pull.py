"""One connection to NATS that pulls from a durable consumer: messages are on their way while others are worked on.

Once it is lost it is thrown away as a whole; acknowledgements go through the next one just as well.
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
from outspark.brokers.nats.client import CLOSE_TIMEOUT, ERRORS, Faults, connect, sorted_error, text, whole
from outspark.brokers.nats.feed_consumer import Durable, Wanted, ensure, find_stream, look_up
from outspark.brokers.nats.tls import TlsClient
from outspark.errors import DestinationDown, FeedFailed, OutsparkError, SettingsError

ACK, NAK, IN_PROGRESS = b"+ACK", b"-NAK", b"+WPI"

# How long the server keeps a request for messages; a lost one is noticed a little later.
_EXPIRES: Final = 5.0
_MARGIN: Final = 1.0
_LOOK_INTERVAL: Final = 0.25
_CHUNK: Final = 1000
_ACKED = b"$JS.ACK."
# The consumer or its stream went, or nobody is there to answer: all is looked at anew.
_GONE = (b" 503", b"consumer deleted")
_TOO_MUCH = b"exceeded maxrequest"
_OVER = (b" 404", b" 408")

T = TypeVar("T")


class Raw(NamedTuple):
    """A message as it came over the wire."""

    subject: bytes
    reply: bytes
    data: bytes
    headers: bytes | None


class _Client(TlsClient):
    """Keeps messages of one subscription as they came.

    The client's own way would replace header bytes that are no UTF-8, and would take a message that happens to have a
    header `Status` for a word of the server's.
    """

    def __init__(self, pull: Pull) -> None:
        super().__init__()
        self._pull = pull
        self.pulling: int | None = None
        """Id of the subscription."""

    async def _process_msg(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes | None
    ) -> None:
        if sid == self.pulling:
            self._pull.arrived(Raw(bytes(subject), bytes(reply), bytes(data), headers))
        else:
            await super()._process_msg(sid, subject, reply, data, headers)  # type: ignore[arg-type]


class Pull:
    """Opened on construction. Errors: DestinationDown when it may work later, others when it cannot.

    `durable` is there after `start`, which makes the consumer if need be.
    """

    def __init__(self, options: Mapping[str, Any], wanted: Wanted, timeout: float) -> None:
        self._wanted = wanted
        self._client = _Client(self)
        self._jetstream: JetStreamContext = self._client.jetstream(timeout=timeout)
        self._faults = Faults()
        self._given_up = False
        self._stream = ""
        self._deliver = ""
        self._subscription: Subscription | None = None
        self._buffer: deque[Raw] = deque()
        self._news = asyncio.Event()
        self._coming = 0
        """Messages that the server may still send in answer to our request."""
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
        return not self._given_up and self._client.is_connected

    def start(self, timeout: float) -> Durable:
        if self.durable is None:
            self.durable = self._run(self._start(timeout), timeout)
        return self.durable

    def check(self, timeout: float) -> None:
        self._run(self._check(timeout), timeout)

    def take(self, limit: int, timeout: float) -> list[Raw]:
        """At most `limit`, waiting for the first. Asks for the next ones before it returns."""
        return self._run(self._take(limit, timeout), timeout)

    def say(self, word: bytes, replies: Sequence[str], timeout: float) -> None:
        """About messages that were taken. Returns when the server has heard it."""
        self._run(self._say(word, replies, timeout), timeout)

    def keep_alive(self, replies: Sequence[str], timeout: float) -> None:
        """These and what is here and not taken yet are not to come again for another `ack_wait`."""
        self._run(self._keep_alive(replies, timeout), timeout)

    def leave(self, replies: Sequence[str], timeout: float) -> None:
        """Give these, and what is here and not taken yet, to whoever asks next."""
        with contextlib.suppress(OutsparkError):
            self._run(self._leave(replies, timeout), timeout)
        self.drop()

    def drop(self) -> None:
        self._given_up = True
        self._thread.stop()

    def arrived(self, raw: Raw) -> None:
        """Called by the client, in its thread."""
        if raw.reply.startswith(_ACKED):
            self._buffer.append(raw)
            self._coming = max(0, self._coming - 1)
        else:
            self._request_ended(raw.headers or b"")
        self._news.set()

    def _request_ended(self, status: bytes) -> None:
        self._coming = 0
        line = status.partition(b"\r\n")[0].lower()
        if any(word in line for word in _GONE):
            self._given_up = True
        elif _TOO_MUCH in line:
            self._refusal = line.decode(errors="replace")
        elif not any(word in line for word in _OVER):
            self._not_before = time.monotonic() + _LOOK_INTERVAL

    def _run(self, work: Coroutine[Any, Any, T], timeout: float) -> T:
        try:
            return self._thread.run(work, timeout)
        except ERRORS as error:  # first, because an error of a certificate is a ValueError, too
            self._given_up = True
            raise self._sorted(error) from error
        except ValueError as error:
            raise SettingsError(f"feed: {text(error)}") from error

    def _sorted(self, error: Exception) -> Exception:
        if self._faults.forbidden("publish", "$JS."):
            return FeedFailed(f"not authorised: {text(self._faults.last() or error)}")
        if isinstance(error, APIError):
            if error.code not in (None, 503):
                return FeedFailed(f"JetStream: {error.description or error} ({error.err_code})")
            return DestinationDown("JetStream does not answer; is it enabled on this server and account?")
        if isinstance(error, nats.errors.NoRespondersError):
            return DestinationDown("JetStream does not answer; is it enabled on this server and account?")
        return sorted_error(self._faults.last() or error)

    async def _open(self, options: Mapping[str, Any], timeout: float) -> None:
        async with asyncio.timeout(timeout):
            await connect(self._client, options, timeout, error_cb=self._on_fault, closed_cb=self._on_closed)
            self._deliver = self._client.new_inbox()
            self._subscription = await self._client.subscribe(self._deliver)
            self._client.pulling = self._subscription._id
            await self._client.flush(whole(timeout))
            if self._faults.forbidden("subscription", self._deliver):
                raise FeedFailed(f"not authorised to subscribe to {self._deliver}, where messages come to")
            self._stream = await find_stream(self._client, self._wanted, timeout)

    async def _start(self, timeout: float) -> Durable:
        async with asyncio.timeout(timeout):
            return await ensure(self._jetstream, self._stream, self._wanted)

    async def _check(self, timeout: float) -> None:
        async with asyncio.timeout(timeout):
            await look_up(self._jetstream, self._stream, self._wanted)

    async def _take(self, limit: int, timeout: float) -> list[Raw]:
        deadline = time.monotonic() + timeout
        await self._ask(limit)
        while not self._buffer and (left := deadline - time.monotonic()) > 0 and self.usable:
            self._news.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), min(left, _LOOK_INTERVAL))
            await self._ask(limit)
        if self._refusal:
            raise FeedFailed(f"JetStream refuses to give {limit} messages at once: {self._refusal}")
        taken = [self._buffer.popleft() for _ in range(min(limit, len(self._buffer)))]
        await self._ask(limit)
        return taken

    async def _ask(self, limit: int) -> None:
        """One request at a time, and none while there is a stock."""
        now = time.monotonic()
        if self._buffer or (self._coming and now < self._request_ends) or now < self._not_before:
            return
        if not self.usable or self.durable is None:
            return
        request = {"batch": limit, "expires": int(_EXPIRES * 1_000_000_000)}
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self.durable.stream}.{self.durable.name}"
        self._coming, self._request_ends = limit, now + _EXPIRES + _MARGIN
        await self._client.publish(subject, json.dumps(request).encode(), self._deliver)

    async def _say(self, word: bytes, replies: Sequence[str], timeout: float) -> None:
        async with asyncio.timeout(timeout):
            for number, reply in enumerate(replies, 1):
                await self._client.publish(reply, word)
                if number % _CHUNK == 0:
                    await asyncio.sleep(0)
            await self._client.flush(whole(timeout))

    async def _keep_alive(self, replies: Sequence[str], timeout: float) -> None:
        await self._say(IN_PROGRESS, [*replies, *self._stock()], timeout)

    def _stock(self) -> list[str]:
        return [raw.reply.decode() for raw in self._buffer]

    async def _leave(self, replies: Sequence[str], timeout: float) -> None:
        async with asyncio.timeout(timeout):
            if self._subscription is not None:
                # Without its inbox the server drops our request; what it had sent by then is here after the flush.
                await self._subscription.unsubscribe()
                await self._client.flush(whole(timeout))
            await self._say(NAK, [*replies, *self._stock()], timeout)
            await asyncio.wait_for(self._client.close(), CLOSE_TIMEOUT)

    async def _on_fault(self, error: Exception) -> None:
        self._faults.add(error)

    async def _on_closed(self) -> None:
        self._news.set()
