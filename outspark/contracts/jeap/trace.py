"""The trace columns of a jEAP message, and the headers they become: W3C `traceparent`, B3, or both.

The columns hold signed 64-bit halves of the trace id, as Java's Brave does; on the wire they are hexadecimal.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

Form = Literal["w3c", "b3", "both"]

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_MASK = (1 << 64) - 1
_SAMPLED = 1


class TraceColumns(NamedTuple):
    trace_id_high: int | None = None
    trace_id: int | None = None
    span_id: int | None = None
    parent_span_id: int | None = None
    trace_id_string: str | None = None
    sampled: bool | None = None


NO_TRACE = TraceColumns()


def columns(traceparent: str | None) -> TraceColumns:
    """`00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01` gives the trace id in two halves, and the span's."""
    found = _TRACEPARENT.fullmatch(traceparent or "")
    if found is None:
        return NO_TRACE
    trace, span, flags = found.groups()
    return TraceColumns(
        trace_id_high=_signed(trace[:16]),
        trace_id=_signed(trace[16:]),
        span_id=_signed(span),
        trace_id_string=trace,
        sampled=bool(int(flags, 16) & _SAMPLED),
    )


def headers(trace: TraceColumns, form: Form) -> dict[str, str] | None:
    """None where no trace was captured. A trace whose sampling is not known counts as sampled."""
    if not trace.trace_id or not trace.span_id:
        return None
    halves = ((value or 0) & _MASK for value in (trace.trace_id_high, trace.trace_id, trace.span_id))
    ids = b"".join(value.to_bytes(8, "big") for value in halves)
    return packed_headers(ids, trace.parent_span_id, trace.sampled, form)


def packed_headers(ids: bytes, parent: int | None, sampled: bool | None, form: Form) -> dict[str, str]:
    """The same from 24 bytes: both halves of the trace id and the span's, most significant first."""
    # The first 16 bytes, a hyphen, the rest.
    id_and_span = ids.hex("-", -16)
    flag = "0" if sampled is False else "1"
    if form == "w3c":
        return {"traceparent": f"00-{id_and_span}-0{flag}"}
    b3 = f"{id_and_span}-{flag}" + (f"-{parent & _MASK:016x}" if parent else "")
    return {"b3": b3} if form == "b3" else {"traceparent": f"00-{id_and_span}-0{flag}", "b3": b3}


def _signed(hexadecimal: str) -> int:
    value = int(hexadecimal, 16)
    return value - (1 << 64) if value >= 1 << 63 else value
