"""What settings know of a table contract: each contract describes itself, and is found here by its name.

Contracts stand above the settings, so they are imported by name, as a plugin would be, and not before they are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from outspark.errors import SettingsError

# A service that enqueues imports its contract, and must not have to import pydantic for that.
if TYPE_CHECKING:
    from outspark.config.fields import Model
    from outspark.config.settings import SourceSettings

DEFAULT: Final = "openoutbox"
"""The contract of a source that names none."""

_HOME: Final = "outspark.contracts"


def _nothing_wrong(*_: object) -> Iterable[str]:
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ContractSettings:
    """How sources of one contract are configured."""

    name: str
    default_table: str
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Settings of a source that have another default on this contract."""
    section: type[Model] | None = None
    """Settings that only its sources have, as the table `[sources.NAME.<contract>]`."""
    partitions: bool = False
    """Can its tables be partitioned by `created_at`?"""
    inboxes: bool = False
    """Are the inboxes of this contract? Only one contract has them."""
    no_dead_letters: str = ""
    """Why dead letters of an inbox cannot go through such an outbox, as a relative clause; empty where they can."""
    check: Callable[[SourceSettings], Iterable[str]] = _nothing_wrong
    """What is wrong within one source."""
    check_timeout: Callable[[SourceSettings, timedelta], Iterable[str]] = _nothing_wrong
    """What is wrong with a source beside the longest `publish_timeout`; each line begins with a key of the source."""


def known() -> dict[str, ContractSettings]:
    """Every contract by its name, in the order of registration."""
    return {one.name: one.settings for one in import_module(_HOME).known()}


def of(name: str) -> ContractSettings:
    """SettingsError with the known names for any other."""
    found = known()
    if name not in found:
        raise SettingsError(unknown(name))
    return found[name]


def of_inboxes() -> str:
    """The name of the contract that inboxes are of."""
    return next(one.name for one in known().values() if one.inboxes)


def unknown(name: str) -> str:
    """What to say of a name that no contract has."""
    found = known()
    return f"contract {name!r} is unknown; known are: {', '.join(found)}{_closest(name, found)}"


def check_name(name: str) -> str:
    """A validator of pydantic."""
    found = known()
    if name not in found:
        raise ValueError(f"must be {words()}{_closest(name, found)}")
    return name


def words() -> str:
    """`"openoutbox" or "jeap"`."""
    return " or ".join(f'"{name}"' for name in known())


def _closest(name: str, names: Iterable[str]) -> str:
    close = get_close_matches(name, list(names), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
