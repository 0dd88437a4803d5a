"""Whatever a broker, a transform or a publisher says: it is kept as far as a table can, and costs no neighbour."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from outspark.errors import DestinationDown
from outspark.event import Event, Message
from outspark.outcome import Dead, Outcome, Retry, Skipped
from tests.databases import Database
from tests.integration.relay.harness import Broker, Harness, close_harness
from tests.integration.relay.omnibox_harness import OmniboxHarness, open_omnibox_harness

TEXTS = {"nul": "a \0 b", "half": "a \ud800 b", "all": "\0\udfff" * 500_000}
KEPT = {"nul": "a \ufffd b", "half": "a ? b", "all": "\ufffd?"}


class Says(Broker):
    """Raises this error for any batch with an event called `bad`, once."""

    error: Exception | None = None

    def publish(self, messages: Sequence[Message], timeout: float) -> list[Outcome]:
        if self.error is not None and any(message.payload == b"bad" for message in messages):
            error, self.error = self.error, None
            self.batches.append([message.payload.decode() for message in messages])
            raise error
        return super().publish(messages, timeout)


@pytest.fixture
def omnibox(database: Database) -> Iterator[OmniboxHarness]:
    harness = open_omnibox_harness(database)
    yield harness
    close_harness(harness)


def neighbours(harness: Harness) -> list[int]:
    """How often each of them was given to the broker."""
    return [harness.broker.published().count(name) for name in ("a", "b")]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("kind", [Retry, Dead, Skipped])
def test_an_answer_is_kept(harness: Harness, kind: type[Retry | Dead | Skipped], text: str) -> None:
    harness.enqueue("a", "bad", "b")
    harness.broker.answers["bad"] = [kind(TEXTS[text])] * 3

    harness.work(lambda: harness.states()["bad"] != ("PENDING", 0))

    assert neighbours(harness) == [1, 1]
    harness.work_to_the_end()
    assert neighbours(harness) == [1, 1]
    assert KEPT[text] in harness.error("bad")
    assert len(harness.error("bad")) <= 2000


@pytest.mark.parametrize("text", TEXTS)
def test_an_answer_is_kept_in_an_omnibox(omnibox: OmniboxHarness, text: str) -> None:
    omnibox.write("1", key="a")
    omnibox.write("2", key="b")
    omnibox.broker.answers["1"] = [Retry(TEXTS[text]), Dead(TEXTS[text])]

    omnibox.work_to_the_end()

    assert sorted(omnibox.broker.published()) == ["1", "1", "2"]
    assert omnibox.row("1", "status") == ("failed",)
    assert KEPT[text] in omnibox.row("1", "last_error")[0]


@pytest.mark.parametrize("text", TEXTS)
def test_a_destination_may_be_down_with_any_words(leased: Harness, text: str) -> None:
    leased.enqueue("a", "bad", "b", key="k")
    leased.broker.answers["bad"] = [Retry(TEXTS[text], counted=False)]

    # The lane ends while it is down, and leaves a note about that.
    leased.work(lambda: leased.broker.published() == ["a", "bad"])
    leased.work_to_the_end()

    assert leased.broker.published() == ["a", "bad", "bad", "b"]
    assert leased.states() == dict.fromkeys(("a", "bad", "b"), ("DELIVERED", 0))


@pytest.mark.parametrize("error", [ValueError, DestinationDown])
@pytest.mark.parametrize("text", TEXTS)
def test_a_publisher_may_raise_any_words(harness: Harness, error: type[Exception], text: str) -> None:
    says = harness.brokers["broker"] = Says()
    says.error = error(TEXTS[text])
    harness.enqueue("bad")

    harness.work_to_the_end()

    assert says.published() == ["bad", "bad"]


def hostile(event: Event) -> Event:
    if event.payload == b"bad":
        raise ValueError(TEXTS["all"])
    return event


def test_a_transform_may_raise_any_words(harness: Harness) -> None:
    harness.source["transform"] = f"{__name__}:hostile"
    harness.enqueue("a", "bad", "b")

    harness.work_to_the_end()

    assert neighbours(harness) == [1, 1]
    assert harness.states() == {"a": ("DELIVERED", 0), "bad": ("DEAD", 3), "b": ("DELIVERED", 0)}
    assert "transform failed: ValueError" in harness.error("bad")
