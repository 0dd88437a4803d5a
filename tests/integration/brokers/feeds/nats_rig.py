"""What the tests of the NATS feed share: a stream of its own per test, filled over a plain socket."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from nats.js import JetStreamContext
from nats.js.api import ConsumerConfig, ConsumerInfo

from outspark.brokers import Feed, open_feed
from outspark.config.inbox import FeedSettings
from outspark.tools.servers.nats import Nats
from tests.integration.brokers.test_nats import on_jetstream
from tests.waiting import wait_for

TIMEOUT = 20.0


class NatsFeedRig:
    """The URL carries credentials that the server does not ask for."""

    secret = "s3cr3t-pw"

    def __init__(self, server: Nats) -> None:
        self.server = server
        self.stream = f"S{uuid.uuid4().hex}"
        self.topic = f"{self.stream}.order.created"
        self.address = f"127.0.0.1:{server.port}"
        self.repeats_in_order = False
        self.options: dict[str, Any] = {}
        """Of every feed that does not say otherwise."""
        self._feeds: list[Feed] = []
        self._sent = 0
        self.on_jetstream(
            lambda jetstream: jetstream.add_stream(name=self.stream, subjects=[f"{self.stream}.>"])
        )

    def open(
        self,
        group: str = "billing",
        member: str = "lane-0",
        *,
        topics: Sequence[str] = (),
        stream: str | None = None,
        settings: dict[str, Any] | None = None,
        **options: Any,
    ) -> Feed:
        url = self.server.url.replace("//", f"//user:{self.secret}@")
        given = {**self.options, **options}
        return self._open(url, group, member, topics=topics, stream=stream, options=given, **(settings or {}))

    def open_dead(self) -> Feed:
        self.address = "127.0.0.1:1"
        return self._open(f"nats://user:{self.secret}@{self.address}", "billing", "lane-0")

    def _open(self, url: str, group: str, member: str, **settings: Any) -> Feed:
        settings["topics"] = settings.get("topics") or (self.topic,)
        feed = open_feed(FeedSettings.model_validate({"type": "nats", "url": url, **settings}), group, member)
        self._feeds.append(feed)
        return feed

    def send(
        self, *bodies: bytes, headers: Sequence[tuple[str, bytes]] = (), subject: str | None = None
    ) -> None:
        """As bytes: the client would not send a header that is no text."""
        block = b"".join(name.encode() + b": " + value + b"\r\n" for name, value in headers)
        block = b"NATS/1.0\r\n" + block + b"\r\n"
        line = f"HPUB {subject or self.topic} {len(block)}".encode()
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=TIMEOUT) as connection:
            answers = connection.makefile("rb")
            connection.sendall(b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\n')
            messages = (line + b" %d\r\n" % (len(block) + len(body)) + block + body for body in bodies)
            connection.sendall(b"\r\n".join([*messages, b"PING\r\n"]))
            while (answer := answers.readline()) != b"PONG\r\n":
                assert answer.startswith(b"INFO"), answer
        self._sent += len(bodies)
        wait_for(lambda: self.on_jetstream(self._stored) >= self._sent, what="the messages in the stream")

    async def _stored(self, jetstream: JetStreamContext) -> int:
        return int((await jetstream.stream_info(self.stream)).state.messages)

    def on_jetstream(self, work: Callable[[JetStreamContext], Any]) -> Any:
        return on_jetstream(self.server, work)

    def consumer(self, name: str = "billing") -> ConsumerInfo:
        info: ConsumerInfo = self.on_jetstream(lambda jetstream: jetstream.consumer_info(self.stream, name))
        return info

    def add_consumer(self, name: str = "billing", **config: Any) -> None:
        made = ConsumerConfig(name=name, durable_name=name, **config)
        self.on_jetstream(lambda jetstream: jetstream.add_consumer(self.stream, made))

    def start(self) -> None:
        self.server.start()

    def stop(self) -> None:
        self.server.stop()

    def kill(self) -> None:
        self.server.kill()

    def close(self) -> None:
        for feed in self._feeds:
            feed.close()
