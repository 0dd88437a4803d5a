"""One batch on a channel in confirm mode: written in chunks; the broker confirms, refuses or returns each message.

It does for a batch what aiormq's `basic_publish` does for one message, with the channel's own state: the next delivery
tag, the awaited confirms by tag, and the tags by message id, which identify returned messages.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

import aiormq
from aiormq.abc import ChannelFrame

from outspark.brokers.rabbitmq.wire import Wire, unroutable
from outspark.outcome import DELIVERED, Outcome, Retry

# The server processes the first chunk while the publisher writes the next one.
_CHUNK = 64 * 1024

_REFUSED = Retry.of_topic(
    "full", "refused by the broker (nack): a queue is full or has failed; make room in it"
)


class Batch:
    """Publishes once. No two of its messages have the same id."""

    def __init__(self, channel: aiormq.Channel, wires: Sequence[Wire]) -> None:
        loop = asyncio.get_running_loop()
        self._channel = channel
        self._wires = wires
        self._confirms: list[asyncio.Future[Any]] = [loop.create_future() for _ in wires]

    async def publish(self) -> BaseException | None:
        """Publish and wait until all messages are confirmed, or until the channel is closed; then return the reason."""
        closing = self._channel.closing
        closing.add_done_callback(self._stop_waiting)
        try:
            await self._write(closing)
            for confirm in self._confirms:
                if not confirm.done():
                    with contextlib.suppress(aiormq.DeliveryError):
                        await confirm
            return _reason(closing) if closing.done() else None
        finally:
            self._channel.message_id_delivery_tag.clear()
            closing.cancel()  # this view of it only, not the channel itself

    def answers(self, exchange: str) -> list[Outcome | None]:
        """The outcome of each message; None if the channel was closed before the answer."""
        return [
            _outcome(confirm, exchange, wire.topic)
            for confirm, wire in zip(self._confirms, self._wires, strict=True)
        ]

    async def _write(self, closing: asyncio.Future[Any]) -> None:
        channel, chunk = self._channel, bytearray()
        for wire, confirm in zip(self._wires, self._confirms, strict=True):
            channel.delivery_tag += 1
            channel.confirmations[channel.delivery_tag] = confirm
            channel.message_id_delivery_tag[wire.id] = channel.delivery_tag
            chunk += wire.frames
            if len(chunk) >= _CHUNK:
                await self._flush(bytes(chunk), closing)
                chunk.clear()
        await self._flush(bytes(chunk), closing)

    async def _flush(self, data: bytes, closing: asyncio.Future[Any]) -> None:
        channel = self._channel
        # aiormq removes a channel as soon as the server closes it. A frame for a closed channel would close the whole
        # connection, so this waits for the reason instead.
        if channel.connection.channels.get(channel.number) is not channel:
            await asyncio.wait((closing,))
        if data and not closing.done():
            written = asyncio.get_running_loop().create_future()
            await channel.write_queue.put(ChannelFrame(data, should_close=False, drain_future=written))
            await asyncio.wait((written, closing), return_when=asyncio.FIRST_COMPLETED)

    def _stop_waiting(self, _: asyncio.Future[Any]) -> None:
        for confirm in self._confirms:
            if not confirm.done():
                confirm.set_result(None)


def _outcome(confirm: asyncio.Future[Any], exchange: str, topic: str) -> Outcome | None:
    if not confirm.done() or confirm.cancelled():
        return None
    match confirm.exception():
        case None:
            return DELIVERED if confirm.result() is not None else None
        case aiormq.PublishError():
            return unroutable(exchange, topic)
    return _REFUSED


def _reason(closing: asyncio.Future[Any]) -> BaseException:
    reason = None if closing.cancelled() else closing.exception()
    return reason or aiormq.AMQPConnectionError("closed")
