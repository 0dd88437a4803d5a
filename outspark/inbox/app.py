"""Finds the handlers that a setting or a flag names: `module:router`."""

from __future__ import annotations

import sys
from pathlib import Path

from outspark import named
from outspark.errors import SettingsError
from outspark.inbox.router import Router


def load_router(name: str) -> Router:
    """SettingsError when there is none. The working folder counts, as it does for `python -m`."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    found = named.find("app", name, "router")
    if not isinstance(found, Router):
        raise SettingsError(f'app = "{name}" is no Router but {type(found).__name__}')
    return found
