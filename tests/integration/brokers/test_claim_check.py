"""The claim check before real publishers, with a folder as its store."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem

from outspark.brokers import Publisher
from outspark.brokers.claim_check import HEADER
from outspark.config.settings import ClaimCheckSettings
from outspark.errors import DestinationDown, SettingsError
from outspark.event import Message
from outspark.outcome import DELIVERED, Delivered, Held, Outcome, Retry
from outspark.tools.servers.nats import Nats
from tests.integration.brokers.contract import (
    TIMEOUT,
    PublisherContract,
    ReadBack,
    Received,
    assert_all_delivered,
    assert_all_waiting,
    message,
    messages,
    open_destination,
    received,
)
from tests.integration.brokers.test_nats import NatsRig
from tests.integration.brokers.test_stdout import parse
from tests.waiting import wait_for

_DOCS = Path(__file__).parents[3] / "docs" / "envelopes.md"
_LARGE = b"x" * 501


@cache
def reader() -> Callable[[bytes, Mapping[str, str]], bytes]:
    """The reader that the documentation shows."""
    [snippet] = re.findall(
        r"```python\n(.*?def read_payload.*?)```", _DOCS.read_text(encoding="utf-8"), re.DOTALL
    )
    names: dict[str, Any] = {}
    exec(snippet, names)
    found: Callable[[bytes, Mapping[str, str]], bytes] = names["read_payload"]
    return found


class ClaimRig:
    """Lines in a file, and a store beside it that takes whatever has more than 500 bytes."""

    topic = "order.created"

    def __init__(self, folder: Path) -> None:
        self.lines = folder / "out.jsonl"
        self.store = folder / "claims"
        self._publishers: list[Publisher] = []

    def open(self) -> Publisher:
        claims = {"path": self.store.as_uri(), "over": 500}
        self._publishers.append(
            open_destination("stdout", options={"path": str(self.lines)}, claim_check=claims)
        )
        return self._publishers[-1]

    def read(self) -> list[Received]:
        """As a consumer reads them, who fetches what was stored."""
        return [self._redeem(line) for line in self.sent()]

    def sent(self) -> list[Received]:
        return parse(self.lines.read_bytes()) if self.lines.exists() else []

    def stored(self) -> list[Path]:
        return sorted(path for path in self.store.rglob("*") if path.is_file())

    def close(self) -> None:
        for publisher in self._publishers:
            publisher.close()

    def _redeem(self, line: Received) -> Received:
        payload = reader()(line.payload, line.headers)
        added = {HEADER, "content-type"} if HEADER in line.headers else set()
        headers = {name: value for name, value in line.headers.items() if name not in added}
        return Received(line.id, line.topic, line.key, payload, headers)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[ClaimRig]:
    rig = ClaimRig(tmp_path)
    yield rig
    rig.close()


class TestClaimCheck(PublisherContract, ReadBack):
    def test_a_batch_of_large_payloads_keeps_its_order(self, rig: ClaimRig) -> None:
        batch = messages(rig, 200, size=1000)
        assert_all_delivered(rig.open().publish(batch, TIMEOUT), 200)
        assert rig.read() == [received(sent) for sent in batch]
        assert len(rig.stored()) == 200

    def test_keeps_order_as_the_publisher_behind_it_does(self, rig: ClaimRig) -> None:
        assert rig.open().keeps_order


def test_only_payloads_over_the_limit_are_stored(rig: ClaimRig) -> None:
    at, over = message(rig, b"x" * 500), message(rig, _LARGE)
    assert_all_delivered(rig.open().publish([at, over], TIMEOUT), 2)
    assert rig.sent()[0].payload == at.payload
    [path] = rig.stored()
    assert path.read_bytes() == _LARGE


def test_the_message_carries_the_reference(rig: ClaimRig) -> None:
    sent = message(rig, _LARGE, headers={"Content-Type": "text/plain", "tenant": "a"})
    assert_all_delivered(rig.open().publish([sent], TIMEOUT), 1)
    sha256 = hashlib.sha256(_LARGE).hexdigest()
    url = f"{rig.store.as_uri()}/{sha256[:2]}/{sent.id}-{sha256[:16]}"
    [line] = rig.sent()
    claim = {"url": url, "size": 501, "sha256": sha256, "content_type": "text/plain"}
    assert json.loads(line.payload) == {"claim_check": claim}
    assert line.headers == {"tenant": "a", "content-type": "application/json", HEADER: url}
    assert (line.id, line.topic, line.key) == (sent.id, sent.topic, sent.key)


def test_a_retry_finds_the_same_object(rig: ClaimRig) -> None:
    sent = message(rig, _LARGE)
    publisher = rig.open()
    publisher.publish([sent], TIMEOUT)
    [path] = rig.stored()
    path.write_bytes(_LARGE[:50])  # a store may lose what it had not written out
    publisher.publish([sent], TIMEOUT)
    assert rig.stored() == [path]
    assert path.read_bytes() == _LARGE
    assert rig.sent()[0] == rig.sent()[1]


def test_one_id_with_two_payloads_makes_two_objects(rig: ClaimRig) -> None:
    one, two = (Message("17", rig.topic, None, payload, {}) for payload in (_LARGE, _LARGE + b"y"))
    assert_all_delivered(rig.open().publish([one, two], TIMEOUT), 2)
    assert [line.payload for line in rig.read()] == [one.payload, two.payload]


def test_a_message_that_cannot_be_stored_is_not_sent(rig: ClaimRig) -> None:
    rig.store.write_text("a file where a folder should be")
    publisher = rig.open()
    small = message(rig, key="a")
    outcomes = publisher.publish([small, message(rig, _LARGE, key="b")], TIMEOUT)
    assert outcomes[0] is DELIVERED
    assert_all_waiting(outcomes[1:], 1)
    assert f"claim check at {rig.store.as_uri()}" in _error(outcomes[1])
    assert [line.id for line in rig.sent()] == [small.id]

    rig.store.unlink()
    later = message(rig, _LARGE, key="b")
    assert_all_delivered(publisher.publish([later], TIMEOUT), 1)
    assert rig.read()[-1].payload == _LARGE


def test_nothing_of_its_key_overtakes_a_message_that_was_not_stored(rig: ClaimRig) -> None:
    rig.store.write_text("a file where a folder should be")
    batch = [
        message(rig, key="a"),
        message(rig, _LARGE, key="a"),
        message(rig, key="a"),
        message(rig, key="b"),
        message(rig, _LARGE, key=None),
        message(rig, key=None),
    ]
    outcomes = rig.open().publish(batch, TIMEOUT)
    assert [type(outcome) for outcome in outcomes] == [Delivered, Retry, Held, Delivered, Retry, Delivered]
    assert [line.id for line in rig.sent()] == [batch[0].id, batch[3].id, batch[5].id]


def test_the_outcomes_of_the_publisher_behind_it_find_their_messages(rig: ClaimRig) -> None:
    rig.lines.mkdir()
    outcomes = rig.open().publish([message(rig, _LARGE), message(rig)], TIMEOUT)
    assert_all_waiting(outcomes, 2)
    assert "claim check" not in _error(outcomes[0])


def test_check_proves_that_the_store_can_be_written(rig: ClaimRig) -> None:
    publisher = rig.open()
    rig.store.write_text("a file where a folder should be")
    with pytest.raises(DestinationDown, match="destination dest: claim check at file://"):
        publisher.check(TIMEOUT)
    rig.store.unlink()
    publisher.check(TIMEOUT)
    assert [path.name for path in rig.stored()] == [".outspark-check"]


def test_a_store_that_hangs_holds_nobody_for_ever(rig: ClaimRig) -> None:
    """Opening a FIFO that nobody reads blocks, as a dead network share does."""
    rig.store.mkdir()
    fifo = rig.store / ".outspark-check"
    os.mkfifo(fifo)
    publisher = rig.open()
    with pytest.raises(DestinationDown, match=r"TimeoutError: not stored within 0\.05 s"):
        publisher.check(0.05)
    assert_all_delivered(publisher.publish([message(rig, _LARGE)], TIMEOUT), 1)
    publisher.close()
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    wait_for(lambda: not _claim_threads(), what="the end of the thread that was left behind")
    os.close(reader)


def test_a_full_disk_leaves_no_drafts(rig: ClaimRig) -> None:
    rig.store.mkdir()
    script = f"""
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
from outspark.brokers import open_publisher
from outspark.config.settings import DestinationSettings
from outspark.event import Message
claims = {{"path": {rig.store.as_uri()!r}, "over": 100}}
settings = DestinationSettings.model_validate({{"type": "stdout", "claim_check": claims}})
publisher = open_publisher("dest", settings)
print(publisher.publish([Message("1", "t", None, b"x" * 2000, {{}})], 10))
"""
    writer = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60, check=True)
    assert b"File too large" in writer.stdout
    assert rig.stored() == []


def test_an_unknown_store_is_named() -> None:
    with pytest.raises(SettingsError, match=r"destinations.dest.claim_check.path: .*nowhere"):
        open_destination("null", claim_check={"path": "nowhere://x"})


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/var/claims", "must be a URL"),
        ("file://", "must be a URL"),
        ("ftp://ada:geheim@host/claims", "holds a password"),
    ],
)
def test_a_path_that_is_no_url_or_carries_a_password_is_refused(path: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        ClaimCheckSettings(path=path)


def test_errors_show_no_secret(tmp_path: Path) -> None:
    """This store is a folder named by an option, and its errors quote it."""
    secret = tmp_path / "s3cr3t"
    secret.write_text("a file where a folder should be")
    options = {"path": str(secret), "target_protocol": "file"}
    with closing(open_destination("null", claim_check=_claims("dir://claims", options))) as publisher:
        [outcome] = publisher.publish([Message("1", "t", None, b"x", {})], TIMEOUT)
        with pytest.raises(DestinationDown) as down:
            publisher.check(TIMEOUT)
    assert "NotADirectoryError: " in _error(outcome)
    assert "***" in _error(outcome)
    assert "s3cr3t" not in _error(outcome) + str(down.value)
    assert down.value.__cause__ is None


def test_what_had_no_time_waits_and_is_not_sent(rig: ClaimRig) -> None:
    publisher = rig.open()
    batch = [message(rig, _LARGE) for _ in range(50)]
    outcomes = publisher.publish(batch, 1e-6)
    assert all(isinstance(outcome, Held | Retry) for outcome in outcomes)
    assert sum(isinstance(outcome, Retry) for outcome in outcomes) <= 1, "of a store that is slow, not down"
    assert rig.sent() == []
    assert_all_delivered(publisher.publish(batch, TIMEOUT), 50)
    assert [line.id for line in rig.read()] == [sent.id for sent in batch]


class ObjectFolder(LocalFileSystem):  # type: ignore[misc]
    """A folder that behaves as an object store: it cannot rename, and folders need not be made."""

    protocol = "objectfolder"
    mv = AbstractFileSystem.mv
    makedirs = AbstractFileSystem.makedirs


def test_an_object_store_is_written_to_directly(tmp_path: Path) -> None:
    fsspec.register_implementation("objectfolder", ObjectFolder, clobber=True)
    folder = tmp_path / "claims"
    folder.mkdir()
    digest = hashlib.sha256(b"x").hexdigest()
    folder.joinpath(digest[:2]).mkdir()
    with closing(open_destination("null", claim_check=_claims(f"objectfolder://{folder}"))) as publisher:
        publisher.check(TIMEOUT)
        assert_all_delivered(publisher.publish([Message("1", "t", None, b"x", {})], TIMEOUT), 1)
    assert folder.joinpath(digest[:2], f"1-{digest[:16]}").read_bytes() == b"x"


def _claims(path: str, options: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"path": path, "over": 0, "options": options or {}}


def test_the_extra_is_named_when_fsspec_is_missing() -> None:
    script = """
