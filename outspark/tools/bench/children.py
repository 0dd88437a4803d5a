"""Processes of the bench that work until their stdin is closed, and can be stopped as they are in between."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from outspark.errors import OutsparkError
from outspark.tools.bench.processes import resume, suspend

STOP_TIMEOUT = 40.0


@dataclass(slots=True)
class Children:
    """All share one log. `environ` comes on top of this process's environment."""

    environ: Mapping[str, str] = field(default_factory=dict)
    _processes: list[subprocess.Popen[str]] = field(default_factory=list)
    _log: IO[str] | None = None

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(process.pid for process in self._processes)

    def start(self, module: str, order: Mapping[str, Any], *, answers: bool = False) -> subprocess.Popen[str]:
        """Run a module, with its order as one line of JSON on stdin. `answers`: the caller reads its stdout."""
        if self._log is None:
            # The log is open until `close`.
            self._log = tempfile.NamedTemporaryFile(  # noqa: SIM115
                "w+", prefix="outspark-bench-", suffix=".log"
            )
        process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if answers else self._log,
            stderr=self._log,
            env={**os.environ, **self.environ},
            text=True,
        )
        self._processes.append(process)
        tell(process, order)
        return process

    def pause(self) -> None:
        for process in self._processes:
            suspend(process.pid)

    def resume(self) -> None:
        for process in self._processes:
            resume(process.pid)

    def check(self) -> None:
        """OutsparkError with the last lines of the log when a process has ended."""
        if any(process.poll() is not None for process in self._processes):
            raise OutsparkError(f"a process of the bench ended too early; its log ends with:\n{self.tail()}")

    def tail(self) -> str:
        if self._log is None:
            return "(no log)"
        return "\n".join(Path(self._log.name).read_text().splitlines()[-20:]) or "(nothing)"

    def close(self) -> None:
        self.resume()
        for process in self._processes:
            if process.stdin is not None:
                process.stdin.close()
        for process in self._processes:
            _end(process)
        if self._log is not None:
            self._log.close()


def tell(process: subprocess.Popen[str], order: Mapping[str, Any]) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps(order) + "\n")
    process.stdin.flush()


def _end(process: subprocess.Popen[str]) -> None:
    try:
        process.wait(STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()
