"""The W3C trace context of the current span, without importing OpenTelemetry where the program does not."""

from __future__ import annotations

import sys


def current() -> dict[str, str]:
    """`traceparent`, and `tracestate` if there is one; empty without a current span."""
    # A span can be current only if the program has imported the API already.
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return {}
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return {}
    headers = {"traceparent": f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"}
    state = context.trace_state.to_header()
    return {**headers, "tracestate": state} if state else headers
