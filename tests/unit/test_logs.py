"""Log lines as people and machines read them, and what must never be in one."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Literal
from uuid import UUID

import pytest

from outspark.config.settings import LogSettings
from outspark.observability import logs

log = logging.getLogger("outspark.relay")


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    logger = logging.getLogger("outspark")
    before = logger.handlers, logger.level, logger.propagate
    yield
    logger.handlers, logger.level, logger.propagate = before


def stream(format: Literal["text", "json"], level: Literal["debug", "info"] = "info") -> io.StringIO:
    out = io.StringIO()
    logs.configure(LogSettings(format=format, level=level), out)
    return out


def test_a_text_line_is_short_and_carries_the_fields() -> None:
    out = stream("text")
    log.info("settled %d", 500, extra={"source": "orders", "ids": [UUID(int=1), UUID(int=2)], "why": "a b"})
    line = out.getvalue()
    assert re.match(r"\d\d:\d\d:\d\d\.\d\d\d INFO  relay settled 500 source=orders ids=0", line)
    assert line.endswith(' why="a b"\n')


def test_a_json_line_is_one_object() -> None:
    out = stream("json")
    log.warning("lost lease", extra={"ids": [UUID(int=1)], "count": 1, "nested": {"a": None}})
    line = json.loads(out.getvalue())
    assert line["level"] == "warning"
    assert line["logger"] == "outspark.relay"
    assert line["message"] == "lost lease"
    assert line["ids"] == ["00000000-0000-0000-0000-000000000001"]
    assert line["count"] == 1
    assert line["nested"] == {"a": None}
    assert line["time"].endswith("+00:00")


@pytest.mark.parametrize("format", ["text", "json"])
def test_no_password_gets_through(format: Literal["text", "json"]) -> None:
    out = stream(format)
    url = "postgresql://ada:s3cret@db/shop"
    try:
        raise ConnectionError(f"cannot reach {url}")
    except ConnectionError:
        log.exception("no answer from %s", url, extra={"url": url, "all": [url], "by_name": {"a": url}})
    text = out.getvalue()
    assert "s3cret" not in text
    assert text.count("ada:***@db") == 5
    assert "ConnectionError" in text


def test_the_level_is_kept_and_configuring_twice_does_not_double_lines() -> None:
    stream("text", "debug")
    out = stream("text", "info")
    log.debug("hidden")
    log.info("shown")
    assert out.getvalue().count("\n") == 1


def test_the_lines_shown_in_the_docs_come_from_modules_that_exist() -> None:
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    names = re.findall(r"^\d\d:\d\d:\d\d\.\d{3} [A-Z]+ +([\w.]+) ", page, re.M)
    names += [name.removeprefix("outspark.") for name in re.findall(r'"logger": "([\w.]+)"', page)]

    assert len(names) == 5
    for name in names:
        assert find_spec(f"outspark.{name}") is not None, name
