"""Where an event goes: patterns on its type choose destination and topic; a transform changes or drops it."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from fnmatch import translate
from string import Formatter

from outspark.config import importing
from outspark.config.settings import RouteSettings
from outspark.errors import EventInvalid, SettingsError
from outspark.event import Event

Transform = Callable[[Event], Event | None]
"""Returns the event, changed or not, or None to skip it."""

_PLACEHOLDERS = ("topic", "type", "key")
# Types are few in a sound system; one that puts an id into each type must not grow the cache for ever.
_CACHE_SIZE = 10_000


@dataclass(frozen=True, slots=True)
class Route:
    destinations: tuple[str, ...]
    topic: str


@dataclass(frozen=True, slots=True)
class _Rule:
    matches: Callable[[str], re.Match[str] | None]
    destinations: tuple[str, ...]
    topic: str
    by_key: bool


class Router:
    """The routes of one source; the first that matches wins. Without routes all goes to the only destination.

    Patterns are those of file names: `*` stands for any characters, dots included, so that `order.*` matches
    `order.created` and `order.item.added`; `?` is one character, `[ab]` one of these. Case matters.
    """

    def __init__(self, routes: Sequence[RouteSettings], destinations: Collection[str], source: str) -> None:
        numbered = list(enumerate(routes)) or [(0, RouteSettings.model_validate({}))]
        rules = [(route.source, _rule(index, route, destinations)) for index, route in numbered]
        self.source = source
        self._rules = [rule for only, rule in rules if only in (None, source)]
        self._routes: dict[str | tuple[str, str], Route] = {}
        self._clusters = frozenset(destinations)

    @property
    def fans_out(self) -> bool:
        """May an event go to several destinations?"""
        return any(len(rule.destinations) > 1 for rule in self._rules)

    def route(
        self, event_type: str, key: str | None, cluster: str | None = None, topic: str | None = None
    ) -> Route:
        """EventInvalid when no route matches, or the topic needs a key that the event has not.

        `cluster` is the destination that the event asks for; one that is not configured is not heeded. `topic` is the
        one it asks for; routes that name another have the last word.
        """
        if cluster is not None and cluster in self._clusters:
            return self._to_cluster(cluster, event_type, key, topic)
        return self._known(event_type, topic) or self._find(event_type, key, topic)

    def _to_cluster(self, cluster: str, event_type: str, key: str | None, topic: str | None) -> Route:
        """Whatever the routes say about destinations; they may still name the topic."""
        known = self._known(event_type, topic)
        if known is None and self._match(event_type) is None:
            return Route((cluster,), topic or event_type)
        return Route((cluster,), (known or self._find(event_type, key, topic)).topic)

    def _known(self, event_type: str, topic: str | None) -> Route | None:
        return self._routes.get(event_type if topic is None else (event_type, topic))

    def _match(self, event_type: str) -> _Rule | None:
        return next((rule for rule in self._rules if rule.matches(event_type)), None)

    def _find(self, event_type: str, key: str | None, topic: str | None) -> Route:
        rule = self._match(event_type)
        if rule is None:
            raise EventInvalid(
                f"no route matches event_type {event_type!r} of source {self.source!r}; add one, such as "
                f'[[routes]] match = "{event_type}"'
            )
        given = {"type": event_type, "topic": topic or event_type}
        if rule.by_key:
            if key is None:
                raise EventInvalid(f"topic {rule.topic!r} needs a partition_key, and the event has none")
            return Route(rule.destinations, rule.topic.format(key=key, **given))
        if len(self._routes) >= _CACHE_SIZE:
            self._routes.clear()
        route = Route(rule.destinations, rule.topic.format(**given))
        self._routes[event_type if topic is None else (event_type, topic)] = route
        return route


def load_transform(name: str) -> Transform:
    """The function that `module:function` names; SettingsError when there is none."""
    found = importing.find("transform", name, "function")
    if not callable(found):
        raise SettingsError(f'transform = "{name}" is not a function but {type(found).__name__}')
    return found


def _rule(index: int, route: RouteSettings, destinations: Collection[str]) -> _Rule:
    return _Rule(
        matches=re.compile(translate(route.match)).match,
        destinations=_destinations(index, route, destinations),
        topic=route.topic,
        by_key="key" in _placeholders(index, route.topic),
    )


def _destinations(index: int, route: RouteSettings, destinations: Collection[str]) -> tuple[str, ...]:
    names = ", ".join(sorted(destinations)) or "(none)"
    if route.destination is None:
        if len(destinations) != 1:
            raise SettingsError(f"routes[{index}].destination is needed; the destinations are: {names}")
        return tuple(destinations)
    for name in route.names():
        if name not in destinations:
            raise SettingsError(f"routes[{index}].destination = {name!r} is not one of: {names}")
    return route.names()


def _placeholders(index: int, topic: str) -> set[str]:
    where = f"routes[{index}].topic = {topic!r}"
    allowed = "allowed are {topic}, {type} and {key}, and {{ and }} for braces"
    try:
        parts = list(Formatter().parse(topic))
    except ValueError as error:
        raise SettingsError(f"{where}: {error}; {allowed}") from error
    found = set()
    for _, field, format_spec, conversion in parts:
        if field is None:
            continue
        if field not in _PLACEHOLDERS or format_spec or conversion:
            raise SettingsError(f"{where}: unknown placeholder {{{field}}}; {allowed}")
        found.add(field)
    if not topic:
        raise SettingsError(f"{where} is empty; {allowed}")
    return found
