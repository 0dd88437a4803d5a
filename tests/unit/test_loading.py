"""Settings from files, the environment and flags, and the exact words for what is wrong in them."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from outspark.config.layers import Given
from outspark.config.loading import load, pick_source
from outspark.errors import SettingsError
from outspark.redaction import redact

URL = "postgresql://ada:s3cret@db/shop"
KAFKA = {"STORAGE_URL": URL, "PUBLISHER_TYPE": "kafka", "PUBLISHER_URL": "a:9092,b:9092"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(folder: Path, text: str) -> Path:
    path = folder / "outspark.toml"
    path.write_text(text, encoding="utf-8")
    return path


def refusal(path: Path | None = None, environ: dict[str, str] | None = None, **overrides: object) -> str:
    with pytest.raises(SettingsError) as caught:
        load(path, environ or {}, overrides)
    assert "s3cret" not in str(caught.value)
    return str(caught.value)


def test_nothing_at_all_gives_the_defaults(folder: Path) -> None:
    settings = load()
    assert settings.hosting.lanes == 2
    assert settings.sources == {}


def test_environment_beats_file_and_flags_beat_both(folder: Path) -> None:
    write(
        folder, f'[hosting]\nlanes = 2\nshift = "20s"\n[sources.orders]\nurl = "{URL}"\n[server]\nport = 1\n'
    )
    settings = load(
        None,
        {
            "OUTSPARK__HOSTING__LANES": "4",
            "OUTSPARK__SERVER__PORT": "2",
            "OUTSPARK__SOURCES__ORDERS__SLOTS": "32",
        },
        {"server.port": 3, "source.table": "public.outbox"},
    )
    assert settings.hosting.lanes == 4
    assert settings.hosting.shift == timedelta(seconds=20)
    assert settings.server.port == 3
    assert settings.sources["orders"].slots == 32
    assert settings.sources["orders"].table == "public.outbox"


def test_an_environment_name_finds_a_source_whatever_its_case_and_dashes(folder: Path) -> None:
    write(folder, f'[sources.Billing-Events]\nurl = "{URL}"\n')
    settings = load(None, {"OUTSPARK__SOURCES__BILLING_EVENTS__BATCH_SIZE": "7"})
    assert list(settings.sources) == ["Billing-Events"]
    assert settings.sources["Billing-Events"].batch_size == 7


def test_routes_and_options_come_as_json(folder: Path) -> None:
    environ = {
        "OUTSPARK__DESTINATIONS__BUS__TYPE": "nats",
        "OUTSPARK__DESTINATIONS__BUS__URL": "nats://127.0.0.1:4222",
        "OUTSPARK__DESTINATIONS__BUS__OPTIONS__MAX_RECONNECT_ATTEMPTS": "3",
        "OUTSPARK__ROUTES": '[{"match": "order.*", "topic": "orders.{type}"}]',
    }
    settings = load(None, environ)
    assert settings.destinations["bus"].options == {"max_reconnect_attempts": 3}
    assert settings.routes[0].topic == "orders.{type}"
    assert load(None, environ, {"routes": [{"topic": "all"}]}).routes[0].topic == "all"


def test_a_file_takes_secrets_from_the_environment(folder: Path) -> None:
    write(folder, '[sources.orders]\nurl = "postgresql://ada:${PGPASS}@db/shop"\ntable = "price$$"\n')
    source = load(None, {"PGPASS": "s3cret"}).sources["orders"]
    assert source.url.get_secret_value() == URL
    assert source.table == "price$"


def test_an_open_outbox_relay_moves_in_unchanged(folder: Path) -> None:
    settings = load(
        None,
        {
            "STORAGE_TYPE": "postgres",
            "STORAGE_URL": "postgres://ada:s3cret@db:5432/shop?sslmode=disable&pool_max_conns=10",
            "STORAGE_TABLE_NAME": "events",
            "PUBLISHER_TYPE": "nats",
            "PUBLISHER_URL": "nats://bus:4222",
            "RELAY_ID": "",
            "POLL_INTERVAL": "250ms",
            "LEASE_TIMEOUT": "1m30s",
            "REAP_BATCH_SIZE": "50",
            "RETRY_MAX_ATTEMPTS": "5",
            "RETRY_BASE_DELAY": "2s",
            "RETRY_MAX_DELAY": "1h",
            "RETRY_JITTER": "0.5",
            "HEALTH_CHECK_INTERVAL": "9s",
            "SERVER_PORT": ":9090",
            "NATS_PUBLISH_TIMEOUT": "3s",
            "NATS_CONNECTION_TIMEOUT": "10s",
            "KAFKA_COMPRESSION": "snappy",
            "OTEL_TRACES_EXPORTER": "none",
        },
    )
    source, destination = settings.sources["default"], settings.destinations["default"]
    assert source.url.get_secret_value() == "postgres://ada:s3cret@db:5432/shop?sslmode=disable"
    assert (source.table, source.batch_size, source.reap_batch_size) == ("events", 100, 50)
    assert source.poll_interval == timedelta(milliseconds=250)
    assert source.lease_timeout == timedelta(seconds=90)
    assert source.retry.max_attempts == 5
    assert source.retry.base_delay == timedelta(seconds=2)
    assert source.retry.max_delay == timedelta(hours=1)
    assert source.retry.jitter == 0.5
    assert destination.type == "nats"
    assert destination.url is not None
    assert destination.publish_timeout == timedelta(seconds=3)
    assert (settings.server.host, settings.server.port) == ("127.0.0.1", 9090)
    assert settings.server.health_check_interval == timedelta(seconds=9)
    assert settings.relay.id


def test_an_open_outbox_relay_on_kafka_keeps_its_limits_and_partitions(folder: Path) -> None:
    given = {"KAFKA_ASYNC": "false", "KAFKA_REQUIRED_ACKS": "all", "KAFKA_BATCH_SIZE": "1"}
    destination = load(None, {**KAFKA, **given, "KAFKA_WRITE_TIMEOUT": "3s"}).destinations["default"]
    assert destination.type == "kafka"
    assert destination.url is not None
    assert destination.url.get_secret_value() == "a:9092,b:9092"
    assert destination.publish_timeout == timedelta(seconds=3)
    assert destination.options == {
        "message.max.bytes": "10485760",
        "compression.type": "snappy",
        "partitioner": "fnv1a_random",
    }
    zstd = load(None, {**KAFKA, "KAFKA_COMPRESSION": "zstd"}).destinations["default"]
    assert zstd.options["compression.type"] == "zstd"


def test_async_sending_to_kafka_matters_to_kafka_alone(folder: Path) -> None:
    settings = load(None, {"STORAGE_URL": URL, "KAFKA_ASYNC": "true"})
    assert settings.destinations["default"].type == "stdout"


def test_an_open_outbox_relay_on_redis_keeps_its_timeouts(folder: Path) -> None:
    settings = load(
        None,
        {
            "STORAGE_URL": URL,
            "PUBLISHER_TYPE": "redis",
            "PUBLISHER_URL": "redis://cache:6379/1",
            "REDIS_WRITE_TIMEOUT": "1s",
            "REDIS_CONNECTION_TIMEOUT": "5s",
            "NATS_PUBLISH_TIMEOUT": "3s",
        },
    )
    destination = settings.destinations["default"]
    assert destination.url is not None
    assert destination.url.get_secret_value() == "redis://cache:6379/1"
    assert destination.publish_timeout == timedelta(seconds=1)
    assert destination.options == {"connect_timeout": "5s"}


def test_the_shortest_open_outbox_environment_prints_to_stdout(folder: Path) -> None:
    settings = load(None, {"STORAGE_URL": URL, "PUBLISHER_URL": "nats://ignored:4222"})
    assert settings.destinations["default"].type == "stdout"
    assert settings.destinations["default"].url is None


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [("8081", "127.0.0.1", 8081), ("0.0.0.0:80", "0.0.0.0", 80), ("[::1]:80", "::1", 80)],
)
def test_server_port_may_carry_an_address(folder: Path, text: str, host: str, port: int) -> None:
    settings = load(None, {"STORAGE_URL": URL, "SERVER_PORT": text})
    assert (settings.server.host, settings.server.port) == (host, port)


def test_a_file_with_sources_leaves_the_open_outbox_names_alone(folder: Path) -> None:
    write(folder, f'[sources.orders]\nurl = "{URL}"\n')
    settings = load(None, {"STORAGE_URL": "postgres://elsewhere/db", "BATCH_SIZE": "9"})
    assert list(settings.sources) == ["orders"]
    assert settings.sources["orders"].batch_size == 1000


def test_to_sends_everything_to_one_destination(folder: Path) -> None:
    write(
        folder,
        '[destinations.a]\ntype = "null"\n[destinations.b]\ntype = "null"\n'
        '[[routes]]\nmatch = "order.*"\ndestination = "b"\ntopic = "o"\n',
    )
    settings = load(None, {}, {"to": "nats://bus:4222"})
    assert list(settings.destinations) == ["default"]
    assert settings.routes[0].destination is None
    assert settings.routes[0].topic == "o"


def test_everything_wrong_is_said_at_once(folder: Path) -> None:
    write(
        folder,
        """
        lanes = 3
        [hosting]
        lanes = "many"
        shfit = "10s"
        [relay]
        grace = "soon"
        master = "yarn"
        [sources.orders]
        url = "postgresql://ada:${NOWHERE}@db/shop"
        ordering = "keys"
        [sources.orders.retry]
        jitter = 2
        [sources.billing]
        table = "t"
        """,
    )
    assert refusal(environ={"OUTSPARK__SERVER__PORT": "70000"}) == (
        "10 settings are wrong:\n"
        "  sources.orders.url (outspark.toml): the environment variable NOWHERE is not set\n"
        "  hosting.lanes = 'many' (outspark.toml): must be a whole number from 1 to 256\n"
        "  hosting.shfit (outspark.toml): unknown key; did you mean shift?\n"
        "  relay.grace = 'soon' (outspark.toml): not a duration: 'soon'; write a number with a unit, such as"
        " 500ms, 30s, 3m, 12h or 7d\n"
        "  relay.master (outspark.toml): unknown key; did you mean hosting.master?\n"
        "  server.port = '70000' (environment variable OUTSPARK__SERVER__PORT): must be a whole number"
        " from 0 to 65535\n"
        '  sources.orders.ordering = \'keys\' (outspark.toml): must be "key" or "none"\n'
        "  sources.orders.retry.jitter = 2 (outspark.toml): must be a number from 0 to 1\n"
        "  sources.billing.url is needed. PostgreSQL URL, e.g. postgresql://user:password@host:5432/database.\n"
        "  lanes (outspark.toml): unknown key; did you mean hosting.lanes?"
    )


@pytest.mark.parametrize(
    ("environ", "overrides", "message"),
    [
        (
            {"STORAGE_URL": URL, "PUBLISHER_TYPE": "kafka"},
            {},
            "destinations.default.url is needed for type 'kafka', such as kafka://host:9092",
        ),
        (
            {**KAFKA, "KAFKA_ASYNC": "true"},
            {},
            "KAFKA_ASYNC = 'true' (environment variable): must be false; sending without waiting for the "
            "acknowledgement marks events as delivered that a crash or a rejection loses",
        ),
        (
            {**KAFKA, "KAFKA_REQUIRED_ACKS": "one"},
            {},
            "KAFKA_REQUIRED_ACKS = 'one' (environment variable): must be all; with fewer acknowledgements "
            "events are marked as delivered that a failure of one broker loses",
        ),
        (
            {"STORAGE_URL": URL, "STORAGE_TYPE": "mysql"},
            {},
            "STORAGE_TYPE = 'mysql' (environment variable): must be postgres",
        ),
        (
            {"STORAGE_URL": URL, "PUBLISHER_TYPE": "nats"},
            {},
            "destinations.default.url is needed for type 'nats', such as nats://host:4222",
        ),
        (
            {"STORAGE_URL": "mysql://ada:s3cret@db/shop"},
            {},
            "sources.default.url = mysql://ada:***@db/shop (environment variable STORAGE_URL): "
            "must be a URL as postgresql://user@host/db",
        ),
        (
            {"STORAGE_URL": URL},
            {
                "source.lease": Given("slot", "flag --lease"),
                "source.ordering": Given("none", "flag --ordering"),
            },
            'sources.default: lease = "slot" needs ordering = "key": without slots nothing owns an event',
        ),
        (
            {},
            {"hosting.lanes": Given(0, "flag --lanes")},
            "hosting.lanes = 0 (flag --lanes): must be a whole number from 1 to 256",
        ),
        (
            {},
            {"to": Given("mqtt://b", "flag --to")},
            "destinations.default.type = 'mqtt' (flag --to): must be "
            '"kafka" or "nats" or "rabbitmq" or "redis" or "http" or "stdout" or "null"',
        ),
        (
            {"OUTSPARK__ROUTES": '[{"macth": "a"}]'},
            {},
            "routes[0].macth (environment variable OUTSPARK__ROUTES): unknown key; did you mean match?",
        ),
        (
            {"OUTSPARK__SOURCES__A__URL": URL, "OUTSPARK__SOURCES__A__PASWORD": "s3cret"},
            {},
            "sources.a.pasword (environment variable OUTSPARK__SOURCES__A__PASWORD): unknown key; known are: "
            "url, contract, table, ordering, lease, slots, batch_size, batch_bytes, poll_interval, lease_timeout, "
            "reap_batch_size, on_dead, on_unroutable, dead_guard, doorbell, retry, transform, partitions, jeap",
        ),
        (
            {"OUTSPARK__RELAY": "x"},
            {},
            "relay = 'x' (environment variable OUTSPARK__RELAY): must be a table",
        ),
    ],
)
def test_one_thing_wrong(
    folder: Path, environ: dict[str, str], overrides: dict[str, object], message: str
) -> None:
    assert refusal(None, environ, **overrides) == f"a setting is wrong:\n  {message}"


def test_a_flag_for_one_of_several_sources_needs_a_name(folder: Path) -> None:
    write(folder, f'[sources.a]\nurl = "{URL}"\n[sources.b]\nurl = "{URL}2"\n')
    message = refusal(None, {}, **{"source.table": Given("t", "flag --table")})
    assert message == "a setting is wrong:\n  flag --table needs --source, because there are several: a, b"


def test_files_that_cannot_be_read(folder: Path) -> None:
    assert refusal(Path("none.toml")) == "cannot read the settings file none.toml: No such file or directory"
    write(folder, "[relay\n")
    assert refusal().startswith("outspark.toml is not a TOML file: ")


def test_picking_a_source(folder: Path) -> None:
    one = load(None, {"STORAGE_URL": URL})
    assert pick_source(one, None)[0] == "default"
    two = load(None, {"OUTSPARK__SOURCES__A__URL": URL, "OUTSPARK__SOURCES__B__URL": f"{URL}2"})
    assert pick_source(two, "b")[0] == "b"
    with pytest.raises(SettingsError, match="choose one with --source: a, b"):
        pick_source(two, None)
    with pytest.raises(SettingsError, match=r"there is no source 'c'; the settings have: a, b"):
        pick_source(two, "c")
    with pytest.raises(SettingsError, match="no source is configured"):
        pick_source(load(), None)


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        (URL, "postgresql://ada:***@db/shop"),
        ("postgres://ada:p@ss:w0rd?#@db/shop", "postgres://ada:***@db/shop"),
        ("nats://u:p@a:4222,nats://u:p@b:4222", "nats://u:***@a:4222,nats://u:***@b:4222"),
        ("nats://t0ken@bus:4222", "nats://***@bus:4222"),
        ("postgresql://ada@db/shop", "postgresql://ada@db/shop"),
        ("host=db password=s3cret user=ada", "host=db password=*** user=ada"),
        ("host=db password='s3 cret' user=ada", "host=db password=*** user=ada"),
        (
            "postgresql://db/shop?user=ada&password=s3cret&x=1",
            "postgresql://db/shop?user=ada&password=***&x=1",
        ),
        ("nothing to hide at 10:30", "nothing to hide at 10:30"),
    ],
)
def test_passwords_are_redacted(text: str, safe: str) -> None:
    assert redact(f"before {text} after") == f"before {safe} after"


@pytest.mark.parametrize(
    ("stuck_after", "wrong"),
    [
        (
            "150s",
            "hosting.stuck_after = 2m30s must be longer than destinations.slow.publish_timeout, which is 2m30s",
        ),
        ("151s", None),
    ],
)
def test_a_lane_at_work_is_no_lane_that_hangs(folder: Path, stuck_after: str, wrong: str | None) -> None:
    slow = "[destinations.slow]\ntype = 'null'\npublish_timeout = '150s'\n"
    write(folder, f"[hosting]\nstuck_after = '{stuck_after}'\n[sources.a]\nurl = '{URL}'\n{slow}")
    if wrong is None:
        assert load().hosting.stuck_after == timedelta(seconds=151)
    else:
        assert wrong in refusal()


@pytest.mark.parametrize(
    ("url", "table"),
    [
        (URL, "openoutbox_events"),
        ("postgresql://ada:other@DB:5432/shop?connect_timeout=3", "OpenOutbox_Events"),
        ("host=db user=ada dbname=shop", '"openoutbox_events"'),
        ("postgresql://ada@standby,db/shop", "openoutbox_events"),
    ],
)
def test_two_sources_that_name_one_table_are_refused(folder: Path, url: str, table: str) -> None:
    write(folder, f"[sources.a]\nurl = '{URL}'\n[sources.b]\nurl = '{url}'\ntable = '{table}'\n")
    message = refusal()
    assert message.startswith(
        "a setting is wrong:\n  (outspark.toml): sources.a and sources.b are the same table "
    )


@pytest.mark.parametrize(
    ("url", "table"),
    [
        (URL, "other"),
        (f"{URL}2", "openoutbox_events"),
        ("postgresql://ada:s3cret@db:5433/shop", "openoutbox_events"),
        # A role's search path may lead elsewhere.
        ("postgresql://bob@db/shop", "openoutbox_events"),
        (URL, "sales.openoutbox_events"),
        ("nonsense=1", "openoutbox_events"),
    ],
)
def test_what_may_be_two_tables_is_left_to_the_database(folder: Path, url: str, table: str) -> None:
    write(folder, f"[sources.a]\nurl = '{URL}'\n[sources.b]\nurl = '{url}'\ntable = '{table}'\n")
    assert list(load().sources) == ["a", "b"]


def test_two_inboxes_of_one_group_in_one_table_are_refused(folder: Path) -> None:
    text = f"[inboxes.a]\nurl = '{URL}'\ngroup = 'billing'\n[inboxes.b]\nurl = '{URL}'\ngroup = "
    write(folder, f"{text}'billing'\n")
    assert refusal() == (
        "a setting is wrong:\n  (outspark.toml): inboxes.a and inboxes.b are the consumer group 'billing' in "
        "the same table inbox_events of one database; leave one of them out, or give it a group of its own"
    )
    write(folder, f"{text}'shipping'\n")
    assert list(load().inboxes) == ["a", "b"]


def test_routes_that_lead_nowhere_are_told_with_all_the_rest(folder: Path) -> None:
    write(
        folder,
        f"""
[hosting]
lanes = 0
[sources.a]
url = "{URL}"
[destinations.bus]
type = "null"
[[routes]]
source = "b"
destination = ["bus", "bos"]
[[routes]]
destination = "cache"
""",
    )
    nowhere = [
        "routes[0].source = 'b' is not one of: a",
        "routes[0].destination = 'bos' is not one of: bus",
        "routes[1].destination = 'cache' is not one of: bus",
    ]
    first, *lines = refusal().splitlines()
    assert first == "4 settings are wrong:"
    assert lines[0].startswith("  hosting.lanes = 0 (outspark.toml): must be ")
    assert [line.replace("(outspark.toml): ", "") for line in lines[1:]] == [f"  {line}" for line in nowhere]
    assert refusal(None, {}, **{"hosting.lanes": 2}).replace("(outspark.toml): ", "").splitlines() == [
        "3 settings are wrong:",
        *(f"  {line}" for line in nowhere),
    ]
