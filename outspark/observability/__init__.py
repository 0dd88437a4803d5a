"""Logs, metrics and OpenTelemetry."""
