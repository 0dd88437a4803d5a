"""Free memory that the machine really has, for files that grow during a drain.

A virtual machine may give what is free back to its host, 2 MiB at a time, and fetch every page again at its next use.
That made a drain slower the longer it was: the server's writes went to pages that were fetched one by one.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager

import psutil  # type: ignore[import-untyped]

PIECE = 2**21
MOST = 0.4
"""Of what is available; the rest is for the file cache."""


@contextmanager
def ready(size: int) -> Iterator[None]:
    """So many bytes are fetched and free; they stay with this machine until the context ends.

    All pages are touched and released, but for the first of each 2 MiB: what is left between them is too small to be
    given back.
    """
    size = affordable(size)
    if not size:
        yield
        return
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        for page in range(0, size, mmap.PAGESIZE):
            memory[page] = 1
        for piece in range(0, size, PIECE):
            memory.madvise(mmap.MADV_DONTNEED, piece + mmap.PAGESIZE, PIECE - mmap.PAGESIZE)
        yield


def affordable(size: int) -> int:
    """As much of it as the machine can spare, in whole pieces."""
    return int(min(size, MOST * psutil.virtual_memory().available)) // PIECE * PIECE
