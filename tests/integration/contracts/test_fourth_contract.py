"""A contract is one folder and one line of registration: nothing in the product knows the ledger of this test."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from typer.testing import CliRunner

import outspark
from outspark import contracts, migrations
from outspark.cli.app import app
from outspark.config.inbox import InboxSettings
from outspark.config.loading import load
from outspark.config.settings import SourceSettings
from outspark.contracts.writing import DeadLetter
from outspark.database.names import TableName
from outspark.errors import Reject, SettingsError
from outspark.hosting import process
from outspark.inbox import InboxEvent, Worker, WorkSettings, dead_letters
from outspark.outcome import Dead, Retry
from tests.databases import Database
from tests.integration.contracts.ledger import CONTRACT
from tests.integration.inbox.harness import message
from tests.integration.inbox.harness import open_harness as open_inbox
from tests.integration.relay.harness import Broker, Harness

TABLE = "ledger_entries"
PRODUCT = Path(outspark.__file__).parent


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    contracts.register(CONTRACT)
    yield
    del contracts._known[CONTRACT.name]


def outspark_(*args: str, stdin: str | None = None) -> str:
    result = CliRunner().invoke(app, args, input=stdin, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def ledger(database: Database) -> Iterator[Harness]:
    """Its table, as `outspark init` makes it, and a lane on it."""
    outspark_("init", "--contract", "ledger", "--url", database.url, "--apply")
    source = {"contract": "ledger", "ledger": {"book": "sales"}}
    yield Harness(database, database.connect(), {"broker": Broker()}, source)
    process.close()


def enqueue(ledger: Harness, *names: str, key: str = "k") -> list[str]:
    lines = [json.dumps({"type": "entry", "key": key, "payload": name}) for name in names]
    found = outspark_(
        "enqueue", "--contract", "ledger", "--url", ledger.database.url, "--json", stdin="\n".join(lines)
    )
    ids: list[str] = json.loads(found)["ids"]
    return ids


def work_to_the_end(ledger: Harness) -> None:
    ledger.work(lambda: not ledger.ask("SELECT 1 FROM ledger_entries WHERE state = 'open'"))


def source(**more: Any) -> SourceSettings:
    return SourceSettings.model_validate({"url": "postgresql://x", "contract": "ledger", **more})


def test_its_settings_are_its_own(tmp_path: Path) -> None:
    file = tmp_path / "outspark.toml"
    file.write_text(
        "[sources.shop]\nurl = 'postgresql://x'\ncontract = 'ledger'\nledger = { book = 'sales' }\n"
    )

    found = load(file, {"OUTSPARK__SOURCES__SHOP__LEDGER__IGNORE": "a,b"}).sources["shop"]

    assert (found.table, found.lease, found.own.book, found.own.ignore) == (
        TABLE,
        "slot",
        "sales",
        ("a", "b"),
    )
    assert source().own.book == "main"


@pytest.mark.parametrize(
    ("lines", "wrong"),
    [
        ("contract = 'ledgr'", '\'ledgr\' (FILE): must be "openoutbox" or "jeap" or "omnibox" or "ledger"'),
        ("contract = 'ledgr'", "; did you mean 'ledger'?"),
        (
            "contract = 'ledger'\nledger = { boook = 'x' }",
            "ledger.boook (FILE): unknown key; did you mean book?",
        ),
        ("contract = 'ledger'\nledger = { book = 3 }", "sources.shop.ledger.book = 3 (FILE): must be text"),
        ("contract = 'ledger'\nlease = 'row'", 'contract = "ledger" needs lease = "slot"'),
        ("ledger = { book = 'x' }", 'the table ledger is for contract = "ledger"'),
        ("contract = 'ledger'\npartitions = {}", 'the table partitions is for contract = "omnibox"'),
        ("ledgr = { book = 'x' }", "sources.shop.ledgr (FILE): unknown key; did you mean ledger?"),
    ],
)
def test_what_is_wrong_with_them_is_told(tmp_path: Path, lines: str, wrong: str) -> None:
    file = tmp_path / "outspark.toml"
    file.write_text(f"[sources.shop]\nurl = 'postgresql://x'\n{lines}\n")

    with pytest.raises(SettingsError) as error:
        load(file)

    assert wrong.replace("FILE", str(file)) in str(error.value)


def test_a_contract_that_is_not_there_is_told_with_those_that_are() -> None:
    with pytest.raises(
        SettingsError, match="known are: openoutbox, jeap, omnibox, ledger; did you mean 'ledger'"
    ):
        contracts.get("ledge")


def test_a_migration_makes_it_and_drops_it(database: Database) -> None:
    class Op:
        def execute(self, sqltext: str) -> Any:
            return database.connect().execute(sqltext.encode())

    migrations.upgrade(Op(), contract="ledger")
    assert database.connect().execute("SELECT count(*) FROM ledger_entries").fetchone() == (0,)
    migrations.downgrade(Op(), contract="ledger")
    with pytest.raises(SettingsError, match="contract ledger has no inbox"):
        migrations.upgrade(Op(), contract="ledger", inbox=True)
    with pytest.raises(SettingsError, match="contract ledger has no optional index"):
        migrations.create_ready_index(Op(), contract="ledger")


def test_its_entries_go_out_in_order_per_account(ledger: Harness) -> None:
    ledger.broker.answers = {"a2": [Retry("not now")]}
    ids = enqueue(ledger, "a1", "a2", "a3", key="a") + enqueue(ledger, "b1", "b2", key="b")

    work_to_the_end(ledger)

    delivered = ledger.broker.delivered()
    assert [name for name in delivered if name[0] == "a"] == ["a1", "a2", "a3"]
    assert [name for name in delivered if name[0] == "b"] == ["b1", "b2"]
    assert len(set(ids)) == 5
    assert ledger.ask("SELECT tries FROM ledger_entries WHERE body = 'a2'") == [(1,)]


def test_what_dies_is_listed_requeued_and_pruned(ledger: Harness) -> None:
    on_it = ("--contract", "ledger", "--url", ledger.database.url)
    ledger.broker.answers = {"bad": [Dead("no such account")]}
    enqueue(ledger, "good", "bad")
    work_to_the_end(ledger)

    [stats] = json.loads(outspark_("stats", *on_it, "--exact", "--json"))["sources"].values()
    assert (stats["pending"], stats["dead"], stats["delivered"]) == (0, 1, 1)
    assert "no such account" in outspark_("dead", "list", *on_it)
    outspark_("dead", "requeue", "--all", *on_it)
    work_to_the_end(ledger)
    assert ledger.broker.delivered() == ["good", "bad"]

    ledger.conn.execute("UPDATE ledger_entries SET ended = ended - interval '9 days'")
    outspark_("prune", "--delivered-age", "7d", *on_it)
    assert ledger.ask("SELECT count(*) FROM ledger_entries") == [(0,)]


def test_a_lane_refuses_a_column_that_it_does_not_know(ledger: Harness) -> None:
    ledger.conn.execute("ALTER TABLE ledger_entries ADD tenant text")
    contract, found = contracts.get("ledger"), source(ledger={"ignore": ["tenant"]})

    table = TableName(TABLE, "public")
    assert [one.level for one in contract.check_table(ledger.conn, table)] == ["error"]
    assert contract.check_table(ledger.conn, table, contract.ignored(found)) == []


def test_a_dead_letter_of_an_inbox_is_its_own_to_write(ledger: Harness) -> None:
    with closing(open_inbox(ledger.database)) as inbox:

        @inbox.router.on("orders")
        def handle(event: InboxEvent, conn: psycopg.Connection[Any]) -> None:
            raise Reject("it is bad")

        given = {
            "url": inbox.database.url,
            "group": "billing",
            "dead_letter": {"outbox": "x", "topic": "died"},
        }
        on_dead = dead_letters.writer(InboxSettings.model_validate(given), source(url=inbox.database.url))
        work = WorkSettings.model_validate({"group": "billing", "maintenance_interval": "20ms"})
        worker = Worker(inbox.database.url, inbox.table, inbox.router, work, on_dead=on_dead)
        inbox.workers.append(worker)
        inbox.accept(message("bad", b'{"n": 1}', key=b"order-7"))
        inbox.work_to_the_end(worker)

    [(kind, account, body, notes)] = ledger.ask("SELECT kind, account, body, notes FROM ledger_entries")
    assert (kind, account, json.loads(body)) == ("inbox.died", "order-7", {"n": 1})
    assert (notes["topic"], notes["x-dead-error"], notes["x-dead-message"]) == ("died", "it is bad", "bad")


def test_a_contract_that_takes_no_dead_letters_says_so(database: Database) -> None:
    inbox = {"url": database.url, "group": "g", "dead_letter": {"outbox": "shop", "topic": "died"}}
    writer = contracts.get("jeap").outbox_writer(TableName("deferred_message"))
    letter = DeadLetter("1", "t", "died", "k", "{}", {})
    reason = "is of contract jeap, whose messages belong to their own services"

    with pytest.raises(SettingsError, match=reason):
        dead_letters.writer(InboxSettings.model_validate(inbox), source(contract="jeap"))
    with pytest.raises(SettingsError, match=reason):
        writer.write_dead_letter(database.connect(), letter)


def test_partitions_are_refused_where_the_contract_has_none() -> None:
    with pytest.raises(
        SettingsError, match="partitions are kept on contract omnibox, and this table is of ledger"
    ):
        contracts.get("ledger").partition_sql()


def test_it_has_no_housekeeping() -> None:
    assert contracts.get("ledger").housekeeping(source()) is None


def test_nothing_in_the_product_names_it() -> None:
    named = [
        str(file) for file in PRODUCT.rglob("*.py") if "ledger" in file.read_text(encoding="utf-8").lower()
    ]
    assert named == []


def test_no_room_but_the_contracts_own_decides_by_the_name_of_a_contract() -> None:
    """Their application sides and the migrations of each contract are named after it; nothing else may ask for it."""
    allowed = {("config/contracts.py", "openoutbox")}
    names = set(contracts.FOLDERS)
    found = set()
    for file in PRODUCT.rglob("*.py"):
        room = file.relative_to(PRODUCT).as_posix()
        if room.startswith(("contracts/", "outbox/", "tools/")) or room == "migrations.py":
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and node.value in names:
                found.add((room, node.value))
    assert found == allowed
