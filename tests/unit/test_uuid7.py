from __future__ import annotations

import subprocess
import sys
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

from outspark.uuid7 import Uuid7, uuid7


def test_the_layout_is_that_of_rfc_9562() -> None:
    made = Uuid7(clock=lambda: 0x017F22E279B0)()

    assert made.version == 7
    assert made.variant == uuid.RFC_4122
    assert str(made).startswith("017f22e2-79b0-7")


def test_the_time_is_now_in_milliseconds() -> None:
    before = time.time_ns() // 1_000_000
    made = uuid7()
    assert before <= made.int >> 80 <= time.time_ns() // 1_000_000


def test_ids_rise_within_a_millisecond_and_while_the_clock_goes_back() -> None:
    times = [5] * 1000 + [4] * 1000 + [6] * 1000
    source = Uuid7(clock=iter(times).__next__)

    made = [source() for _ in times]

    assert made == sorted(made)
    assert len(set(made)) == len(made)


def test_a_full_counter_borrows_the_next_millisecond() -> None:
    source = Uuid7(clock=lambda: 5)
    source()
    source._counter = (1 << 42) - 1

    made = source()

    assert made.int >> 80 == 6
    assert source().int > made.int


def test_threads_get_ids_of_their_own() -> None:
    start = threading.Barrier(4)

    def make() -> list[uuid.UUID]:
        start.wait()
        return [uuid7() for _ in range(2000)]

    with ThreadPoolExecutor(4) as pool:
        batches = [future.result() for future in [pool.submit(make) for _ in range(4)]]

    assert all(batch == sorted(batch) for batch in batches)
    assert len({made for batch in batches for made in batch}) == 8000


FORK = """
import os, uuid
from outspark.uuid7 import uuid7
reader, writer = os.pipe()
uuid7()
if os.fork() == 0:
    os.write(writer, uuid7().bytes)
    os._exit(0)
print(uuid7(), uuid.UUID(bytes=os.read(reader, 16)))
"""


def test_a_forked_child_starts_anew() -> None:
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, check=True)

    ours, theirs = map(uuid.UUID, done.stdout.split())

    # Within one millisecond a copied counter would give both the same upper 96 bits.
    assert ours.int >> 32 != theirs.int >> 32
