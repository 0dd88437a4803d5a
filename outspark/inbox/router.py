"""Owns the handlers of a service: `Router` collects them and finds the one for an event; `load_router` loads a router.

A handler's signature is read once, when it is registered; `Handler` keeps how each of its arguments is made.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from fnmatch import translate
from pathlib import Path
from typing import Any, TypeVar

import psycopg
from pydantic import BaseModel, ValidationError

from outspark.config import importing
from outspark.errors import HandlerInvalid, Reject, SettingsError
from outspark.inbox.event import InboxEvent
from outspark.inbox.handling import sqlalchemy_sessions

Make = Callable[[InboxEvent, "Handle"], Any]
H = TypeVar("H", bound=Callable[..., Any])

_PATTERN = re.compile(r"[*?\[]")
# A service has few types; one that puts an id into each type must not grow the cache for ever.
_CACHE_SIZE = 10_000


@dataclass(frozen=True, slots=True)
class Handle:
    """The connection of a handler's transaction, and a SQLAlchemy session in it if the handler wants one."""

    conn: Any
    session: Any = None


@dataclass(frozen=True, slots=True)
class Handler:
    """A registered function, and how each of its arguments is made."""

    function: Callable[..., Any]
    name: str
    is_async: bool
    arguments: Mapping[str, Make]
    timeout: timedelta | None
    session: bool
    """Does the handler want a SQLAlchemy session?"""

    def call(self, event: InboxEvent, handle: Handle) -> Any:
        """Reject when the payload does not fit the annotation. An async handler answers an awaitable."""
        arguments = {name: make(event, handle) for name, make in self.arguments.items()}
        return self.function(**arguments)


@dataclass(frozen=True, slots=True)
class _Rule:
    pattern: str
    source: str | None
    handler: Handler
    matches: Callable[[str], Any]

    @property
    def rank(self) -> tuple[bool, bool, int]:
        """Smaller goes first: an exact type before a pattern, one source before any, a longer pattern before others."""
        return bool(_PATTERN.search(self.pattern)), self.source is None, -len(self.pattern)


class Router:
    """The handlers of a service. Each event has one: an exact type goes before a pattern, a named source before any.

    Of several patterns the longest counts. Patterns are those of file names: `*` stands for any characters, dots
    included. The annotations of a handler's parameters say what it is given, in any order:

    | annotation                                      | is                                                    |
    |-------------------------------------------------|-------------------------------------------------------|
    | `InboxEvent`                                    | the event with all its columns                        |
    | a pydantic model                                | the payload, validated; what does not fit is dead     |
    | `dict`, or a parameter called `payload`         | the payload as it is                                  |
    | `psycopg.Connection`, or one called `conn`      | the connection, in the transaction that completes it  |
    | `psycopg.AsyncConnection`                       | the same for an async handler                         |
    | SQLAlchemy's `Session`, `AsyncSession`          | a session in that transaction                         |
    """

    def __init__(self) -> None:
        self._rules: list[_Rule] = []
        self._otherwise: Handler | None = None
        self._found: dict[tuple[str, str], Handler | None] = {}

    def on(
        self, event_type: str, *, source: str | None = None, timeout: timedelta | None = None
    ) -> Callable[[H], H]:
        """Register a handler for a type or a pattern of types. `timeout` replaces the worker's for this handler."""

        def register(function: H) -> H:
            handler = _handler(function, timeout)
            for rule in self._rules:
                if (rule.pattern, rule.source) == (event_type, source):
                    raise HandlerInvalid(
                        f"{handler.name}: {event_type!r} of source {source or 'any'!r} has the handler "
                        f"{rule.handler.name} already; an event has one"
                    )
            self._rules.append(_Rule(event_type, source, handler, _matcher(event_type)))
            self._rules.sort(key=lambda rule: rule.rank)
            self._found.clear()
            return function

        return register

    def otherwise(self, function: H) -> H:
        """Register the handler of all events that no other handler is registered for."""
        self._otherwise = _handler(function, None)
        self._found.clear()
        return function

    def find(self, event_type: str, source: str) -> Handler | None:
        key = (event_type, source)
        if key not in self._found:
            if len(self._found) >= _CACHE_SIZE:
                self._found.clear()
            self._found[key] = self._look_up(event_type, source)
        return self._found[key]

    def longest_timeout(self, default: timedelta) -> timedelta:
        return max(
            [default, *(rule.handler.timeout for rule in self._rules if rule.handler.timeout is not None)]
        )

    def _look_up(self, event_type: str, source: str) -> Handler | None:
        for rule in self._rules:
            if rule.source in (None, source) and rule.matches(event_type):
                return rule.handler
        return self._otherwise


