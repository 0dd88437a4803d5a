"""Every error of Outspark, as one tree; each survives pickle, because Spark carries it between processes.

OutsparkError
├── SettingsError          a setting is missing, unknown or wrong
├── ExtraMissing           a part needs a package that is not installed
├── EventInvalid           an event cannot be enqueued or published as it is
│   └── HeadersInvalid     headers are not a JSON object
├── TransactionRequired    a message was sent outside a transaction, or in one whose commit cannot be observed
├── DatabaseRefused        a database refuses access, and a retry cannot help: a password, a name, a privilege
├── TableInvalid           the table does not fulfil its contract
├── SlotsTableMissing      `outspark_slots` does not exist and may not be created
├── DeliveriesTableMissing `outspark_deliveries` does not exist, and a route has several destinations
├── PoolerDetected         a transaction pooler is between the relay and PostgreSQL
├── ServerTooOld           PostgreSQL is older than the oldest supported version
├── PartitionMissing       a partitioned table has no partition for the present time
├── HandlerInvalid         a handler's parameters or patterns do not fit an inbox
├── FeedFailed             the broker of an inbox does not answer, or refuses a request
├── HandlerHung            handlers of this process hang, so the process has to be restarted
├── RetryLater             raised by a handler: the event is valid, try it again later
├── Reject                 raised by a handler: the event can never succeed
├── OwnershipLost          another owner has taken the slots of a lane
├── SparkLost              the Spark application ended under the relay
├── DestinationError       a destination cannot be used as it is configured
│   └── DestinationDown    a destination does not answer now, and may later
└── ServerStartError       an embedded server did not start
"""

from __future__ import annotations

from typing import Any


class OutsparkError(Exception):
    """Root of the tree. `args` are the constructor's arguments, so that pickle can rebuild every subclass."""


class SettingsError(OutsparkError):
    """The message names the key, the value and what is allowed."""


class ExtraMissing(OutsparkError):
    def __init__(self, part: str, extra: str) -> None:
        super().__init__(part, extra)
        self.part, self.extra = part, extra

    def __str__(self) -> str:
        """`extra` may be several, joined by commas."""
        lacks = "need packages that are" if "," in self.extra else "needs a package that is"
        return f"{self.part} {lacks} not installed; run: pip install 'outspark[{self.extra}]'"


class EventInvalid(OutsparkError):
    """The message says which field of which event is wrong and what is allowed."""


class HeadersInvalid(EventInvalid):
    def __init__(self, headers: Any) -> None:
        super().__init__(headers if isinstance(headers, str) else type(headers).__name__)

    def __str__(self) -> str:
        return f"headers must be a JSON object of strings, not {self.args[0]}"


class TransactionRequired(OutsparkError):
    """The message says what is missing and which call to use instead."""


class DatabaseRefused(OutsparkError):
    """The message says what the database refused and, where known, what to do about it."""


class TableInvalid(OutsparkError):
    """The message lists what the table lacks, each with the statement that fixes it."""


class SlotsTableMissing(OutsparkError):
    def __init__(self, statement: str) -> None:
        super().__init__(statement)

    def __str__(self) -> str:
        return (
            'ordering = "key" needs the table outspark_slots, and this role may not create it. '
            f'Run this as a role that may, or set ordering = "none":\n{_pasteable(self.args[0])}'
        )


class DeliveriesTableMissing(OutsparkError):
    def __init__(self, name: str, statement: str) -> None:
        super().__init__(name, statement)

    def __str__(self) -> str:
        name, statement = self.args
        return (
            f"a route with several destinations needs the table {name}. "
            f"Run `outspark init --apply` with this configuration, or:\n{_pasteable(statement)}"
        )


def _pasteable(statement: str) -> str:
    """The statement without its comments: in an error on one line, the first `--` would hide the rest."""
    kept = [line for line in statement.splitlines() if not line.lstrip().startswith("--")]
    return "\n".join(kept).rstrip(";") + ";"


class PoolerDetected(OutsparkError):
    def __str__(self) -> str:
        return (
            "a transaction pooler is between the relay and PostgreSQL, and slot ownership needs a session "
            "of its own. Connect the relay to PostgreSQL directly (or to a session pool); services may keep "
            "using the pooler"
        )


class ServerTooOld(OutsparkError):
    def __init__(self, version: str, oldest: int) -> None:
        super().__init__(version, oldest)

    def __str__(self) -> str:
        version, oldest = self.args
        return (
            f"the database is PostgreSQL {version}, and Outspark needs {oldest} or later: upgrade the server"
        )


class PartitionMissing(OutsparkError):
    def __init__(self, table: str) -> None:
        super().__init__(table)

    def __str__(self) -> str:
        return (
            f"table {self.args[0]} has no partition for the present time, so nothing can be accepted; "
            "create partitions ahead (outspark.maintenance.partitions.Partitions does) and try again"
        )


class HandlerInvalid(OutsparkError):
    """The message names the handler, its parameter or pattern, and what is allowed."""


class FeedFailed(OutsparkError):
    """The broker that an inbox consumes from does not answer, or refuses a request."""


class HandlerHung(OutsparkError):
    """Too many handlers exceeded their timeout; their threads live until the process exits."""


class RetryLater(OutsparkError):
    """A handler raises this when something else than the event is at fault: no attempt is counted.

    `after` is the delay before the next try, in seconds; without it the inbox's backoff decides.
    """

    def __init__(self, reason: str, after: float | None = None) -> None:
        super().__init__(reason, after)
        self.after = after

    def __str__(self) -> str:
        return str(self.args[0])


class Reject(OutsparkError):
    """A handler raises this when a retry cannot help: the event is dead immediately, with this message."""


class OwnershipLost(OutsparkError):
    """Another owner took a lane's slots; the lane did not settle its events in flight."""


class SparkLost(OutsparkError):
    def __str__(self) -> str:
        return (
            "the Spark application has ended under the relay, so its lanes have stopped; no event is lost. "
            "Start the relay again"
        )


class DestinationError(OutsparkError):
    """The message names the destination, what it answered and what to change."""


class DestinationDown(DestinationError):
    """The events are valid: they wait until the destination answers again."""


class ServerStartError(OutsparkError):
    """The message carries the last lines of the server's own log."""
