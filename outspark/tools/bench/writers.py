"""Single-row writers, each on a connection of its own: how much of their rate the doorbell leaves them.

The writers are clients of `pgbench`, so that little of what is measured is the client. In both halves lanes work
beside them, polling or with the doorbell.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path
from statistics import median

from outspark.errors import OutsparkError
from outspark.tools.bench.backlog import EVENT_TYPE, OUTBOX
from outspark.tools.bench.hosts import RelayHosts
from outspark.tools.bench.results import Row, Target
from outspark.tools.bench.run import Run
from outspark.tools.bench.trickle import POLL_INTERVAL
from outspark.tools.servers import pginstall

# A script for pgbench, which puts its own variables in; no value comes from outside.
SCRIPT = r"""
\set key random(1, {keys})
INSERT INTO {table} (event_id, event_type, partition_key, payload)
VALUES (gen_random_uuid(), '{type}', 'key-' || :key, decode(repeat('6f', {payload}), 'hex'));
"""

_RATE = re.compile(r"^tps = ([\d.]+)", re.MULTILINE)


def measure_writers(run: Run) -> None:
    """Eight writers of single rows, with and without the doorbell, by turns."""
    rates: dict[bool, list[float]] = {False: [], True: []}
    run.begin("writers", 2 * run.plan.writer_rounds)
    for number in range(run.plan.writer_rounds):
        # Each round begins with the other half.
        for bell in (bool(number % 2), not number % 2):
            rates[bell].append(_measure(run, bell))
            waker = "doorbell" if bell else "polling"
            run.step(f"writers: {run.plan.writers} beside lanes, {waker}: {rates[bell][-1]:,.0f} rows/s")
    for bell, name in ((False, "polling"), (True, "doorbell")):
        note = f"{run.plan.writers} writers of single rows beside lanes, {name}"
        row = Row("writers", "bare", "row", "null", rates=rates[bell], rate=median(rates[bell]), note=note)
        run.add(row)
    ratio = median(rang / quiet for rang, quiet in zip(rates[True], rates[False], strict=True))
    run.want(
        Target(f"rate of {run.plan.writers} single-row writers under the doorbell", "≥", 0.9, ratio, "×")
    )


def _measure(run: Run, bell: bool) -> float:
    with run.arena.database(doorbell=bell) as url:
        with RelayHosts("bare", url, run.plan, poll_interval=POLL_INTERVAL, doorbell=bell) as lanes:
            rate = _write(run, url)
            lanes.check()
            return rate


def _write(run: Run, url: str) -> float:
    plan = run.plan
    script = SCRIPT.format(keys=plan.keys, table=OUTBOX, type=EVENT_TYPE, payload=plan.payload)
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as file:
        file.write(script)
        file.flush()
        program: Path = pginstall.programs(None) / "pgbench"
        argv = [str(program), "--no-vacuum", "--protocol=prepared", f"--client={plan.writers}", "--jobs=2"]
        argv += [f"--time={max(round(plan.writer_seconds), 1)}", f"--file={file.name}", url]
        done = subprocess.run(argv, check=False, capture_output=True, text=True)
    found = _RATE.search(done.stdout)
    if done.returncode != 0 or found is None:
        raise OutsparkError(f"pgbench failed:\n{(done.stdout + done.stderr).strip()}")
    return float(found[1])
