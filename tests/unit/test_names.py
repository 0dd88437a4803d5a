from __future__ import annotations

import pytest

from outspark.database.names import MAX_BYTES, TableName, bell_channel, lock_class
from outspark.errors import SettingsError


@pytest.mark.parametrize(
    ("text", "schema", "table"),
    [
        ("openoutbox_events", None, "openoutbox_events"),
        ("public.openoutbox_events", "public", "openoutbox_events"),
        ("  Sales.Orders ", "sales", "orders"),
        ('"Sales"."Order Events"', "Sales", "Order Events"),
        ('sales."a.b"', "sales", "a.b"),
        ('"bestellungen-für-später"', None, "bestellungen-für-später"),
        ("x" * 63, None, "x" * 63),
    ],
)
def test_a_table_name_is_read(text: str, schema: str | None, table: str) -> None:
    assert TableName.parse(text) == TableName(table, schema)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        ".",
        "a.",
        ".a",
        "a.b.c",
        "1a",
        "a b",
        'a"b',
        '"a',
        '""',
        '"a""b"',
        "a;drop",
        '"a%s"',
        '"a:b"',
        "für",
        "a\0",
    ],
)
def test_what_is_not_a_table_name_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match=r"is not a table name; write table or schema\.table"):
        TableName.parse(text)


@pytest.mark.parametrize("text", ["x" * 64, "s." + "x" * 64, "x" * 64 + ".t", '"' + "ü" * 32 + '"'])
def test_a_name_that_postgresql_would_cut_off_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="has 64 bytes, allowed: 63"):
        TableName.parse(text)


@pytest.mark.parametrize("text", ["t", "s.t", '"S".t', 's."a.b"', '"a b"."c-d"'])
def test_a_name_reads_back_as_it_is_written(text: str) -> None:
    assert str(TableName.parse(text)) == text


def test_identifiers_are_quoted() -> None:
    assert TableName.parse("public.order").identifier.as_string(None) == '"public"."order"'
    assert TableName.parse("order").identifier.as_string(None) == '"order"'


def test_siblings_fit_and_stay_apart() -> None:
    assert TableName("orders", "s").sibling("doorbell") == TableName("orders_doorbell", "s")
    assert TableName("x" * 60).sibling("doorbell").table == "x" * 45 + "_84566879_doorbell"
    long = [TableName("ü" * 30 + end).sibling("processing_queue_idx").table for end in "abc"]
    assert len(set(long)) == 3
    assert all(len(name.encode()) <= MAX_BYTES for name in long)


def test_lock_classes_are_signed_and_stable() -> None:
    table = TableName("openoutbox_events", "public")
    assert lock_class("bell", table) == 1509394937
    assert bell_channel(table) == "outspark_bell_59f789f9"
    classes = [lock_class("bell", TableName(f"t{number}", "s")) for number in range(100)]
    assert min(classes) < 0 < max(classes)
    assert all(-(2**31) <= number < 2**31 for number in classes)
    assert lock_class("slots", table) != lock_class("bell", table)


def test_a_lock_class_needs_the_schema() -> None:
    with pytest.raises(ValueError, match="resolve it first"):
        lock_class("bell", TableName("openoutbox_events"))
