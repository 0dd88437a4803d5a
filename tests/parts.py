"""The parts of a machine that `@pytest.mark.needs(part)` can ask for, and what is missing where one is."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec

from outspark.embedded.java import java_home
from outspark.embedded.nats import program
from outspark.errors import OutsparkError


def _nats() -> str | None:
    return _package("nats", "nats") or _answer(program)


def _java() -> str | None:
    return _answer(java_home)


def _spark() -> str | None:
    # PySpark's mapInArrow insists on pandas when a job is built, though no data pass through it.
    return _package("pyspark", "spark") or _package("pandas", "spark") or _java()


PARTS: dict[str, Callable[[], str | None]] = {"nats": _nats, "java": _java, "spark": _spark}


@cache
def missing(part: str) -> str | None:
    """One line on what this machine lacks for the part, or None."""
    if part not in PARTS:
        raise ValueError(f"needs({part!r}) is not one of: {', '.join(sorted(PARTS))}")
    return PARTS[part]()


def _package(name: str, extra: str) -> str | None:
    return (
        None if find_spec(name) else f"the package {name} is not installed: pip install 'outspark[{extra}]'"
    )


def _answer(look: Callable[[], object]) -> str | None:
    try:
        look()
    except OutsparkError as error:
        return str(error)
    return None
