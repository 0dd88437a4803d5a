"""`NewMessage` is a message as a service sends it; `check` makes its row for a jEAP outbox."""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID

from outspark.contracts.jeap.enqueue import Row
from outspark.errors import EventInvalid
from outspark.uuid7 import uuid7


@dataclass(frozen=True, slots=True)
class NewMessage:
    """One message to send. Payload and key are sent unchanged; `AvroSerializer` makes them from records.

    `type` and `type_version` name the message's type. Consumers and logs identify the message by `id`. Messages with
    the same `idempotence_id`, by default the id, are repetitions of the same fact. `cluster` is the destination, if
    that is not the outbox's own cluster.
    """

    topic: str
    payload: bytes
    type: str
    key: bytes | None = None
    type_version: str | None = None
    id: UUID | str = field(default_factory=uuid7)
    idempotence_id: str | None = None
    cluster: str | None = None


def check(message: NewMessage, cluster: str | None) -> Row:
    """The row of a message; `cluster` is the outbox's own. EventInvalid says what is wrong and shows no payload."""
    id = str(message.id) if isinstance(message.id, UUID) else message.id
    _check_text(message, "id", id)
    _check_text(message, "topic", message.topic)
    _check_text(message, "type", message.type)
    for what in ("type_version", "idempotence_id", "cluster"):
        value = getattr(message, what)
        if value is not None:
            _check_text(message, what, value)
    return Row(
        message=_bytes(message, "payload", message.payload),
        key=None if message.key is None else _bytes(message, "key", message.key),
        cluster=cluster if message.cluster is None else message.cluster,
        topic=message.topic,
        message_id=id,
        idempotence_id=id if message.idempotence_id is None else message.idempotence_id,
        type=message.type,
        version=message.type_version,
    )


def _bytes(message: NewMessage, what: str, value: object) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise _invalid(message, f"{what} is {type(value).__name__}, allowed: bytes; encode it first")


def _check_text(message: NewMessage, what: str, value: object) -> None:
    if not isinstance(value, str):
        raise _invalid(message, f"{what} is {type(value).__name__}, allowed: str")
    if not value.strip():
        raise _invalid(message, f"{what} is empty")
    if "\0" in value:
        raise _invalid(message, f"{what} has a NUL, which PostgreSQL does not store in text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise _invalid(message, f"{what} is not valid Unicode: {error.reason}") from error


def _invalid(message: NewMessage, problem: str) -> EventInvalid:
    return EventInvalid(f"message {message.id!s} ({message.type!r}): {problem}")
