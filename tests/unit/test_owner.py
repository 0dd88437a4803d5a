"""Owners as text, and what can be known about one that is gone."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

from outspark.database import slots
from outspark.database.slots import Owner


@pytest.mark.parametrize("relay", ["relay-1", "relay with spaces", "a instance=b lane=1", "ö"])
def test_text_and_parse_are_inverse(relay: str) -> None:
    here = Owner.here(relay, "i1", 3)

    assert Owner.parse(str(here)) == here


@pytest.mark.parametrize("text", ["", "somebody", "r instance=i lane=x host=h pid=1"])
def test_what_is_no_owner_is_nobody(text: str) -> None:
    assert Owner.parse(text) is None


def test_one_in_this_process_has_ended() -> None:
    assert Owner.here("r", "i", 0).has_ended()


def test_one_in_a_living_process_has_not() -> None:
    assert not dataclasses.replace(Owner.here("r", "i", 0), pid=os.getppid()).has_ended()


def test_one_whose_process_is_gone_has() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()

    assert dataclasses.replace(Owner.here("r", "i", 0), pid=process.pid).has_ended()


def test_of_another_host_nothing_is_known() -> None:
    assert not dataclasses.replace(Owner.here("r", "i", 0), host="elsewhere/1").has_ended()


def test_of_another_machine_with_the_same_name_nothing_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    gone_here = dataclasses.replace(Owner.here("r", "i", 0), pid=process.pid)
    assert gone_here.has_ended()

    other_boot = tmp_path / "boot_id"
    other_boot.write_text("8d6b1f9c-0000-4000-8000-000000000000\n")
    monkeypatch.setattr(slots, "BOOT_ID", other_boot, raising=False)
    slots._boot.cache_clear()
    try:
        assert not gone_here.has_ended()
    finally:
        slots._boot.cache_clear()


def test_how_the_keys_were_split_is_part_of_the_text() -> None:
    split = dataclasses.replace(Owner.here("r", "i", 0), slots=8)

    assert Owner.parse(str(split)) == split
