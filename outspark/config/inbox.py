"""Settings of an inbox: how messages are accepted, how their handlers run, and what is guaranteed."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from typing import Any, Literal

from pydantic import Field, SecretStr, model_validator

from outspark.config import contracts
from outspark.config.fields import Duration, Model, Ordering, PartitionSettings, RetrySettings


class Strategy(StrEnum):
    """What is guaranteed for each message, by when the broker gets its acknowledgement and when the row is completed.

    | strategy                 | acknowledged     | the row is completed  | effects in the database |
    |--------------------------|------------------|-----------------------|-------------------------|
    | at-most-once             | first of all     | before its handler    | once or never           |
    | at-least-once-on-persist | once it is kept  | after its handler     | once or more            |
    | at-least-once-on-success | once it is final | after its handler     | once or more            |
    | exactly-once             | once it is kept  | with its handler      | once                    |
    """

    AT_MOST_ONCE = "at-most-once"
    AT_LEAST_ONCE_ON_PERSIST = "at-least-once-on-persist"
    AT_LEAST_ONCE_ON_SUCCESS = "at-least-once-on-success"
    EXACTLY_ONCE = "exactly-once"

    @property
    def acknowledge(self) -> Literal["first", "kept", "final"]:
        if self is Strategy.AT_MOST_ONCE:
            return "first"
        return "final" if self is Strategy.AT_LEAST_ONCE_ON_SUCCESS else "kept"

    @property
    def complete(self) -> Literal["before", "with", "after"]:
        if self is Strategy.EXACTLY_ONCE:
            return "with"
        return "before" if self is Strategy.AT_MOST_ONCE else "after"


class AcceptSettings(Model):
    """How messages become rows."""

    group: str = Field(min_length=1, max_length=255, description="The consumer group that rows belong to.")
    source: str | None = Field(
        None, min_length=1, max_length=255, description="Source of all rows; otherwise a header or the topic."
    )
    max_attempts: int = Field(
        6, ge=1, description="Failures after which an event is dead; each row stores this number."
    )
    id_headers: tuple[str, ...] = Field(
        # The last two as omni-box looks for them: its publisher always sends the second, a service may give the first.
        ("X-Event-ID", "Nats-Msg-Id", "ce_id", "message_id", "event_id"),
        description="Headers that may hold a message's id; the first one found counts, otherwise its position in the "
        "broker. The id of a CloudEvent, such as `ce_id`, counts together with the event's source.",
    )
    type_headers: tuple[str, ...] = Field(
        ("event_type", "X-Event-Type", "ce_type"),
        description="Headers that may hold a message's type; otherwise its topic counts.",
    )
    source_headers: tuple[str, ...] = Field(
        ("ce_source", "source", "source_service"),
        description="Headers that may hold a message's source; otherwise its topic counts.",
    )
    time_headers: tuple[str, ...] = Field(
        ("ce_time",), description="Headers that may hold the creation time in RFC 3339 form."
    )
    idempotency_headers: tuple[str, ...] = Field(
        ("Idempotency-Key", "idempotency_key"), description="Headers that may hold an idempotency key."
    )
    correlation_headers: tuple[str, ...] = Field(
        ("correlation_id", "X-Correlation-ID"), description="Headers that may hold a correlation id."
    )
    causation_headers: tuple[str, ...] = Field(
        ("causation_id", "X-Causation-ID"),
        description="Headers that may hold the id of the message that caused this one.",
    )
    version_headers: tuple[str, ...] = Field(
        ("schema_version",), description="Headers that may hold the schema version."
    )


class DeadGuardSettings(Model):
    """When a handler is paused because it fails for many events in the same way."""

    events: int = Field(
        20, ge=0, description="A handler is paused once this many of its events failed alike; 0: never."
    )
    share: float = Field(
        0.5,
        gt=0,
        le=1,
        description="The events that failed must also be at least this fraction of its calls.",
    )
    window: Duration = Field(timedelta(minutes=1), description="The time in which both are counted.")
    probe: Duration = Field(
        timedelta(seconds=5),
        description="Wait before one event is tried as a probe; it doubles with each failure.",
    )
    longest_probe: Duration = Field(timedelta(minutes=5), description="The longest wait between two probes.")


class HandlingSettings(Model):
    """How events are claimed and their handlers run."""

    ordering: Ordering = Field(
        "none",
        description='"key": events of one key are handled in the order of their acceptance. "none": in any order.',
    )
    slots: int = Field(
        8, ge=1, le=256, description="Number of slots that the keys are split into; each slot has one worker."
    )
    batch_size: int = Field(100, ge=1, le=10_000, description="Events that a worker claims together.")
    batch_bytes: int = Field(
        16 * 1024 * 1024,
        ge=1,
        le=1024 * 1024 * 1024,
        description="Bytes of payloads and headers after which a claim ends; a single event may be larger.",
    )
    transaction_size: int = Field(
        50,
        ge=1,
        le=50,
        description="Events whose handlers share a transaction; it ends earlier after 100 ms. "
        "After a failure the other events are handled again.",
    )
    timeout: Duration = Field(timedelta(seconds=30), description="How long a handler may take.")
    lease: Duration = Field(
        timedelta(minutes=1), description="Age at which the lock of a silent worker is given back."
    )
    maintenance_interval: Duration = Field(
        timedelta(seconds=1),
        description="How often a worker looks for events that crashed workers had claimed.",
    )
    poll_interval: Duration = Field(
        timedelta(milliseconds=500), description="Longest wait between polls when idle."
    )
    unhandled: Literal["dead", "skip"] = Field(
        "dead", description="What happens to an event that has no handler."
    )
    max_hung: int = Field(10, ge=1, description="Handlers that may hang before the worker ends its process.")
    retry: RetrySettings = Field(
        default_factory=RetrySettings,
        description="Waits between attempts; each row has its own max_attempts.",
    )
    dead_guard: DeadGuardSettings = Field(default_factory=DeadGuardSettings)


class WorkSettings(HandlingSettings):
    """All settings of one worker."""

    group: str = Field(
        min_length=1, max_length=255, description="The consumer group whose events it handles."
    )
    name: str = Field("worker", pattern=r"^[^/]{1,100}$", description="Name of this worker, in its locks.")
    strategy: Strategy = Field(
        Strategy.EXACTLY_ONCE, description="What is guaranteed for the effects of handlers."
    )

    @model_validator(mode="after")
    def _consistent(self) -> WorkSettings:
        _check_sharing(self.strategy, self)
        return self


class FeedSettings(Model):
    """Where the messages of an inbox come from."""

    type: Literal["kafka", "nats"] = Field(description="Which broker.")
    url: SecretStr = Field(
        description="URL of the broker, e.g. kafka://127.0.0.1:9092 or nats://127.0.0.1:4222."
    )
    topics: tuple[str, ...] = Field(
        min_length=1,
        description="Kafka: topics, or patterns that begin with `^`. NATS: subjects, with their wildcards.",
    )
    stream: str | None = Field(
        None, min_length=1, description="NATS: the stream; otherwise the one that has the first subject."
    )
    batch_size: int = Field(1000, ge=1, le=10_000, description="Messages consumed together.")
    max_open: int = Field(
        10_000,
        ge=1,
        description="With at-least-once-on-success: messages that may wait for their handlers at the same time.",
    )
    options: dict[str, Any] = Field(default_factory=dict, description="Passed on to the broker's own client.")

    @model_validator(mode="after")
    def _consistent(self) -> FeedSettings:
        if self.stream is not None and self.type != "nats":
            raise ValueError('stream is for type = "nats"')
        return self


class DeadLetterSettings(Model):
    """Where a dead letter goes for each event that died; it is written in the transaction that makes the event dead."""

    table: str | None = Field(
        None, min_length=1, description="A table, made by `outspark init --dead-letters`."
    )
    outbox: str | None = Field(
        None, min_length=1, description="Name of the source whose relay sends the dead letter."
    )
    topic: str | None = Field(
        None, min_length=1, description="With an outbox: type and topic of the dead letter."
    )

    @model_validator(mode="after")
    def _consistent(self) -> DeadLetterSettings:
        if (self.table is None) == (self.outbox is None):
            raise ValueError("either table or outbox says where the dead letters go")
        if (self.outbox is None) != (self.topic is None):
            raise ValueError("outbox and topic go together")
        return self


class InboxSettings(AcceptSettings):
    """One inbox table, and one consumer group in it."""

    url: SecretStr = Field(description="PostgreSQL URL, e.g. postgresql://user:password@host:5432/database.")
    table: str = Field(
        "inbox_events",
        min_length=1,
        description="Table name, with its schema if that is not on the search path.",
    )
    strategy: Strategy = Field(
        Strategy.EXACTLY_ONCE, description="What is guaranteed for the effects of handlers."
    )
    app: str | None = Field(
        None, description="The handlers: `module:router`; a flag of `outspark inbox handle` overrides it."
    )
    feed: FeedSettings | None = Field(None, description="Required to consume messages.")
    work: HandlingSettings = Field(default_factory=HandlingSettings)
    dead_letter: DeadLetterSettings | None = Field(None)
    partitions: PartitionSettings | None = Field(None, description="Only where the table is partitioned.")

    @model_validator(mode="after")
    def _consistent(self) -> InboxSettings:
        _check_sharing(self.strategy, self.work)
        return self

    @property
    def contract(self) -> str:
        """The contract that all inboxes are of."""
        return contracts.of_inboxes()

    def work_settings(self, name: str) -> WorkSettings:
        return WorkSettings(
            group=self.group,
            name=name,
            strategy=self.strategy,
            **{key: getattr(self.work, key) for key in self.work.model_fields_set},
        )


def _check_sharing(strategy: Strategy, work: HandlingSettings) -> None:
    if strategy is not Strategy.EXACTLY_ONCE and "transaction_size" in work.model_fields_set:
        raise ValueError(
            "transaction_size is for the strategy exactly-once: others run one handler at a time"
        )
