"""From a broker's feed into the inbox: poll, accept, and tell the broker, in the order that the strategy asks for."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass

import psycopg

from outspark.brokers import open_feed
from outspark.brokers.feed import Feed, Received
from outspark.config.inbox import InboxSettings, Strategy
from outspark.database.session import connect
from outspark.errors import FeedFailed, OutsparkError, PartitionMissing
from outspark.hosting.shift import Stopping
from outspark.inbox.intake.acceptor import Acceptor
from outspark.inbox.intake.batch import Accepted
from outspark.observability.causes import Causes, Trouble
from outspark.observability.metrics import INBOX_INTAKE_FAILURES_TOTAL, Tally

LAZY_BATCHES = 3
"""In a flood, those whose commit does not wait for the disk, before one that does."""


@dataclass(slots=True)
class _Run:
    """Messages of one batch and one partition, in their order, and the ids of those that are not at their end."""

    messages: list[Received]
    open: set[str]


class Intake:
    """Takes in from one feed. `run_once` polls once; what is not committed by then comes again after a restart.

    In a flood the next batch is polled while the database takes the one before, by a thread of its own, which `close`
    ends. The feed is to be closed after that.
    """

    def __init__(
        self,
        feed: Feed,
        acceptor: Acceptor,
        strategy: Strategy = Strategy.EXACTLY_ONCE,
        *,
        batch_size: int = 1000,
        max_open: int = 10_000,
    ) -> None:
        self._feed = feed
        self._acceptor = acceptor
        self._strategy = strategy
        self._batch_size = batch_size
        self._max_open = max_open
        self._kept: list[Received] = []
        """Accepted lazily: the broker hears of them once they are safe."""
        self._batch: Sequence[Received] = ()
        """Polled and not accepted yet: the feed would not give it again."""
        self._ahead: Future[Sequence[Received]] | None = None
        """The next batch, polled while the one before was accepted."""
        self._poller = ThreadPoolExecutor(1, "outspark intake")
        self._runs: dict[tuple[str, int], deque[_Run]] = {}
        """What waits for its end, by partition."""

    @property
    def open(self) -> int:
        """Messages that are kept, and that the broker has not heard of because they are not at their end."""
        return sum(len(run.messages) for runs in self._runs.values() for run in runs)

    def run_once(self, timeout: float = 0.0) -> list[Accepted]:
        """Take in what the feed has, at most a batch. After an error the same batch is tried again."""
        self._commit_final()
        if not self._batch:
            if self.open >= self._max_open:
                self._feed.hold(timeout)
                return []
            self._batch = self._poll(timeout)
        if not self._batch:
            return []
        messages, acknowledge = self._batch, self._strategy.acknowledge
        if acknowledge == "first":
            self._feed.commit(messages)
        flood = acknowledge == "kept" and len(messages) == self._batch_size
        async_commit = flood and self._may_be_lazy()
        if flood and self._ahead is None:
            self._ahead = self._poller.submit(self._feed.poll, self._batch_size, 0.0)
        try:
            outcomes = self._acceptor.accept(messages, async_commit=async_commit)
        finally:
            self._await_poller()
        self._batch = ()
        if acknowledge == "kept":
            self._kept += messages
            if not async_commit:
                self._tell()
        elif acknowledge == "final":
            self._await_end(messages)
            self._commit_final()
        return outcomes

    def flush(self) -> None:
        """Make safe what was accepted lazily, and tell the broker."""
        if self._kept:
            self._acceptor.flush()
            self._tell()

    def close(self) -> None:
        self._poller.shutdown()

    def _poll(self, timeout: float) -> Sequence[Received]:
        """Before it waits for more, the broker hears of what it may be waiting for itself."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None and (found := ahead.result()):
            return found
        if self._kept:
            if found := self._feed.poll(self._batch_size, 0.0):
                return found
            self.flush()
        return self._feed.poll(self._batch_size, timeout)

    def _await_poller(self) -> None:
        """Until the feed may be called again. What the poll failed with comes out of the next one."""
        if self._ahead is not None:
            wait([self._ahead])

    def _may_be_lazy(self) -> bool:
        """In a flood one commit in a few waits for the disk, and makes those before it safe with it.

        If the server crashes first, the session is lost, and with it this intake: the feed starts anew, and gives again
        all that it was not told of.
        """
        return len(self._kept) < LAZY_BATCHES * self._batch_size

    def _tell(self) -> None:
        kept, self._kept = self._kept, []
        self._feed.commit_soon(kept)

    def _await_end(self, messages: Sequence[Received]) -> None:
        """Of duplicates too: whoever delivered them first may not have come to their end."""
        parts: defaultdict[tuple[str, int], list[Received]] = defaultdict(list)
        for message in messages:
            parts[message.log or message.topic, message.partition].append(message)
        for partition, part in parts.items():
            ids = {self._acceptor.reader.message_id(message) for message in part}
            self._runs.setdefault(partition, deque()).append(_Run(part, ids))

    def _commit_final(self) -> None:
        """In the order of each partition, because a commit speaks for all that came before."""
        while heads := self._heads():
            still_open = self._acceptor.unsettled(sorted(set().union(*(run.open for run in heads))))
            for run in heads:
                run.open &= still_open
            final = [message for run in heads if not run.open for message in run.messages]
            if not final:
                return
            self._feed.commit(final)

    def _heads(self) -> list[_Run]:
        """The first of each partition that is not done with. What is not ours any more comes to its new owner."""
        for partition, runs in list(self._runs.items()):
            while runs and (not runs[0].open or not self._feed.owns(runs[0].messages[0])):
                runs.popleft()
            if not runs:
                del self._runs[partition]
        return [runs[0] for runs in self._runs.values()]


POLL_TIMEOUT = 0.2
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0

# What may pass by itself; anything else is a fault of the settings, the table or ours, and comes out.
_PASSING = (psycopg.OperationalError, psycopg.InterfaceError, FeedFailed, PartitionMissing)


class Consumer:
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
