"""The page of the public API: every name in the `__all__` of a public module, from its signature and docstring."""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Iterator
from datetime import timedelta
from enum import Enum
from importlib import import_module
from typing import Any, ForwardRef

from pydantic import BaseModel

from outspark import errors
from outspark.config import durations

PUBLIC = (
    "outspark",
    "outspark.outbox",
    "outspark.outbox.jeap",
    "outspark.outbox.omnibox",
    "outspark.inbox",
    "outspark.migrations",
)
_WIDTH = 100
_ROOT = "OutsparkError The root of all errors that Outspark raises."
_HEADING = """\
# Python API

<!-- Written by `python -m outspark.tools.reference`; change the docstrings, not this page. -->

These modules are public, and in them the names listed here. Everything else in the package is private: it changes
without notice, and so does any module, class or argument that is not on this page. The commands, the settings and the
metrics are public too; their pages are [commands](reference/cli.md), [settings](reference/settings.md) and
[metrics](reference/metrics.md). Programs that use the API are in [examples](../examples/README.md)."""


def api_page() -> str:
    links = "\n".join(f"- [`{name}`](#{name.replace('.', '')})" for name in PUBLIC)
    listed: dict[int, str] = {}
    sections = [_section(name, listed) for name in PUBLIC]
    return "\n\n".join([_HEADING, links, *sections]) + "\n"


def _section(module_name: str, listed: dict[int, str]) -> str:
    """`listed` remembers where an object was described, because several modules export some of them."""
    module = import_module(module_name)
    parts = [f"## `{module_name}`", inspect.getdoc(module) or ""]
    elsewhere: dict[str, list[str]] = {}
    for name in module.__all__:
        found = getattr(module, name)
        if name == "__version__":
            parts.append("### `__version__`\n\nThe version of the package, as text.")
        elif (home := listed.setdefault(id(found), module_name)) != module_name:
            elsewhere.setdefault(home, []).append(name)
        elif _is_alias(name, found):
            parts.append(f"### `{name}`\n\nAnother name of [`{found.__name__}`](#{found.__name__.lower()}).")
        else:
            parts.append(_entry(name, found))
    parts += [
        f"Also here, as in `{home}`: {', '.join(map(_code, names))}." for home, names in elsewhere.items()
    ]
    return "\n\n".join(parts)


def _is_alias(name: str, found: Any) -> bool:
    return isinstance(found, type) and found.__name__ != name


def _entry(name: str, found: Any) -> str:
    if isinstance(found, types.UnionType):
        kinds = " | ".join(kind.__name__ for kind in found.__args__)
        return f"### `{name}`\n\n```python\n{name} = {kinds}\n```"
    if isinstance(found, type):
        return "\n\n".join([f"### `{name}`", *filter(None, _class(name, found))])
    return f"### `{name}`\n\n```python\n{_signature(name, found)}\n```\n\n{_doc(found)}"


def _class(name: str, found: type) -> Iterator[str]:
    if issubclass(found, errors.OutsparkError):
        own = issubclass(found, errors.Reject | errors.RetryLater)
        yield f"```python\nclass {_signature(name, found)}\n```" if own else _error(name)
        yield _doc(found)
        return
    if issubclass(found, BaseModel):
        yield _doc(found)
        yield "Keyword arguments are the keys of the [settings](reference/settings.md) of the same name."
        return
    if issubclass(found, Enum):
        yield _doc(found)
        yield "\n".join(f"- `{name}.{member.name}` = `{member.value!r}`" for member in found)
        return
    yield f"```python\nclass {_signature(name, found)}\n```"
    yield _doc(found)
    for method, function in _methods(found):
        yield f"```python\n{_signature(method, function)}\n```"
        if text := _doc(function):
            yield text


def _error(name: str) -> str:
    """What the tree of errors says about it."""
    [line] = re.findall(rf"^[ │├└─]*{name} +(.+)$", f"{errors.__doc__}\n{_ROOT}", re.M)
    return f"Raised when: {line}." if name != "OutsparkError" else line


def _methods(found: type) -> Iterator[tuple[str, Any]]:
    """Methods and properties of the class itself, in the order of its source."""
    for name, value in vars(found).items():
        function = getattr(value, "__func__", value)
        if name == "__call__" or (not name.startswith("_") and inspect.isfunction(function)):
            yield name, function
        elif not name.startswith("_") and isinstance(value, property):
            yield name, value


def _doc(found: Any) -> str:
    text = inspect.cleandoc(getattr(found, "__doc__", None) or "")
    # What @dataclass and NamedTuple write by themselves repeats the signature.
    generated = isinstance(found, type) and text.startswith(f"{found.__name__}(")
    return "" if generated else text


def _signature(name: str, found: Any) -> str:
    if isinstance(found, property) and found.fget is not None:
        return f"{name}: {_annotation(inspect.signature(found.fget).return_annotation)}  # property"
    prefix = (
        "async def " if inspect.iscoroutinefunction(found) else ("" if isinstance(found, type) else "def ")
    )
    try:
        signature = inspect.signature(found)
    except ValueError:
        return prefix + name
    given = _given(signature)
    parameters = [_parameter(one) for one in given]
    if isinstance(found, type) and parameters in (["*args", "**kwargs"], ["**kwargs: Any"], ["*args: Any"]):
        return prefix + name
    parameters = list(_with_markers(given, parameters))
    answer = "" if isinstance(found, type) else f" -> {_annotation(signature.return_annotation)}"
    line = f"{prefix}{name}({', '.join(parameters)}){answer}"
    if len(line) <= _WIDTH:
        return line
    return f"{prefix}{name}(\n" + "".join(f"    {one},\n" for one in parameters) + f"){answer}"


def _given(signature: inspect.Signature) -> list[inspect.Parameter]:
    """The parameters that a caller gives."""
    return [
        one for one in signature.parameters.values() if one.name not in ("self", "cls") and one.name[0] != "_"
    ]


def _with_markers(given: list[inspect.Parameter], texts: list[str]) -> Iterator[str]:
    """A bare `*` before parameters that are given by name alone."""
    kinds = [one.kind for one in given]
    for index, (kind, text) in enumerate(zip(kinds, texts, strict=True)):
        named = kind is inspect.Parameter.KEYWORD_ONLY
        if named and not {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.KEYWORD_ONLY} & set(
            kinds[:index]
        ):
            yield "*"
        yield text


def _parameter(parameter: inspect.Parameter) -> str:
    stars: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    text = stars.get(parameter.kind, "") + parameter.name
    if parameter.annotation is not parameter.empty:
        text += f": {_annotation(parameter.annotation)}"
    if parameter.default is not parameter.empty:
        text += f" = {_default(parameter.default)}"
    return text


def _default(value: Any) -> str:
    match value:
        case Enum():
            return f"{type(value).__name__}.{value.name}"
        case timedelta():
            return f'timedelta("{durations.text(value)}")'
        case _ if "factory" in repr(value):
            return "..."
        case _:
            return repr(value)


def _annotation(annotation: Any) -> str:
    if isinstance(annotation, type):
        return annotation.__name__
    if isinstance(annotation, ForwardRef):
        annotation = annotation.__forward_arg__
    return re.sub(
        r"\b(?:outspark|collections|typing|datetime|uuid)\.(?:\w+\.)*", "", str(annotation).strip("'")
    )


def _code(name: str) -> str:
    return f"`{name}`"
