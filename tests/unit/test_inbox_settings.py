"""Settings of inboxes from files, the environment and flags, and the exact words for what is wrong in them."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from outspark.config.inbox import Strategy
from outspark.config.layers import Given
from outspark.config.loading import load, pick_inbox
from outspark.errors import SettingsError

URL = "postgresql://ada:s3cret@db/shop"
FILE = f"""
[inboxes.billing]
url = "{URL}"
group = "billing-service"
"""
FEED = """
[inboxes.billing.feed]
type = "kafka"
url = "kafka://bus:9092"
topics = ["orders"]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(folder: Path, text: str) -> None:
    (folder / "outspark.toml").write_text(text, encoding="utf-8")


def refusal(environ: dict[str, str] | None = None, **overrides: object) -> str:
    with pytest.raises(SettingsError) as caught:
        load(None, environ or {}, overrides)
    assert "s3cret" not in str(caught.value)
    return str(caught.value)


def test_the_environment_goes_over_the_file(folder: Path) -> None:
    write(folder, FILE + FEED)
    environ = {
        "OUTSPARK__INBOXES__BILLING__STRATEGY": "at-least-once-on-success",
        "OUTSPARK__INBOXES__BILLING__ID_HEADERS": "X-My-ID, ce_id",
        "OUTSPARK__INBOXES__BILLING__FEED__TOPICS": '["orders", "payments"]',
        "OUTSPARK__INBOXES__BILLING__FEED__OPTIONS__SESSION.TIMEOUT.MS": "6000",
        "OUTSPARK__INBOXES__BILLING__WORK__TIMEOUT": "5s",
        "OUTSPARK__INBOXES__BILLING__PARTITIONS__RETENTION": "30d",
    }
    inbox = load(None, environ).inboxes["billing"]
    assert inbox.strategy is Strategy.AT_LEAST_ONCE_ON_SUCCESS
    assert inbox.id_headers == ("X-My-ID", "ce_id")
    assert inbox.feed is not None
    assert inbox.feed.topics == ("orders", "payments")
    assert inbox.feed.options == {"session.timeout.ms": 6000}
    assert inbox.work.timeout == timedelta(seconds=5)
    assert inbox.partitions is not None
    assert inbox.partitions.retention == timedelta(days=30)


def test_flags_make_an_inbox_or_go_over_it(folder: Path) -> None:
    made = load(None, {}, {"inboxes.audit.url": Given(URL, "flag --url")}).inboxes["audit"]
    assert made.group == "audit"
    write(folder, FILE)
    assert load(None, {}, {"inboxes.billing.table": "t"}).inboxes["billing"].group == "billing-service"
    assert load(None, {}, {"inbox.table": "t"}).inboxes["billing"].table == "t"


def test_picking_an_inbox(folder: Path) -> None:
    with pytest.raises(SettingsError, match="no inbox is configured: give --inbox GROUP and --url"):
        pick_inbox(load(), None)
    write(folder, FILE)
    assert pick_inbox(load(), None)[0] == pick_inbox(load(), "billing")[0] == "billing"
    with pytest.raises(SettingsError, match="there is no inbox 'b'; the settings have: billing"):
        pick_inbox(load(), "b")
    write(folder, FILE + FILE.replace("billing", "shipping"))
    with pytest.raises(SettingsError, match="choose one with --inbox: billing, shipping"):
        pick_inbox(load(), None)


