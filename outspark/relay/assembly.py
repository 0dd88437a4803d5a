"""Wires a loop together: everything that one source on one lane needs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from outspark import contracts
from outspark.config.settings import DestinationSettings, SourceSettings
from outspark.contracts.contract import TOKEN_PREFIX
from outspark.contracts.relay_statements import RelayStatements
from outspark.database import doorbell
from outspark.database import shedlock as statements
from outspark.database.check import refuse_errors
from outspark.database.names import TableName, bell_channel, lock_class, resolve
from outspark.database.session import Connection
from outspark.database.shedlock import ShedLock, holder
from outspark.database.side_tables import Deliveries
from outspark.database.slots import Owner, Slots
from outspark.delivery.destination import Destination
from outspark.delivery.dispatcher import Dispatcher
from outspark.delivery.envelopes import Envelope, make_envelope
from outspark.delivery.routing import Router, load_transform
from outspark.hosting import process
from outspark.observability.causes import Trouble
from outspark.observability.metrics import Tally
from outspark.observability.otel import Tracing
from outspark.relay.loop import SourceLoop
from outspark.relay.low_water import LowWater
from outspark.relay.ownership import SlotOwnership
from outspark.relay.permit import LanePermit
from outspark.relay.settle import Settler
from outspark.relay.source import Source
from outspark.relay.spec import RelayLaneSpec, SourceSlots
from outspark.relay.waking import Doorbell, Polling

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the loops of one database session share."""

    spec: RelayLaneSpec
    conn: Connection
    destinations: Mapping[str, Destination]
    tally: Tally
    tracing: Tracing
    trouble: Trouble
    beat: Callable[[], None]

    @property
    def longest_publish(self) -> float:
        return max((destination.timeout for destination in self.destinations.values()), default=0.0)


def build_loop(around: Surroundings, assigned: SourceSlots) -> SourceLoop:
    spec, conn, settings = around.spec, around.conn, assigned.settings
    contract = contracts.get(settings.contract)
    table = resolve(conn, TableName.parse(settings.table))
    source = Source(
        name=assigned.name,
        settings=settings,
        conn=conn,
        statements=_statements(conn, table, settings),
        maintenance=contract.maintenance(table),
        tally=around.tally,
    )
    ownership = _ownership(around, source, table, assigned.slots) if settings.ordering == "key" else None
    router = Router(spec.routes, spec.destinations, assigned.name)
    deliveries = Deliveries(conn, table) if router.fans_out else None
    if deliveries is not None:
        deliveries.prepare()
    guard = process.guard(spec.instance, assigned.name, settings)
    dispatcher = Dispatcher(
        router=router,
        destinations=around.destinations,
        transform=load_transform(settings.transform) if settings.transform else None,
        ordered=settings.ordering == "key",
        tally=around.tally,
        tracing=around.tracing,
        envelopes=_envelopes(spec.destinations, assigned.name),
        guarded=settings.on_unroutable == "wait",
        paused=guard.paused,
        trouble=around.trouble,
    )
    lock = relay_lock(conn, table, settings, spec.relay.id, spec.instance)
    return SourceLoop(
        source=source,
        ownership=ownership,
        dispatcher=dispatcher,
        settler=Settler(source, ownership, deliveries, guard, around.trouble),
        waker=_waker(conn, table, settings, spec.lane),
        low=LowWater(source),
        token_prefix=f"{TOKEN_PREFIX}{spec.relay.id}/{spec.instance}/{spec.lane}/{spec.shift}",
        permit=LanePermit(assigned.name, ownership, lock, around.longest_publish, around.beat),
        deliveries=deliveries,
        guard=guard,
    )


def relay_lock(
    conn: Connection, table: TableName, settings: SourceSettings, relay: str, instance: str
) -> ShedLock | None:
    """The lock that all lanes of a run hold while they relay from this table; None where its contract has none."""
    contract = contracts.get(settings.contract)
    where, at_most = contract.lock_table(table), contract.lock_at_most(settings)
    if where is None or at_most is None:
        return None
    return ShedLock(conn, where, statements.RELAY, holder(relay, instance), at_most)


def _statements(conn: Connection, table: TableName, settings: SourceSettings) -> RelayStatements:
    """For the table as it is; refused where the contract finds an error in it."""
    contract = contracts.get(settings.contract)
    findings = contract.check_table(conn, table, contract.ignored(settings))
    refuse_errors(table, findings)
    made = contract.relay_statements(table, settings, conn)
    if any(finding.lacks_index for finding in findings):
        # A batch is found by its ids then: the primary key is always there.
        return replace(made, deliver_all=made.deliver)
    return made


def _ownership(
    around: Surroundings, source: Source, table: TableName, wanted: tuple[int, ...]
) -> SlotOwnership:
    relay = around.spec.relay
    owner = Owner.here(relay.id, around.spec.instance, around.spec.lane)
    slots = Slots(source.conn, table, wanted, source.settings.slots, owner)
    slots.prepare(contracts.get(source.settings.contract).side_tables(table))
    hold = relay.hold.total_seconds()
    # A crashed owner publishes at most so long: from its last proof, and one publish more.
    grace = relay.grace.total_seconds() if relay.grace is not None else hold + around.longest_publish + 1.0
    return SlotOwnership(source, slots, hold, grace)


def _waker(conn: Connection, table: TableName, settings: SourceSettings, lane: int) -> Polling | Doorbell:
    interval = settings.poll_interval.total_seconds()
    if not settings.doorbell:
        return Polling(interval)
    lanes = doorbell.installed_lanes(conn, table)
    if lane >= lanes:
        log.warning(
            "no doorbell for this lane; polling. Run: outspark init --doorbell --apply",
            extra={"lane": lane, "table": str(table), "installed_for": lanes},
        )
        return Polling(interval)
    return Doorbell(conn, lock_class("bell", table), lane, interval, channel=bell_channel(table))


def _envelopes(destinations: Mapping[str, DestinationSettings], source: str) -> dict[str, Envelope]:
    made = {name: make_envelope(settings, source) for name, settings in destinations.items()}
    return {name: envelope for name, envelope in made.items() if envelope is not None}
