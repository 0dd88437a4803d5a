"""The tree of errors: complete in its drawing, and able to travel between processes."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Iterator

import pytest

from outspark import errors
from outspark.errors import OutsparkError


def tree(root: type[OutsparkError]) -> Iterator[type[OutsparkError]]:
    yield root
    for child in root.__subclasses__():
        yield from tree(child)


def example(kind: type[OutsparkError]) -> OutsparkError:
    own = inspect.signature(kind.__init__).parameters
    wanted = [name for name in own if name not in ("self", "args", "kwargs")]
    return kind(*(f"some {name}" for name in wanted)) if wanted else kind("what failed, and what to do")


KINDS = [kind for kind in tree(OutsparkError) if kind.__module__ == errors.__name__]


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_survives_pickle(kind: type[OutsparkError]) -> None:
    error = example(kind)

    copy = pickle.loads(pickle.dumps(error))

    assert type(copy) is kind
    assert str(copy) == str(error)
    assert copy.args == error.args


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_stands_in_the_drawing(kind: type[OutsparkError]) -> None:
    assert errors.__doc__ is not None
    assert f"{kind.__name__} " in errors.__doc__ or f"{kind.__name__}\n" in errors.__doc__


def test_what_to_do_next_is_part_of_the_message() -> None:
    assert "pip install 'outspark[nats]'" in str(errors.ExtraMissing("the NATS publisher", "nats"))
    assert "CREATE TABLE x" in str(errors.SlotsTableMissing("CREATE TABLE x"))
    assert "directly" in str(errors.PoolerDetected())
