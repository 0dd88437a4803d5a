"""A group of flags is declared once, and each command that takes it has the flags and gets the values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from outspark.cli.commands import command, flag


@dataclass(frozen=True, slots=True)
class Place:
    host: Annotated[str | None, flag("--host NAME", "Where it runs.")] = None
    port: Annotated[int, flag("--port -p N", "Its port.", min=1)] = 80


@dataclass(frozen=True, slots=True)
class NamedPlace(Place):
    name: Annotated[str, flag("--name NAME", "What it is called.")] = "main"


def run(*args: str) -> tuple[int, list[object]]:
    app, given = typer.Typer(), list[object]()

    @command(app)
    def show(*, count: Annotated[int, flag("--count N", "How many.")] = 1, place: NamedPlace) -> None:
        given.extend((count, place))

    return CliRunner().invoke(app, args).exit_code, given


def test_a_command_gets_the_group_as_one_value() -> None:
    assert run() == (0, [1, NamedPlace(None, 80, "main")])
    assert run("--count", "3", "--host", "a", "-p", "8080", "--name", "b") == (
        0,
        [3, NamedPlace("a", 8080, "b")],
    )


def test_a_flag_of_a_group_is_checked() -> None:
    assert run("--port", "0") == (2, [])
    assert run("--place", "x") == (2, [])


def test_two_groups_with_the_same_flag_are_refused() -> None:
    def show(*, place: Place, other: NamedPlace) -> None: ...

    with pytest.raises(ValueError, match="duplicate parameter name: 'host'"):
        command(typer.Typer())(show)
