"""Describes in words what a setting allows, from its type: for error messages and for the reference."""

from __future__ import annotations

import types
from collections.abc import Sequence
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, MaxLen, MinLen
from pydantic import AfterValidator, BaseModel, SecretStr
from pydantic.fields import FieldInfo

from outspark.config import contracts, sections
from outspark.config.settings import Settings, SourceSettings

_PLAIN = {
    str: "text",
    SecretStr: "text",
    bool: "true or false",
    timedelta: "a duration such as 500ms, 30s, 3m or 12h",
}


def words(field: FieldInfo) -> str:
    """`a whole number from 1 to 256`, `"key" or "none"`, `a duration such as 500ms, 30s, 3m or 12h`."""
    return _words(field.annotation, field.metadata)


def is_secret(field: FieldInfo) -> bool:
    return SecretStr in (field.annotation, *get_args(field.annotation))


def model_at(path: Sequence[str | int]) -> type[BaseModel] | None:
    """The section that the path leads to: `("sources", "orders")` is SourceSettings."""
    annotation: Any = Settings
    for part in path:
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            field = fields_of(annotation).get(str(part))
            annotation = _given(field.annotation) if field else None
        else:
            annotation = (get_args(annotation) or (None,))[-1]
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def fields_of(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """Its settings by name; a source also has the tables of single contracts."""
    return model.model_fields | sections.sections() if model is SourceSettings else model.model_fields


def field_at(path: Sequence[str | int]) -> FieldInfo | None:
    """The setting that the path leads to; an item of a list counts as a setting."""
    model = model_at(path[:-1])
    if model is not None:
        return fields_of(model).get(str(path[-1]))
    whole = field_at(path[:-1]) if len(path) > 1 and isinstance(path[-1], int) else None
    return FieldInfo(annotation=get_args(whole.annotation)[0]) if whole and is_list(whole) else None


def is_list(field: FieldInfo) -> bool:
    """A list of plain values, such as topics."""
    return get_origin(field.annotation) is tuple


def _given(annotation: Any) -> Any:
    """The type of a setting without `None`."""
    if get_origin(annotation) in (Union, types.UnionType):
        return next(arg for arg in get_args(annotation) if arg is not type(None))
    return annotation


def _words(annotation: Any, metadata: Sequence[Any]) -> str:
    origin, args = get_origin(annotation), get_args(annotation)
    if any(isinstance(item, AfterValidator) and item.func is contracts.check_name for item in metadata):
        return contracts.words()
    if origin is Annotated:
        return _words(args[0], args[1:])
    if origin in (Union, types.UnionType):
        return _words(_given(annotation), metadata)
    if origin is Literal:
        return " or ".join(f'"{value}"' for value in args)
    if annotation in (int, float):
        return _number("a whole number" if annotation is int else "a number", metadata)
    if origin is list:
        return "a list of tables"
    if origin is tuple:
        return _text(f'a list of {_PLAIN[args[0]]} such as ["a", "b"]', metadata)
    if isinstance(annotation, type) and issubclass(annotation, StrEnum):
        return " or ".join(f'"{value}"' for value in annotation)
    if origin is dict or (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
        return "a table"
    return _text(_PLAIN[annotation], metadata)


def _number(kind: str, metadata: Sequence[Any]) -> str:
    low = next((item.ge for item in metadata if isinstance(item, Ge)), None)
    high = next((item.le for item in metadata if isinstance(item, Le)), None)
    above = next((item.gt for item in metadata if isinstance(item, Gt)), None)
    if low is not None and high is not None:
        return f"{kind} from {low} to {high}"
    if low is not None:
        return f"{kind}, {low} or more"
    return f"{kind} above {above}" if above is not None else kind


def _text(kind: str, metadata: Sequence[Any]) -> str:
    longest = next((item.max_length for item in metadata if isinstance(item, MaxLen)), None)
    shortest = next((item.min_length for item in metadata if isinstance(item, MinLen)), None)
    if longest is not None:
        return f"{kind} of {shortest or 0} to {longest} characters"
    return f"{kind}, not empty" if shortest else kind
