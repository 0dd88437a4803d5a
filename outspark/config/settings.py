"""Every setting, typed and validated. `outspark.config.loading` fills them from a file, the environment and flags."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import combinations
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, SecretStr, field_validator, model_validator

from outspark.config import contracts, durations, sections
from outspark.config.brokers import DestinationType
from outspark.config.fields import (
    DeadGuardSettings,
    Duration,
    Model,
    Ordering,
    PartitionSettings,
    RetrySettings,
)
from outspark.config.inbox import InboxSettings
from outspark.config.targets import Target

Lease = Literal["row", "slot"]
OnDead = Literal["continue", "park"]
OnUnroutable = Literal["wait", "dead"]
ContractName = Annotated[str, AfterValidator(contracts.check_name)]
EnvelopeForm = Literal["raw", "cloudevents-binary", "cloudevents-structured", "schema-versioned", "full"]

_URI_REFERENCE = re.compile(r"[A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=%]+")


class SourceSettings(Model):
    """One outbox table in one database."""

    # What only one contract has stands under the contract's name, as `jeap`; nothing else is allowed.
    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Annotated[Any, sections.SECTION]] = Field(init=False)

    url: SecretStr = Field(description="PostgreSQL URL, e.g. postgresql://user:password@host:5432/database.")
    contract: ContractName = Field(contracts.DEFAULT, description="What the table means.")
    table: str = Field(
        "openoutbox_events",
        min_length=1,
        description="Table name, with schema if not on the search path; each contract has its own default.",
    )
    ordering: Ordering = Field(
        "key", description='"key": in order per key. "none": relays compete for single events.'
    )
    lease: Lease = Field(
        "row",
        description='"row": a claim marks the rows. "slot": ownership only, one write per event.',
    )
    slots: int = Field(
        8, ge=1, le=256, description="Number of slots that the keys are split into; each slot has one owner."
    )
    batch_size: int = Field(1000, ge=1, le=10_000, description="Events that a lane claims together.")
    batch_bytes: int = Field(
        16 * 1024 * 1024,
        ge=1,
        le=1024 * 1024 * 1024,
        description="Bytes of payloads and headers after which a claim ends; a single event may be larger.",
    )
    poll_interval: Duration = Field(
        timedelta(milliseconds=500), description="Longest wait between polls when idle."
    )
    lease_timeout: Duration = Field(
        timedelta(minutes=3), description="Age at which the claim of a crashed relay is given back."
    )
    reap_batch_size: int = Field(100, ge=1, le=10_000, description="Claims that one statement gives back.")
    on_dead: OnDead = Field(
        "continue", description='"park" holds later events of a key back behind its dead event.'
    )
    on_unroutable: OnUnroutable = Field(
        "wait",
        description='"wait": events whose topic is missing or forbidden wait for it. "dead": they die.',
    )
    dead_guard: DeadGuardSettings = Field(default_factory=DeadGuardSettings)
    doorbell: bool = Field(
        False, description="Sleep until the trigger of `outspark init --doorbell` wakes the lane."
    )
    retry: RetrySettings = Field(default_factory=RetrySettings)
    transform: str | None = Field(
        None, description="Python function `module:function` that is called with each event."
    )
    partitions: PartitionSettings | None = Field(
        None, description="Only where the table is partitioned, on contracts that can be."
    )

    @model_validator(mode="before")
    @classmethod
    def _of_contract(cls, data: Any) -> Any:
        return sections.prepare(data) if isinstance(data, Mapping) else data

    @model_validator(mode="after")
    def _consistent(self) -> SourceSettings:
        contract = contracts.of(self.contract)
        for problem in contract.check(self):
            raise ValueError(problem)
        for name in self.__pydantic_extra__.keys() - {self.contract}:
            raise ValueError(f'the table {name} is for contract = "{name}"')
        if not contract.partitions and self.partitions is not None:
            able = " or ".join(
                f'contract = "{one.name}"' for one in contracts.known().values() if one.partitions
            )
            raise ValueError(f"the table partitions is for {able}")
        if self.ordering == "none" and self.lease == "slot":
            raise ValueError('lease = "slot" needs ordering = "key": without slots nothing owns an event')
        if self.ordering == "none" and self.on_dead == "park":
            raise ValueError(
                'on_dead = "park" needs ordering = "key": without order nothing waits behind a dead event'
            )
        return self

    @property
    def own(self) -> Any:
        """The settings that only its contract has; None where that has none."""
        return self.__pydantic_extra__.get(self.contract)


class ClaimCheckSettings(Model):
    """Where payloads go that are too large for the broker."""

    path: str = Field(
        description="URL of a folder that fsspec can write to: file:///var/claims, s3://bucket/prefix."
    )
    over: int = Field(256 * 1024, ge=0, description="Payloads of more bytes than this are stored there.")
    options: dict[str, Any] = Field(
        default_factory=dict, description="Passed on to fsspec: credentials, endpoints and the like."
    )

    @field_validator("path")
    @classmethod
    def _is_url(cls, value: str) -> str:
        scheme, _, rest = value.partition("://")
        if not scheme or not rest:
            raise ValueError("must be a URL such as file:///var/claims or s3://bucket/prefix")
        if ":" in rest.partition("/")[0].rpartition("@")[0]:
            raise ValueError("holds a password, and every message would carry it; put it into options")
        return value


class DestinationSettings(Model):
    """One configured publisher."""

    type: DestinationType = Field(description="Type of the broker.")
    url: SecretStr | None = Field(None, description="Where the broker is, e.g. nats://127.0.0.1:4222.")
    publish_timeout: Duration = Field(
        timedelta(seconds=10), description="How long a batch may wait for the broker."
    )
    max_payload: int | None = Field(
        None, ge=1, description="Payloads over this many bytes are dead; default: the broker's."
    )
    options: dict[str, Any] = Field(default_factory=dict, description="Passed to the broker's client.")
    envelope: EnvelopeForm = Field("raw", description="The form that events are sent in.")
    envelope_source: str | None = Field(
        None, min_length=1, description="CloudEvents `source`; default: /outspark/ and the source's name."
    )
    envelope_content_type: str | None = Field(
        None,
        min_length=1,
        description="CloudEvents `datacontenttype` of events without a content-type header.",
    )
    envelope_schema_version: str | None = Field(
        None, min_length=1, description="Of events without a schema_version header; default in `full`: 1.0.0."
    )
    claim_check: ClaimCheckSettings | None = Field(None, description="Send large payloads by reference.")

    @field_validator("envelope_source")
    @classmethod
    def _is_uri_reference(cls, value: str | None) -> str | None:
        if value is not None and not _URI_REFERENCE.fullmatch(value):
            raise ValueError("must be a URI reference such as /shop/orders or https://shop.example/orders")
        return value


class RouteSettings(Model):
    """Which events go where. The first route that matches wins."""

    match: str = Field("*", description="Pattern on event_type: `order.*`, `*.created`, `*`.")
    source: str | None = Field(None, description="Only events of this source.")
    destination: str | list[str] | None = Field(
        None,
        description="Name of a destination, or a list of names that each get the event; "
        "may be left out when there is only one.",
    )
    topic: str = Field(
        "{topic}",
        description="Topic or subject; `{topic}` is the event's own where it has one, and its type otherwise, "
        "`{type}` the event_type, `{key}` the partition_key.",
    )

    @field_validator("destination")
    @classmethod
    def _some_and_different(cls, value: str | list[str] | None) -> str | list[str] | None:
        if isinstance(value, list) and (not value or len(set(value)) < len(value)):
            raise ValueError("a list of destinations has at least one name, and none of them twice")
        return value

    def names(self) -> tuple[str, ...]:
        """The destinations it names; none when it leaves that open."""
        return (self.destination,) if isinstance(self.destination, str) else tuple(self.destination or ())


class RelaySettings(Model):
    """A relay: its name, and how its lanes prove what they own."""

    id: str = Field(
        default_factory=socket.gethostname,
        min_length=1,
        max_length=100,
        description="Name of this relay, or of this deployment of inboxes.",
    )
    hold: Duration = Field(
        timedelta(seconds=5),
        description="How long a lane may publish on its last ownership check; after that it checks the epochs of its "
        "slots again before publishing.",
    )
    grace: Duration | None = Field(
        None,
        description="How long a lane waits before it works on slots whose owner crashed or disconnected; default: hold "
        "+ the longest publish_timeout + 1s.",
    )


class HostingSettings(Model):
    """Where lanes run, whether of a relay or of an inbox, and for how long."""

    lanes: int = Field(2, ge=1, le=256, description="Number of lanes that work in parallel.")
    master: str = Field("local", description="Spark master; `local` means as many threads as the lanes need.")
    spark: dict[str, str] = Field(
        default_factory=dict, description="Settings of Spark, passed to it unchanged."
    )
    shift: Duration = Field(timedelta(seconds=10), description="How long one Spark task hosts a lane.")
    shutdown_timeout: Duration = Field(
        timedelta(seconds=15), description="How long a shutdown waits for batches in flight."
    )
    wait_for_database: bool = Field(
        False,
        description="Wait at the start also for a database that refuses the connection: an unknown host or database, a "
        "wrong password, a missing privilege. Otherwise these end the start with exit code 3.",
    )
    stuck_after: Duration = Field(
        timedelta(minutes=2),
        description="A lane that makes no progress for this long, and is as late to end its shift, is unhealthy; after "
        "twice as long it is restarted. It must be longer than every publish_timeout.",
    )


class ServerSettings(Model):
    """Health, stats and metrics over HTTP."""

    enabled: bool = Field(True, description="Serve them while the relay or inbox runs.")
    host: str = Field("127.0.0.1", description="Address to bind to.")
    port: int = Field(8080, ge=0, le=65535, description="Port to bind to; 0 picks a free one.")
    health_check_interval: Duration = Field(
        timedelta(seconds=5), description="How often readiness is checked."
    )


class LogSettings(Model):
    level: Literal["debug", "info", "warning", "error"] = Field("info", description="What is logged.")
    format: Literal["text", "json"] = Field("text", description="Lines for people or for machines.")


class Settings(Model):
    """The whole configuration of one application."""

    hosting: HostingSettings = Field(default_factory=HostingSettings)
    relay: RelaySettings = Field(default_factory=RelaySettings)
    server: ServerSettings = Field(default_factory=ServerSettings)
    log: LogSettings = Field(default_factory=LogSettings)
    sources: dict[str, SourceSettings] = Field(default_factory=dict)
    destinations: dict[str, DestinationSettings] = Field(default_factory=dict)
    routes: list[RouteSettings] = Field(default_factory=list)
    inboxes: dict[str, InboxSettings] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _consistent(self) -> Settings:
        """All that is wrong between the parts, a line each."""
        routes = [route.model_dump() for route in self.routes]
        problems = [
            *dangling(routes, self.sources, self.destinations),
            *self._check_routes(),
            *self._check_timeouts(),
            *self._check_stuck(),
            *self._check_letters(),
            *self._check_partitions(),
            *self._check_tables(),
        ]
        if problems:
            raise ValueError("\n".join(problems))
        return self

    def _check_routes(self) -> Iterator[str]:
        for index, route in enumerate(self.routes):
            if route.destination is None and len(self.destinations) != 1:
                yield f"routes[{index}].destination is needed: there are {len(self.destinations)} destinations"
        if len(self.destinations) > 1 and not self.routes:
            yield f"routes are needed to choose between the destinations: {_names(self.destinations)}"

    def _check_timeouts(self) -> Iterator[str]:
        longest = max((one.publish_timeout for one in self.destinations.values()), default=timedelta(0))
        for name, source in self.sources.items():
            for problem in contracts.of(source.contract).check_timeout(source, longest):
                yield f"sources.{name}.{problem}"

    def _check_stuck(self) -> Iterator[str]:
        """A lane moves each time it publishes, and must not be taken for one that hangs before that has ended."""
        for name, one in self.destinations.items():
            if self.hosting.stuck_after <= one.publish_timeout:
                yield (
                    f"hosting.stuck_after = {durations.text(self.hosting.stuck_after)} must be longer than "
                    f"destinations.{name}.publish_timeout, which is {durations.text(one.publish_timeout)}"
                )

    def _check_letters(self) -> Iterator[str]:
        for name, inbox in self.inboxes.items():
            outbox = inbox.dead_letter.outbox if inbox.dead_letter else None
            if outbox is None:
                continue
            where = f"inboxes.{name}.dead_letter.outbox = {outbox!r}"
            if outbox not in self.sources:
                yield f"{where} is not one of the sources: {_names(self.sources)}"
                continue
            source = self.sources[outbox]
            if source.url != inbox.url:
                yield f"{where} must be in the database of the inbox: both are written together"
            if reason := contracts.of(source.contract).no_dead_letters:
                yield f"{where} is of contract {source.contract}, {reason}"

    def _check_partitions(self) -> Iterator[str]:
        """Of one table they must be one: the shortest retention would win for all."""
        known: dict[tuple[str, str], tuple[str, PartitionSettings]] = {}
        for name, (kept, partitions) in self.partitioned().items():
            first, other = known.setdefault((kept.url.get_secret_value(), kept.table), (name, partitions))
            if other != partitions:
                yield f"{first}.partitions and {name}.partitions are of the same table and must be the same"

    def _check_tables(self) -> Iterator[str]:
        """Lanes of two sources on one table would take it from each other for ever. An inbox has its own rows in it.

        What cannot be seen here is asked of the database before lanes start.
        """
        groups: dict[str, str] = {name: inbox.group for name, inbox in self.inboxes.items()}
        for kind, all, group in (("sources", self.sources, {}), ("inboxes", self.inboxes, groups)):
            if len(all) < 2:
                continue
            targets = {name: Target.of(one.url.get_secret_value(), one.table) for name, one in all.items()}
            for (first, one), (second, other) in combinations(targets.items(), 2):
                same = one is not None and other is not None and one.is_surely(other)
                if same and group.get(first) == group.get(second):
                    yield twice(f"{kind}.{first}", f"{kind}.{second}", all[first].table, group.get(first))

    def partitioned(self) -> dict[str, tuple[SourceSettings | InboxSettings, PartitionSettings]]:
        """All whose partitions are to be kept, as `sources.orders` and `inboxes.billing`."""
        all: dict[str, SourceSettings | InboxSettings] = {
            **{f"sources.{name}": source for name, source in self.sources.items()},
            **{f"inboxes.{name}": inbox for name, inbox in self.inboxes.items()},
        }
        return {name: (one, one.partitions) for name, one in all.items() if one.partitions is not None}

    def fans_out(self, source: str) -> bool:
        """Do events of this source go to several destinations?"""
        return any(len(route.names()) > 1 for route in self.routes if route.source in (None, source))


def twice(first: str, second: str, table: str, group: str | None = None) -> str:
    """What to say of two that name one table."""
    if group is None:
        return f"{first} and {second} are the same table {table} of one database; leave one of them out"
    return (
        f"{first} and {second} are the consumer group {group!r} in the same table {table} of one database; "
        "leave one of them out, or give it a group of its own"
    )


def dangling(
    routes: Sequence[Any], sources: Mapping[str, Any], destinations: Mapping[str, Any]
) -> Iterator[str]:
    """Routes to missing sources or destinations, from settings not validated yet: all errors are reported together."""
    for index, route in enumerate(routes):
        if not isinstance(route, Mapping):
            continue
        source, named = route.get("source"), route.get("destination")
        if isinstance(source, str) and source not in sources:
            yield f"routes[{index}].source = {source!r} is not one of: {_names(sources)}"
        for name in named if isinstance(named, list) else [named]:
            if isinstance(name, str) and name not in destinations:
                yield f"routes[{index}].destination = {name!r} is not one of: {_names(destinations)}"


def _names(mapping: Mapping[str, Any]) -> str:
    return ", ".join(sorted(mapping)) or "(none)"
