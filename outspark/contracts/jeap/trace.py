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
    id = _hex(trace.trace_id_high or 0) + _hex(trace.trace_id)
    span, sampled = _hex(trace.span_id), trace.sampled is not False
    found = {}
    if form != "b3":
        found["traceparent"] = f"00-{id}-{span}-{int(sampled):02x}"
    if form != "w3c":
        parent = f"-{_hex(trace.parent_span_id)}" if trace.parent_span_id else ""
        found["b3"] = f"{id}-{span}-{int(sampled)}{parent}"
    return found


def _signed(hexadecimal: str) -> int:
    value = int(hexadecimal, 16)
    return value - (1 << 64) if value >= 1 << 63 else value


def _hex(value: int) -> str:
    return f"{value & _MASK:016x}"
