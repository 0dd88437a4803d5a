"""Trace columns of a jEAP message and the headers they become."""

from __future__ import annotations

import pytest

from outspark.contracts.jeap.trace import NO_TRACE, Form, TraceColumns, columns, headers

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
COLUMNS = TraceColumns(
    trace_id_high=0x0AF7651916CD43DD,
    trace_id=0x8448EB211C80319C - (1 << 64),
    span_id=0xB7AD6B7169203331 - (1 << 64),
    trace_id_string="0af7651916cd43dd8448eb211c80319c",
    sampled=True,
)


def test_a_trace_context_becomes_signed_halves() -> None:
    assert columns(TRACEPARENT) == COLUMNS
    assert columns(TRACEPARENT[:-2] + "00").sampled is False


@pytest.mark.parametrize("text", [None, "", "00-1-2-3", TRACEPARENT.upper(), TRACEPARENT + "-more"])
def test_what_is_no_trace_context_leaves_the_columns_empty(text: str | None) -> None:
    assert columns(text) == NO_TRACE


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("w3c", {"traceparent": TRACEPARENT}),
        ("b3", {"b3": "0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-1"}),
        (
            "both",
            {"traceparent": TRACEPARENT, "b3": "0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-1"},
        ),
    ],
)
def test_columns_become_headers(form: Form, expected: dict[str, str]) -> None:
    assert headers(COLUMNS, form) == expected


def test_a_short_trace_id_is_filled_up_and_a_parent_is_told() -> None:
    short = TraceColumns(None, 1, 2, 3, "1", False)

    assert headers(short, "both") == {
        "traceparent": f"00-{1:032x}-{2:016x}-00",
        "b3": f"{1:032x}-{2:016x}-0-{3:016x}",
    }


def test_a_trace_of_unknown_sampling_counts_as_sampled() -> None:
    assert headers(COLUMNS._replace(sampled=None), "w3c") == {"traceparent": TRACEPARENT}


@pytest.mark.parametrize(
    "trace", [NO_TRACE, TraceColumns(trace_id=1), TraceColumns(span_id=1), TraceColumns(0, 0, 0)]
)
def test_without_a_trace_there_are_no_headers(trace: TraceColumns) -> None:
    assert headers(trace, "both") is None
