"""The stdout publisher: writes JSON lines to stdout or to a file, one write per batch.

A Python worker of Spark has no stdout of its own: its output goes to the driver's stderr. So the driver opens a
`Funnel`, and its workers write to the funnel's path.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import stat
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from outspark.config.settings import DestinationSettings
from outspark.errors import DestinationDown, SettingsError
from outspark.event import Message
from outspark.outcome import DELIVERED, Outcome, Retry

_READ_SIZE = 1 << 16


class StdoutPublisher:
    """Option `path`: append there (a file, a FIFO, a device) instead of writing to this process's stdout."""

    keeps_order = True
    keeps_headers = False

    def __init__(self, name: str, settings: DestinationSettings) -> None:
        unknown = sorted(set(settings.options) - {"path"})
        if unknown:
            raise SettingsError(f"destinations.{name}.options: {', '.join(unknown)} is not one of: path")
        self._name = name
        self._path: str | None = settings.options.get("path")
        self._file: int | None = None

    def publish(self, messages: Sequence[Message], timeout: float) -> list[Outcome]:
        if not messages:
            return []
        lines = b"".join(map(line, messages))
        try:
            fd = self._open()
            _await_reader(fd, timeout)
            _write_whole(fd, lines)
        except OSError as error:
            self.close()
            return [Retry(self._down(error), counted=False)] * len(messages)
        return [DELIVERED] * len(messages)

    def check(self, timeout: float) -> None:
        try:
            _await_reader(self._open(), timeout)
        except OSError as error:
            self.close()
            raise DestinationDown(self._down(error)) from error

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _open(self) -> int:
        if self._path is None:
            sys.stdout.flush()
            return sys.stdout.fileno()
        if self._file is None:
            # Without O_NONBLOCK, opening a FIFO without a reader would block forever.
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK
            self._file = os.open(self._path, flags, 0o600)  # events may be confidential
            os.set_blocking(self._file, True)
        return self._file

    def _down(self, error: OSError) -> str:
        return (
            f"destination {self._name}: cannot write to {self._path or 'stdout'}: {error.strerror or error}"
        )


def line(message: Message) -> bytes:
    """The message as one line of JSON; a payload that is not UTF-8 becomes base64 in `payload_base64`."""
    document: dict[str, object] = {
        "id": message.id,
        "topic": message.topic,
        "key": message.key,
        "headers": dict(message.headers),
    }
    try:
        document["payload"] = message.payload.decode()
    except UnicodeDecodeError:
        document["payload_base64"] = base64.b64encode(message.payload).decode()
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    # A lone surrogate cannot be encoded as UTF-8; its backslash escape is valid in JSON.
    return text.encode(errors="backslashreplace") + b"\n"


def _await_reader(fd: int, timeout: float) -> None:
    """Wait until a write would not block: a pipe whose reader has stopped must not block a lane forever."""
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    events = poll.poll(timeout * 1000)
    if not events:
        raise TimeoutError(0, f"its reader read nothing for {timeout:g} s")
    if events[0][1] & select.POLLERR:
        raise BrokenPipeError(0, "its reader has closed it")


def _write_whole(fd: int, data: bytes) -> None:
    """Lanes share the file, so a lock serializes them: a pipe interleaves writes that are longer than PIPE_BUF."""
    shared = stat.S_ISREG(os.fstat(fd).st_mode) or stat.S_ISFIFO(os.fstat(fd).st_mode)
    if shared:
        fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
    finally:
        if shared:
            fcntl.flock(fd, fcntl.LOCK_UN)


class Funnel:
    """The driver's end: a FIFO that workers on this machine write to, and a thread that copies it to `out`.

    If `out` breaks, the thread closes the FIFO, so that the workers' writes fail and no message counts as delivered.
    """

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._folder = Path(tempfile.mkdtemp(prefix="outspark-stdout-"))
        self.path = self._folder / "lines"
        os.mkfifo(self.path, 0o600)
        self._reader = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)
        self._stopped, self._stop = os.pipe()
        self._thread = threading.Thread(target=self._copy, name="outspark-stdout", daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait until the thread has ended, because `out` broke or `close` was called."""
        self._thread.join()

    def close(self) -> None:
        """Copy the rest of the FIFO, then remove it; a second call does nothing."""
        if self._stop < 0:
            return
        os.close(self._stop)
        self._stop = -1
        self.join()
        os.close(self._stopped)
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _copy(self) -> None:
        # Without this writer, poll would report POLLHUP in a busy loop while no worker has the FIFO open.
        writer = os.open(self.path, os.O_WRONLY)
        poll = select.poll()
        poll.register(self._reader, select.POLLIN)
        poll.register(self._stopped, select.POLLIN)
        try:
            with contextlib.suppress(OSError):
                while any(fd == self._reader for fd, _ in poll.poll()):
                    self._out.write(os.read(self._reader, _READ_SIZE))
                    self._out.flush()
        finally:
            os.close(self._reader)
            os.close(writer)