def test_everything_wrong_is_said_at_once(folder: Path) -> None:
    write(
        folder,
        """
        [inboxes.billing]
        url = "postgresql://ada:s3cret@db/shop"
        strategy = "twice"
        [inboxes.billing.feed]
        type = "redis"
        topic = "orders"
        topics = ["orders", 1]
        [inboxes.billing.work]
        timeout = "soon"
        [inboxes.billing.partitions]
        every = "year"
        """,
    )
    assert refusal() == (
        "8 settings are wrong:\n"
        "  inboxes.billing.group is needed. The consumer group that rows belong to.\n"
        "  inboxes.billing.strategy = 'twice' (outspark.toml): must be \"at-most-once\" or "
        '"at-least-once-on-persist" or "at-least-once-on-success" or "exactly-once"\n'
        '  inboxes.billing.feed.type = \'redis\' (outspark.toml): must be "kafka" or "nats"\n'
        "  inboxes.billing.feed.url is needed. URL of the broker, e.g. kafka://127.0.0.1:9092 or nats://127.0.0.1:4222.\n"
        "  inboxes.billing.feed.topics[1] = 1 (outspark.toml): must be text\n"
        "  inboxes.billing.feed.topic (outspark.toml): unknown key; did you mean topics?\n"
        "  inboxes.billing.work.timeout = 'soon' (outspark.toml): not a duration: 'soon'; write a number with a unit,"
        " such as 500ms, 30s, 3m, 12h or 7d\n"
        "  inboxes.billing.partitions.every = 'year' (outspark.toml): must be "
        '"hour" or "day" or "week" or "month"'
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            FILE.replace("postgresql", "mysql"),
            "inboxes.billing.url = mysql://ada:***@db/shop (outspark.toml): must be a URL as postgresql://user@host/db",
        ),
        (
            FILE + FEED.replace("kafka://bus:9092", "nats://ada:s3cret@bus:4222"),
            "inboxes.billing.feed.url = nats://ada:***@bus:4222 (outspark.toml): must be a URL as kafka://host:9092, "
            "because feed.type is 'kafka'",
        ),
        (
            FILE + FEED.replace('type = "kafka"', 'type = "nats"'),
            "inboxes.billing.feed.url = kafka://bus:9092 (outspark.toml): must be a URL as nats://host:4222, "
            "because feed.type is 'nats'",
        ),
        (
            FILE + FEED.replace('["orders"]', "[]"),
            'inboxes.billing.feed.topics (outspark.toml): must be a list of text such as ["a", "b"], not empty',
        ),
        (
            FILE + FEED.replace('["orders"]', '"orders"'),
            "inboxes.billing.feed.topics = 'orders' (outspark.toml): must be a list of text such as"
            ' ["a", "b"], not empty',
        ),
        (
            FILE + FEED + 'stream = "ORDERS"',
            'inboxes.billing.feed (outspark.toml): stream is for type = "nats"',
        ),
        (
            FILE + 'strategy = "at-most-once"\n[inboxes.billing.work]\ntransaction_size = 5',
            "inboxes.billing (outspark.toml): transaction_size is for the strategy exactly-once: others run one "
            "handler at a time",
        ),
        (
            FILE + '[inboxes.billing.dead_letter]\noutbox = "shop"\ntopic = "dead"',
            "(outspark.toml): inboxes.billing.dead_letter.outbox = 'shop' is not one of the sources: (none)",
        ),
        (
            FILE + "[inboxes.billing.partitions]\nahead = 0",
            "inboxes.billing.partitions.ahead = 0 (outspark.toml): must be a whole number from 1 to 1000",
        ),
        (
            f'[sources.shop]\nurl = "{URL}"\n[sources.shop.partitions]\nahead = 5',
            'sources.shop (outspark.toml): the table partitions is for contract = "omnibox"',
        ),
        (
            FILE
            + FILE.replace("s.billing", "s.shipping").replace("billing-service", "shipping-service")
            + '[inboxes.billing.partitions]\nretention = "7d"\n[inboxes.shipping.partitions]\nretention = "30d"',
            "(outspark.toml): inboxes.billing.partitions and inboxes.shipping.partitions are of the same table and "
            "must be the same",
        ),
    ],
)
def test_one_thing_wrong(folder: Path, text: str, message: str) -> None:
    write(folder, text)
    assert refusal() == f"a setting is wrong:\n  {message}"
