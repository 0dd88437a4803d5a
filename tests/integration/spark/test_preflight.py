"""What a start asks of the databases before there is any lane: which tables they are, and whether all is allowed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from outspark.config.settings import Settings
from outspark.contracts.omnibox.table import kind
from outspark.contracts.openoutbox.table import ddl
from outspark.database.names import TableName
from outspark.errors import DatabaseRefused, SettingsError
from outspark.spark.inbox import InboxApp
from outspark.spark.monitor import Monitor
from outspark.tools.servers.postgres import Postgres
from tests.databases import Database


@contextmanager
def monitor(sources: dict[str, dict[str, Any]], **hosting: Any) -> Iterator[Monitor]:
    settings = Settings.model_validate(
        {
            "relay": {"id": "test"},
            "hosting": hosting,
            "sources": sources,
            "destinations": {"nowhere": {"type": "null"}},
        }
    )
    looking = Monitor(settings, "one", "outspark_one")
    try:
        yield looking
    finally:
        looking.close()


def elsewhere(url: str) -> str:
    """The same database by another name of its host, which only the database itself can tell."""
    assert "127.0.0.1" in url
    return url.replace("127.0.0.1", "localhost")


@pytest.mark.parametrize("type", ["redis", "nats", "kafka", "rabbitmq", "http"])
def test_a_destination_that_is_away_is_named_once(type: str) -> None:
    schemes = {"rabbitmq": "amqp", "http": "https"}
    settings = Settings.model_validate(
        {"destinations": {"cache": {"type": type, "url": f"{schemes.get(type, type)}://127.0.0.1:1"}}}
    )
    looking = Monitor(settings, "one", "outspark_one")
    (problem,) = looking.problems()
    looking.close()
    assert problem.startswith("destination cache: ")
    assert problem.count("destination cache") == 1


def test_two_spellings_of_one_table_are_refused(database: Database) -> None:
    database.connect().execute(ddl().encode())
    same = r"sources\.a and sources\.b are the same table public\.openoutbox_events of one database"
    for other in {"url": database.url, "table": "public.openoutbox_events"}, {"url": elsewhere(database.url)}:
        with monitor({"a": {"url": database.url}, "b": other}) as both:
            with pytest.raises(SettingsError, match=same):
                both.preflight()


def test_two_tables_of_one_database_are_two_sources(database: Database) -> None:
    conn = database.connect()
    conn.execute(ddl().encode())
    conn.execute("CREATE SCHEMA sales")
    conn.execute(ddl(TableName("openoutbox_events", "sales")).encode())
    other = {"url": elsewhere(database.url), "table": "sales.openoutbox_events"}
    with monitor({"a": {"url": database.url}, "b": other}) as both:
        both.preflight()
        assert both.problems() == []


def test_one_group_of_an_inbox_by_two_names_is_refused(database: Database) -> None:
    database.connect().execute(kind(inbox=True, partitioned=False).ddl().encode())
    feed = {"type": "nats", "url": "nats://127.0.0.1:1", "topics": ["a"], "stream": "a"}

    def preflight(group: str) -> None:
        inboxes = {
            "a": {"url": database.url, "group": "billing", "feed": feed},
            "b": {"url": elsewhere(database.url), "group": group, "feed": feed},
        }
        app = InboxApp(Settings.model_validate({"inboxes": inboxes}), ["a", "b"], ["consume"])
        try:
            app._preflight()
        finally:
            app._ended(all_lanes=True)

    with pytest.raises(SettingsError, match=r"inboxes\.a and inboxes\.b are the consumer group 'billing' in"):
        preflight("billing")
    preflight("shipping")


def refusal(url: str) -> str:
    with monitor({"a": {"url": url}}) as one, pytest.raises(DatabaseRefused) as caught:
        one.preflight()
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("source 'a': ")
    assert "--wait-for-database" in str(caught.value)
    return str(caught.value)


def test_what_no_waiting_can_mend_is_refused(database: Database) -> None:
    admin = database.connect()
    admin.execute("CREATE ROLE locked_out LOGIN")
    try:
        assert 'database "none" does not exist' in refusal(f"{database.url.rpartition('/')[0]}/none")
        assert 'role "nobody" does not exist' in refusal(database.url.replace("postgres@", "nobody@"))
        assert "no-such-host.invalid" in refusal("postgresql://ada:s3cret@no-such-host.invalid/shop")
        assert "s3cret" not in refusal("postgresql://ada:s3cret@no-such-host.invalid/shop")
        admin.execute(f'REVOKE CONNECT ON DATABASE "{admin.info.dbname}" FROM public'.encode())
        assert "permission denied for database" in refusal(database.url.replace("postgres@", "locked_out@"))
    finally:
        admin.execute("DROP ROLE locked_out")


def test_a_url_that_libpq_does_not_understand_is_refused() -> None:
    url = "postgresql://ada:s3cret@127.0.0.1/shop?no_such_option=1"
    with (
        monitor({"a": {"url": url}}) as looking,
        pytest.raises(SettingsError, match="no_such_option") as caught,
    ):
        looking.preflight()
    assert "s3cret" not in str(caught.value)


def test_a_wrong_password_is_refused_and_a_server_that_starts_is_not() -> None:
    with Postgres(options={"fsync": "off"}) as server:
        with psycopg.connect(server.url(), autocommit=True) as admin:
            admin.execute("CREATE ROLE app LOGIN PASSWORD 'open-sesame'")
        rules = "host all postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n"
        (server.folder / "pg_hba.conf").write_text(rules)
        with psycopg.connect(server.url(), autocommit=True) as admin:
            admin.execute("SELECT pg_reload_conf()")
        url = server.url().replace("postgres@", "app:guess@")
        assert 'password authentication failed for user "app"' in refusal(url)
        assert "no password supplied" in refusal(server.url().replace("postgres@", "app@"))
        server.stop()
        with monitor({"a": {"url": url}}) as away:
            away.preflight()


def test_waiting_for_a_database_that_refuses_us(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    url = f"{database.url.rpartition('/')[0]}/none"
    with monitor({"a": {"url": url}}, wait_for_database=True) as waiting:
        waiting.preflight()
        assert 'database "none" does not exist' in waiting.problems()[0]
    assert [record.getMessage() for record in caplog.records] == [
        "the database does not answer yet, retrying"
    ]
