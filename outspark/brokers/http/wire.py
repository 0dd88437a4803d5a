"""How messages are encoded as webhook requests and what the responses mean, without I/O.

Body = payload, `X-Event-ID` = event id, `X-Event-Topic` = topic, `X-Partition-Key` = key, headers unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from outspark.brokers.http.endpoint import Endpoint
from outspark.brokers.http.signature import NAMES as SIGNATURE_NAMES
from outspark.brokers.http.signature import Signer
from outspark.event import Message
from outspark.outcome import DELIVERED, Dead, Outcome, Retry, TopicFault
from outspark.version import __version__

EVENT_ID: Final = "X-Event-ID"
EVENT_TOPIC: Final = "X-Event-Topic"
PARTITION_KEY: Final = "X-Partition-Key"

# These belong to the connection or are computed from the request: an event's own value would break it.
_NOT_CARRIED = frozenset(
    {
        *(
            "connection",
            "content-length",
            "expect",
            "host",
            "keep-alive",
            "te",
            "trailer",
            "transfer-encoding",
        ),
        *("proxy-authenticate", "proxy-authorization", "proxy-connection", "upgrade"),
    }
)
OWN: Final = frozenset({EVENT_ID.lower(), EVENT_TOPIC.lower(), PARTITION_KEY.lower(), *SIGNATURE_NAMES})
"""Headers that Outspark sets itself, in lower case; no configured header may have such a name."""
RESERVED: Final = _NOT_CARRIED | OWN

_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_SHOWN = 200
_LONGEST_WAIT = timedelta(days=1)
_LONGEST_DATE = 100
_TRANSIENT = frozenset({408, 425, 429})
# Statuses of an endpoint that was moved, closed or locked, for every request: no event is at fault.
_ENDPOINT_AT_FAULT: dict[int, TopicFault] = {
    401: "forbidden",
    403: "forbidden",
    404: "missing",
    410: "missing",
}
_REMEDIES: dict[TopicFault, str] = {
    "forbidden": "give the destination the credentials that the endpoint asks for",
    "missing": "open the endpoint again, or put its new address into the destination's url",
}

Line = tuple[bytes, bytes]


class Post(NamedTuple):
    target: bytes
    headers: list[Line]
    body: bytes


class Answer(NamedTuple):
    """`headers` have lower-case names; `body` is only the beginning of the body."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Encoder:
    """Encodes messages as requests. The destination's `fixed` headers replace an event's own."""

    def __init__(
        self, endpoint: Endpoint, fixed: Mapping[str, str], signer: Signer | None, max_payload: int | None
    ) -> None:
        self._endpoint = endpoint
        self._signer = signer
        self._max_payload = max_payload
        self._names: dict[str, str] = {}
        self._defaults: dict[str, Line] = {
            "content-type": (b"Content-Type", b"application/octet-stream"),
            "user-agent": (b"User-Agent", f"outspark/{__version__}".encode()),
        }
        self._fixed: dict[str, Line] = {"host": (b"Host", endpoint.authority.encode())}
        if endpoint.authorization is not None:
            self._fixed["authorization"] = (b"Authorization", endpoint.authorization.encode())
        for name, value in fixed.items():
            self._fixed[self._known(name)] = line(name, value)

    def encode(self, message: Message, now: int) -> Post | Dead:
        """`now` is Unix time, for the signature. Dead if HTTP cannot carry the message."""
        body = message.payload
        if self._max_payload is not None and len(body) > self._max_payload:
            return Dead(f"payload of {len(body)} bytes is over the limit of {self._max_payload}")
        try:
            lines = self._lines(message)
            target = self._endpoint.target(message.topic)
        except ValueError as fault:
            return Dead(str(fault))
        headers = [*lines.values(), (b"Content-Length", b"%d" % len(body))]
        if self._signer is not None:
            headers += self._signer.headers(message.id, body, now)
        return Post(target, headers, body)

    def _lines(self, message: Message) -> dict[str, Line]:
        """Headers by lower-case name, so that Outspark's replace an event's own in any spelling."""
        lines = dict(self._defaults)
        for name, value in message.headers.items():
            known = self._known(name)
            if known not in RESERVED:
                lines[known] = line(name, value)
        lines |= self._fixed
        lines[EVENT_ID] = line(EVENT_ID, message.id)
        lines[EVENT_TOPIC] = line(EVENT_TOPIC, message.topic)
        if message.key is not None:
            lines[PARTITION_KEY] = line(PARTITION_KEY, message.key)
        return lines

    def _known(self, name: str) -> str:
        known = self._names.get(name)
        if known is None:
            if not _NAME.fullmatch(name):
                raise ValueError(
                    f"{name!r} is not an HTTP header name: letters, digits and !#$%&'*+-.^_`|~ only"
                )
            if len(self._names) >= 10_000:
                self._names.clear()
            known = self._names[name] = name.lower()
        return known


def line(name: str, value: str) -> Line:
    """Encode a header as UTF-8, with the value stripped; ValueError if HTTP cannot carry it."""
    if _CONTROL.search(value):
        raise ValueError(f"header {name!r} holds a line break or control character, which HTTP cannot carry")
    try:
        return name.encode("ascii"), value.strip(" \t").encode()
    except UnicodeEncodeError:
        raise ValueError(f"header {name!r} is not valid Unicode") from None


def outcome(answer: Answer) -> Outcome:
    status = answer.status
    if 200 <= status < 300:
        return DELIVERED
    if status in _TRANSIENT or status >= 500:
        return Retry(_text(answer), after=retry_after(answer.headers.get("retry-after"), datetime.now(UTC)))
    if 300 <= status < 400:
        return Retry.of_topic(
            "missing",
            f"HTTP {status} redirects to {_elsewhere(answer)}, and redirects are not followed: "
            "put the final address into the destination's url",
        )
    if fault := _ENDPOINT_AT_FAULT.get(status):
        return Retry.of_topic(fault, f"{_text(answer)}; {_REMEDIES[fault]}")
    return Dead(_text(answer))


def retry_after(value: str | None, now: datetime) -> timedelta | None:
    """`120` is two minutes, an HTTP date the time until then; at most a day. None for anything else or the past."""
    if value is None or len(value) > _LONGEST_DATE:
        return None
    if value.isascii() and value.isdigit():
        wait = timedelta(seconds=int(value)) if len(value) < 10 else _LONGEST_WAIT
    else:
        try:
            wait = parsedate_to_datetime(value).replace(tzinfo=UTC) - now
        except ValueError:
            return None
    return min(wait, _LONGEST_WAIT) if wait > timedelta(0) else None


def _text(answer: Answer) -> str:
    shown = "".join(char if char.isprintable() else " " for char in answer.body.decode(errors="replace"))
    said = " ".join(shown.split())[:_SHOWN]
    return f"HTTP {answer.status}: {said}" if said else f"HTTP {answer.status}"


def _elsewhere(answer: Answer) -> str:
    """The redirect's server only: its path and query may repeat a secret token of the URL."""
    try:
        parts = urlsplit(answer.headers.get("location", ""))
    except ValueError:
        return "an invalid address"
    return f"{parts.scheme or 'http'}://{parts.netloc.rpartition('@')[2]}" if parts.netloc else "another path"
