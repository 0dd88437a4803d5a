"""Optional Avro: records become bytes as Confluent's serializers write them."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from outspark.errors import EventInvalid, ExtraMissing, SettingsError

_MAGIC = 0
_MAX_ID = (1 << 31) - 1


class AvroSerializer:
    """`serialize(record)` gives a zero byte, the schema's id in four bytes, and the record in Avro's binary form.

    `schema` is an Avro schema, as JSON text or parsed; `schema_id` is its id in the schema registry, which is never
    contacted. A record must fit: a field that the schema does not have is refused.
    """

    def __init__(self, schema: str | Mapping[str, Any] | Sequence[Any], schema_id: int) -> None:
        try:
            import fastavro
        except ModuleNotFoundError as error:
            raise ExtraMissing("Avro", "avro") from error
        if not 0 <= schema_id <= _MAX_ID:
            raise SettingsError(f"schema_id = {schema_id} must be a whole number from 0 to {_MAX_ID}")
        try:
            self._schema = fastavro.parse_schema(_parsed(schema))
        except Exception as error:
            raise SettingsError(f"schema is not an Avro schema: {error}") from error
        self._write = fastavro.schemaless_writer
        self._prefix = struct.pack(">bI", _MAGIC, schema_id)

    def __call__(self, record: Any) -> bytes:
        """EventInvalid when the record does not fit the schema."""
        buffer = io.BytesIO(self._prefix)
        buffer.seek(len(self._prefix))
        try:
            self._write(buffer, self._schema, record, strict_allow_default=True)
        except Exception as error:
            raise EventInvalid(f"the record does not fit its Avro schema: {error}") from error
        return buffer.getvalue()


def _parsed(schema: str | Mapping[str, Any] | Sequence[Any]) -> Any:
    # A bare name, such as `long`, is a schema too, but it is not JSON.
    if isinstance(schema, str) and schema.lstrip()[:1] in ("{", "[", '"'):
        return json.loads(schema)
    return schema
