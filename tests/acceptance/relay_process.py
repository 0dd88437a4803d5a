"""`outspark relay`, or `outspark inbox …`, as a process of its own: started, asked over HTTP, signalled, killed."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from tests.waiting import wait_for

CLI = (sys.executable, "-m", "outspark")
# Starting Spark takes 10 to 20 seconds on two cores, and much more while others use them too.
START = 150.0
STOP = 30.0
LOG_TAIL = 200

_FOREIGN = ("OUTSPARK", "OTEL_", "SPARK_", "PYSPARK_", "STORAGE_", "PUBLISHER_", "PG", "NATS_")
_COMPLAINT = re.compile(r"^\S+ (?:WARNING|ERROR|CRITICAL)\s.*", re.MULTILINE)
_PORT = re.compile(r"server is listening host=\S+ port=(\d+)")


class Answer(NamedTuple):
    status: int
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)


class RelayProcess:
    """Runs in a session of its own, as under a supervisor or in a terminal; its JVM is in another."""

    def __init__(
        self,
        folder: Path,
        *args: str,
        environ: Mapping[str, str] | None = None,
        launcher: Sequence[str] = CLI,
        command: Sequence[str] = ("relay",),
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="relay-", dir=folder))
        self._stdout, self._stderr = self.folder / "stdout", self.folder / "stderr"
        given = dict(environ or {})
        port = {} if "SERVER_PORT" in given else {"OUTSPARK__SERVER__PORT": "0"}
        with self._stdout.open("wb") as stdout, self._stderr.open("wb") as stderr:
            self._process = subprocess.Popen(
                [*launcher, *command, *args],
                cwd=self.folder,
                env={**clean_environ(), **port, **given},
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def log(self) -> str:
        return self._stderr.read_text(errors="replace")

    @property
    def complaints(self) -> list[str]:
        """The lines of the log that are warnings or worse."""
        return _COMPLAINT.findall(self.log)

    @property
    def stdout(self) -> str:
        return self._stdout.read_text()

    def get(self, path: str) -> Answer:
        """Status 0 when nobody answers."""
        port = wait_for(self._port, timeout=START, what="a port in the log")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=15) as response:
                return Answer(response.status, response.read().decode())
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, error.read().decode())
        except OSError as error:
            return Answer(0, str(error))

    def metric(self, name: str, **labels: str) -> float:
        """The sum of its samples that carry these labels; 0 without any."""
        return sum(
            sample.value
            for family in text_string_to_metric_families(self.get("/metrics").text)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def await_working(self, slots: int = 8) -> None:
        """Returns when the lanes own this many slots."""

        def works() -> bool:
            self._ended()
            return self.get("/stats").status == 200 and self.metric("outspark_slots_owned") >= slots

        wait_for(works, timeout=START, what="ownership of all slots")

    def await_log(self, text: str, timeout: float = START) -> None:
        wait_for(lambda: text in self.log, timeout=timeout, what=f"{text!r} in the log")

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def send_to_group(self, number: signal.Signals) -> None:
        """As a terminal does it."""
        os.killpg(self.pid, number)

    @property
    def jvm(self) -> int:
        return wait_for(lambda: children(self.pid, "java"), what="the JVM")[0]

    def family(self) -> list[int]:
        """This process and all that it started, its JVM and the lanes' processes among them; children first."""
        return [*descendants(self.pid), self.pid]

    def wait(self, timeout: float = STOP) -> int:
        return self._process.wait(timeout)

    def stop(self, number: signal.Signals = signal.SIGTERM, timeout: float = STOP) -> int:
        self.send(number)
        return self.wait(timeout)

    def kill(self) -> None:
        """SIGKILL for the driver and its JVM."""
        jvms = children(self.pid, "java")
        self.send_to_group(signal.SIGKILL)
        for jvm in jvms:
            with contextlib.suppress(ProcessLookupError):
                os.kill(jvm, signal.SIGKILL)
        self.wait()

    def close(self) -> None:
        if self.running:
            self.kill()

    def _port(self) -> str | None:
        self._ended()
        found = _PORT.search(self.log)
        return found[1] if found else None

    def _ended(self) -> None:
        if not self.running:
            raise AssertionError(f"the relay has ended with code {self._process.returncode}")


StartRelay = Callable[..., RelayProcess]


@contextmanager
def relays(folder: Path) -> Iterator[StartRelay]:
    """A function that starts relays; at the end they are killed, and what they logged is shown with a failure."""
    started: list[RelayProcess] = []

    def start(*args: str, **kwargs: Any) -> RelayProcess:
        started.append(RelayProcess(folder, *args, **kwargs))
        return started[-1]

    try:
        yield start
    finally:
        for relay in started:
            relay.close()
            tail = "\n".join(relay.log.splitlines()[-LOG_TAIL:])
            print(f"--- log of relay {relay.pid} ---\n{tail}", file=sys.stderr)


def clean_environ() -> dict[str, str]:
    """Ours without anything that would change what a relay does."""
    return {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}


def children(pid: int, name: str = "") -> list[int]:
    """Those that run a program of this name; none when the process is gone."""
    try:
        pids = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        return [child for child in pids if name in os.readlink(f"/proc/{child}/exe")]
    except OSError:
        return []


def descendants(pid: int) -> list[int]:
    return [one for child in children(pid) for one in (*descendants(child), child)]
