"""Table contracts by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from outspark.contracts.contract import Contract


def get(name: str) -> Contract:
    """The contract that a source names; settings have validated the name."""
    from outspark.contracts import jeap, omnibox, openoutbox

    known: tuple[Contract, ...] = (openoutbox.CONTRACT, jeap.CONTRACT, omnibox.CONTRACT)
    return {contract.name: contract for contract in known}[name]
