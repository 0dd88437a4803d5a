"""`outspark enqueue`: put events into the outbox, one from flags or many from JSON lines."""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

from outspark.cli import options, output
from outspark.config import durations
from outspark.errors import EventInvalid

if TYPE_CHECKING:
    from outspark.cli.tables import OpenTable
    from outspark.contracts.writing import PlainEvent

_FIELDS = ("type", "payload", "payload_base64", "key", "headers", "id", "available_at", "delay")
_READERS: dict[str, Callable[[str], Any]] = {
    "payload_base64": partial(base64.b64decode, validate=True),
    "id": UUID,
    "available_at": datetime.fromisoformat,
    "delay": durations.parse,
}


def enqueue(
    type: Annotated[
        str | None, typer.Option("--type", metavar="TYPE", help="Event type, such as order.created.")
    ] = None,
    payload: Annotated[
        str | None, typer.Option("--payload", metavar="TEXT", help="The payload; - reads it from stdin.")
    ] = None,
    key: Annotated[str | None, typer.Option("--key", metavar="KEY", help="What order is kept by.")] = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", metavar="NAME=VALUE", help="A header; may be repeated.")
    ] = None,
    id: Annotated[
        str | None, typer.Option("--id", metavar="UUID", help="Event id; otherwise a new UUIDv7.")
    ] = None,
    delay: Annotated[
        str | None, typer.Option("--delay", metavar="AGE", help="Due after this, such as 5m.")
    ] = None,
    batch: Annotated[
        int, typer.Option("--batch", min=1, max=10_000, metavar="N", help="Lines per transaction.")
    ] = 500,
    json: options.Json = False,
    config: options.Config = None,
    source: options.Source = None,
    url: options.Url = None,
    table: options.Table = None,
    contract: options.Contract = None,
) -> None:
    """Put one event into the outbox from flags, or many from JSON lines on stdin, and print the new ids.

    A line is an object with `type` and `payload` (text, or an object that is written as JSON;
    `payload_base64` for bytes), and if you like `key`, `headers`, `id`, `delay`, `available_at`. An id that
    is there already is left alone and not answered, so the same input can be sent again. On the contract jeap
    the type is the topic, there are no headers, and ids are not compared. On omnibox the payload is JSON, and headers
    called as its columns go there: `topic` (otherwise the type), `aggregate_type` (otherwise the type up to its first
    dot), `aggregate_id` (otherwise the key, which is a UUID then), `idempotency_key` and the like.

    ```
    outspark enqueue --type order.created --key 42 --payload '{"order": 42}'
    outspark enqueue --type photo.taken --payload - < photo.jpg
    echo '{"type": "order.paid", "key": "42", "payload": {"order": 42}}' | outspark enqueue
    outspark enqueue --type order.paid --payload '{}' --key 0198f3c2-… --header topic=orders
    ```
    """
    from outspark.cli.tables import open_source
    from outspark.config.loading import pick_source

    events: Iterable[PlainEvent]
    if type is not None:
        events = [_event_from_flags(type, payload, key, header or [], id, delay)]
    elif any(value is not None for value in (payload, key, header, id, delay)):
        raise typer.BadParameter("an event from flags needs --type")
    elif sys.stdin.isatty():
        raise typer.BadParameter("give --type and --payload, or JSON lines on stdin")
    else:
        events = _events_from_lines(sys.stdin)
    name, settings = pick_source(
        options.load_settings(config, source, url=url, table=table, contract=contract), source
    )
    with open_source(name, settings) as opened:
        _write(opened, iter(events), batch, json)


def _write(opened: OpenTable, events: Iterator[PlainEvent], batch: int, json: bool) -> None:
    from outspark import contracts

    writer = contracts.get(opened.contract).outbox_writer(opened.table)
    ids: list[str] = []
    given = 0
    try:
        with output.progress() as bar:
            task = bar.add_task("enqueueing", total=None)
            while chunk := list(islice(events, batch)):
                with opened.conn.transaction():
                    new = writer.enqueue(opened.conn, chunk)
                given += len(chunk)
                ids += new
                bar.update(task, completed=given)
                if not json:
                    typer.echo("\n".join(new), nl=bool(new))
    except EventInvalid:
        output.note(f"{len(ids)} enqueued before this:")
        raise
    if json:
        output.print_json({"enqueued": len(ids), "known": given - len(ids), "ids": ids})
    else:
        output.note(
            f"{len(ids)} enqueued" + (f", {given - len(ids)} known already" if given > len(ids) else "")
        )


def _event_from_flags(
    type: str, payload: str | None, key: str | None, headers: list[str], id: str | None, delay: str | None
) -> PlainEvent:
    if payload is None:
        raise typer.BadParameter("an event from flags needs --payload; - reads it from stdin")
    pairs = dict(_header(text) for text in headers)
    body: str | bytes = sys.stdin.buffer.read() if payload == "-" else payload
    fields = {"type": type, "payload": body, "key": key, "headers": pairs, "id": id, "delay": delay}
    return _event({name: value for name, value in fields.items() if value is not None})


def _header(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise typer.BadParameter(f"--header {text!r} is not NAME=VALUE")
    return name, value


def _events_from_lines(lines: Iterable[str]) -> Iterator[PlainEvent]:
    import json

    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                yield _event(json.loads(line))
            except (EventInvalid, ValueError) as error:
                raise EventInvalid(f"line {number}: {error}") from error


def _event(fields: Any) -> PlainEvent:
    if not isinstance(fields, dict):
        raise EventInvalid(f"an event is a JSON object, not {fields.__class__.__name__}")
    if unknown := sorted(fields.keys() - set(_FIELDS)):
        raise EventInvalid(f"unknown field {unknown[0]!r}; known are: {', '.join(_FIELDS)}")
    if "type" not in fields or len(fields.keys() & {"payload", "payload_base64"}) != 1:
        raise EventInvalid("an event needs type, and one of payload and payload_base64")
    from outspark.contracts.writing import PlainEvent

    return PlainEvent(**dict(_read(name, value) for name, value in fields.items()))


def _read(name: str, value: Any) -> tuple[str, Any]:
    read = _READERS.get(name)
    if read is None:
        return name, value
    try:
        return name.removesuffix("_base64"), read(str(value))
    except ValueError as error:
        raise EventInvalid(f"{name} = {str(value)[:60]!r}: {error}") from error
