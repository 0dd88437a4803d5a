"""The claim check: a payload over a limit goes to an object store, and its message carries a reference to it."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Final
from urllib.parse import quote

from outspark.envelopes import content_type
from outspark.errors import DestinationDown
from outspark.event import Message
from outspark.outcome import HELD, Held, Outcome, Retry
from outspark.publishers.claim_store import ClaimStore
from outspark.publishers.publisher import Publisher
from outspark.settings import ClaimCheckSettings

HEADER: Final = "X-Outspark-Claim-Check"

# What is left is for the broker. What could not be stored in time comes back, and the rest has gone on.
_SHARE_FOR_STORING = 0.75


class ClaimCheckPublisher:
    """Stands before the publisher of a destination. A message whose payload could not be stored is not sent."""

    def __init__(self, name: str, inner: Publisher, settings: ClaimCheckSettings) -> None:
        self.keeps_order, self.keeps_headers = inner.keeps_order, inner.keeps_headers
        self._inner = inner
        self._url = settings.path.rstrip("/")
        self._over = settings.over
        self._store = ClaimStore(name, settings)

    def publish(self, messages: Sequence[Message], timeout: float) -> list[Outcome]:
        deadline = time.monotonic() + timeout
        checked = self._check_in(messages, timeout * _SHARE_FOR_STORING)
        sent = [message for message in checked if isinstance(message, Message)]
        answers = iter(self._send(sent, deadline - time.monotonic()))
        return [next(answers) if isinstance(message, Message) else message for message in checked]

    def check(self, timeout: float) -> None:
        """The store counts as a part of the destination: without it, large events would fail one by one."""
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
    """A message's payload on its way to the store."""

    def __init__(self, message: Message) -> None:
        self.message = message
        self._sha256 = hashlib.sha256(message.payload).hexdigest()
        # The same at every attempt; the hash keeps apart what two sources may send under one id.
        self.name = f"{self._sha256[:2]}/{quote(message.id, safe='')}-{self._sha256[:16]}"

    def reference(self, store: str) -> Message:
        """What goes out in the message's stead."""
        message, url = self.message, f"{store}/{self.name}"
        claim = {
            "url": url,
            "size": len(message.payload),
            "sha256": self._sha256,
            "content_type": content_type.declared(message.headers),
        }
        body = json.dumps({"claim_check": claim}, ensure_ascii=False, separators=(",", ":")).encode()
        headers = {**content_type.declare(message.headers, "application/json"), HEADER: url}
        return replace(message, payload=body, headers=headers)


def _hold_back(
    messages: Sequence[Message], checked: Sequence[Message | Retry | Held]
) -> list[Message | Retry | Held]:
    """Of a key, nothing goes out after a message that does not."""
    stopped: set[str] = set()
    kept: list[Message | Retry | Held] = []
    for message, result in zip(messages, checked, strict=True):
        kept.append(HELD if message.order_key in stopped else result)
        if message.order_key is not None and not isinstance(result, Message):
            stopped.add(message.order_key)
    return kept
