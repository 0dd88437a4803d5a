"""A child process: its own session, a log file, and a guard that ends it when this process is gone.

The session keeps Ctrl-C in the terminal away from the server, so that the application can shut down first.
The guard is a shell that waits on a pipe from this process: however this process ends, by SIGKILL too, the pipe
closes, and the guard stops the server.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from outspark.errors import ServerStartError

# $1 signal, $2 pid, $3 folder to remove or nothing. A line on stdin: this process stopped the server itself.
_GUARD = """
read -r _ && exit
kill -s "$1" "$2"
tries=0
while [ "$tries" -lt 100 ] && kill -s 0 "$2" 2>/dev/null; do sleep 0.1; tries=$((tries + 1)); done
[ -z "$3" ] || rm -rf "$3"
"""
_POLL = 0.01
_TAIL_LINES = 20


@dataclass(frozen=True, slots=True)
class Account:
    """The operating system's user that a server runs as, when that is not the user of this process."""

    name: str
    uid: int
    gid: int


class RunAs(TypedDict):
    user: int | None
    group: int | None
    extra_groups: list[int] | None


def run_as(account: Account | None) -> RunAs:
    """The arguments of `subprocess` that make a child run as this account; None is the account of this process."""
    if account is None:
        return RunAs(user=None, group=None, extra_groups=None)
    return RunAs(user=account.uid, group=account.gid, extra_groups=[])


def packaged_program(name: str) -> Path:
    """The program of a server that Debian packages under the same name."""
    # Debian keeps servers in sbin, which is not on every user's path.
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"])
    found = shutil.which(name, path=path)
    if found is None:
        raise ServerStartError(f"there is no {name} on this machine; run: apt install {name}")
    return Path(found)


class GuardedProcess:
    """Runs in `folder` and logs to its server.log. `discard`: the folder is removed too when this process dies.

    `environment` comes on top of this process's own.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        folder: Path,
        stop_signal: signal.Signals,
        account: Account | None = None,
        discard: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = Path(argv[0]).name
        self._log = folder / "server.log"
        self._stop_signal = stop_signal
        with self._log.open("ab") as log:
            self._log_start = log.tell()
            self._process = subprocess.Popen(
                argv,
                cwd=folder,
                env={**os.environ, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **run_as(account),
            )
        trash = str(folder) if discard else ""
        self._guard = subprocess.Popen(
            ["sh", "-c", _GUARD, "guard", stop_signal.name.removeprefix("SIG"), str(self.pid), trash],
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            **run_as(account),
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def await_ready(self, ready: Callable[[], bool], timeout: float) -> None:
        """Returns once `ready` says so; otherwise ends the process and raises ServerStartError."""
        deadline = time.monotonic() + timeout
        while self.running and time.monotonic() < deadline:
            if ready():
                return
            time.sleep(_POLL)
        problem = (
            f"was not ready within {timeout:g} s"
            if self.running
            else f"ended with code {self._process.poll()}"
        )
        self.stop(signal.SIGKILL, timeout=timeout)
        raise ServerStartError(f"{self.name} {problem}; its log ends with:\n{self._tail()}")

    def stop(self, number: signal.Signals | None = None, *, timeout: float) -> None:
        """Ends the process by this signal or its own stop signal, and by SIGKILL when that takes too long."""
        self._process.send_signal(number or self._stop_signal)
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._dismiss_guard()

    def _dismiss_guard(self) -> None:
        # The guard may have gone by itself, e.g. when every process of its user was killed.
        with contextlib.suppress(BrokenPipeError):
            self._guard.communicate(b"\n")

    def _tail(self) -> str:
        with self._log.open("rb") as log:
            log.seek(self._log_start)
            lines = log.read().decode(errors="replace").splitlines()
        return "\n".join(lines[-_TAIL_LINES:]) or "(nothing)"
