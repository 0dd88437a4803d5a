"""One connection to RabbitMQ: sends batches on one channel and finds out why messages were refused or not answered.

It uses aiormq, the lower layer of aio-pika. After an error or a timeout the whole connection is discarded, so that it
cannot send a message later that was answered with Retry.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import uuid
from collections.abc import Sequence

import aiormq
from yarl import URL

from outspark.brokers.loop_thread import LoopThread
from outspark.brokers.rabbitmq.batch import Batch
from outspark.brokers.rabbitmq.wire import CHANNEL, Wire, forbidden_topic, over_limit, too_large_over
from outspark.errors import DestinationDown, DestinationError
from outspark.outcome import Outcome, Retry
from outspark.tls import tls_fault

_THREAD = "outspark-rabbitmq"
_CLOSE_TIMEOUT = 1.0
_BLOCKED = "blocked: the broker is low on memory or disk and accepts no messages"
_ERRORS = (aiormq.AMQPError, aiormq.ChannelInvalidStateError, OSError, TimeoutError)
_REFUSALS = (aiormq.ProbableAuthenticationError, aiormq.AuthenticationError, aiormq.AMQPChannelError)
# Faults of the exchange, not of a message.
_EXCHANGE_AT_FAULT = (aiormq.ChannelNotFoundEntity, aiormq.ChannelAccessRefused)
# Remedies to append to the server's text, which says only what is wrong.
_REMEDIES: dict[type[BaseException], str] = {
    aiormq.ChannelNotFoundEntity: "; create it",
    aiormq.ChannelAccessRefused: "; grant it",
}


class _DebugOnly(logging.Filter):
    """Drop the client's warnings about refusals and lost connections unless at debug level: outcomes report them."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.threadName != _THREAD or record.levelno < logging.WARNING:
            return True
        return logging.getLogger(record.name).isEnabledFor(logging.DEBUG)


for _name in ("aiormq.channel", "aiormq.connection"):
    logging.getLogger(_name).addFilter(_DebugOnly())


