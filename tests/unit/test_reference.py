"""The generated reference is what the code says."""

from __future__ import annotations

import pytest

from outspark.config import environment
from outspark.config.layers import text
from outspark.tools import reference


@pytest.mark.parametrize(
    "name", ["api.md", "reference/settings.md", "reference/cli.md", "reference/metrics.md"]
)
def test_the_reference_has_not_drifted(name: str) -> None:
    stored = (reference.FOLDER / name).read_text(encoding="utf-8")
    assert stored == reference.pages()[name], "run: python -m outspark.tools.reference"


def test_every_section_of_the_settings_is_there() -> None:
    page = reference.settings_page()
    for section in ("[relay]", "[sources.NAME.retry]", "[[routes]]"):
        assert f"## `{section}`" in page
    assert "| `at_least` |" in page.partition("## `[sources.NAME.dead_guard]`")[2].partition("## ")[0]
    assert [line for line in page.splitlines() if "| the host's name |" in line] == [
        "| `id` | text of 1 to 100 characters | the host's name | Name of this relay, or of "
        "this deployment of inboxes. |"
    ]
    assert "| `lanes` | a whole number from 1 to 256 | `2` |" in page


def test_every_command_is_there() -> None:
    page = reference.cli_page()
    for command in ("init", "relay", "dead requeue", "prune", "demo"):
        assert f"`outspark {command}`" in page


def test_every_variable_of_an_open_outbox_relay_is_there() -> None:
    page = reference.settings_page()
    for variables in (environment.OPEN_OUTBOX, *environment.OF_PUBLISHER.values()):
        for name, path in variables.items():
            assert f"| `{name}` | `{text(path)}` |" in page
    assert "| `KAFKA_BATCH_BYTES` | `destinations.default.options.message.max.bytes` | `10485760` |" in page
