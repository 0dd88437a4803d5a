"""Takes messages in for as long as it is let, through losses of the broker and of the database."""

from __future__ import annotations

from contextlib import ExitStack

import psycopg

from outspark.causes import Causes, Trouble
from outspark.errors import FeedFailed, OutsparkError, PartitionMissing
from outspark.inbox.accept import Acceptor
from outspark.inbox.feeds import open_feed
from outspark.inbox.intake import Intake
from outspark.inbox.stopping import Stopping
from outspark.metrics import INBOX_INTAKE_FAILURES_TOTAL, Tally
from outspark.relay.connection import connect
from outspark.settings.inbox import InboxSettings

POLL_TIMEOUT = 0.2
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0

# What may pass by itself; anything else is a fault of the settings, the table or ours, and comes out.
_PASSING = (psycopg.OperationalError, psycopg.InterfaceError, FeedFailed, PartitionMissing)


class Taker:
    """One consumer of one inbox. After a failure all is opened anew: what was not committed comes again.

    `member` names it in its consumer group, and nobody else must have the same name at the same time.
    """

    def __init__(
        self,
        settings: InboxSettings,
        member: str,
        *,
        tally: Tally | None = None,
        causes: Causes | Trouble | None = None,
    ) -> None:
        self._settings = settings
        self._member = member
        self.tally = tally or Tally()
        self._pause = FIRST_PAUSE
        self._causes = Causes() if causes is None else causes
        self._failing = f"taking messages in failed; trying again: {settings.group}"

    def run(self, stopping: Stopping) -> None:
        while not stopping.is_set():
            try:
                self._run(stopping)
            except _PASSING as error:
                self._causes.raise_(self._failing, " ".join(str(error).split()) or type(error).__name__)
                self.tally.add(INBOX_INTAKE_FAILURES_TOTAL, group=self._settings.group)
                stopping.wait(self._pause)
                self._pause = min(self._pause * 2, LONGEST_PAUSE)

    def _run(self, stopping: Stopping) -> None:
        settings = self._settings
        if settings.feed is None:
            raise OutsparkError(f"the inbox of group {settings.group} has no feed to take messages from")
        with ExitStack() as stack:
            conn = stack.enter_context(connect(settings.url.get_secret_value(), f"outspark {self._member}"))
            acceptor = Acceptor(conn, settings.table, settings, self.tally)
            feed = open_feed(settings.feed, settings.group, self._member)
            stack.callback(feed.close)
            intake = Intake(
                feed,
                acceptor,
                settings.strategy,
                batch_size=settings.feed.batch_size,
                max_open=settings.feed.max_open,
            )
            stack.callback(intake.close)
            while not stopping.is_set():
                taken = intake.run_once(POLL_TIMEOUT)
                self._causes.clear(self._failing)
                if taken:
                    self._pause = FIRST_PAUSE
                elif intake.open:
                    # Handlers elsewhere have to get on first.
                    stopping.wait(POLL_TIMEOUT)
            intake.flush()
