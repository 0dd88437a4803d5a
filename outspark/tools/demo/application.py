"""A relay or an inbox as a user would run it: `outspark …` in a process of its own, with a settings file and a log."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from http.client import HTTPException
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from outspark.tools.brokers import Broker
from outspark.tools.servers.process import GuardedProcess
from outspark.tools.servers.server import HOST, free_port

RELAY = """\
[sources.shop]
url = "{database}"
slots = {slots}

[destinations.{broker.name}]
type = "{broker.name}"
url = "{broker.url}"
{routing}"""

INBOX = """\
[inboxes.{name}]
url = "{database}"
table = "{table}"
group = "{name}"
app = "{app}"

[inboxes.{name}.feed]
type = "{broker.name}"
url = "{broker.url}"
topics = ["{topic}"]

[inboxes.{name}.work]
poll_interval = "50ms"
unhandled = "skip"
"""

_FRAME = """\
[hosting]
lanes = {lanes}

[relay]
id = "{id}"

[server]
port = {port}

"""

ID, LANES, SLOTS = "demo", 2, 8
_ANSWER_TIMEOUT = 2.0
_GROUP_TIMEOUT = 2.0
_POLL = 0.01
_TAIL = 15


class Application:
    """Runs from construction to `stop`. Its folder holds the settings, the log and all that Spark leaves behind."""

    def __init__(self, kind: str, command: Sequence[str], settings: str) -> None:
        """`kind` is `relay` or `inbox`; `settings` are those that the other does not have."""
        self.kind = kind
        self.folder = Path(tempfile.mkdtemp(prefix="outspark-demo-"))
        self.config = self.folder / "outspark.toml"
        self.log = self.folder / "server.log"
        port = free_port()
        self.url = f"http://{HOST}:{port}"
        self.config.write_text(_FRAME.format(id=ID, lanes=LANES, port=port) + settings)
        program = [*_environment(self.folder), sys.executable, "-m", "outspark"]
        self._process = GuardedProcess(
            [*program, *command, "--config", str(self.config)],
            folder=self.folder,
            stop_signal=signal.SIGTERM,
            discard=True,
        )
        self._stopped = False

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def failed(self) -> bool:
        """The application ended without `stop`."""
        return not self._stopped and not self._process.running

    def ready(self) -> bool:
        """True once database and broker are reachable for it."""
        try:
            with urlopen(f"{self.url}/readyz", timeout=_ANSWER_TIMEOUT) as answer:
                return bool(answer.status == 200)
        except (URLError, HTTPException, OSError):
            return False

    def tail(self) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-_TAIL:])

    def save_log(self) -> Path:
        """A copy of the log that outlives the demo."""
        handle, name = tempfile.mkstemp(prefix=f"outspark-demo-{self.kind}-", suffix=".log")
        os.close(handle)
        shutil.copy(self.log, name)
        return Path(name)

    def stop(self, timeout: float) -> None:
        """By SIGTERM, and after `timeout` by SIGKILL, with all that the application started. Harmless when stopped."""
        if self._stopped:
            return
        self._stopped = True
        self._process.stop(timeout=timeout)
        # What is left of its process group must not write into the folder while that is removed.
        deadline = time.monotonic() + _GROUP_TIMEOUT
        with contextlib.suppress(ProcessLookupError):
            while time.monotonic() < deadline:
                os.killpg(self._process.pid, signal.SIGKILL)
                time.sleep(_POLL)

    def close(self, timeout: float) -> None:
        self.stop(timeout)
        shutil.rmtree(self.folder, ignore_errors=True)


def start_relay(database: str, broker: Broker, topic: str) -> Application:
    settings = RELAY.format(database=database, slots=SLOTS, broker=broker, routing=broker.routing(topic))
    return Application("relay", ["relay"], settings)


def start_inbox(database: str, broker: Broker, topic: str, *, name: str, table: str, app: str) -> Application:
    settings = INBOX.format(database=database, broker=broker, topic=topic, name=name, table=table, app=app)
    return Application("inbox", ["inbox", "run"], settings)


def _environment(folder: Path) -> list[str]:
    """A command before the command: settings come only from the file, and temporary files go only to the folder."""
    set_here = [name for name in os.environ if name.upper().startswith("OUTSPARK_")]
    unset = [flag for name in set_here for flag in ("-u", name)]
    return ["env", *unset, f"TMPDIR={folder}", f"SPARK_LOCAL_DIRS={folder}", "PYTHONUNBUFFERED=1"]
