"""The bench in its shortest form: every part measures what it says. No number is judged here."""

from __future__ import annotations

import mmap
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import psycopg
import pytest
from rich.console import Console
from rich.progress import Progress

from outspark.errors import OutsparkError
from outspark.tools.bench import command, memory, probe
from outspark.tools.bench.backlog import EVENT_TYPE, POINTS, STUCK_TYPE, Backlog, Between, Drained, append
from outspark.tools.bench.drain import Case, Sample, Stand, drain
from outspark.tools.bench.hosts import RelayHosts
from outspark.tools.bench.inbox.consuming import ConsumeCase, ConsumeStand
from outspark.tools.bench.inbox.measure import measure_inbox_consume
from outspark.tools.bench.inbox.messages import Load
from outspark.tools.bench.jeap_serial import Serial
from outspark.tools.bench.plan import Plan
from outspark.tools.bench.plot import write_plot
from outspark.tools.bench.profiling import shares
from outspark.tools.bench.publishing import measure_broker
from outspark.tools.bench.report import print_report, write_docs
from outspark.tools.bench.results import Results, Row, Target
from outspark.tools.bench.run import Run
from outspark.tools.bench.servers import Arena
from outspark.tools.bench.tables import INBOX, JEAP, JEAP_AS_IT_IS, OPENOUTBOX, Table
from tests.waiting import wait_for

EVENTS = 3000
BROKER_EVENTS = 20_000
"""Fewer may take a broker less than one tick of its CPU clock."""
PLAN = Plan(events=EVENTS, batch=200).quick()


@pytest.fixture(scope="module")
def arena() -> Iterator[Arena]:
    with Arena(PLAN) as arena:
        yield arena


@pytest.mark.parametrize(
    "case",
    [
        Case("bare", "row", EVENTS),
        Case("bare", "slot", EVENTS, between="delivered"),
        pytest.param(Case("bare", "row", EVENTS, "nats"), marks=pytest.mark.needs("nats")),
        pytest.param(Case("bare", "row", 1000, "redis", one_by_one=True), marks=pytest.mark.needs("redis")),
        pytest.param(Case("bare", "row", EVENTS, between="stuck"), marks=pytest.mark.needs("nats")),
        Case("ceiling", "slot", EVENTS, table=JEAP),
        Case("bare", "slot", EVENTS, table=JEAP),
        Case("bare", "slot", EVENTS, finished=1000, table=JEAP_AS_IT_IS),
        pytest.param(Case("bare", "slot", EVENTS, "redis", table=JEAP), marks=pytest.mark.needs("redis")),
        pytest.param(
            Case("serial", "slot", 500, "redis", table=JEAP_AS_IT_IS), marks=pytest.mark.needs("redis")
        ),
        Case("ceiling", "row", EVENTS, table=INBOX),
        Case("bare", "row", EVENTS, table=INBOX),
    ],
    ids=str,
)
def test_a_drain_delivers_everything_and_says_how(arena: Arena, case: Case) -> None:
    _check(case, drain(arena, case))


@pytest.mark.parametrize(
    "case",
    [
        Case("ceiling", "row", EVENTS),
        Case("bare", "slot", EVENTS, finished=1000),
        pytest.param(Case("bare", "slot", EVENTS, "redis"), marks=pytest.mark.needs("redis")),
        pytest.param(Case("spark", "slot", EVENTS), marks=pytest.mark.needs("spark")),
    ],
    ids=str,
)
def test_the_same_lanes_drain_again_and_again(arena: Arena, case: Case) -> None:
    with Stand(arena, case) as stand, Stand(arena, Case("ceiling", "row", EVENTS)) as other:
        for _ in range(2):
            _check(case, stand.drain())
            _check(other.case, other.drain())


def test_memory_for_a_drain_is_touched_and_free() -> None:
    size = 64 * 2**20
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    resident = psutil.Process().memory_info().rss
    with memory.ready(size):
        assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults >= size / mmap.PAGESIZE
        assert psutil.Process().memory_info().rss - resident < size / 8


def test_no_more_memory_is_touched_than_the_machine_can_spare() -> None:
    available = psutil.virtual_memory().available
    assert memory.affordable(2 * available) < 0.5 * available


