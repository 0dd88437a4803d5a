"""Consumes messages from a feed: poll, accept into the inbox, acknowledge, in the order that the strategy asks for."""

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

ASYNC_BATCHES = 3
"""While full batches arrive, this many commit without waiting for the disk before one that waits."""


@dataclass(slots=True)
class _Pending:
    """Messages of one batch and one partition, in order, and the ids of those that are neither completed nor dead."""

    messages: list[Received]
    open: set[str]


class Intake:
    """Consumes messages from one feed. `run_once` polls once; the broker redelivers what was not acknowledged.

    While full batches arrive, a thread polls the next batch while the database accepts the current one. `close` ends
    that thread; the caller closes the feed after it.
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
        self._unacknowledged: list[Received] = []
        """Accepted without waiting for the disk; they are acknowledged after a commit that waited."""
        self._batch: Sequence[Received] = ()
        """Polled and not accepted yet. The feed does not return it a second time, so it is kept here after an error."""
        self._ahead: Future[Sequence[Received]] | None = None
        """The poll for the next batch, running while the current one is accepted."""
        self._poller = ThreadPoolExecutor(1, "outspark intake")
        self._pending: dict[tuple[str, int], deque[_Pending]] = {}
        """Accepted messages whose handlers have not finished, by partition, in order."""

    @property
    def open(self) -> int:
        """Number of accepted messages that are not acknowledged because their handlers have not finished."""
        return sum(len(one.messages) for queue in self._pending.values() for one in queue)

    def run_once(self, timeout: float = 0.0) -> list[Accepted]:
        """Poll the feed and accept at most one batch. After an error the next call accepts the same batch again."""
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
            # At most once: the broker must not redeliver, whatever happens to the batch from here on.
            self._feed.commit(messages)
        flood = acknowledge == "kept" and len(messages) == self._batch_size
        async_commit = flood and self._may_commit_async()
        if flood and self._ahead is None:
            self._ahead = self._poller.submit(self._feed.poll, self._batch_size, 0.0)
        # A feed is for one thread at a time, so nothing else calls the feed until the poller is done.
        try:
            outcomes = self._acceptor.accept(messages, async_commit=async_commit)
        finally:
            self._await_poller()
        self._batch = ()
        if acknowledge == "kept":
            self._unacknowledged += messages
            if not async_commit:
                self._acknowledge()
        elif acknowledge == "final":
            self._add_pending(messages)
            self._commit_final()
        return outcomes

    def flush(self) -> None:
        """Wait until every accepted message is on disk, then acknowledge them all."""
        if self._unacknowledged:
            self._acceptor.flush()
            self._acknowledge()

    def close(self) -> None:
        self._poller.shutdown()

    def _poll(self, timeout: float) -> Sequence[Received]:
        """Acknowledge before waiting: a broker with a limit on unacknowledged messages may be waiting for that."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None and (found := ahead.result()):
            return found
        if self._unacknowledged:
            if found := self._feed.poll(self._batch_size, 0.0):
                return found
            self.flush()
        return self._feed.poll(self._batch_size, timeout)

    def _await_poller(self) -> None:
        """Wait until the feed may be called again. The next `_poll` raises the error of a failed poll."""
        if self._ahead is not None:
            wait([self._ahead])

    def _may_commit_async(self) -> bool:
        """While full batches arrive, one commit in a few waits for the disk, which covers the commits before it.

        If the server crashes before, the session and this intake are lost: the consumer opens the feed again, and the
        broker redelivers every message that was not acknowledged.
        """
        return len(self._unacknowledged) < ASYNC_BATCHES * self._batch_size

    def _acknowledge(self) -> None:
        messages, self._unacknowledged = self._unacknowledged, []
        self._feed.commit_soon(messages)

    def _add_pending(self, messages: Sequence[Received]) -> None:
        """Duplicates wait too: the first delivery of the same message may still be in a handler's hands."""
        parts: defaultdict[tuple[str, int], list[Received]] = defaultdict(list)
        for message in messages:
            parts[message.log or message.topic, message.partition].append(message)
        for partition, part in parts.items():
            ids = {self._acceptor.reader.message_id(message) for message in part}
            self._pending.setdefault(partition, deque()).append(_Pending(part, ids))

    def _commit_final(self) -> None:
        """Acknowledge finished messages in partition order: a commit of an offset covers all offsets before it."""
        while heads := self._heads():
            still_open = self._acceptor.unsettled(sorted(set().union(*(head.open for head in heads))))
            for head in heads:
                head.open &= still_open
            final = [message for head in heads if not head.open for message in head.messages]
            if not final:
                return
            self._feed.commit(final)

    def _heads(self) -> list[_Pending]:
        """The first unfinished batch of each partition.

        Batches of a partition that this consumer lost are dropped: the broker redelivers them to the new owner.
        """
        for partition, queue in list(self._pending.items()):
            while queue and (not queue[0].open or not self._feed.owns(queue[0].messages[0])):
                queue.popleft()
            if not queue:
                del self._pending[partition]
        return [queue[0] for queue in self._pending.values()]


POLL_TIMEOUT = 0.2
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0

# Errors after which the consumer tries again; any other error is a fault of the settings, the table or Outspark.
_TRANSIENT = (psycopg.OperationalError, psycopg.InterfaceError, FeedFailed, PartitionMissing)


class Consumer:
    """One consumer of one inbox. After a failure it opens connection and feed again; the broker redelivers.

    `member` is its name in the consumer group; no other consumer may use the same name at the same time.
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
        self._failing = f"consuming messages failed; trying again: {settings.group}"

    def run(self, stopping: Stopping) -> None:
        while not stopping.is_set():
            try:
                self._run(stopping)
            except _TRANSIENT as error:
                self._causes.raise_(self._failing, " ".join(str(error).split()) or type(error).__name__)
                self.tally.add(INBOX_INTAKE_FAILURES_TOTAL, group=self._settings.group)
                stopping.wait(self._pause)
                self._pause = min(self._pause * 2, LONGEST_PAUSE)

    def _run(self, stopping: Stopping) -> None:
        settings = self._settings
        if settings.feed is None:
            raise OutsparkError(f"the inbox of group {settings.group} has no feed to consume messages from")
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
                accepted = intake.run_once(POLL_TIMEOUT)
                self._causes.clear(self._failing)
                if accepted:
                    self._pause = FIRST_PAUSE
                elif intake.open:
                    # Open messages are acknowledged when their handlers finish, in workers elsewhere.
                    stopping.wait(POLL_TIMEOUT)
            intake.flush()
