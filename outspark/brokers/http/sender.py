"""Sends a batch of requests to an HTTP endpoint concurrently, and converts the responses into outcomes."""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from outspark.brokers.http.connection import Link, Lost, Server
from outspark.brokers.http.wire import Encoder, Post, outcome
from outspark.errors import DestinationDown, DestinationError
from outspark.event import Message
from outspark.outcome import DELIVERED, HELD, Dead, Outcome, Retry

_TRIES = 2


class Sender:
    """`describe` adds the destination to an error and hides secrets. A request without a response after
    `request_timeout` seconds counts as a failed attempt; one that the end of the batch cuts short does not."""

    def __init__(
        self,
        server: Server,
        encoder: Encoder,
        *,
        concurrency: int,
        connect_timeout: float,
        request_timeout: float,
        describe: Callable[[str], str],
    ) -> None:
        self._server = server
        self._encoder = encoder
        self._connect_timeout = connect_timeout
        self._request_timeout = request_timeout
        self._describe = describe
        self._links = [Link(server) for _ in range(concurrency)]

    async def publish(self, messages: Sequence[Message], timeout: float) -> list[Outcome]:
        started = time.monotonic()
        deadline = started + timeout
        # A request starts only if its full timeout fits before the deadline; the first request of each link always may.
        last_start = max(deadline - self._request_timeout, started)
        batch = Batch(messages)
        async with asyncio.TaskGroup() as group:
            for link in self._links[: len(messages)]:
                group.create_task(self._work(link, batch, deadline, last_start))
        return batch.outcomes()

    async def _work(self, link: Link, batch: Batch, deadline: float, last_start: float) -> None:
        first = True
        while first or time.monotonic() <= last_start:
            first = False
            index = batch.take()
            if index is None:
                return
            try:
                batch.settle(index, await self._send(link, batch.messages[index], deadline))
            except DestinationError as error:
                batch.stop(type(error)(self._describe(str(error))))

    async def _send(self, link: Link, message: Message, deadline: float) -> Outcome:
        post = self._encoder.encode(message, int(time.time()))
        if isinstance(post, Dead):
            return post
        # The server may have closed an idle connection, or may be shutting down. The message is at fault only if it
        # also loses a fresh connection, while the server still accepts a new one.
        loss = ""
        for _ in range(_TRIES):
            await link.ready(min(self._connect_timeout, _left(deadline)))
            try:
                return await self._post(link, post, deadline)
            except Lost as lost:
                loss = str(lost)
        await self._server.require_welcome(min(self._connect_timeout, _left(deadline)))
        return Retry(self._describe(f"the connection was lost before an answer: {loss}"))

    async def _post(self, link: Link, post: Post, deadline: float) -> Outcome:
        allowed = min(self._request_timeout, _left(deadline))
        try:
            answer = await link.post(post, allowed)
        except TimeoutError:
            if allowed < self._request_timeout:
                return HELD
            return Retry(self._describe(f"no answer within {allowed:.3g} s"))
        return self._shown(outcome(answer))

    def _shown(self, result: Outcome) -> Outcome:
        match result:
            case Retry(error):
                return replace(result, error=self._describe(error))
            case Dead(error):
                return Dead(self._describe(error))
            case _:
                return result


def _left(deadline: float) -> float:
    return max(deadline - time.monotonic(), 0.001)


class Batch:
    """Chooses the next message. After a message that was not delivered, no other one of its key is sent."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self.messages = messages
        self.stopped: DestinationError | None = None
        self._outcomes: list[Outcome | None] = [None] * len(messages)
        self._ready: list[int] = []
        self._next: dict[int, int] = {}
        last: dict[str, int] = {}
        for index, message in enumerate(messages):
            if message.order_key is None or message.order_key not in last:
                self._ready.append(index)
            else:
                self._next[last[message.order_key]] = index
            if message.order_key is not None:
                last[message.order_key] = index

    def take(self) -> int | None:
        """The next message to send; None if none may start now. A worker in flight takes the next of its key."""
        return heapq.heappop(self._ready) if self._ready and self.stopped is None else None

    def settle(self, index: int, outcome: Outcome) -> None:
        self._outcomes[index] = outcome
        if outcome is DELIVERED and index in self._next:
            heapq.heappush(self._ready, self._next[index])

    def stop(self, error: DestinationError) -> None:
        self.stopped = self.stopped or error

    def outcomes(self) -> list[Outcome]:
        """A message that was never sent is Held, or Retry if the destination is down: neither counts as an attempt."""
        if self.stopped is None:
            unsent: Outcome = HELD
        elif isinstance(self.stopped, DestinationDown) or any(self._outcomes):
            unsent = Retry(str(self.stopped), counted=False)
        else:
            raise self.stopped
        return [known or unsent for known in self._outcomes]
