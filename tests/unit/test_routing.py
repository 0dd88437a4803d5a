"""Routes choose destination and topic; transforms are found by name or refused with a reason."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from outspark.config.settings import RouteSettings
from outspark.delivery.routing import Route, Router, load_transform
from outspark.errors import EventInvalid, SettingsError


def routes(*settings: dict[str, str]) -> list[RouteSettings]:
    return [RouteSettings.model_validate(each) for each in settings]


def test_without_routes_all_goes_to_the_only_destination_under_its_type() -> None:
    router = Router([], ["broker"], "orders")
    assert router.route("order.created", None) == Route(("broker",), "order.created")
    assert router.route("", "k") == Route(("broker",), "")


@pytest.mark.parametrize(
    ("pattern", "event_type", "matches"),
    [
        ("order.*", "order.created", True),
        ("order.*", "order.item.added", True),
        ("order.*", "order", False),
        ("order.*", "reorder.created", False),
        ("*.created", "order.created", True),
        ("*.created", "order.item.created", True),
        ("*", "anything at all\nwith lines", True),
        ("order.?", "order.a", True),
        ("order.?", "order.ab", False),
        ("order.[ab]", "order.b", True),
        ("order.*", "Order.created", False),
        ("order.created", "orderXcreated", False),
    ],
)
def test_patterns(pattern: str, event_type: str, matches: bool) -> None:
    router = Router(routes({"match": pattern}), ["broker"], "orders")
    if matches:
        assert router.route(event_type, None) == Route(("broker",), event_type)
    else:
        with pytest.raises(EventInvalid):
            router.route(event_type, None)


def test_the_first_route_that_matches_wins() -> None:
    router = Router(
        routes(
            {"match": "order.cancelled", "destination": "a", "topic": "cancellations"},
            {"match": "order.*", "destination": "b"},
            {"match": "*", "destination": "a", "topic": "rest.{type}"},
        ),
        ["a", "b"],
        "orders",
    )
    assert router.route("order.cancelled", None) == Route(("a",), "cancellations")
    assert router.route("order.created", None) == Route(("b",), "order.created")
    assert router.route("user.created", None) == Route(("a",), "rest.user.created")


def test_routes_of_another_source_do_not_count() -> None:
    given = routes({"source": "users", "topic": "u"}, {"source": "orders", "topic": "o"}, {"topic": "all"})
    assert Router(given, ["broker"], "users").route("x", None).topic == "u"
    assert Router(given, ["broker"], "orders").route("x", None).topic == "o"
    assert Router(given, ["broker"], "billing").route("x", None).topic == "all"


def test_the_topic_that_an_event_asks_for_is_its_own_unless_a_route_names_another() -> None:
    router = Router(
        routes(
            {"match": "order.*"},
            {"match": "user.*", "topic": "{type}"},
            {"match": "*", "topic": "shop.{topic}.{key}"},
        ),
        ["broker"],
        "orders",
    )
    for _ in range(2):
        assert router.route("order.created", None, topic="orders").topic == "orders"
        assert router.route("order.created", None, topic="orders.v2").topic == "orders.v2"
        assert router.route("order.created", None).topic == "order.created"
        assert router.route("user.created", None, topic="users").topic == "user.created"
        assert router.route("x", "7", topic="rest").topic == "shop.rest.7"


def test_a_topic_goes_with_the_cluster_that_an_event_asks_for() -> None:
    router = Router(routes({"match": "order.*", "destination": "a"}), ["a", "b"], "orders")
    assert router.route("x", None, "b", "own") == Route(("b",), "own")
    assert router.route("order.created", None, "b", "own") == Route(("b",), "own")


def test_a_topic_by_key_is_made_for_each_event() -> None:
    router = Router(routes({"topic": "{type}.{key}"}), ["broker"], "orders")
    assert router.route("order.created", "17").topic == "order.created.17"
    assert router.route("order.created", "18").topic == "order.created.18"
    with pytest.raises(EventInvalid, match="needs a partition_key"):
        router.route("order.created", None)


def test_a_type_that_looks_like_a_placeholder_is_left_alone() -> None:
    router = Router([], ["broker"], "orders")
    assert router.route("{key}.{0}", "k").topic == "{key}.{0}"


def test_braces_can_be_escaped() -> None:
    assert Router(routes({"topic": "{{x}}"}), ["broker"], "orders").route("t", None).topic == "{x}"


def test_an_event_without_a_route_says_what_to_add() -> None:
    router = Router(routes({"match": "order.*"}), ["broker"], "orders")
    for _ in range(2):
        with pytest.raises(
            EventInvalid, match=r"no route matches event_type 'user.created' of source 'orders'"
        ):
            router.route("user.created", None)


def test_many_types_do_not_fill_the_memory() -> None:
    router = Router([], ["broker"], "orders")
    for number in range(25_000):
        assert router.route(f"type.{number}", None).topic == f"type.{number}"
    assert len(router._routes) <= 10_000


@pytest.mark.parametrize(
    ("topic", "complaint"),
    [
        (
            "{kind}",
            r"routes\[1\].topic = '{kind}': unknown placeholder {kind}; allowed are {topic}, {type} and {key}",
        ),
        ("{type.__class__}", "unknown placeholder {type.__class__}"),
        ("{type!r}", "unknown placeholder"),
        ("{key:>9}", "unknown placeholder"),
        ("{}", "unknown placeholder {}"),
        ("a}", "Single '}'"),
        ("{type", "expected '}'"),
        ("", "is empty"),
    ],
)
def test_a_wrong_topic_is_refused_at_construction(topic: str, complaint: str) -> None:
    with pytest.raises(SettingsError, match=complaint):
        Router(routes({}, {"topic": topic}), ["broker"], "orders")


def test_a_destination_must_be_known() -> None:
    with pytest.raises(SettingsError, match=r"routes\[0\].destination = 'c' is not one of: a, b"):
        Router(routes({"destination": "c"}), ["b", "a"], "orders")
    with pytest.raises(SettingsError, match=r"routes\[0\].destination is needed; the destinations are: a, b"):
        Router(routes({}), ["b", "a"], "orders")
    with pytest.raises(SettingsError, match=r"is needed; the destinations are: \(none\)"):
        Router([], [], "orders")


def test_a_transform_is_found_by_its_name() -> None:
    assert load_transform("json:dumps").__name__ == "dumps"
    assert load_transform("outspark.delivery.routing:Router.route").__qualname__ == "Router.route"


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("json", 'transform = "json" is not of the form "module:function"'),
        (":dumps", "is not of the form"),
        ("json:", "is not of the form"),
        ("no_such_module:f", "there is no module no_such_module; is its folder on PYTHONPATH"),
        ("json.no_such:f", "there is no module json.no_such"),
        ("json:no_such", "module json has no no_such"),
        ("sys:path", "is not a function but list"),
    ],
)
def test_a_transform_that_cannot_be_loaded_says_why(name: str, complaint: str) -> None:
    with pytest.raises(SettingsError, match=complaint):
        load_transform(name)


def test_a_module_that_fails_on_import_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_hooks.py").write_text("raise RuntimeError('no database')")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with pytest.raises(SettingsError, match="importing broken_hooks failed: no database"):
        load_transform("broken_hooks:f")


def test_a_route_may_name_several_destinations() -> None:
    routes = [RouteSettings(match="order.*", destination=["bus", "audit"]), RouteSettings(destination="bus")]
    router = Router(routes, ["bus", "audit"], "shop")

    assert router.fans_out
    assert router.route("order.placed", None) == Route(("bus", "audit"), "order.placed")
    assert router.route("other", None) == Route(("bus",), "other")


@pytest.mark.parametrize("names", [[], ["bus", "bus"]])
def test_a_list_of_destinations_makes_sense(names: list[str]) -> None:
    with pytest.raises(ValueError, match="at least one name, and none of them twice"):
        RouteSettings(destination=names)
