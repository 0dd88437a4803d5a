"""The page on the architecture names modules that exist, and every package at the top stands in its picture."""

from __future__ import annotations

import pkgutil
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

import outspark

PAGE = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text()
NAMED = sorted(set(re.findall(r"\boutspark(?:\.[a-z_]+)+", PAGE)))


def is_there(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False


@pytest.mark.parametrize("name", NAMED)
def test_a_module_that_the_page_names_exists(name: str) -> None:
    assert is_there(name)


def test_a_module_that_is_gone_would_be_noticed() -> None:
    assert len(NAMED) > 30
    assert not is_there("outspark.relay.desk")
    assert not is_there("outspark.publishers.kafka")


def test_every_package_is_in_the_picture() -> None:
    packages = {f"outspark.{found.name}" for found in pkgutil.iter_modules(outspark.__path__) if found.ispkg}
    assert packages <= set(NAMED)
