"""The stdout publisher writes JSON lines to a file or a pipe; its funnel takes them from other processes."""

from __future__ import annotations

import base64
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from outspark.brokers import Publisher
from outspark.brokers.stdout import Funnel
from outspark.errors import DestinationDown, SettingsError
from outspark.outcome import DELIVERED
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
)

_WRITER = """
import sys
from outspark.event import Message
from outspark.brokers import open_publisher
from outspark.config.settings import DestinationSettings

path, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
options = {"path": path} if path else {}
publisher = open_publisher("out", DestinationSettings(type="stdout", options=options))
batch = [Message(f"{name}-{number}", "t", None, b"x" * 3000, {}) for number in range(count)]
print(*{type(outcome).__name__ for outcome in publisher.publish(batch, 10)}, file=sys.stderr)
"""


def parse(lines: bytes) -> list[Received]:
    return [_received(json.loads(line)) for line in lines.splitlines()]


def _received(line: dict[str, Any]) -> Received:
    encoded = line.get("payload_base64")
    payload = line["payload"].encode() if encoded is None else base64.b64decode(encoded)
    return Received(line["id"], line["topic"], line["key"], payload, line["headers"])


def open_path(path: Path) -> Publisher:
    return open_destination("stdout", options={"path": str(path)})


class FileRig:
    topic = "order.created"

    def __init__(self, path: Path) -> None:
        self._path = path
        self.publishers: list[Publisher] = []

    def open(self) -> Publisher:
        self.publishers.append(open_path(self._path))
        return self.publishers[-1]

    def read(self) -> list[Received]:
        return parse(self._path.read_bytes())


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[FileRig]:
    rig = FileRig(tmp_path / "out.jsonl")
    yield rig
    for publisher in rig.publishers:
        publisher.close()


class TestStdout(PublisherContract, ReadBack):
    def test_keeps_order(self, rig: FileRig) -> None:
        assert rig.open().keeps_order


def test_writes_to_the_stdout_of_its_process() -> None:
    writer = subprocess.run(
        [sys.executable, "-c", _WRITER, "", "a", "200"], capture_output=True, timeout=60, check=True
    )
    assert [line.id for line in parse(writer.stdout)] == [f"a-{number}" for number in range(200)]


def test_only_its_owner_may_read_a_file_that_it_makes(rig: FileRig, tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        assert_all_delivered(rig.open().publish([message(rig)], TIMEOUT), 1)
    finally:
        os.umask(before)
    assert oct((tmp_path / "out.jsonl").stat().st_mode & 0o777) == oct(0o600)


def test_a_file_that_is_there_keeps_its_rights(rig: FileRig, tmp_path: Path) -> None:
    (tmp_path / "out.jsonl").touch()
    (tmp_path / "out.jsonl").chmod(0o640)
    assert_all_delivered(rig.open().publish([message(rig)], TIMEOUT), 1)
    assert oct((tmp_path / "out.jsonl").stat().st_mode & 0o777) == oct(0o640)


def test_a_reader_that_is_gone_costs_no_attempt(rig: FileRig, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    batch = messages(rig, 3)
    with closing(open_path(fifo)) as publisher:
        assert_all_waiting(publisher.publish(batch, TIMEOUT), 3)
        reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
        assert_all_delivered(publisher.publish(batch, TIMEOUT), 3)
        os.close(reader)
        assert_all_waiting(publisher.publish(batch, TIMEOUT), 3)
        with pytest.raises(DestinationDown, match="fifo"):
            publisher.check(TIMEOUT)


def test_a_reader_that_does_not_read_holds_nobody_for_ever(rig: FileRig, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    with closing(open_path(fifo)) as publisher:
        batch = [message(rig, b"x" * 3000)]
        written = 0
        while (outcomes := publisher.publish(batch, 0.05)) == [DELIVERED]:
            written += 1
    os.close(reader)
    assert written > 0
    assert_all_waiting(outcomes, 1)


def test_the_funnel_keeps_lines_of_many_writers_whole() -> None:
    out = io.BytesIO()
    with Funnel(out) as funnel:
        writers = [
            subprocess.Popen(
                [sys.executable, "-c", _WRITER, str(funnel.path), name, "300"], stderr=subprocess.PIPE
            )
            for name in ("a", "b")
        ]
        assert [writer.communicate(timeout=60)[1].split() for writer in writers] == [[b"Delivered"]] * 2
    arrived = [line.id for line in parse(out.getvalue())]
    for name in ("a", "b"):
        assert [line for line in arrived if line.startswith(name)] == [f"{name}-{n}" for n in range(300)]
    funnel.close()
    assert not funnel.path.exists()


def test_an_output_that_breaks_reaches_the_writers(rig: FileRig) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb", buffering=0) as broken, Funnel(broken) as funnel:
        with closing(open_path(funnel.path)) as publisher:
            publisher.publish(messages(rig, 1), TIMEOUT)  # is read from the FIFO, and then cannot be written
            funnel.join()
            assert_all_waiting(publisher.publish(messages(rig, 1), TIMEOUT), 1)


def test_an_unknown_option_is_named() -> None:
    with pytest.raises(SettingsError, match=r"destinations.dest.options: pathh is not one of: path"):
        open_destination("stdout", options={"pathh": "x"})
