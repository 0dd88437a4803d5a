"""Where claims are kept: any store that fsspec knows, in which an object is there as a whole or not at all."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from typing import Any
from uuid import uuid4

import fsspec
from fsspec.core import split_protocol, url_to_fs

from outspark.errors import SettingsError
from outspark.outcome import HELD, Held, Retry
from outspark.redaction import redact
from outspark.settings import ClaimCheckSettings

_CHECK_NAME = ".outspark-check"
# fsspec's asynchronous stores may be called from many threads; the others promise nothing.
_PARALLEL = 8
_SHORTEST_SECRET = 4

Job = Callable[[Any, str], None]
"""Called with the file system and the path of the store in it."""


class ClaimStore:
    """Used from one thread. After a fault it is opened anew; construction does no I/O."""

    def __init__(self, name: str, settings: ClaimCheckSettings) -> None:
        self._settings = settings
        self._label = f"destination {name}: claim check at {settings.path}"
        try:
            kind = fsspec.get_filesystem_class(split_protocol(settings.path)[0])
        except (ImportError, ValueError) as error:
            raise SettingsError(f"destinations.{name}.claim_check.path: {error}") from error
        self._threads = _PARALLEL if kind.async_impl else 1
        self._session: _Session | None = None

    def put(self, objects: Mapping[str, bytes], timeout: float) -> dict[str, Retry | Held]:
        """Store each payload under its name. The answer has the names that are not stored.

        Held are those whose turn did not come in time: nothing is wrong with the store.
        """
        errors = self._run([_writing(name, payload) for name, payload in objects.items()], timeout)
        return {
            name: HELD if isinstance(error, CancelledError) else Retry(self._words(error), counted=False)
            for name, error in zip(objects, errors, strict=True)
            if error is not None
        }

    def check(self, timeout: float) -> str | None:
        """Write a small object; what went wrong, if anything."""
        [error] = self._run([_write_probe], timeout)
        return None if error is None else self._words(error)

    def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def _run(self, jobs: Sequence[Job], timeout: float) -> list[BaseException | None]:
        if self._session is None:
            self._session = _Session(self._settings, self._threads)
        errors = self._session.run(jobs, timeout)
        if any(error is not None for error in errors):
            self.close()
        return errors

    def _words(self, error: BaseException) -> str:
        text = f"{type(error).__name__}: {error}"
        for secret in sorted(_strings(self._settings.options), key=len, reverse=True):
            text = text.replace(secret, "***")
        return f"{self._label}: {redact(text)}"


class _Session:
    """One opening of the store. fsspec knows no deadline, so the work is done in threads that can be left behind."""

    def __init__(self, settings: ClaimCheckSettings, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="outspark-claims")
        # First in line, so no job waits for it in vain.
        self._opened = self._pool.submit(
            url_to_fs, settings.path, skip_instance_cache=True, **settings.options
        )

    def run(self, jobs: Sequence[Job], timeout: float) -> list[BaseException | None]:
        futures = [self._pool.submit(self._do, job) for job in jobs]
        wait(futures, timeout)
        return [_error(future, timeout) for future in futures]

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _do(self, job: Job) -> None:
        files, root = self._opened.result()
        job(files, root)


def _error(future: Future[None], timeout: float) -> BaseException | None:
    if future.cancel():
        return CancelledError()
    return future.exception() if future.done() else TimeoutError(f"not stored within {timeout:g} s")


def _writing(name: str, payload: bytes) -> Job:
    def write(files: Any, root: str) -> None:
        path = f"{root.rstrip('/')}/{name}"
        if not _renames(files):
            files.pipe_file(path, payload)
        # The name carries the payload's hash: what is there from an earlier attempt is the same.
        elif not (files.exists(path) and files.size(path) == len(payload)):
            _write_and_move(files, path, payload)

    return write


def _write_and_move(files: Any, path: str, payload: bytes) -> None:
    folder = path.rpartition("/")[0]
    files.makedirs(folder, exist_ok=True)
    draft = f"{folder}/.{uuid4().hex}.part"
    try:
        files.pipe_file(draft, payload)
        files.mv(draft, path)
    except BaseException:
        with contextlib.suppress(Exception):
            files.rm_file(draft)
        raise


def _write_probe(files: Any, root: str) -> None:
    if _renames(files):
        files.makedirs(root, exist_ok=True)
    files.pipe_file(f"{root.rstrip('/')}/{_CHECK_NAME}", b"")


def _renames(files: Any) -> bool:
    """True for file systems; an object store copies instead, and shows an object only when it is whole."""
    return type(files).mv is not fsspec.AbstractFileSystem.mv


def _strings(options: Any) -> Iterator[str]:
    """Every option may be a secret; addresses are not, and an error without them helps nobody."""
    if isinstance(options, str):
        if len(options) >= _SHORTEST_SECRET and "://" not in options:
            yield options
    elif isinstance(options, Mapping):
        for value in options.values():
            yield from _strings(value)
    elif isinstance(options, list | tuple):
        for value in options:
            yield from _strings(value)