import sys
sys.modules["fsspec"] = None
from outspark.brokers import open_publisher
from outspark.config.settings import DestinationSettings
open_publisher("plain", DestinationSettings(type="null"))
claims = {"path": "file:///tmp/claims"}
open_publisher("dest", DestinationSettings.model_validate({"type": "null", "claim_check": claims}))
"""
    opened = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60, check=False)
    assert b"pip install 'outspark[claimcheck]'" in opened.stderr


@pytest.mark.needs("nats")
class TestBeforeNats:
    def test_a_payload_over_the_server_s_limit_goes_through(self, nats_server: Nats, tmp_path: Path) -> None:
        rig = NatsRig(nats_server)
        sent = message(rig, b"x" * (2 * rig.max_payload), headers={"content-type": "text/plain"})
        with closing(self._open(rig, tmp_path)) as publisher:
            assert_all_delivered(publisher.publish([sent], TIMEOUT), 1)
        [arrived] = rig.read()
        assert len(arrived.payload) < 1000
        assert reader()(arrived.payload, arrived.headers) == sent.payload

    def test_order_is_left_to_the_lane_where_the_publisher_leaves_it(
        self, nats_server: Nats, tmp_path: Path
    ) -> None:
        """Such a publisher is never given two messages of an ordered key at once."""
        rig = NatsRig(nats_server)
        tmp_path.joinpath("claims").write_text("a file where a folder should be")
        batch = [message(rig, b"x" * 2000), message(rig)]
        with closing(self._open(rig, tmp_path)) as publisher:
            outcomes = publisher.publish(batch, TIMEOUT)
        assert_all_waiting(outcomes[:1], 1)
        assert outcomes[1] is DELIVERED

    def _open(self, rig: NatsRig, folder: Path) -> Publisher:
        claims = {"path": folder.joinpath("claims").as_uri(), "over": 1000}
        publisher = open_destination("nats", url=rig.server.url, claim_check=claims)
        assert not publisher.keeps_order
        return publisher


def _claim_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("outspark-claims")]


def _error(outcome: Outcome) -> str:
    assert isinstance(outcome, Retry), outcome
    return outcome.error