def _matcher(pattern: str) -> Callable[[str], Any]:
    return re.compile(translate(pattern)).match if _PATTERN.search(pattern) else pattern.__eq__


def _handler(function: Callable[..., Any], timeout: timedelta | None) -> Handler:
    name = f"{function.__module__}.{function.__qualname__}"
    is_async = inspect.iscoroutinefunction(function)
    hints = _hints(function, name)
    arguments: dict[str, Make] = {}
    wants_session = False
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise HandlerInvalid(f"{name}: {parameter} cannot be given; a handler's parameters have names")
        hint = hints.get(parameter.name, Any)
        make = _maker(parameter.name, hint)
        if make is None:
            if parameter.default is not parameter.empty:
                continue
            raise HandlerInvalid(
                f"{name}: nothing is known for {parameter}; allowed: InboxEvent, a pydantic model, dict, "
                "a psycopg connection, a SQLAlchemy session, or a parameter called payload, event or conn"
            )
        _check_handle(name, parameter.name, hint, is_async)
        wants_session = wants_session or sqlalchemy_sessions.is_session(hint)
        arguments[parameter.name] = make
    return Handler(function, name, is_async, arguments, timeout, wants_session)


def _hints(function: Callable[..., Any], name: str) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function)
    except NameError as error:
        raise HandlerInvalid(
            f"{name}: an annotation cannot be read ({error}); import what it names at the top of the module, "
            "not only for type checking"
        ) from error


def _maker(name: str, hint: Any) -> Make | None:
    bare = typing.get_origin(hint) or hint
    if isinstance(bare, type):
        if issubclass(bare, BaseModel):
            return _validated(hint if isinstance(hint, type) else bare)
        if issubclass(bare, InboxEvent):
            return lambda event, handle: event
        if issubclass(bare, psycopg.Connection | psycopg.AsyncConnection):
            return lambda event, handle: handle.conn
        if sqlalchemy_sessions.is_session(bare):
            return lambda event, handle: handle.session
        if issubclass(bare, dict):
            return _payload_object
    if hint is Any or bare in (dict, list, Mapping):
        return {
            "payload": lambda event, handle: event.payload,
            "event": lambda event, handle: event,
            "conn": lambda event, handle: handle.conn,
        }.get(name)
    return (lambda event, handle: event.payload) if name == "payload" else None


def _payload_object(event: InboxEvent, handle: Handle) -> dict[str, Any]:
    payload = event.payload
    if not isinstance(payload, dict):
        raise Reject(f"the payload is not a JSON object but {type(payload).__name__}")
    return payload


def _validated(model: type[BaseModel]) -> Make:
    def make(event: InboxEvent, handle: Handle) -> BaseModel:
        try:
            return model.model_validate_json(event.body)
        except ValidationError as error:
            # The error names fields and rules, but quotes nothing of the payload: it is stored and logged.
            found = json.loads(error.json(include_url=False, include_input=False, include_context=False))
            locations = "; ".join(
                f"{'.'.join(map(str, one['loc'])) or 'payload'}: {one['msg']}" for one in found
            )
            raise Reject(f"the payload is no {model.__name__}: {locations}") from None

    return make


def _check_handle(name: str, parameter: str, hint: Any, is_async: bool) -> None:
    bare = typing.get_origin(hint) or hint
    if not isinstance(bare, type):
        return
    wrong: str | None = None
    if issubclass(bare, psycopg.AsyncConnection) or sqlalchemy_sessions.is_async_session(bare):
        wrong = None if is_async else "an async one"
    elif issubclass(bare, psycopg.Connection) or sqlalchemy_sessions.is_session(bare):
        wrong = "one that is not async" if is_async else None
    if wrong is not None:
        kind = "async def" if is_async else "def"
        raise HandlerInvalid(
            f"{name}: {parameter} is {bare.__name__}, and a `{kind}` handler is not given {wrong}"
        )


def load_router(name: str) -> Router:
    """The router `module:name`; SettingsError when there is none. The working folder is searched, too."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    found = importing.find("app", name, "router")
    if not isinstance(found, Router):
        raise SettingsError(f'app = "{name}" is no Router but {type(found).__name__}')
    return found
