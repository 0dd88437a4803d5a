"""Short commands of `outspark`, each in a process of its own that is forked from one which has imported everything.

A process from scratch spends most of its time on imports. What takes Spark or signals starts one all the same.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import CompletedProcess, TimeoutExpired

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(
    [
        "outspark.cli.app",
        "outspark.cli.tables",
        "outspark.contracts",
        "outspark.maintenance.operations",
        "outspark.maintenance.partitions",
    ]
)
TIMEOUT = 60.0


def run(
    args: Sequence[str], folder: Path, environ: Mapping[str, str], stdin: str = ""
) -> CompletedProcess[str]:
    with tempfile.TemporaryDirectory() as streams:
        files = [Path(streams, name) for name in ("stdin", "stdout", "stderr")]
        files[0].write_text(stdin)
        process = _FORKS.Process(
            target=_run, args=(list(args), str(folder), dict(environ), [str(file) for file in files])
        )
        process.start()
        process.join(TIMEOUT)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise TimeoutExpired(list(args), TIMEOUT)
        return CompletedProcess(list(args), process.exitcode, files[1].read_text(), files[2].read_text())


def _run(args: list[str], folder: str, environ: dict[str, str], files: list[str]) -> None:
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environ)
    for number, file in enumerate(files):
        os.dup2(os.open(file, os.O_RDWR | os.O_CREAT), number)
    sys.stdin, sys.stdout, sys.stderr = (
        os.fdopen(number, mode, closefd=False) for number, mode in ((0, "r"), (1, "w"), (2, "w"))
    )
    sys.argv = ["outspark", *args]
    from outspark.cli import main

    main()
