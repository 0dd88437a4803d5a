"""Structured logs on stderr: short lines for people, JSON lines for machines. Passwords are removed.

Fields travel as `extra`: `log.info("settled", extra={"source": "orders", "events": 500})`.
Events appear by id, never by payload.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, TextIO

from outspark.config.settings import LogSettings
from outspark.redaction import redact, storable

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_MAX_TEXT, _MAX_TRACE = 10_000, 100_000
_COLOURS = {"DEBUG": "2", "INFO": "36", "WARNING": "33", "ERROR": "31", "CRITICAL": "1;31"}


def configure(settings: LogSettings, stream: TextIO | None = None) -> None:
    """Set up the `outspark` loggers of this process, replacing an earlier setup.

    Works in the driver and in Spark's Python workers, whose stderr Spark keeps in its own logs.
    """
    stream = stream or sys.stderr
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter() if settings.format == "json" else TextFormatter(stream.isatty()))
    logger = logging.getLogger("outspark")
    logger.handlers = [handler]
    logger.setLevel(settings.level.upper())
    logger.propagate = False


def fields(record: logging.LogRecord) -> dict[str, Any]:
    """The `extra` fields of a record."""
    return {name: _plain(value) for name, value in vars(record).items() if name not in _STANDARD}


class TextFormatter(logging.Formatter):
    """`12:00:00.123 INFO  relay settled source=orders events=500`"""

    def __init__(self, colour: bool) -> None:
        super().__init__()
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created).strftime("%H:%M:%S.%f")[:-3]
        level = self._paint(f"{record.levelname:<5}", _COLOURS.get(record.levelname, "0"))
        name = record.name.removeprefix("outspark.")
        extra = "".join(f" {self._paint(key, '2')}={_word(value)}" for key, value in fields(record).items())
        line = f"{self._paint(when, '2')} {level} {name} {_safe(record.getMessage())}{extra}"
        return line + "".join(f"\n{_safe(text, _MAX_TRACE)}" for text in _traces(self, record))

    def _paint(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._colour else text


class JsonFormatter(logging.Formatter):
    """One object a line: `time`, `level`, `logger`, `message`, the fields, `exception` if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _safe(record.getMessage()),
            **fields(record),
        }
        if traces := list(_traces(self, record)):
            line["exception"] = _safe("\n".join(traces), _MAX_TRACE)
        return json.dumps(line, ensure_ascii=False)


def _traces(formatter: logging.Formatter, record: logging.LogRecord) -> list[str]:
    texts = [formatter.formatException(record.exc_info)] if record.exc_info else []
    return texts + ([formatter.formatStack(record.stack_info)] if record.stack_info else [])


def _safe(text: str, limit: int = _MAX_TEXT) -> str:
    """The text without passwords, fit for any stream. Redacted before the cut, so no half of a password remains."""
    return storable(redact(text[: 2 * limit]), limit)


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, dict):
        return {_safe(str(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    return _safe(str(value))


def _word(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(_word(item) for item in value)
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return json.dumps(text, ensure_ascii=False) if not text or any(c in text for c in ' "\n\t') else text
