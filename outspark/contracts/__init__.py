"""Table contracts by name."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

from outspark.errors import SettingsError

if TYPE_CHECKING:
    from outspark.contracts.contract import Contract

# Each is a folder here that offers a CONTRACT. Another contract is its folder and its name in this list.
FOLDERS: Final = [
    "openoutbox",
    "jeap",
    "omnibox",
]

_known: dict[str, Contract] = {}


def register(contract: Contract) -> None:
    """Make a contract known beside those in `FOLDERS`, in this process."""
    known()
    _known[contract.name] = contract


def known() -> list[Contract]:
    """All of them, in the order of registration."""
    if not _known:
        for folder in FOLDERS:
            contract: Contract = import_module(f"{__name__}.{folder}").CONTRACT
            _known[contract.name] = contract
    return list(_known.values())


def get(name: str) -> Contract:
    """The contract that a source names. SettingsError with the known names for any other."""
    from outspark.config import contracts

    known()
    if name not in _known:
        raise SettingsError(contracts.unknown(name))
    return _known[name]


def of_inboxes() -> Contract:
    """The contract that inboxes are of."""
    return next(contract for contract in known() if contract.settings.inboxes)