def _check(case: Case, sample: Sample) -> None:
    curve = sample.drained.curve
    assert sample.drained.events == case.events
    assert len(curve) == POINTS
    assert curve == sorted(curve)
    assert 0 < curve[0] <= sample.drained.seconds <= sample.seconds
    assert sample.usage["postgres"].cpu > 0
    assert (sample.usage["ours"].peak > 0) == (case.host in ("bare", "spark"))
    assert ("broker" in sample.usage) == (case.destination != "null")
    assert ("Redis" in sample.cores_used()) == (case.destination == "redis")


def test_an_event_left_behind_fails_the_drain(arena: Arena) -> None:
    with _loaded(arena, EVENTS) as backlog:
        conn = backlog.conn
        backlog.reveal()
        assert not backlog.is_drained()
        conn.execute("UPDATE openoutbox_events SET status = 'DELIVERED', delivered_at = clock_timestamp()")
        assert backlog.is_drained()
        backlog.drained()
        conn.execute("UPDATE openoutbox_events SET status = 'PENDING' WHERE partition_key = 'key-7'")
        assert not backlog.is_drained()
        with pytest.raises(OutsparkError, match=str(EVENTS)):
            backlog.drained()


def test_a_message_left_behind_fails_the_drain_of_a_jeap_outbox(arena: Arena) -> None:
    with _loaded(arena, EVENTS, table=JEAP, finished=100) as backlog:
        conn = backlog.conn
        backlog.reveal()
        assert not backlog.is_drained()
        conn.execute("UPDATE deferred_message SET sent_scheduled = clock_timestamp() WHERE id > 100")
        assert backlog.is_drained()
        assert len(backlog.drained().curve) == POINTS
        conn.execute("UPDATE deferred_message SET sent_scheduled = NULL WHERE id = 107")
        assert not backlog.is_drained()
        with pytest.raises(OutsparkError, match=str(EVENTS)):
            backlog.drained()


def test_an_event_without_its_one_effect_fails_the_drain_of_an_inbox(arena: Arena) -> None:
    with _loaded(arena, EVENTS, table=INBOX, finished=100) as backlog:
        conn = backlog.conn
        backlog.reveal()
        assert not backlog.is_drained()
        conn.execute(
            "UPDATE inbox_events SET status = 'completed', completed_at = clock_timestamp() "
            "WHERE status = 'pending'"
        )
        assert backlog.is_drained()
        with pytest.raises(OutsparkError, match=str(EVENTS)):
            backlog.drained()
        effect = (
            "INSERT INTO bench_effects (message_id, number) SELECT message_id, 1 FROM inbox_events "
            "WHERE completed_at >= now() - interval '1 minute' AND (%s::text IS NULL OR message_id = %s::text)"
        )
        conn.execute(effect, [None, None])
        assert len(backlog.drained().curve) == POINTS
        conn.execute(effect, ["message-107", "message-107"])
        with pytest.raises(OutsparkError, match=str(EVENTS)):
            backlog.drained()


def test_of_the_messages_to_consume_every_second_is_a_copy() -> None:
    load = Load(messages=1000, payload=500, keys=50, batch=10, since=1_800_000_000_000)
    ids = [dict(message.headers)["X-Event-ID"] for message in load]
    assert len(ids) == 1000
    assert len(set(ids)) == load.different == 500
    assert all(ids.count(id) == 2 for id in set(ids))
    assert ids.index(ids[0], 1) >= load.batch
    assert {len(message.body or b"") for message in load} == {500}
    shares = [list(load.share(client, 2)) for client in range(2)]
    assert sum(map(len, shares)) == 1000
    assert not {message.key for message in shares[0]} & {message.key for message in shares[1]}


def test_plain_clients_consume_the_same_again_and_again(arena: Arena) -> None:
    with ConsumeStand(arena, ConsumeCase("ceiling", EVENTS)) as stand:
        for _ in range(2):
            sample = stand.drain()
            assert sample.drained.events == EVENTS
            assert sample.drained.rate > 0
            assert sample.usage["ours"].peak > 0


