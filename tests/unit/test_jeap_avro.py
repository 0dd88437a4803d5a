"""Avro records behind the prefix that Confluent's deserializers expect."""

from __future__ import annotations

import io
import json
import sys
from typing import Any

import pytest

from outspark.errors import EventInvalid, ExtraMissing, SettingsError
from outspark.outbox.jeap import AvroSerializer

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "number", "type": "long"},
        {"name": "note", "type": "string", "default": ""},
    ],
}


def test_a_record_byte_by_byte() -> None:
    """7 is zigzagged to 14; text has its length before it, zigzagged too."""
    serialize = AvroSerializer(ORDER, 258)
    assert serialize({"number": 7, "note": "ü"}) == b"\x00\x00\x00\x01\x02\x0e\x04\xc3\xbc"
    assert serialize({"number": -1}) == b"\x00\x00\x00\x01\x02\x01\x00"


def test_it_reads_back() -> None:
    fastavro = pytest.importorskip("fastavro")
    data = AvroSerializer(json.dumps(ORDER), 2**31 - 1)({"number": 42, "note": "x"})
    assert data[:5] == b"\x00\x7f\xff\xff\xff"
    assert fastavro.schemaless_reader(io.BytesIO(data[5:]), ORDER, None) == {"number": 42, "note": "x"}


def test_a_bare_type_is_a_schema_too() -> None:
    assert AvroSerializer("string", 1)("ab") == b"\x00\x00\x00\x00\x01\x04ab"


@pytest.mark.parametrize(
    "record", [{}, {"number": "x"}, {"number": 2**63}, {"number": 1, "other": 2}, None, 7], ids=repr
)
def test_a_record_that_does_not_fit(record: Any) -> None:
    with pytest.raises(EventInvalid, match="does not fit its Avro schema"):
        AvroSerializer(ORDER, 1)(record)


@pytest.mark.parametrize("schema_id", [-1, 2**31])
def test_an_id_that_no_registry_gives(schema_id: int) -> None:
    with pytest.raises(SettingsError, match="schema_id"):
        AvroSerializer(ORDER, schema_id)


@pytest.mark.parametrize("schema", ['{"type": ', {"type": "recrod"}, {}, "nothing"], ids=repr)
def test_a_schema_that_is_none(schema: Any) -> None:
    with pytest.raises(SettingsError, match="not an Avro schema"):
        AvroSerializer(schema, 1)


def test_the_extra_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastavro", None)
    with pytest.raises(ExtraMissing, match=r"pip install 'outspark\[avro\]'"):
        AvroSerializer(ORDER, 1)