class Connection:
    """Connects on construction; DestinationDown or DestinationError if that fails."""

    def __init__(self, url: URL, tls: ssl.SSLContext | None, exchange: str, timeout: float) -> None:
        self._exchange = exchange
        self._discarded = False
        self.max_payload: int | None = None
        """The server's size limit, which is known once a message has exceeded it."""
        self._thread = LoopThread(_THREAD)
        try:
            self._thread.run(self._open(url, tls, timeout), timeout)
        except BaseException:
            self._discarded = True
            self.close()
            raise

    @property
    def frame_max(self) -> int:
        return self._client.connection_tune.frame_max or 0

    @property
    def usable(self) -> bool:
        return not self._discarded and self._client.is_opened

    def publish(self, wires: Sequence[Wire], timeout: float) -> list[Outcome]:
        """Return one outcome per message, in order. A timeout makes the connection unusable."""
        try:
            return self._thread.run(self._publish(wires, timeout), timeout)
        except TimeoutError:
            self._discarded = True
            return [Retry("the client does not respond", counted=False)] * len(wires)

    def check(self, timeout: float) -> None:
        self._thread.run(self._check(timeout), timeout)

    def close(self) -> None:
        if not self._discarded:
            with contextlib.suppress(*_ERRORS):
                self._thread.run(self._leave(), _CLOSE_TIMEOUT)
        self._discarded = True
        self._thread.stop()

    async def _open(self, url: URL, tls: ssl.SSLContext | None, timeout: float) -> None:
        self._client = aiormq.Connection(url, context=tls)
        try:
            async with asyncio.timeout(timeout):
                await self._client.connect()
                await self._require_exchange()
                self._channel = await self._open_channel()
        except _ERRORS as error:
            await self._leave()
            raise self._as_destination_error(error) from error

    async def _require_exchange(self) -> None:
        """Check the exchange on a separate channel: the server closes the channel if there is no such exchange."""
        if self._exchange:
            channel = await self._client.channel()
            await channel.exchange_declare(self._exchange, passive=True)
            await channel.close()

    async def _open_channel(self) -> aiormq.Channel:
        channel = await self._client.channel(channel_number=CHANNEL)
        assert isinstance(channel, aiormq.Channel)
        return channel

    async def _publish(self, wires: Sequence[Wire], timeout: float) -> list[Outcome]:
        answers: list[Outcome | None] = [None] * len(wires)
        try:
            async with asyncio.timeout(timeout):
                while left := [index for index, answer in enumerate(answers) if answer is None]:
                    await self._send(wires, answers, _with_different_ids(wires, left))
            reason = ""
        except TimeoutError:
            reason = await self._why_silent(timeout)
        except _ERRORS as error:
            reason = f"connection lost: {_text(error)}"
        if reason:
            await self._discard()
        return [answer or Retry(reason, counted=False) for answer in answers]

    async def _send(
        self, wires: Sequence[Wire], answers: list[Outcome | None], indexes: Sequence[int]
    ) -> None:
        """Publish these messages and record their answers. If a message closes the channel, some get no answer."""
        if self._channel.is_closed:
            self._channel = await self._open_channel()
        batch = Batch(self._channel, [wires[index] for index in indexes])
        try:
            closed = await batch.publish()
        finally:
            for index, answer in zip(indexes, batch.answers(self._exchange), strict=True):
                answers[index] = answer
        if isinstance(closed, aiormq.ChannelClosed) and self._client.is_opened:
            self._assign_fault(wires, answers, closed)
        elif closed is not None:
            raise aiormq.AMQPConnectionError(_text(closed))

    def _assign_fault(
        self, wires: Sequence[Wire], answers: list[Outcome | None], closed: aiormq.ChannelClosed
    ) -> None:
        """Find the messages that closed the channel by the server's text, which has no id; resend the others."""
        reason = _text(closed)
        limit, topic = too_large_over(reason), forbidden_topic(reason)
        left = [index for index, answer in enumerate(answers) if answer is None]
        if limit is not None:
            self.max_payload = limit
            faulty: dict[int, Outcome] = {
                index: over_limit(size, limit)
                for index in left
                if (size := wires[index].payload_size) > limit
            }
        else:
            forbidden = Retry.of_topic("forbidden", reason)
            faulty = {index: forbidden for index in left if wires[index].topic == topic}
        outcomes = dict(faulty)
        # Without a known culprit every open message fails, or the batch would be sent again without end.
        if not faulty:
            failed = Retry(reason, counted=not isinstance(closed, _EXCHANGE_AT_FAULT))
            outcomes = dict.fromkeys(left, failed)
        for index, outcome in outcomes.items():
            answers[index] = outcome

    async def _why_silent(self, timeout: float) -> str:
        try:
            async with asyncio.timeout(0):  # succeeds if the connection is not blocked
                await self._client.ready()
        except TimeoutError:
            return _BLOCKED
        return f"no answer within {timeout:.1f} s"

    async def _check(self, timeout: float) -> None:
        """Publish a message that no queue receives: the broker confirms and drops it, unless an alarm is active."""
        try:
            async with asyncio.timeout(timeout):
                await self._require_exchange()
                channel = await self._client.channel()
                # A user with permission for the configured exchange may lack permission for the default exchange.
                with contextlib.suppress(aiormq.ChannelAccessRefused):
                    await channel.basic_publish(b"", routing_key=f"outspark.check.{uuid.uuid4()}")
                    await channel.close()
        except TimeoutError as error:
            reason = await self._why_silent(timeout)
            await self._discard()
            raise DestinationDown(reason) from error
        except _ERRORS as error:
            await self._discard()
            raise self._as_destination_error(error) from error

    async def _leave(self) -> None:
        if self._client.is_opened:
            with contextlib.suppress(*_ERRORS):
                await asyncio.wait_for(self._client.close(), _CLOSE_TIMEOUT)

    async def _discard(self) -> None:
        self._discarded = True
        await self._thread.cut()
        await asyncio.wait((self._client.closing,), timeout=_CLOSE_TIMEOUT)

    def _as_destination_error(self, error: BaseException) -> DestinationError:
        if isinstance(error, aiormq.InvalidFrameError):
            # aiormq loses the server's text. During connect, a refused virtual host is the only cause of this error.
            return DestinationError(
                f"the virtual host {self._client.vhost!r} cannot be used: it does not exist, "
                "this user has no access to it, or its connection limit is reached"
            )
        if fault := tls_fault(error):
            return DestinationError(fault)
        refused = isinstance(error, _REFUSALS) or isinstance(error.__cause__, ssl.SSLError)
        return (DestinationError if refused else DestinationDown)(_text(error))


def _with_different_ids(wires: Sequence[Wire], indexes: list[int]) -> list[int]:
    """A returned message is identified by its id only, so a second one with the same id waits for the next round."""
    first: dict[str, int] = {}
    for index in indexes:
        first.setdefault(wires[index].id, index)
    return indexes if len(first) == len(indexes) else list(first.values())


def _text(error: BaseException) -> str:
    return f"{error.args[-1]}{_REMEDIES.get(type(error), '')}" if error.args else "timed out"
