"""The demo: its proof over histories that are right and wrong, and the whole of it as a process."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from outspark.contracts.maintenance import Stats
from outspark.tools.brokers import NAMES
from outspark.tools.brokers.consumer import Traffic
from outspark.tools.demo import billing, shop, summary
from outspark.tools.demo import billing as bills
from outspark.tools.demo.billing import Bills
from outspark.tools.demo.proof import Fact, Proof, prove
from outspark.tools.demo.report import Billing, Incident, Report, latency
from tests.databases import Database
from tests.waiting import wait_for

COMMITTED = [Fact(f"{key}{number}", key, number) for key in "ab" for number in (1, 2, 3)]
IN_ORDER = [COMMITTED[index] for index in (0, 3, 1, 4, 5, 2)]
A1, A2, A3 = COMMITTED[:3]


def proof_of(arrivals: list[Fact]) -> Proof:
    return prove(COMMITTED, ["undone"], arrivals)


def test_a_right_history_holds() -> None:
    proof = proof_of(IN_ORDER)
    assert proof.holds
    assert (proof.committed, proof.rolled_back, proof.keys, proof.arrived) == (6, 1, 2, 6)
    assert proof.twice == ()


def test_a_lost_event_is_found() -> None:
    proof = proof_of([fact for fact in IN_ORDER if fact != A2])
    assert not proof.holds
    assert proof.lost == (A2,)
    assert proof.overtaken == ()


def test_an_event_that_came_twice_is_reported_and_no_fault() -> None:
    proof = proof_of([*IN_ORDER, A1, A1])
    assert proof.holds
    assert proof.twice == (A1.id,)


def test_an_overtaken_event_is_found() -> None:
    swapped = {A2: A3, A3: A2}
    proof = proof_of([swapped.get(fact, fact) for fact in IN_ORDER])
    assert not proof.holds
    assert proof.overtaken == ((A3, A2),)


def test_a_second_arrival_does_not_mend_the_order() -> None:
    proof = proof_of([A2, *IN_ORDER])
    assert not proof.holds
    assert proof.overtaken == ((A2, A1),)
    assert proof.twice == (A2.id,)


def test_a_rolled_back_event_is_found() -> None:
    proof = proof_of([*IN_ORDER, Fact("undone", "a", 4)])
    assert not proof.holds
    assert proof.undone == ("undone",)
    assert proof.unknown == ()


def test_an_event_that_was_never_written_is_found() -> None:
    proof = proof_of([*IN_ORDER, Fact("stray", "a", 4)])
    assert not proof.holds
    assert proof.unknown == ("stray",)


@pytest.mark.parametrize("changed", [replace(A1, key="b"), replace(A1, number=7)])
def test_an_event_changed_on_the_way_is_found(changed: Fact) -> None:
    proof = proof_of([changed if fact == A1 else fact for fact in IN_ORDER])
    assert not proof.holds
    assert proof.altered == (changed,)


def test_nothing_written_proves_nothing() -> None:
    assert not prove([], [], []).holds


SETTLED = Stats(
    pending=0,
    backoff=0,
    scheduled=0,
    delivering=0,
    dead=0,
    delivered=6,
    delivered_exact=True,
    oldest_age=None,
    due_age=None,
    oldest_lease=None,
)
REPORT = Report(
    broker="NATS",
    broker_drops=True,
    proof=proof_of(IN_ORDER),
    outbox=SETTLED,
    traffic=Traffic(published=8, stored=6),
    received=6,
    latency=None,
    incident=Incident(lane="lane 1", pid=42, mid_batch=True, back_after_seconds=0.5),
    wanted_incident=True,
    seconds=40,
)
ALL_ONCE = Bills(orders=2, billed_once=2, billed_twice=0, not_billed=0, billed_without_order=0)
BILLED = replace(REPORT, billing=Billing(ALL_ONCE, SETTLED, REPORT.incident))


def test_a_report_counts_what_was_sent_twice() -> None:
    assert REPORT.holds
    assert (REPORT.sent_twice, REPORT.dropped_by_broker, REPORT.dropped_by_consumer) == (2, 2, 0)
    through = replace(
        REPORT, proof=proof_of([*IN_ORDER, A1]), traffic=Traffic(published=8, stored=7), received=7
    )
    assert through.holds
    assert (through.sent_twice, through.dropped_by_broker, through.dropped_by_consumer) == (2, 1, 1)
    assert through.to_json()["twice_at_consumer"] == 1


KEPT_BOTH = replace(
    REPORT,
    broker="Kafka",
    broker_drops=False,
    proof=proof_of([*IN_ORDER, A1, A2]),
    traffic=Traffic(published=8, stored=8),
    received=8,
)


@pytest.mark.parametrize(
    ("report", "line"),
    [
        (REPORT, "Sent twice: 2; dropped by NATS, which knew the ids: 2; by the consumer: 0."),
        (
            KEPT_BOTH,
            "Sent twice: 2; kept by Kafka, which does not compare ids; dropped by the consumer, which does: 2.",
        ),
    ],
    ids=["NATS", "Kafka"],
)
def test_the_summary_says_which_side_dropped_what_came_twice(
    report: Report, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    summary.show(report, as_json=False)
    assert line in capsys.readouterr().out


@pytest.mark.parametrize(
    "wrong",
    [
        replace(REPORT, proof=proof_of(IN_ORDER[1:])),
        replace(REPORT, outbox=replace(SETTLED, pending=1, due_age=timedelta(seconds=1))),
        replace(REPORT, outbox=replace(SETTLED, delivering=1)),
        replace(REPORT, outbox=replace(SETTLED, dead=1)),
        replace(REPORT, outbox=replace(SETTLED, delivered=5)),
        replace(REPORT, incident=None),
    ],
)
def test_a_report_holds_only_if_every_claim_does(wrong: Report) -> None:
    assert not wrong.holds
    assert wrong.to_json()["holds"] is False


def test_a_report_without_a_kill_asks_for_none() -> None:
    assert replace(REPORT, incident=None, wanted_incident=False).holds
    billing = Billing(ALL_ONCE, SETTLED, None)
    assert replace(REPORT, incident=None, wanted_incident=False, billing=billing).holds


@pytest.mark.parametrize(
    "wrong",
    [
        Billing(replace(ALL_ONCE, billed_once=1, not_billed=1), SETTLED, REPORT.incident),
        Billing(replace(ALL_ONCE, billed_once=1, billed_twice=1), SETTLED, REPORT.incident),
        Billing(replace(ALL_ONCE, billed_without_order=1), SETTLED, REPORT.incident),
        Billing(Bills(0, 0, 0, 0, 0), SETTLED, REPORT.incident),
        Billing(ALL_ONCE, replace(SETTLED, delivered=5), REPORT.incident),
        Billing(ALL_ONCE, replace(SETTLED, pending=1), REPORT.incident),
        Billing(ALL_ONCE, replace(SETTLED, dead=1), REPORT.incident),
        Billing(ALL_ONCE, SETTLED, None),
    ],
)
def test_the_second_half_counts_too(wrong: Billing) -> None:
    assert BILLED.holds
    assert not replace(BILLED, billing=wrong).holds


def test_the_summary_shows_the_query_and_its_answer(capsys: pytest.CaptureFixture[str]) -> None:
    summary.show(BILLED, as_json=False)
    words = capsys.readouterr().out
    for line in bills.COMPARE.splitlines():
        assert line.strip() in words
    assert "orders 2   billed_once 2   billed_twice 0   not_billed 0   billed_without_order 0" in words


def test_the_query_finds_every_kind_of_wrong_bill(database: Database) -> None:
    conn = database.connect()
    shop.create_tables(conn)
    billing.create_tables(conn)
    conn.execute("INSERT INTO orders (state, version) SELECT 'order.placed', 1 FROM generate_series(1, 4)")
    bill = "INSERT INTO billing.bills (order_number, message_id) SELECT n, 'm' FROM unnest(%s::int[]) n"

    conn.execute(bill, [[1, 2, 3, 4]])
    assert bills.compare(conn) == Bills(4, 4, 0, 0, 0)
    assert bills.compare(conn).all_once

    conn.execute(bill, [[2, 9]])
    conn.execute("DELETE FROM billing.bills WHERE order_number = 3")
    assert bills.compare(conn) == Bills(4, 2, 1, 1, 1)
    assert not bills.compare(conn).all_once


def test_latency_is_over_events_known_on_both_sides() -> None:
    committed = {str(number): 10.0 for number in range(101)}
    arrived = {str(number): 10.0 + number / 1000 for number in range(101)} | {"stray": 99.0}
    found = latency(committed, arrived)
    assert found is not None
    assert (found.p50, found.p99, found.max) == (50.0, 99.0, 100.0)


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A place for temporary files that PostgreSQL's own account can reach too."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def start(temporary: Path, *args: str, **environ: str) -> subprocess.Popen[str]:
    """Its stderr goes to a file, for all to read while it runs."""
    with (temporary / "stderr").open("w") as stderr:
        return subprocess.Popen(
            [sys.executable, "-m", "outspark", "demo", *args],
            env={**os.environ, "TMPDIR": str(temporary), **environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )


def said(temporary: Path) -> str:
    return (temporary / "stderr").read_text()


def left_behind(temporary: Path) -> list[str]:
    return sorted(path.name for path in temporary.iterdir() if path.name != "stderr")


def assert_clean(temporary: Path) -> None:
    for alarming in ("WARN", "ERROR", "Traceback", "Exception"):
        assert alarming not in said(temporary)
    assert left_behind(temporary) == []


@pytest.mark.needs("nats", "spark")
def test_the_demo_proves_itself(temporary: Path) -> None:
    demo = start(temporary, "--seconds", "6", "--rate", "200", "--json")
    stdout, _ = demo.communicate(timeout=280)
    assert demo.returncode == 0, said(temporary)
    result = json.loads(stdout)
    assert result["holds"] is True
    assert result["committed"] == result["arrived"] == result["outbox"]["delivered"] > 100
    assert result["rolled_back"] > 0
    assert result["committed"] > result["orders"] > 1
    assert result["killed"]["back_after_seconds"] > 0
    assert result["dropped_by_broker"] == result["sent_twice"]
    assert result["dropped_by_consumer"] == 0
    assert_billed(result)
    assert_clean(temporary)


def assert_billed(result: dict[str, Any]) -> None:
    billing = result["billing"]
    assert billing["orders"] == billing["billed_once"] == result["orders"]
    assert billing["billed_twice"] == billing["not_billed"] == billing["billed_without_order"] == 0
    assert billing["inbox"]["delivered"] == result["committed"]
    assert billing["killed"]["back_after_seconds"] > 0
    assert billing["killed"]["pid"] != result["killed"]["pid"]


def _on(broker: str) -> Any:
    """Kafka stands for the others in the suite: a demo takes a minute."""
    marks = [pytest.mark.needs(broker, "spark"), pytest.mark.faults]
    return pytest.param(broker, marks=marks if broker == "kafka" else [*marks, pytest.mark.long])


@pytest.mark.parametrize("broker", [_on(name) for name in NAMES if name != "nats"])
def test_the_story_is_the_same_on_every_broker(temporary: Path, broker: str) -> None:
    demo = start(temporary, "--broker", broker, "--seconds", "3", "--rate", "200", "--json")
    stdout, _ = demo.communicate(timeout=280)
    assert demo.returncode == 0, said(temporary)
    result = json.loads(stdout)
    assert result["holds"] is True
    assert result["broker"].lower() == broker
    assert result["committed"] == result["arrived"] == result["outbox"]["delivered"] > 50
    assert result["killed"]["back_after_seconds"] > 0
    assert result["dropped_by_broker"] == 0
    assert result["dropped_by_consumer"] == result["sent_twice"] >= 0
    if broker == "kafka":
        assert_billed(result)
    else:
        assert result["billing"] is None
    assert_clean(temporary)


@pytest.mark.needs("nats", "spark")
def test_an_interrupted_demo_leaves_nothing_behind(temporary: Path) -> None:
    demo = start(temporary)
    try:
        wait_for(lambda: "NATS is up" in said(temporary), timeout=60, what="the broker")
        demo.send_signal(signal.SIGINT)
        stdout, _ = demo.communicate(timeout=30)
    finally:
        demo.kill()
    assert demo.returncode == 130
    assert stdout == ""
    assert said(temporary).endswith("interrupted; everything is stopped and removed\n")
    assert left_behind(temporary) == []


@pytest.mark.needs("nats", "spark")
def test_an_application_that_fails_shows_its_log(temporary: Path) -> None:
    demo = start(temporary, JAVA_HOME=str(temporary))
    stdout, _ = demo.communicate(timeout=120)
    assert demo.returncode == 1
    assert stdout == ""
    [log] = left_behind(temporary)
    # Both cannot start; the error names the one that ended first.
    what = "relay" if "the relay ended" in said(temporary) else "inbox"
    assert f"the {what} ended by itself; its log is {temporary / log}" in said(temporary)
    assert "has no bin/java" in said(temporary)


@pytest.mark.needs("kafka", "spark")
def test_a_broker_that_the_machine_lacks_is_reported_before_anything_starts(temporary: Path) -> None:
    empty = temporary / "cache"
    empty.mkdir()
    demo = start(temporary, "--broker", "kafka", XDG_CACHE_HOME=str(empty), PATH="")
    demo.communicate(timeout=60)
    assert demo.returncode == 2
    assert "error: the demo cannot run on Kafka here: " in said(temporary)
    assert "`mvn`" in said(temporary)
    assert "is up" not in said(temporary)


def test_another_broker_is_refused(temporary: Path) -> None:
    demo = start(temporary, "--broker", "pigeon")
    demo.communicate(timeout=60)
    assert demo.returncode == 2
    words = " ".join(said(temporary).replace("│", " ").split())
    assert "'pigeon' is not supported; allowed: nats, kafka, rabbitmq, redis" in words
