"""An event loop in a thread of its own, for broker clients that need asyncio: lanes are synchronous."""

from __future__ import annotations

import asyncio
import logging
import threading
import weakref
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_log = logging.getLogger(__name__)

_MARGIN = 2.0


class LoopThread:
    """Runs from construction to `stop`, which cancels all its tasks and aborts all its connections."""

    def __init__(self, name: str) -> None:
        self._stopping = asyncio.Event()
        self._loop = _Loop()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T], timeout: float) -> T:
        """Wait for `work`, which must end within `timeout` by itself; TimeoutError a little later if it does not."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout + _MARGIN)
        except TimeoutError:
            future.cancel()
            raise

    async def cut(self) -> None:
        """Abort all connections immediately, without sending buffered data."""
        for transport in list(self._loop.transports):
            transport.abort()
        await asyncio.sleep(0)  # the loop calls connection_lost of the protocols

    def stop(self) -> None:
        """End the loop and the thread; does nothing if they have ended."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join(_MARGIN)

    def _work(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._until_stopped())

    async def _until_stopped(self) -> None:
        await self._stopping.wait()
        await self.cut()


class _Loop(asyncio.SelectorEventLoop):
    """Remembers its transports: closing a client flushes its buffers first, aborting a transport does not."""

    def __init__(self) -> None:
        super().__init__()
        self.transports: weakref.WeakSet[asyncio.Transport] = weakref.WeakSet()
        self.set_exception_handler(_on_lost_exception)

    async def create_connection(self, *args: Any, **kwargs: Any) -> Any:
        transport, protocol = await super().create_connection(*args, **kwargs)
        self.transports.add(transport)
        return transport, protocol


def _on_lost_exception(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """A task of the client failed with its connection. Outcomes report it, so asyncio's traceback is not logged."""
    _log.debug("%s: %r", context["message"], context.get("exception"))
