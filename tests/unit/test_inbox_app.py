"""How the lanes of an inbox find its handlers, and what they are told."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import pytest

from outspark.config.settings import Settings
from outspark.errors import SettingsError
from outspark.inbox import Router
from outspark.inbox.lane import Task, inbox_lanes
from outspark.inbox.router import load_router

router = Router()
FEED = {"type": "nats", "url": "nats://h", "topics": ["orders"]}


def test_handlers_are_found_by_their_name() -> None:
    assert load_router(f"{__name__}:router") is router


def test_the_working_folder_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_handlers.py").write_text("from outspark.inbox import Router\nrouter = Router()")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    assert isinstance(load_router("own_handlers:router"), Router)


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("json", 'app = "json" is not of the form "module:router"'),
        ("no_such_module:router", "there is no module no_such_module; is its folder on PYTHONPATH"),
        ("json:router", "module json has no router"),
        ("json:dumps", 'app = "json:dumps" is no Router but function'),
    ],
)
def test_handlers_that_cannot_be_loaded_say_why(name: str, complaint: str) -> None:
    with pytest.raises(SettingsError, match=complaint):
        load_router(name)


def settings(lanes: int = 1, **inboxes: dict[str, Any]) -> Settings:
    given = {name: {"url": "postgresql://h/d", "group": name, **inbox} for name, inbox in inboxes.items()}
    return Settings.model_validate({"relay": {"id": "till"}, "hosting": {"lanes": lanes}, "inboxes": given})


def test_every_inbox_has_lanes_for_each_task() -> None:
    given = settings(2, a={"feed": FEED, "app": "m:r"}, b={"feed": FEED, "app": "m:r"})
    specs = inbox_lanes(given, ["a", "b"], ["consume", "handle"], "i", {})

    assert [spec.lane for spec in specs] == list(range(8))
    assert [(spec.name, spec.task, spec.number) for spec in specs[:4]] == [
        ("a", "consume", 0),
        ("a", "consume", 1),
        ("a", "handle", 0),
        ("a", "handle", 1),
    ]
    assert [spec.member for spec in specs if spec.task == "consume"] == [
        "till-a-0",
        "till-a-1",
        "till-b-0",
        "till-b-1",
    ]


@pytest.mark.parametrize(
    ("task", "missing"), [("consume", "inboxes.a.feed is needed"), ("handle", "inboxes.a.app is needed")]
)
def test_a_task_without_what_it_needs_is_refused(task: Task, missing: str) -> None:
    with pytest.raises(SettingsError, match=missing):
        inbox_lanes(settings(a={}), ["a"], [task], "i", {})


def test_a_spec_travels() -> None:
    [spec] = inbox_lanes(settings(a={"feed": FEED}), ["a"], ["consume"], "i", {"OTEL_SERVICE_NAME": "x"})

    assert pickle.loads(pickle.dumps(spec)) == spec
