"""How messages are encoded for NATS and what the answers mean, without I/O.

Subject = topic, `Nats-Msg-Id` = event id (JetStream drops duplicates), `X-Partition-Key` = key.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from outspark.event import Message
from outspark.outcome import DELIVERED, Dead, Outcome, Retry

MESSAGE_ID: Final = "Nats-Msg-Id"
PARTITION_KEY: Final = "X-Partition-Key"

# Well under the server's limit for a whole protocol line (4096), which it answers by closing the connection.
_MAX_SUBJECT = 1024
_SUBJECT = re.compile(r"[^\s.*>\x00]+(\.[^\s.*>\x00]+)*")
_HEADER_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_HEADER_FRAME = len(b"NATS/1.0\r\n\r\n")
_HEADER_LINE = len(b": \r\n")

_ACK = b'{"stream":'
_NO_RESPONDERS = "503"
_EVENT_AT_FAULT = {
    10054,  # message larger than the stream's max_msg_size
    10097,  # headers over 64 KiB
}
_DESTINATION_AT_FAULT = {
    10002,  # the account's resources are used up
    10008,  # JetStream temporarily unavailable
    10009,  # not the leader
    10023,  # insufficient resources
    10028,  # insufficient memory
    10039,  # JetStream not enabled for the account
    10047,  # insufficient storage
    10076,  # JetStream not enabled
    10167,  # too many requests
}
_STREAM_AT_FAULT = {
    10077,  # the store refused: a limit of the stream is reached, the disk is full
    10118,  # stream offline
    10194,  # stream offline, with a reason
}

NO_STREAM: Final = Retry("no stream answers on the subject, and JetStream does not say why", counted=False)
"""The outcome for "no responders", until the connection has found out why there is none."""


class Wire(NamedTuple):
    subject: str
    payload: bytes
    headers: dict[str, str]
    size: int


class Encoder:
    """Encodes messages for the client. `max_message` is the server's limit for headers and payload together,
    `max_payload` the destination's limit for the payload alone."""

    def __init__(self, max_message: int, max_payload: int | None) -> None:
        self._max_message = max_message
        self._max_payload = max_message if max_payload is None else max_payload
        self._good_names = {MESSAGE_ID, PARTITION_KEY}
        self._good_subjects: set[str] = set()

    def encode(self, message: Message) -> Wire | Dead:
        """Dead if the server could never accept the message: sending it would break the connection for the others."""
        subject, payload = message.topic, message.payload
        if subject not in self._good_subjects and (fault := self._check_subject(subject)):
            return Dead(fault)
        headers = {**message.headers, MESSAGE_ID: message.id}
        if message.key is not None:
            headers[PARTITION_KEY] = message.key
        size = len(payload) + _HEADER_FRAME
        for name, value in headers.items():
            if name not in self._good_names and (fault := self._check_name(name)):
                return Dead(fault)
            if "\n" in value or "\r" in value:
                return Dead(f"header {name!r} contains a line break, which NATS does not allow")
            try:
                size += len(name) + _HEADER_LINE + (len(value) if value.isascii() else len(value.encode()))
            except UnicodeEncodeError:
                return Dead(f"header {name!r} is not valid Unicode")
        if len(payload) > self._max_payload:
            return Dead(f"payload of {len(payload)} bytes is over the limit of {self._max_payload}")
        if size > self._max_message:
            return Dead(
                f"headers and payload are {size} bytes, and the server accepts at most {self._max_message}"
            )
        return Wire(subject, payload, headers, size)

    def _check_subject(self, subject: str) -> str | None:
        try:
            length = len(subject.encode())
        except UnicodeEncodeError:
            return f"{subject!r} is not valid Unicode"
        if length > _MAX_SUBJECT:
            return f"subject of {length} bytes is over the limit of {_MAX_SUBJECT}"
        if not _SUBJECT.fullmatch(subject):
            return (
                f"{subject!r} is not a NATS subject to publish to: tokens separated by single dots, "
                "without spaces, * or >"
            )
        _remember(self._good_subjects, subject)
        return None

    def _check_name(self, name: str) -> str | None:
        if not _HEADER_NAME.fullmatch(name):
            return f"{name!r} is not a NATS header name: letters, digits and !#$%&'*+-.^_`|~ only"
        _remember(self._good_names, name)
        return None


def outcome(data: bytes, headers: Mapping[str, str] | None) -> Outcome | None:
    """The outcome for an answer to a published message; None if the answer is not from JetStream."""
    if data.startswith(_ACK):
        return DELIVERED
    if not data:
        return NO_STREAM if headers and headers.get("Status") == _NO_RESPONDERS else None
    try:
        answer = json.loads(data)
    except ValueError:
        return None
    match answer:
        case {"error": {"err_code": int(code), "description": str(reason)}}:
            return _refusal(code, reason)
        case {"stream": str(), "seq": int()}:
            return DELIVERED
    return None


def _refusal(code: int, reason: str) -> Outcome:
    text = f"JetStream: {reason} ({code})"
    if code in _EVENT_AT_FAULT:
        return Dead(text)
    if code in _STREAM_AT_FAULT:
        return Retry.of_topic("full", f"{text}; make room in the stream or raise its limits")
    return Retry(text, counted=code not in _DESTINATION_AT_FAULT)


def _remember(known: set[str], name: str) -> None:
    if len(known) >= 10_000:
        known.clear()
    known.add(name)
