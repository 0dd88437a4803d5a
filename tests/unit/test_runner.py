"""Signals: the first asks to stop, the second ends the process, however close behind it comes."""

from __future__ import annotations

import signal
import subprocess
import sys

# A signal that arrives while the first is being answered, at the moment when its line is written.
_TWICE = """
import logging, os, signal
from outspark.runner import _Stop

class Again(logging.Handler):
    def emit(self, record):
        print(record.getMessage(), flush=True)
        os.kill(os.getpid(), signal.SIGTERM)

logging.basicConfig(level=logging.INFO, handlers=[Again()])
stop = _Stop()
stop.listen()
assert not stop.asked
os.kill(os.getpid(), signal.SIGINT)
print("went on")
"""


def test_a_second_signal_ends_the_process_while_the_first_is_answered() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _TWICE], check=False, capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 128 + signal.SIGTERM, ended.stderr
    assert ended.stdout.splitlines() == ["shutting down; send the signal again to exit immediately"]
