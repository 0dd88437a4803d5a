"""Fills the settings from a TOML file, the environment on top of it, and command-line flags on top of both.

One error reports all problems: for each the key, its value, what is allowed and where the value came from.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from outspark.config import brokers, describe, environment, layers
from outspark.config.environment import DEFAULT
from outspark.config.inbox import InboxSettings
from outspark.config.layers import Given, Layer
from outspark.config.settings import Settings, SourceSettings, dangling
from outspark.errors import SettingsError
from outspark.redaction import redact

DEFAULT_FILE = "outspark.toml"
# `source.table` is the table of the one source there is.
_ONLY_ONE = {"source": "sources", "inbox": "inboxes"}
_VARIABLE = re.compile(r"\$(\$|\{(?P<name>[^}]*)\})")


def load(
    path: Path | None = None,
    environ: Mapping[str, str] | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Settings:
    """The validated settings; SettingsError lists all problems.

    Without a path, `outspark.toml` in the working folder is read if it exists. Overrides are dotted keys; a value may
    be `Given`, to name the flag it came from. `source.…` means the only source, `inbox.…` the only inbox; `to` sends
    all events to one destination: `kafka://…` or another URL, `stdout` or `null`. An inbox that only overrides mention
    has a consumer group of its own name.
    """
    environ = environ or {}
    problems: list[str] = []
    layer = _file_layer(path, environ, problems)
    if environment.speaks_open_outbox(environ) and not _names_ends(layer):
        layer |= environment.open_outbox(environ)
        problems += environment.refused(environ)
    for key, given in environment.own(environ, layer).items():
        layer = layers.without(layer, key) | {key: given}
    for name, value in (overrides or {}).items():
        given = value if isinstance(value, Given) else Given(value, "overrides")
        layer = _override(layer, name, given, problems)
    return _validated(layer, problems)


def pick_source(settings: Settings, name: str | None) -> tuple[str, SourceSettings]:
    """The named source, or the only one."""
    names = ", ".join(settings.sources)
    if name is not None:
        if name not in settings.sources:
            raise SettingsError(f"there is no source {name!r}; the settings have: {names or '(none)'}")
        return name, settings.sources[name]
    if not settings.sources:
        raise SettingsError(
            "no source is configured: give --url postgresql://…, set STORAGE_URL, "
            f"or write a [sources.NAME] table in {DEFAULT_FILE}"
        )
    if len(settings.sources) > 1:
        raise SettingsError(f"there are several sources; choose one with --source: {names}")
    return next(iter(settings.sources.items()))


def pick_inbox(settings: Settings, name: str | None) -> tuple[str, InboxSettings]:
    """The named inbox, or the only one."""
    names = ", ".join(settings.inboxes)
    if name is not None:
        if name not in settings.inboxes:
            raise SettingsError(
                f"there is no inbox {name!r}; the settings have: {names or '(none)'}; with --url postgresql://… it is "
                "the consumer group of this name in that database"
            )
        return name, settings.inboxes[name]
    if not settings.inboxes:
        raise SettingsError(
            "no inbox is configured: give --inbox GROUP and --url postgresql://…, "
            f"or write an [inboxes.NAME] table in {DEFAULT_FILE}"
        )
    if len(settings.inboxes) > 1:
        raise SettingsError(f"there are several inboxes; choose one with --inbox: {names}")
    return next(iter(settings.inboxes.items()))


def require_ends(settings: Settings) -> None:
    """SettingsError when a relay has no source or no destination."""
    if not settings.sources:
        pick_source(settings, None)
    if not settings.destinations:
        raise SettingsError(
            "no destination is configured: give --to kafka://… or another broker's URL, stdout or null, "
            f"set PUBLISHER_TYPE, or write a [destinations.NAME] table in {DEFAULT_FILE}"
        )


def _file_layer(path: Path | None, environ: Mapping[str, str], problems: list[str]) -> Layer:
    file = path or Path(DEFAULT_FILE)
    if path is None and not file.is_file():
        return {}
    try:
        tree = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"cannot read the settings file {file}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{file} is not a TOML file: {error}") from None
    layer = layers.flatten(tree, str(file))
    return {key: _substituted(key, given, environ, problems) for key, given in layer.items()}


def _substituted(key: layers.Path, given: Given, environ: Mapping[str, str], problems: list[str]) -> Given:
    """`${NAME}` becomes the value of that environment variable; `$$` is a dollar sign."""
    if not isinstance(given.value, str) or "$" not in given.value:
        return given

    def replacement(match: re.Match[str]) -> str:
        name = match["name"]
        if name is None:
            return "$"
        if name not in environ:
            problems.append(
                f"{layers.text(key)} ({given.origin}): the environment variable {name} is not set"
            )
        return environ.get(name, "")

    return Given(_VARIABLE.sub(replacement, given.value), given.origin)


def _names_ends(layer: Layer) -> bool:
    return any(path[0] in ("sources", "destinations") for path in layer)


def _override(layer: Layer, name: str, given: Given, problems: list[str]) -> Layer:
    if name == "to":
        return _send_to(layer, given)
    path: layers.Path = tuple(name.split("."))
    kind = _ONLY_ONE.get(str(path[0]))
    if kind is not None:
        names = layers.children(layer, (kind,))
        if len(names) > 1:
            problems.append(
                f"{given.origin} needs --{path[0]}, because there are several: {', '.join(names)}"
            )
            return layer
        path = (kind, *(names or [DEFAULT]), *path[1:])
    if path[0] == "inboxes" and path[1] not in layers.children(layer, ("inboxes",)):
        layer = layer | {("inboxes", path[1], "group"): Given(path[1], given.origin)}
    return layers.without(layer, path) | {path: given}


def _send_to(layer: Layer, given: Given) -> Layer:
    """Send all events to this destination: routes keep their topics and lose their destinations."""
    kept = {
        path: value
        for path, value in layers.without(layer, ("destinations",)).items()
        if not (path[0] == "routes" and "destination" in path)
    }
    scheme, colon, _ = str(given.value).partition("://")
    kept["destinations", DEFAULT, "type"] = Given(brokers.type_of(scheme), given.origin)
    if colon:
        kept["destinations", DEFAULT, "url"] = given
    return kept


def _validated(layer: Layer, problems: list[str]) -> Settings:
    tree = layers.nest(layer)
    try:
        settings = Settings.model_validate(tree)
    except ValidationError as error:
        found = error.errors(include_url=False)
        problems += [line for item in found for line in _wording(item, layer).split("\n")]
        if any(item["loc"] for item in found):
            # pydantic skips the checks between sections when a section itself is wrong, so they run here.
            problems += [_problem((), layer, None, line) for line in _dangling(tree)]
        # `from None`: the original text quotes its input, passwords included.
        raise _refusal(problems) from None
    problems += _url_problems(settings, layer)
    if problems:
        raise _refusal(problems)
    return settings


def _dangling(tree: Mapping[str, Any]) -> Iterator[str]:
    routes, sources, ends = (tree.get(name) for name in ("routes", "sources", "destinations"))
    if isinstance(routes, list):
        names = [one if isinstance(one, Mapping) else {} for one in (sources, ends)]
        yield from dangling(routes, *names)


def _refusal(problems: list[str]) -> SettingsError:
    heading = "a setting is wrong" if len(problems) == 1 else f"{len(problems)} settings are wrong"
    return SettingsError("\n".join([f"{heading}:", *(f"  {problem}" for problem in problems)]))


def _url_problems(settings: Settings, layer: Layer) -> Iterator[str]:
    databases: dict[layers.Path, str] = {
        **{("sources", name, "url"): one.url.get_secret_value() for name, one in settings.sources.items()},
        **{("inboxes", name, "url"): one.url.get_secret_value() for name, one in settings.inboxes.items()},
    }
    for path, url in databases.items():
        if not url.startswith(("postgresql://", "postgres://")) and "=" not in url.partition("://")[0]:
            yield _problem(path, layer, redact(url), "must be a URL as postgresql://user@host/db")
    for name, destination in settings.destinations.items():
        if destination.type in brokers.BROKERS and destination.url is None:
            example = brokers.BROKERS[destination.type].url
            yield f"destinations.{name}.url is needed for type {destination.type!r}, such as {example}"
    for name, inbox in settings.inboxes.items():
        yield from _feed_problems(name, inbox, layer)


def _feed_problems(name: str, inbox: InboxSettings, layer: Layer) -> Iterator[str]:
    if inbox.feed is None:
        return
    url = inbox.feed.url.get_secret_value()
    scheme, colon, _ = url.partition("://")
    # The clients of both brokers also accept bare hosts and ports.
    if colon and brokers.type_of(scheme) != inbox.feed.type:
        example = brokers.BROKERS[inbox.feed.type].url
        wish = f"must be a URL as {example}, because feed.type is {inbox.feed.type!r}"
        yield _problem(("inboxes", name, "feed", "url"), layer, redact(url), wish)


def _wording(error: ErrorDetails, layer: Layer) -> str:
    """One line per problem of the error."""
    path = error["loc"]
    match error["type"]:
        case "missing":
            field = describe.field_at(path)
            return f"{layers.text(path)} is needed. {field.description if field else ''}".rstrip()
        case "extra_forbidden":
            return _problem(path, layer, None, f"unknown key; {_suggestion(path)}")
        case "value_error" | "assertion_error":
            message = error["msg"].partition(", ")[2]
            shown = None if isinstance(error["input"], BaseModel | Mapping) else _shown(path, error["input"])
            return "\n".join(_problem(path, layer, shown, line) for line in message.split("\n"))
        case _:
            field = describe.field_at(path)
            wish = f"must be {describe.words(field)}" if field else error["msg"]
            return _problem(path, layer, _shown(path, error["input"]), wish)


def _problem(path: layers.Path, layer: Layer, shown: str | None, message: str) -> str:
    key = layers.text(path)
    origin = layers.origin(layer, path)
    words = [key, f"= {shown}" if shown is not None else "", f"({origin})" if origin else ""]
    text = " ".join(word for word in words if word)
    return f"{text}: {message}" if text else message


def _shown(path: layers.Path, value: Any) -> str | None:
    field = describe.field_at(path)
    if field is None or describe.is_secret(field) or isinstance(value, Mapping | list):
        return None
    return redact(repr(value))


def _suggestion(path: layers.Path) -> str:
    word = str(path[-1])
    model = describe.model_at(path[:-1])
    known = list(describe.fields_of(model)) if model else []
    if close := get_close_matches(word.lower(), known, n=1):
        return f"did you mean {close[0]}?"
    elsewhere = [
        f"{section}.{word}"
        for section in ("hosting", "relay", "server", "log")
        if describe.field_at((section, word))
    ]
    if elsewhere:
        return f"did you mean {elsewhere[0]}?"
    return f"known are: {', '.join(known)}"
