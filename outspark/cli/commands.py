"""How a command is declared: its flags, the groups of flags that it shares with others, and its exit codes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Any, TypeVar, get_type_hints

import typer

from outspark.cli.exits import EPILOG

F = TypeVar("F", bound=Callable[..., None])


def flag(usage: str, help: str, **settings: Any) -> Any:
    """What a parameter is annotated with: `--limit N` takes a value, `--yes -y` is a switch with a short form."""
    words = usage.split()
    names = [word for word in words if word.startswith("-")]
    metavar = next((word for word in words if not word.startswith("-")), None)
    return typer.Option(*names, metavar=metavar, help=help, **settings)


def commands(help: str) -> typer.Typer:
    return typer.Typer(help=help, no_args_is_help=True, epilog=EPILOG, rich_markup_mode="markdown")


def command(app: typer.Typer, name: str | None = None) -> Callable[[F], F]:
    """Makes the function a command of `app`; a parameter whose type is a dataclass stands for the flags of its fields.

    Typer passes parameters by name, so parameters may be keyword-only, and a group, which needs no default, may follow
    flags that have one.
    """

    def register(function: F) -> F:
        app.command(name, epilog=EPILOG)(_expanded(function))
        return function

    return register


def _expanded(function: Callable[..., None]) -> Callable[..., None]:
    hints = get_type_hints(function, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}

    @wraps(function)
    def expanded(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        function(**given)

    # Typer reads the flags from this signature, which refuses a name that two groups declare.
    parameters: list[Parameter] = []
    for name, parameter in signature(function).parameters.items():
        group = groups.get(name)
        parameters += [parameter.replace(annotation=hints[name])] if group is None else _parameters(group)
    vars(expanded)["__signature__"] = Signature(parameters)
    return expanded


def _parameters(group: Any) -> list[Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        Parameter(field.name, Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name])
        for field in fields(group)
    ]
