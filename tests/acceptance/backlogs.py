"""An outbox of each contract with a backlog for one topic, and a relay that is to deliver it."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import psycopg

from tests.acceptance.outages import Outage
from tests.acceptance.relay_process import CLI, RelayProcess, StartRelay, clean_environ
from tests.databases import Database
from tests.integration.relay.backlog import JEAP, KEYS, OMNIBOX, OPENOUTBOX
from tests.waiting import wait_for

SHORT, LONG = 3000, int(os.environ.get("OUTSPARK_BACKLOG") or 200_000)
LANES, BATCH = 2, 500
CONFIG = """
[hosting]
lanes = {lanes}
shift = "3s"

[server]
health_check_interval = "1s"

[sources.shop]
contract = "{contract}"
url = {url}
poll_interval = "100ms"
batch_size = {batch}

[destinations.broker]
{destination}
"""

FILL = {"openoutbox": OPENOUTBOX, "jeap": JEAP, "omnibox": OMNIBOX}
STATES = {
    "openoutbox": """\
-- What became of the events, and after how many attempts
SELECT CASE status WHEN 'DELIVERED' THEN 'sent' WHEN 'DEAD' THEN 'dead' ELSE 'waits' END, attempts, count(*)
FROM openoutbox_events GROUP BY 1, 2""",
    "jeap": """\
-- The same for jEAP, which counts no attempts
SELECT CASE WHEN failed IS NOT NULL AND NOT resend THEN 'dead'
            WHEN sent_scheduled IS NOT NULL THEN 'sent' ELSE 'waits' END, 0, count(*)
FROM deferred_message GROUP BY 1, 2""",
    "omnibox": """\
-- The same for omni-box
SELECT CASE status WHEN 'completed' THEN 'sent' WHEN 'pending' THEN 'waits' ELSE 'dead' END, attempts_made, count(*)
FROM outbox_events GROUP BY 1, 2""",
}
FAILED = """\
-- What jEAP's contract made fail, in order
SELECT convert_from(message, 'UTF8')::int FROM deferred_message WHERE failed IS NOT NULL AND NOT resend ORDER BY id"""


@dataclass(frozen=True, slots=True)
class Backlog:
    contract: str
    size: int
    outage: Outage
    url: str
    config: Path

    def start(self, start_relay: StartRelay) -> RelayProcess:
        return start_relay("--config", str(self.config))

    def states(self) -> Counter[tuple[str, int]]:
        """How many events wait, are sent or dead, each after how many attempts."""
        with psycopg.connect(self.url, autocommit=True) as conn:
            rows = conn.execute(STATES[self.contract].encode()).fetchall()
        return Counter({(state, attempts): count for state, attempts, count in rows})

    def count(self, state: str) -> int:
        return sum(count for (found, _), count in self.states().items() if found == state)

    def failed(self) -> list[int]:
        """The numbers of the events that are dead, of which only jEAP may have some."""
        if self.contract != "jeap":
            return []
        with psycopg.connect(self.url, autocommit=True) as conn:
            return [number for (number,) in conn.execute(FAILED.encode())]

    def requeue(self) -> None:
        self._run("dead", "requeue", "--all")

    def await_sent(self) -> None:
        """Until nothing waits."""
        limit = 120 + self.size / 100
        wait_for(lambda: not self.count("waits"), timeout=limit, what="the end of the backlog", every=1)

    def assert_waits(self) -> list[int]:
        """Nothing died but one batch for each lane, where the contract wants it, and no attempt was counted."""
        failed = self.failed()
        states = self.states()
        most = LANES * BATCH if self.contract == "jeap" and not self.outage.whole else 0
        assert len(failed) <= most
        assert states[("dead", 0)] == len(failed)
        assert {attempts for _, attempts in states} == {0}
        return failed

    def _run(self, *args: str) -> None:
        subprocess.run([*CLI, *args, "--config", self.config], env=clean_environ(), check=True)


def write(contract: str, size: int, outage: Outage, database: Database, folder: Path) -> Backlog:
    """Numbered events for the topic of the outage, as many as `size`."""
    config = folder / "outspark.toml"
    config.write_text(
        CONFIG.format(
            lanes=LANES,
            batch=BATCH,
            contract=contract,
            url=json.dumps(database.url),
            destination=outage.destination,
        )
    )
    backlog = Backlog(contract, size, outage, database.url, config)
    backlog._run("init", "--apply")
    given = {"topic": outage.topic, "count": size, "keys": KEYS}
    database.connect().execute(FILL[contract].encode(), given)
    return backlog


def assert_in_order(payloads: list[bytes], size: int, failed: list[int]) -> None:
    """Each event is there, and of each key in its order: those that had failed after all the others."""
    numbers = list(dict.fromkeys(map(int, payloads)))
    assert sorted(numbers) == list(range(size))
    late = set(failed)
    assert all(number in late for number in numbers[size - len(late) :])
    for part in (numbers[: size - len(late)], numbers[size - len(late) :]):
        assert_each_key_in_order(part)


def assert_each_key_in_order(numbers: list[int]) -> None:
    last: dict[int, int] = {}
    for number in numbers:
        assert last.get(number % KEYS, -1) < number, f"{number} came after {last[number % KEYS]}"
        last[number % KEYS] = number
