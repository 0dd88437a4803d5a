"""Passwords of every printable character, in the URLs of servers that start at once; others are in their own files."""

from __future__ import annotations

import base64
import json
import logging
import traceback
from contextlib import closing

import pytest

from outspark.brokers import open_feed
from outspark.config.inbox import FeedSettings
from outspark.errors import FeedFailed
from outspark.tools.servers.redis import Redis
from tests.integration.brokers.receiver import Answer, Receiver
from tests.integration.brokers.test_nats import ConfiguredNats
from tests.integration.tls.passwords import (
    EVERY,
    WRONG,
    assert_not_echoed,
    assert_password_works,
    encoded,
)
from tests.integration.tls.recorder import HOST
from tests.integration.tls.refusals import TIMEOUT, event, open_at

BOTH = pytest.mark.parametrize("password", [EVERY, WRONG], ids=["right", "wrong"])
TOPIC = "shop.order"


def _nats() -> ConfiguredNats:
    return ConfiguredNats(f"authorization {{ user: relay, password: {json.dumps(EVERY)} }}")


@pytest.mark.needs("nats")
@BOTH
def test_nats(caplog: pytest.LogCaptureFixture, password: str) -> None:
    with _nats() as server:
        url = f"nats://relay:{encoded(password)}@{HOST}:{server.port}"
        options = {"stream": "SHOP", "subjects": ["shop.>"]}
        assert_password_works("nats", TOPIC, url, password, caplog, **options)
        settings = FeedSettings.model_validate(
            {"type": "nats", "url": url, "topics": [TOPIC], "options": {}, "stream": "SHOP"}
        )
        with closing(open_feed(settings, "billing", "lane-0")) as feed:
            said = repr(settings) + repr(feed)
            try:
                feed.check(TIMEOUT)
                assert password == EVERY
            except FeedFailed as error:
                assert password == WRONG
                said += "".join(traceback.format_exception(error))
        assert_not_echoed(password, said, caplog.text)


@pytest.mark.needs("redis")
@BOTH
def test_redis(caplog: pytest.LogCaptureFixture, password: str) -> None:
    with Redis(password=EVERY) as server:
        url = f"redis://:{encoded(password)}@{HOST}:{server.port}"
        assert_password_works("redis", TOPIC, url, password, caplog)


@pytest.mark.needs("http")
def test_http(caplog: pytest.LogCaptureFixture) -> None:
    """A receiver that repeats what it was sent is not repeated."""
    caplog.set_level(logging.DEBUG)
    with Receiver() as receiver:
        url = f"http://relay:{encoded(EVERY)}@{HOST}:{receiver.port}/hook"
        assert_password_works("http", TOPIC, url, EVERY, caplog, allow_private=True)
        sent = base64.b64encode(f"relay:{EVERY}".encode()).decode()
        assert [one.headers["authorization"] for one in receiver.received()] == [f"Basic {sent}"]
        for echo in (EVERY, encoded(EVERY), sent):
            one = event(TOPIC)
            receiver.answer(one.id, Answer(503, body=f"no: {echo}"))
            with closing(open_at("http", url, {"allow_private": True})) as publisher:
                (outcome,) = publisher.publish([one], TIMEOUT)
            assert_not_echoed(EVERY, repr(outcome), caplog.text)
            assert sent not in repr(outcome)
