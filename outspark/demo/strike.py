"""An accident of the demo: in the middle of the work one lane's process is killed, and its return is timed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from queue import SimpleQueue

from outspark.demo.kill import Kill, Mortal
from outspark.demo.report import Incident

_BACK_WITHIN = 30.0
_POLL = 0.02


class Strike:
    """Works in a thread of its own. `news` are milestones, to be told by the main thread."""

    def __init__(
        self, whose: str, victims: Callable[[], AbstractContextManager[Mortal]], after: float
    ) -> None:
        """`whose` lanes they are, as people call it; `after` so many seconds."""
        self._whose, self._victims, self._after = whose, victims, after
        self._error: Exception | None = None
        self._incident: Incident | None = None
        self.news: SimpleQueue[tuple[str, bool]] = SimpleQueue()
        self.down: Kill | None = None
        """While nobody hosts the killed lane."""
        self._thread = threading.Thread(target=self._run, name=f"demo-strike-{whose}", daemon=True)
        self._thread.start()

    @property
    def over(self) -> bool:
        return not self._thread.is_alive()

    def incident(self) -> Incident | None:
        """None when no lane could be killed, or it did not come back; raises what went wrong otherwise."""
        if self._error is not None:
            raise self._error
        return self._incident

    def _run(self) -> None:
        time.sleep(self._after)
        try:
            with self._victims() as victims:
                kill = victims.kill()
                if kill is not None:
                    self._incident = self._watch(kill)
        except Exception as error:  # noqa: BLE001 - told by `incident`
            self._error = error

    def _watch(self, kill: Kill) -> Incident | None:
        self.down = kill
        where = "in the middle of a batch" if kill.mid_batch else "between two batches"
        self.news.put(
            (f"SIGKILL to worker {kill.pid}, which hosted {kill.lane} of the {self._whose}, {where}", True)
        )
        while (pid := kill.back()) is None:
            if time.monotonic() > kill.at + _BACK_WITHIN:
                return None
            time.sleep(_POLL)
        seconds = time.monotonic() - kill.at
        self.down = None
        self.news.put(
            (f"{kill.lane} of the {self._whose} works again in worker {pid}, {seconds:.1f} s later", False)
        )
        return Incident(kill.lane, kill.pid, kill.mid_batch, round(seconds, 2))
