"""Says once that a broker is away, and once that it is back, however often that is noticed in between."""

from __future__ import annotations

import logging

log = logging.getLogger(__name__)


class Outage:
    def __init__(self, group: str) -> None:
        self._group = group
        self._on = False
        self._waited_for: set[str] = set()

    def begin(self, error: str) -> None:
        """`error` without secrets."""
        if not self._on:
            self._on = True
            log.warning("feed is disturbed", extra={"group": self._group, "error": error})

    def end(self) -> None:
        if self._on:
            self._on = False
            log.info("feed is well again", extra={"group": self._group})

    def wait_for(self, what: str) -> None:
        """Something is not there yet and may come; once for each."""
        if what not in self._waited_for:
            self._waited_for.add(what)
            log.warning("feed waits for what is not there yet", extra={"group": self._group, "missing": what})
