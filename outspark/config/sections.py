"""The tables that single contracts add to the settings of a source, such as `[sources.NAME.jeap]`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import PlainValidator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticKnownError

from outspark.config.contracts import DEFAULT, ContractSettings, known
from outspark.config.fields import Model


def sections() -> dict[str, FieldInfo]:
    """The tables of settings that single contracts add to a source, by name."""
    return {
        one.name: FieldInfo(annotation=one.section, description=f"Only with contract {one.name}.")
        for one in known().values()
        if one.section is not None
    }


@dataclass(frozen=True, slots=True)
class Given:
    """A table of settings under the name of a contract, before it is validated."""

    section: type[Model]
    value: Any


def prepare(data: Mapping[str, Any]) -> dict[str, Any]:
    """What a source was given, over the defaults of its contract, with the contract's own table marked as such."""
    found = known()
    own = found.get(data.get("contract", DEFAULT))
    defaults: dict[str, Any] = {}
    if own is not None:
        section: dict[str, Any] = {} if own.section is None else {own.name: {}}
        defaults = {"table": own.default_table, **own.defaults, **section}
    return {name: _marked(found.get(name), value) for name, value in {**defaults, **data}.items()}


def _marked(contract: ContractSettings | None, value: Any) -> Any:
    return value if contract is None or contract.section is None else Given(contract.section, value)


def _section(value: Any) -> Model:
    """pydantic tells the errors of the inner table under its own path."""
    if isinstance(value, Given):
        return value.section.model_validate(value.value)
    raise PydanticKnownError("extra_forbidden")


SECTION: Final = PlainValidator(_section)
"""Validates what a source has beyond its fields."""
