"""Claim check: a large payload is put into a store, and the message contains a reference to it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import Any, Final
from urllib.parse import quote
from uuid import uuid4

import fsspec
from fsspec.core import split_protocol, url_to_fs

from outspark.brokers.publisher import Publisher
from outspark.config.settings import ClaimCheckSettings
from outspark.errors import DestinationDown, SettingsError
from outspark.event import Message
from outspark.headers import content_type_of, with_content_type
from outspark.outcome import HELD, Held, Outcome, Retry
from outspark.redaction import redact

_CHECK_NAME = ".outspark-check"
# fsspec's asynchronous stores may be called from several threads; the others do not guarantee that.
_PARALLEL = 8
_SHORTEST_SECRET = 4

Job = Callable[[Any, str], None]
"""Takes the file system and the path of the store in it."""


class ClaimStore:
    """Used from one thread. After an error the next call opens the store again; construction does no I/O."""

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
        """Store each payload under its name; return an outcome for each name that was not stored.

        Held means that the store had no time for the payload; the store itself is healthy.
        """
        errors = self._run([_writing(name, payload) for name, payload in objects.items()], timeout)
        return {
            name: HELD if isinstance(error, CancelledError) else Retry(self._words(error), counted=False)
            for name, error in zip(objects, errors, strict=True)
            if error is not None
        }

    def check(self, timeout: float) -> str | None:
        """Write a small object; return the error's text, or None."""
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
    """One opened store. fsspec has no timeouts, so threads do the work, and can be abandoned if they hang."""

    def __init__(self, settings: ClaimCheckSettings, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="outspark-claims")
        # The first task of the pool, so a job that waits for its result never occupies the only thread.
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
        # The name contains the payload's hash, so an object from an earlier attempt has the same content.
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
    """True for file systems. An object store copies instead, and an object is visible only once it is complete."""
    return type(files).mv is not fsspec.AbstractFileSystem.mv


def _strings(options: Any) -> Iterator[str]:
    """All option values, since each may be a secret. URLs are left out: an error without them would be useless."""
    if isinstance(options, str):
        if len(options) >= _SHORTEST_SECRET and "://" not in options:
            yield options
    elif isinstance(options, Mapping):
        for value in options.values():
            yield from _strings(value)
    elif isinstance(options, list | tuple):
        for value in options:
            yield from _strings(value)


HEADER: Final = "X-Outspark-Claim-Check"

# Fraction of the timeout for the store; the rest is for the broker. Messages not stored in time are retried later.
_STORE_FRACTION = 0.75


class ClaimCheckPublisher:
    """Wraps the publisher of a destination. A message whose payload could not be stored is not sent."""

    def __init__(self, name: str, inner: Publisher, settings: ClaimCheckSettings) -> None:
        self.keeps_order, self.keeps_headers = inner.keeps_order, inner.keeps_headers
        self._inner = inner
        self._url = settings.path.rstrip("/")
        self._over = settings.over
        self._store = ClaimStore(name, settings)

    def publish(self, messages: Sequence[Message], timeout: float) -> list[Outcome]:
        deadline = time.monotonic() + timeout
        checked = self._check_in(messages, timeout * _STORE_FRACTION)
        sent = [message for message in checked if isinstance(message, Message)]
        answers = iter(self._send(sent, deadline - time.monotonic()))
        return [next(answers) if isinstance(message, Message) else message for message in checked]

    def check(self, timeout: float) -> None:
        """Check store and broker: without the store, large events would fail one by one."""
        deadline = time.monotonic() + timeout
        if fault := self._store.check(timeout):
            raise DestinationDown(fault)
        self._inner.check(max(deadline - time.monotonic(), 0.001))

    def close(self) -> None:
        self._store.close()
        self._inner.close()

    def _check_in(self, messages: Sequence[Message], timeout: float) -> list[Message | Retry | Held]:
        claims = {index: _Claim(m) for index, m in enumerate(messages) if len(m.payload) > self._over}
        if not claims:
            return list(messages)
        failed = self._store.put({claim.name: claim.message.payload for claim in claims.values()}, timeout)
        checked: list[Message | Retry | Held] = list(messages)
        for index, claim in claims.items():
            checked[index] = failed.get(claim.name) or claim.reference(self._url)
        return _hold_back(messages, checked) if self.keeps_order else checked

    def _send(self, messages: Sequence[Message], timeout: float) -> Sequence[Outcome]:
        if not messages:
            return []
        return self._inner.publish(messages, timeout) if timeout > 0 else [HELD] * len(messages)


class _Claim:
    """A message with the name under which its payload is stored."""

    def __init__(self, message: Message) -> None:
        self.message = message
        self._sha256 = hashlib.sha256(message.payload).hexdigest()
        # The name is the same at every attempt; the hash separates payloads that two sources send under one id.
        self.name = f"{self._sha256[:2]}/{quote(message.id, safe='')}-{self._sha256[:16]}"

    def reference(self, store: str) -> Message:
        """The message to send instead, with a reference to the stored payload."""
        message, url = self.message, f"{store}/{self.name}"
        claim = {
            "url": url,
            "size": len(message.payload),
            "sha256": self._sha256,
            "content_type": content_type_of(message.headers),
        }
        body = json.dumps({"claim_check": claim}, ensure_ascii=False, separators=(",", ":")).encode()
        headers = {**with_content_type(message.headers, "application/json"), HEADER: url}
        return replace(message, payload=body, headers=headers)


def _hold_back(
    messages: Sequence[Message], checked: Sequence[Message | Retry | Held]
) -> list[Message | Retry | Held]:
    """Hold messages behind one of the same order key that is not sent, to keep the order."""
    stopped: set[str] = set()
    kept: list[Message | Retry | Held] = []
    for message, result in zip(messages, checked, strict=True):
        kept.append(HELD if message.order_key in stopped else result)
        if message.order_key is not None and not isinstance(result, Message):
            stopped.add(message.order_key)
    return kept
