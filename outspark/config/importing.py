"""Imports the object that a setting names as `module:object`: a transform, or the handlers of an inbox."""

from __future__ import annotations

import importlib

from outspark.errors import SettingsError


def find(setting: str, name: str, what: str) -> object:
    """The object; SettingsError when it does not exist. `what` is the word for it in the message."""
    module_name, colon, path = name.partition(":")
    if not (module_name and colon and path):
        raise SettingsError(f'{setting} = "{name}" is not of the form "module:{what}"')
    found = _import(f'{setting} = "{name}"', module_name)
    for attribute in path.split("."):
        try:
            found = getattr(found, attribute)
        except AttributeError as error:
            raise SettingsError(f'{setting} = "{name}": module {module_name} has no {path}') from error
    return found


def _import(where: str, module_name: str) -> object:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"{where}: there is no module {error.name}; is its folder on PYTHONPATH?"
        ) from error
    except Exception as error:
        raise SettingsError(f"{where}: importing {module_name} failed: {error}") from error
