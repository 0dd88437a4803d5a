"""From events to outcomes: route, wrap, publish in waves, break the circuit. Nothing here knows a table."""
