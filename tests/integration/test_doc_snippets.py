"""What README and docs show works: every configuration is read as shown, and every `--to` of the README delivers."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from outspark.brokers import open_feed, open_publisher
from outspark.config.loading import load
from outspark.config.settings import Settings
from outspark.contracts.openoutbox.table import ddl
from outspark.delivery.routing import Router
from outspark.outbox.openoutbox import NewEvent, Outbox
from outspark.relay.lane import Lane
from outspark.relay.spec import assign_slots
from tests.databases import Database
from tests.history.brokers import make_broker
from tests.history.passing import SEND_HEADER

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("**/*.md")])
SNIPPETS = [
    pytest.param(page, snippet, id=f"{page.relative_to(ROOT)} {number}")
    for page in PAGES
    for number, snippet in enumerate(re.findall(r"^```toml\n(.*?)^```", page.read_text(), re.M | re.S))
]
TO = dict(
    re.findall(
        r"^\| \[[\w ]+\]\(docs/publishers/(\w+)\.md\) \| `(\S+)`", (ROOT / "README.md").read_text(), re.M
    )
)
TOPIC = "snippet"
EVENTS = 20


def test_the_readme_names_every_broker() -> None:
    assert set(TO) == {"kafka", "nats", "rabbitmq", "redis", "http"}


@pytest.mark.parametrize(("page", "snippet"), SNIPPETS)
def test_a_configuration_is_read_as_shown(page: Path, snippet: str, tmp_path: Path) -> None:
    environ = dict.fromkeys(re.findall(r"\$\{(\w+)\}", snippet), "postgresql://localhost/shop")
    file = tmp_path / "outspark.toml"
    file.write_text(snippet)

    settings = load(file, environ)

    for name, destination in settings.destinations.items():
        open_publisher(name, destination).close()
    for inbox in settings.inboxes.values():
        if inbox.feed is not None:
            open_feed(inbox.feed, inbox.group, "member").close()
    if settings.destinations:
        for source in [*settings.sources, "another"]:
            Router(settings.routes, settings.destinations, source)


@pytest.fixture
def outbox(database: Database) -> Database:
    database.connect().execute(ddl())
    return database


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.needs(name)) for name in sorted(TO)])
def test_what_the_readme_sends_to_arrives(name: str, outbox: Database) -> None:
    broker = make_broker(name)
    broker.start()
    try:
        address = broker.open_topic(TOPIC).settings
        assert address.url is not None
        # All as in the README, but for the host and port; a webhook on this machine must be allowed.
        real, shown = address.url.get_secret_value(), TO[name]
        url = real if name == "http" else f"{shown.partition('://')[0]}://{real.partition('://')[2]}"
        settings = load(None, {}, {"source.url": outbox.url, "to": url, "hosting.lanes": 1})
        if name == "http":
            settings = settings.model_copy(update={"destinations": {"default": address}})
        _deliver(settings, outbox)
        assert broker.arrivals(TOPIC) == [str(number) for number in range(EVENTS)]
    finally:
        broker.close()


def _deliver(settings: Settings, outbox: Database) -> None:
    conn = outbox.connect()
    events = [NewEvent(TOPIC, b"{}", key="k", headers={SEND_HEADER: f"{n}"}) for n in range(EVENTS)]
    Outbox().enqueue(conn, *events)
    deadline = time.monotonic() + 30

    def done() -> bool:
        assert time.monotonic() < deadline, "not delivered in time"
        row = conn.execute("SELECT count(*) FROM openoutbox_events WHERE status <> 'DELIVERED'").fetchone()
        return row == (0,)

    [spec] = assign_slots(settings, "test", {})
    Lane(spec).run(done)