@pytest.mark.parametrize(
    "fault",
    [
        "DELETE FROM inbox_events WHERE message_id = (SELECT min(message_id) FROM inbox_events)",
        "UPDATE inbox_events SET attempts_made = 1 WHERE message_id = (SELECT min(message_id) FROM inbox_events)",
    ],
    ids=["lost", "touched"],
)
def test_a_message_that_was_not_stored_as_it_should_be_is_noticed(arena: Arena, fault: str) -> None:
    load = Load(EVENTS, PLAN.payload, PLAN.keys, PLAN.batch, since=1_800_000_000_000)
    with ConsumeStand(arena, ConsumeCase("ceiling", EVENTS)) as stand:
        stand.drain()
        stand.verify(load)
        stand.conn.execute(fault.encode())
        with pytest.raises(OutsparkError, match=str(load.different)):
            stand.verify(load)


@pytest.mark.needs("kafka")
def test_lanes_consume_from_kafka_again_and_again(arena: Arena) -> None:
    with ConsumeStand(arena, ConsumeCase("bare", EVENTS)) as stand:
        for _ in range(2):
            sample = stand.drain()
            assert sample.drained.events == EVENTS
            assert sample.usage["broker"].peak > 0
            assert "Kafka" in sample.cores_used()


def test_an_event_for_a_destination_that_is_down_is_not_waited_for(arena: Arena) -> None:
    with _loaded(arena, EVENTS, between="stuck") as backlog:
        conn = backlog.conn
        backlog.reveal()
        assert not backlog.is_drained()
        deliver = "UPDATE openoutbox_events SET status = 'DELIVERED', delivered_at = clock_timestamp()"
        conn.execute(deliver + " WHERE event_type = %s", [EVENT_TYPE])
        assert backlog.is_drained()
        assert backlog.drained().events == EVENTS
        stuck = "(SELECT event_id FROM openoutbox_events WHERE event_type = %s LIMIT 1)"
        assert conn.execute(f"{deliver} WHERE event_id = {stuck}", [STUCK_TYPE]).rowcount == 1
        with pytest.raises(OutsparkError, match="wrongly delivered"):
            backlog.drained()


def test_the_shape_of_jeap_sends_in_the_order_of_ids(arena: Arena) -> None:
    with _loaded(arena, 200, table=JEAP_AS_IT_IS) as backlog:
        conn = backlog.conn
        with Serial(conn.info.dsn, JEAP.outbox, {"type": "null"}) as serial:
            backlog.reveal()
            serial.go()
            wait_for(backlog.is_drained, what="an empty outbox")
            serial.check()
        ids = [id for (id,) in conn.execute("SELECT id FROM deferred_message ORDER BY sent_scheduled")]
    assert ids == list(range(1, 201))


@pytest.mark.needs("nats")
def test_a_broker_runs_on_from_drain_to_drain(arena: Arena) -> None:
    with arena.broker("nats") as broker:
        topic, pid = broker.fresh_topic(), broker.pid
        with arena.broker("nats") as same:
            assert same is broker
            assert same.fresh_topic() != topic
        assert broker.pid == pid
        assert broker.count(topic) == 0


