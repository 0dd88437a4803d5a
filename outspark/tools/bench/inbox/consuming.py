"""Consuming: the same messages, half of them copies, by lanes from Kafka, or by plain clients from memory."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from subprocess import Popen
from typing import TYPE_CHECKING, Literal, Protocol, Self

import psycopg

from outspark.errors import OutsparkError
from outspark.tools.bench.backlog import Connection, Drained
from outspark.tools.bench.children import Children, tell
from outspark.tools.bench.drain import SLOWEST, Sample
from outspark.tools.bench.hosts import GROUP, InboxHosts
from outspark.tools.bench.inbox.messages import Load
from outspark.tools.bench.plan import Plan
from outspark.tools.bench.processes import Meter
from outspark.tools.bench.servers import Arena
from outspark.tools.bench.tables import INBOX
from outspark.tools.brokers import Broker

if TYPE_CHECKING:
    from outspark.tools.bench.kafka_log import KafkaLog

POLL = 0.05
PROBE = 200
"""Messages that show whether all lanes that were stopped work again."""
# The group must not expel a consumer that is stopped while others are measured.
PATIENT = {"session.timeout.ms": 1_200_000, "max.poll.interval.ms": 3_600_000}

CLEAR = """
-- An empty inbox
TRUNCATE inbox_events"""

COUNT = """
-- Events that were stored, and all that do not simply wait for their handlers
SELECT count(*), count(*) FILTER (WHERE status <> 'pending' OR attempts_made > 0) FROM inbox_events"""


@dataclass(frozen=True, slots=True)
class ConsumeCase:
    host: Literal["ceiling", "bare", "spark"]
    messages: int

    @property
    def source(self) -> str:
        return "memory" if self.host == "ceiling" else "from kafka"

    def __str__(self) -> str:
        return f"{self.host}, {self.source}, {self.messages:,} messages"


class Consumer(Protocol):
    """Consumes a load. `load` prepares it, `go` reveals it."""

    @property
    def pids(self) -> tuple[int, ...]: ...

    def load(self, load: Load) -> None: ...

    def go(self) -> None: ...

    def is_done(self) -> bool: ...

    def wake(self) -> None:
        """Work again after a pause."""
        ...

    def pause(self) -> None: ...

    def check(self) -> None: ...

    def handovers(self) -> int: ...


@dataclass(slots=True)
class PlainClients:
    """The ceiling: as many processes as lanes, each with its part of the rows ready as parameters."""

    url: str
    plan: Plan
    _children: Children = field(default_factory=Children)
    _processes: list[Popen[str]] = field(default_factory=list)
    _done: list[threading.Event] = field(default_factory=list)

    @property
    def pids(self) -> tuple[int, ...]:
        return self._children.pids

    def __enter__(self) -> Self:
        order = {"url": self.url, "table": str(INBOX.outbox), "group": GROUP, "clients": self.plan.lanes}
        for client in range(self.plan.lanes):
            module = "outspark.tools.bench.inbox.plain_client"
            self._processes.append(self._children.start(module, {**order, "client": client}, answers=True))
        return self

    def __exit__(self, *exc: object) -> None:
        self._children.close()

    def load(self, load: Load) -> None:
        for process in self._processes:
            tell(process, asdict(load))
        for process in self._processes:
            self._expect(process, "ready")

    def go(self) -> None:
        self._done = [threading.Event() for _ in self._processes]
        for process, done in zip(self._processes, self._done, strict=True):
            tell(process, {})
            threading.Thread(target=self._await, args=(process, done), daemon=True).start()

    def is_done(self) -> bool:
        return all(done.is_set() for done in self._done)

    def wake(self) -> None:
        self._children.resume()

    def pause(self) -> None:
        self._children.pause()

    def check(self) -> None:
        self._children.check()

    def handovers(self) -> int:
        return 0

    def _await(self, process: Popen[str], done: threading.Event) -> None:
        assert process.stdout is not None
        if process.stdout.readline().strip() == "done":
            done.set()

    def _expect(self, process: Popen[str], word: str) -> None:
        assert process.stdout is not None
        if process.stdout.readline().strip() != word:
            raise OutsparkError(f"a client did not say {word}; its log ends with:\n{self._children.tail()}")


@dataclass(slots=True)
class ConsumingLanes:
    """Lanes that consume a topic of Kafka, bare or on Spark."""

    host: Literal["bare", "spark"]
    url: str
    plan: Plan
    broker: Broker
    _open: ExitStack = field(default_factory=ExitStack)
    _log: KafkaLog = field(init=False)
    _hosts: InboxHosts = field(init=False)

    @property
    def pids(self) -> tuple[int, ...]:
        return self._hosts.pids

    def __enter__(self) -> Self:
        from outspark.tools.bench.kafka_log import KafkaLog

        # Lanes have the same names everywhere, and in one group these would be the same members.
        group = f"{GROUP}-{self.host}"
        self._log = KafkaLog(self.broker, group)
        self._open.callback(self._log.close)
        feed = {
            "type": "kafka",
            "url": self.broker.url,
            "topics": [self._log.topic],
            "batch_size": self.plan.batch,
            "options": PATIENT,
        }
        self._hosts = InboxHosts(self.host, self.url, self.plan, "consume", group, feed)
        self._open.enter_context(self._hosts)
        return self

    def __exit__(self, *exc: object) -> None:
        self._open.close()

    def load(self, load: Load) -> None:
        self._log.write(load)

    def go(self) -> None:
        self._log.reveal()

    def is_done(self) -> bool:
        return self._log.is_consumed()

    def wake(self) -> None:
        """A lane that was stopped is late for its hand-over. A few messages show when each partition has a lane."""
        self._hosts.resume()
        self.load(_load(self.plan, PROBE))
        self.go()
        await_done(self, PROBE)

    def pause(self) -> None:
        self._hosts.pause()

    def check(self) -> None:
        self._hosts.check()

    def handovers(self) -> int:
        return self._hosts.handovers()


@dataclass(slots=True)
class ConsumeStand:
    """A case with a database and a consumer of its own, up from the first round to the last."""

    arena: Arena
    case: ConsumeCase
    _open: ExitStack = field(default_factory=ExitStack)
    conn: Connection = field(init=False)
    _consumer: PlainClients | ConsumingLanes = field(init=False)
    _broker: Broker | None = None

    def __enter__(self) -> Self:
        arena, host = self.arena, self.case.host
        with ExitStack() as stack:
            url = stack.enter_context(arena.database(INBOX))
            self.conn = psycopg.connect(url, autocommit=True, application_name="outspark bench")
            stack.enter_context(self.conn)
            if host == "ceiling":
                self._consumer = PlainClients(url, arena.plan)
            else:
                self._broker = stack.enter_context(arena.broker("kafka"))
                self._consumer = ConsumingLanes(host, url, arena.plan, self._broker)
            stack.enter_context(self._consumer)
            self._consumer.pause()
            self._open = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._open.close()

    def drain(self) -> Sample:
        """The consumer waits, warm; then the messages are revealed, and the clock starts."""
        consumer, broker, messages = self._consumer, self._broker, self.case.messages
        consumer.wake()
        self.conn.execute(CLEAR)
        load = _load(self.arena.plan, messages)
        consumer.load(load)
        self.conn.execute("CHECKPOINT")
        roots = {"ours": consumer.pids, "postgres": [self.arena.server.pid]}
        if broker is not None:
            roots["broker"] = [broker.pid]
        before = consumer.handovers()
        with Meter(roots) as meter:
            began = time.monotonic()
            consumer.go()
            await_done(consumer, messages)
            seconds = time.monotonic() - began
        handovers = consumer.handovers() - before
        consumer.pause()
        self.verify(load)
        title = broker.title if broker is not None else "broker"
        return Sample(Drained(messages, [seconds]), meter.usage, meter.seconds, handovers, title)

    def verify(self, load: Load) -> None:
        """OutsparkError unless each different message has one row, which waits."""
        row = self.conn.execute(COUNT).fetchone()
        if row != (load.different, 0):
            raise OutsparkError(
                f"of {load.different} different messages, (stored, not as they should be) are {row}"
            )


def await_done(consumer: Consumer, messages: int) -> None:
    deadline = time.monotonic() + 60 + messages / SLOWEST
    while not consumer.is_done():
        consumer.check()
        if time.monotonic() >= deadline:
            raise OutsparkError(f"{messages} messages were not consumed in time")
        time.sleep(POLL)


def _load(plan: Plan, messages: int) -> Load:
    since = time.time_ns() // 1_000_000
    return Load(messages, plan.payload, plan.keys, plan.batch, since)
