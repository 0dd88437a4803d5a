"""What README, docs and examples import from the package is public, and every public name is there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from subprocess import run
from sys import executable

import pytest
from sqlalchemy import MetaData

from outspark import migrations
from outspark.tools.api_reference import PUBLIC, api_page

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("**/*.md")),
    *sorted((ROOT / "examples").glob("**/*.md")),
]
PROGRAMS = sorted((ROOT / "examples").glob("**/*.py"))

EXCEPTIONS = {
    # spark-submit starts a file, and this is the file of the command `outspark`.
    "outspark.__main__",
}

_FENCE = re.compile(r"^[ ]*```(\w*)\n(.*?)^[ ]*```", re.M | re.S)
_IN_A_SHELL = re.compile(r"(?:\bimport|\bfrom|-m) (outspark(?:\.\w+)*)")


def imports_of_python(text: str) -> Iterator[str]:
    """`module` and `module:name`; a line that no parser takes, such as one with `…`, is no reason to miss an import."""
    one_line = re.sub(
        r"import \(([^()]*)\)", lambda found: f"import {' '.join(found[1].split()).rstrip(',')}", text
    )
    lines = [line.strip() for line in one_line.splitlines()]
    for line in lines:
        if not re.match(r"(?:import|from) outspark\b", line):
            continue
        [statement] = ast.parse(line).body
        if isinstance(statement, ast.Import):
            yield from (alias.name for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom):
            yield from (f"{statement.module}:{alias.name}" for alias in statement.names)


def imports_of_page(text: str) -> Iterator[str]:
    for language, body in _FENCE.findall(text):
        if language in ("python", "py", ""):
            yield from imports_of_python(body)
        else:
            yield from _IN_A_SHELL.findall(body)


def is_public(imported: str) -> bool:
    module, _, name = imported.partition(":")
    if name and f"{module}.{name}" in PUBLIC:
        return True
    return module in PUBLIC and (not name or name in import_module(module).__all__)


def imported() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        yield from ((str(page.relative_to(ROOT)), one) for one in imports_of_page(page.read_text()))
    for program in PROGRAMS:
        yield from ((str(program.relative_to(ROOT)), one) for one in imports_of_python(program.read_text()))


def test_readme_docs_and_examples_import_only_what_is_public() -> None:
    found = list(imported())
    assert len(found) >= 15
    assert [pair for pair in found if not is_public(pair[1]) and pair[1] not in EXCEPTIONS] == []


def test_every_exception_is_needed() -> None:
    assert {one for _, one in imported()} >= EXCEPTIONS


@pytest.mark.parametrize(
    "page",
    [
        "```python\nfrom outspark.relay.lane import Lane\n```",
        "```python\nfrom outspark.inbox import (\n    Router,\n    Secret,\n)\n```",
        "```python\nimport outspark.server\n…\n```",
        "```sh\npython -m outspark.tools.bench\n```",
        "```\n  from outspark import relay\n```",
    ],
)
def test_a_private_import_is_found(page: str) -> None:
    assert [one for one in imports_of_page(page) if not is_public(one)]


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_is_there_and_listed(module: str) -> None:
    names = import_module(module).__all__
    section = api_page().partition(f"\n## `{module}`\n")[2].partition("\n## ")[0]
    assert names == sorted(names, key=lambda name: (name.startswith("__"), name))
    assert [name for name in names if f"`{name}`" not in section] == []
    assert all(hasattr(import_module(module), name) for name in names)


def test_importing_the_package_loads_no_part_of_it() -> None:
    loads = (
        "import sys, outspark; print(*sorted(name for name in sys.modules if name.startswith('outspark')))"
    )
    loaded = run([executable, "-c", loads], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert loaded.split() == ["outspark", "outspark.version"]


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Relay'"):
        import_module("outspark").Relay  # noqa: B018


def test_migrations_add_tables_to_the_metadata_of_a_service() -> None:
    service = MetaData()
    assert migrations.metadata(service, "sales.events").fullname == "sales.events"
    assert migrations.metadata_jeap(service, with_ready_index=True).fullname == "deferred_message"
    assert {"sales.events", "deferred_message", "shedlock"} <= service.tables.keys()