def test_a_broker_that_the_machine_lacks_is_left_out(
    arena: Arena, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No jars of the server, and nothing to fetch them with.
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    run = Run(arena, _results(), Progress(disable=True))
    measure_broker(run, "kafka")
    measure_inbox_consume(run)
    assert run.results.left_out["kafka"] == run.results.left_out["inbox-consume"]
    assert "\n" not in run.results.left_out["kafka"]
    assert not run.results.rows
    assert not run.results.targets
    print_report(run.results, Console())
    write_docs(run.results, tmp_path / "page.md", tmp_path / "page.png")
    assert "Left out: `kafka`" in (tmp_path / "page.md").read_text()


def test_the_first_and_the_last_tenth() -> None:
    curve = [*(0.1 * hundredth for hundredth in range(1, 91)), *(9.0 + 0.2 * last for last in range(1, 11))]
    drained = Drained(1000, curve)
    assert drained.first_tenth == pytest.approx(1.0)
    assert drained.last_tenth == pytest.approx(2.0)


def test_the_probe_stamps_every_event(arena: Arena, tmp_path: Path) -> None:
    stamps = tmp_path / "stamps"
    with arena.database(doorbell=True) as url, psycopg.connect(url, autocommit=True) as conn:
        environ = {probe.VARIABLE: str(stamps)}
        with RelayHosts("bare", url, PLAN, doorbell=True, transform=probe.HOOK, environ=environ):
            append(conn, PLAN, 100)
            wait_for(Backlog(conn, PLAN).is_drained, what="an empty outbox")
        ids = {str(id) for (id,) in conn.execute("SELECT event_id FROM openoutbox_events")}
    assert len(ids) == 100
    assert probe.read(stamps).keys() == ids


def test_a_profile_adds_up(arena: Arena, tmp_path: Path) -> None:
    drain(arena, Case("bare", "row", EVENTS), tmp_path / "profile")
    found = dict(shares(tmp_path / "profile"))
    assert sum(found.values()) == pytest.approx(1.0)
    assert found["outspark.relay"] > 0


def test_results_survive_their_file(tmp_path: Path) -> None:
    results = _results()
    results.rows.append(Row("drain", "spark", "row", "null", events=EVENTS, rates=[1.0], rate=1.0))
    results.targets.append(Target("ratio", "≥", 0.85, 0.9, "×"))
    results.targets.append(Target("latency", "≤", 4.0, 5.0, "ms"))
    results.save(tmp_path / "bench.json")
    assert Results.load(tmp_path / "bench.json") == results
    assert [target.passed for target in results.targets] == [True, False]


def test_the_command_writes_table_json_plot_and_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, page = tmp_path / "bench.json", tmp_path / "page.md"
    reports = ["--plot", str(tmp_path / "bench.png"), "--docs", str(page)]
    assert command.main(["--quick", "--only", "writers", "--json", str(data), *reports]) == 0
    assert "What it must reach" in capsys.readouterr().out
    results = Results.load(data)
    assert [len(row.rates) for row in results.rows] == [PLAN.writer_rounds] * 2
    assert [target.reached > 0 for target in results.targets] == [True]
    assert results.server["fsync"] == "on"
    assert (tmp_path / "page.png").read_bytes().startswith(b"\x89PNG")
    assert "](page.png)" in page.read_text()

    written = page.read_text()
    assert command.main(["--from", str(data), *reports]) == 0
    assert page.read_text() == written


@pytest.mark.needs("redis", "spark")
def test_a_broker_beside_bare_lanes(tmp_path: Path) -> None:
    data, page = tmp_path / "bench.json", tmp_path / "page.md"
    reports = ["--plot", str(tmp_path / "bench.png"), "--docs", str(page)]
    size = ["--quick", "--events", str(BROKER_EVENTS), "--batch", "200"]
    assert command.main([*size, "--only", "redis", "--json", str(data), *reports]) == 0
    results = Results.load(data)
    assert [(row.host, row.destination) for row in results.rows] == [("bare", "redis"), ("spark", "redis")]
    assert all(row.cpu_broker and row.note.startswith("cores used: lanes ") for row in results.rows)
    assert [target.unit for target in results.targets] == ["×", "events/s"]
    assert dict(results.profiles["Redis"])["outspark.brokers"] > 0
    assert "- **Redis**: " in page.read_text()


@pytest.mark.faults
@pytest.mark.long
@pytest.mark.needs("kafka", "spark")
def test_an_outbox_of_jeap_beside_its_ceiling_and_its_own_relay(tmp_path: Path) -> None:
    results = _measure(tmp_path, "jeap")
    assert [(row.host, row.destination) for row in results.rows] == [
        ("ceiling", "–"),
        ("bare", "null"),
        ("spark", "null"),
        ("ceiling", "–"),
        ("bare", "null"),
        ("spark", "null"),
        ("bare", "kafka"),
        ("spark", "kafka"),
        ("serial", "kafka"),
    ]
    assert [row.note for row in results.rows[:6]] == ["without our index"] * 3 + ["with our index"] * 3
    assert results.rows[0].ratio == results.rows[3].ratio == 1.0
    assert [target.wanted for target in results.targets] == [0.8, 0.8, 20]


@pytest.mark.faults
@pytest.mark.long
@pytest.mark.needs("kafka", "spark")
def test_an_inbox_consumes_beside_plain_clients(tmp_path: Path) -> None:
    results = _measure(tmp_path, "inbox-consume")
    assert [(row.host, row.destination) for row in results.rows] == [
        ("ceiling", "memory"),
        ("bare", "from kafka"),
        ("spark", "from kafka"),
    ]
    assert results.rows[0].ratio == 1.0
    assert [target.wanted for target in results.targets] == [0.7]


@pytest.mark.needs("spark")
def test_an_inbox_handles_beside_its_ceiling(tmp_path: Path) -> None:
    results = _measure(tmp_path, "inbox-handle")
    assert [(row.host, row.destination) for row in results.rows] == [
        ("ceiling", "–"),
        ("bare", "handler"),
        ("spark", "handler"),
    ]
    assert results.rows[0].ratio == 1.0
    assert [target.wanted in (5000, 0.5) for target in results.targets] == [True]


def test_a_run_in_parts_makes_one_page(tmp_path: Path) -> None:
    parts = []
    for number, name in enumerate(("drain", "share")):
        part = _results()
        part.command += f" --only {name}"
        part.rows.append(Row(name, "spark", "row", "null", rate=1.0))
        part.targets.append(Target(name, "≥", 1.0, float(number), "×"))
        part.save(tmp_path / f"{name}.json")
        parts += ["--from", str(tmp_path / f"{name}.json")]
    page = tmp_path / "page.md"

    assert command.main([*parts, "--docs", str(page), "--plot", str(tmp_path / "plot.png"), "--strict"]) == 1

    text = page.read_text()
    assert "Written by `outspark bench --only drain`, `outspark bench --only share`;" in text
    assert ("| drain | ≥ 1 × | 0 × | ✗ missed |" in text, "| share | ≥ 1 × | 1 × | ✓ |" in text) == (
        True,
        True,
    )


def test_every_kind_of_result_is_drawn(tmp_path: Path) -> None:
    results = _results()
    results.rows.append(Row("drain", "ceiling", "row", "–", rate=2.0, ratio=1.0))
    results.rows.append(Row("drain", "spark", "row", "null", rate=1.8, ratio=0.9))
    results.rows.append(Row("kafka", "bare", "row", "kafka, one by one", rate=0.1))
    results.rows.append(Row("jeap", "serial", "slot", "kafka", rate=0.1, note="cores used: …"))
    results.rows.append(Row("jeap-finished", "spark", "slot", "null", rate=1.5, note="5 finished rows"))
    results.rows.append(Row("inbox-consume", "ceiling", "–", "memory", rate=1.5))
    results.rows.append(Row("inbox-handle", "spark", "row", "handler", rate=0.5))
    times = [0.1 * hundredth for hundredth in range(1, 101)]
    results.curves = {"trickle polling": [-0.1, 5.0, 20.0], "backlog row": times, "soak": [[0, 10], [60, 11]]}
    write_plot(results, tmp_path / "all.png")
    results.curves = {}
    write_plot(results, tmp_path / "bars.png")
    assert (tmp_path / "all.png").stat().st_size > (tmp_path / "bars.png").stat().st_size > 0


def test_an_unknown_scenario_is_refused() -> None:
    with pytest.raises(Exception, match="drain, share, nats"):
        command.main(["--only", "everything"])


@contextmanager
def _loaded(
    arena: Arena,
    pending: int,
    *,
    table: Table = OPENOUTBOX,
    finished: int = 0,
    between: Between = "nothing",
) -> Iterator[Backlog]:
    with arena.database(table) as url, psycopg.connect(url, autocommit=True) as conn:
        backlog = Backlog(conn, PLAN, table, pending, finished, between)
        backlog.load()
        yield backlog


def _measure(folder: Path, scenario: str, *flags: str) -> Results:
    data = folder / "bench.json"
    size = ["--quick", "--events", str(EVENTS), "--batch", "200", *flags]
    assert (
        command.main([*size, "--only", scenario, "--json", str(data), "--plot", str(folder / "plot.png")])
        == 0
    )
    return Results.load(data)


def _results() -> Results:
    return Results("outspark bench", {"cores": "2"}, {"server_version": "18"}, asdict(PLAN))
