"""What a destination that is down costs the others.

The same events go to a healthy destination, with as many others between them, of other keys. In one case the others
are delivered already, in the other their destination is down all the time. The rate is that of the events that can be
delivered, so it includes what lanes do about the rest: finding out, skipping it, and probing whether its destination
is back.
"""

from __future__ import annotations

from typing import get_args

from outspark.brokers import open_publisher
from outspark.config.settings import DestinationSettings, Lease
from outspark.errors import ExtraMissing
from outspark.tools.bench.drain import Case, down
from outspark.tools.bench.results import Target
from outspark.tools.bench.run import Run, compare


def measure_outage(run: Run) -> None:
    """The rate of the others while one is down, both leases."""
    try:
        open_publisher("down", DestinationSettings.model_validate(down()))
    except ExtraMissing as error:
        run.leave_out("outage", str(error))
        return
    leases: tuple[Lease, ...] = get_args(Lease)
    for lease in leases:
        without, beside = (
            Case("spark", lease, run.plan.events, between="delivered"),
            Case("spark", lease, run.plan.events, between="stuck"),
        )
        samples = run.rounds("outage", [without, beside])
        run.add_drains("outage", samples)
        name = f"lease {lease}, beside a destination that is down, of the rate without it"
        run.want(Target(name, "≥", 0.9, compare(samples, beside, without), "×"))
