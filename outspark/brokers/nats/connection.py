"""One connection to NATS: sends a batch, collects the acks, and finds out why messages were not acknowledged.

After an error or a timeout the whole connection is discarded, so that it cannot send a message later that was answered
with Retry.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import nats.errors
from nats.aio.msg import Msg
from nats.js.errors import APIError, NotFoundError

from outspark.brokers.loop_thread import LoopThread
from outspark.brokers.nats.client import (
    CLOSE_TIMEOUT,
    ERRORS,
    Faults,
    as_destination_error,
    connect,
    text,
    violation,
    whole_seconds,
)
from outspark.brokers.nats.tls import TlsClient
from outspark.brokers.nats.wire import NO_STREAM, Wire, outcome
from outspark.errors import DestinationDown, DestinationError
from outspark.outcome import Outcome, Retry

# Bytes after which the publisher yields to the loop, so that the server processes them during further encoding.
_CHUNK = 64 * 1024
_POLL_INTERVAL = 0.2
_NO_JETSTREAM = Retry("JetStream does not answer; is it enabled on this server and account?", counted=False)


class _Batch:
    """Answers to one batch, by index. Reply numbers never repeat on a connection, so a late ack matches no message."""

    def __init__(self, first: int, wires: Sequence[Wire]) -> None:
        self.first = first
        self.wires = wires
        self.answers: list[Outcome | None] = [None] * len(wires)
        self.left = len(wires)
        self.changed = asyncio.Event()

    def answer(self, index: int, outcome: Outcome) -> None:
        if 0 <= index < len(self.answers) and self.answers[index] is None:
            self.answers[index] = outcome
            self.left -= 1
            if not self.left:
                self.changed.set()

    def finish(self, missing: Outcome) -> list[Outcome]:
        return [answer or missing for answer in self.answers]


class Connection:
    """Connects on construction; DestinationDown or DestinationError if that fails."""

    def __init__(self, options: Mapping[str, Any], timeout: float) -> None:
        self._client = TlsClient()
        self._jetstream = self._client.jetstream(timeout=timeout)
        self._inbox = ""
        self._next = 0
        self._batch = _Batch(0, ())
        self._faults = Faults()
        self._discarded = False
        self._thread = LoopThread("outspark-nats")
        try:
            self._thread.run(self._open(options, timeout), timeout)
        except BaseException:
            self.close()
            raise

    @property
    def max_message(self) -> int:
        return self._client.max_payload

    @property
    def usable(self) -> bool:
        return not self._discarded and self._client.is_connected

    def publish(self, wires: Sequence[Wire], timeout: float) -> list[Outcome]:
        """Return one outcome per message, in order. A timeout makes the connection unusable."""
        try:
            return self._thread.run(self._publish(wires, timeout), timeout)
        except TimeoutError:
            self._discarded = True
            return [Retry("the client does not respond", counted=False)] * len(wires)

    def check(self, timeout: float) -> None:
        self._thread.run(self._check(timeout), timeout)

    def ensure_stream(self, name: str, subjects: Sequence[str], timeout: float) -> None:
        """Create the stream if it is missing; an existing stream is not changed."""
        self._thread.run(self._ensure_stream(name, list(subjects)), timeout)

    def close(self) -> None:
        if self.usable:
            with contextlib.suppress(*ERRORS):
                self._thread.run(asyncio.wait_for(self._client.close(), CLOSE_TIMEOUT), CLOSE_TIMEOUT)
        self._discarded = True
        self._thread.stop()

    async def _open(self, options: Mapping[str, Any], timeout: float) -> None:
        try:
            async with asyncio.timeout(timeout):
                await connect(
                    self._client, options, timeout, error_cb=self._on_fault, closed_cb=self._on_closed
                )
                self._inbox = self._client.new_inbox() + "."
                await self._client.subscribe(self._inbox + "*", cb=self._on_answer)
                await self._client.flush(whole_seconds(timeout))
        except ERRORS as error:
            raise as_destination_error(self._faults.last() or error) from error
        if self._faults.forbidden("subscription", self._inbox):
            raise DestinationError(f"not authorised to subscribe to {self._inbox}*, on which acks arrive")

    async def _publish(self, wires: Sequence[Wire], timeout: float) -> list[Outcome]:
        batch = self._batch = _Batch(self._next, wires)
        self._next += len(wires)
        try:
            async with asyncio.timeout(timeout):
                await self._send(batch)
                await self._await_answers(batch)
                await self._explain_silence(batch)
            return batch.finish(NO_STREAM)
        except TimeoutError:
            await self._discard()
            # If some messages were answered, the destination is up, and the others count as failed attempts.
            some = batch.left < len(wires)
            return batch.finish(Retry(f"no answer within {timeout:.1f} s", counted=some))
        except (nats.errors.Error, OSError) as error:
            await self._discard()
            return batch.finish(Retry(f"connection lost: {text(error)}", counted=False))

    async def _send(self, batch: _Batch) -> None:
        publish, inbox = self._client.publish, self._inbox
        unflushed = 0
        for number, wire in enumerate(batch.wires, batch.first):
            await publish(wire.subject, wire.payload, f"{inbox}{number}", wire.headers)
            unflushed += wire.size
            if unflushed >= _CHUNK:
                unflushed = 0
                await asyncio.sleep(0)
                while self._client.pending_data_size > _CHUNK and self._client.is_connected:
                    await asyncio.sleep(0.001)  # the server reads more slowly than this sends

    async def _await_answers(self, batch: _Batch) -> None:
        while batch.left:
            if self._client.is_closed:
                raise self._client.last_error or nats.errors.ConnectionClosedError()
            # The client does not report every lost connection, so this checks at intervals.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(batch.changed.wait(), _POLL_INTERVAL)

    async def _explain_silence(self, batch: _Batch) -> None:
        """After "no responders": find out whether the subject has no stream or JetStream is not available."""
        silent = [index for index, answer in enumerate(batch.answers) if answer is NO_STREAM]
        reasons: dict[str, Outcome] = {batch.wires[index].subject: NO_STREAM for index in silent}
        for subject in reasons:
            reasons[subject] = await self._why_silent(subject)
            if reasons[subject] is _NO_JETSTREAM:
                break
        for index in silent:
            batch.answers[index] = reasons[batch.wires[index].subject]

    async def _why_silent(self, subject: str) -> Outcome:
        try:
            stream = await self._jetstream.find_stream_name_by_subject(subject)
        except NotFoundError:
            return Retry.of_topic(
                "missing", f"no stream listens on subject {subject!r}; create one that does"
            )
        except (nats.errors.Error, APIError):
            return _NO_JETSTREAM
        return Retry.of_topic("full", f"stream {stream} does not answer on subject {subject!r}")

    async def _check(self, timeout: float) -> None:
        try:
            async with asyncio.timeout(timeout):
                await self._client.flush(whole_seconds(timeout))
                await self._jetstream.account_info()
        except ERRORS as error:
            # A user with permission to publish may lack permission to request the account.
            if self._client.is_closed or not self._faults.forbidden("publish", "$JS.API."):
                await self._discard()
                raise DestinationDown(f"JetStream does not answer: {text(error)}") from error

    async def _ensure_stream(self, name: str, subjects: list[str]) -> None:
        try:
            try:
                await self._jetstream.stream_info(name)
            except NotFoundError:
                await self._jetstream.add_stream(name=name, subjects=subjects)
        except APIError as error:
            kind = DestinationError if error.code and error.code != 503 else DestinationDown
            raise kind(
                f"cannot create stream {name}: {error.description or 'JetStream is not available'}"
            ) from error
        except ERRORS as error:
            raise DestinationDown(f"cannot create stream {name}: {text(error)}") from error

    async def _on_answer(self, message: Msg) -> None:
        meaning = outcome(message.data, message.headers)
        if meaning is not None:
            self._batch.answer(int(message.subject[len(self._inbox) :]) - self._batch.first, meaning)

    async def _on_fault(self, error: Exception) -> None:
        self._faults.add(error)
        forbidden = violation(error)
        if forbidden is None or forbidden[0] != "publish":
            return
        for index, wire in enumerate(self._batch.wires):
            if wire.subject.lower() == forbidden[1]:
                self._batch.answer(index, _forbidden(wire.subject))

    async def _on_closed(self) -> None:
        self._batch.changed.set()

    async def _discard(self) -> None:
        self._discarded = True
        await self._thread.cut()


def _forbidden(subject: str) -> Retry:
    return Retry.of_topic(
        "forbidden", f"not authorised to publish to subject {subject!r}; grant it to the user"
    )
