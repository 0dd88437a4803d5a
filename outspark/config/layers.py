"""Settings before validation: path -> value and its origin. A later layer wins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Given:
    value: Any
    origin: str


Layer = dict[Path, Given]


def flatten(tree: Any, origin: str, path: Path = ()) -> Layer:
    """`{"hosting": {"lanes": 2}}` becomes `{("hosting", "lanes"): 2}`; an empty table or list stays a value."""
    if isinstance(tree, Mapping) and (tree or not path):
        items = tree.items()
    elif isinstance(tree, list) and tree and all(isinstance(item, Mapping) for item in tree):
        items = dict(enumerate(tree)).items()
    else:
        return {path: Given(tree, origin)}
    return {
        leaf: given for key, value in items for leaf, given in flatten(value, origin, (*path, key)).items()
    }


def nest(layer: Layer) -> dict[str, Any]:
    """The inverse of `flatten`. Paths below a value that is not a table are dropped: validation reports that value."""
    root: dict[str | int, Any] = {}
    for path in sorted(layer, key=len):
        parent: Any = root
        for key in path[:-1]:
            parent = parent.setdefault(key, {}) if isinstance(parent, dict) else None
        if isinstance(parent, dict):
            value = layer[path].value
            parent[path[-1]] = dict(value) if isinstance(value, Mapping) else value
    nested: dict[str, Any] = _lists(root)
    return nested


def children(layer: Layer, parent: Path) -> list[str]:
    """The names directly below a table, in order of appearance."""
    depth = len(parent)
    return list(
        dict.fromkeys(str(path[depth]) for path in layer if len(path) > depth and path[:depth] == parent)
    )


def without(layer: Layer, parent: Path) -> Layer:
    return {path: given for path, given in layer.items() if path[: len(parent)] != parent}


def origin(layer: Layer, path: Path) -> str | None:
    """The origin of a value; for a table, the common origin of all its values, if there is one."""
    near = {given.origin for leaf, given in layer.items() if _on_one_line(leaf, path)}
    return near.pop() if len(near) == 1 else None


def text(path: Path) -> str:
    """`("routes", 0, "topic")` is `routes[0].topic`."""
    words = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return words.removeprefix(".")


def _on_one_line(one: Path, other: Path) -> bool:
    return all(left == right for left, right in zip(one, other, strict=False))


def _lists(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if value and all(isinstance(key, int) for key in value):
        return [_lists(value[key]) for key in sorted(value)]
    return {key: _lists(item) for key, item in value.items()}
