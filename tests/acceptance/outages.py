"""Real brokers that lose what events need, a stream, a topic, an exchange, memory, an endpoint, and get it back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass

import nats
from aio_pika.abc import AbstractChannel, ExchangeType

from outspark.tools.servers.kafka import Kafka
from outspark.tools.servers.nats import Nats
from outspark.tools.servers.rabbitmq import RabbitMQ
from outspark.tools.servers.redis import Redis
from tests.acceptance.arrivals import Stream
from tests.integration.brokers.http_rig import HttpRig
from tests.integration.brokers.kafka_rig import KafkaRig, delete_topic, records, topic_names
from tests.integration.brokers.rabbitmq_rig import RabbitMQRig, on_channel
from tests.integration.brokers.receiver import Receiver
from tests.integration.brokers.redis_rig import RedisRig, command
from tests.waiting import wait_for


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """Everything is there until `begin`, and again after `mend`."""

    topic: str
    type: str
    url: str
    options: str = "{}"
    """As TOML."""
    lack: str
    """What /readyz has to say: what is missing, and what to do."""
    whole: bool = False
    """Does nothing of the destination work, or only the topic?"""
    begin: Callable[[], None]
    mend: Callable[[], None]
    payloads: Callable[[], list[bytes]]
    """What arrived since the topic was last made, in order."""

    @property
    def destination(self) -> str:
        return f'type = "{self.type}"\nurl = {json.dumps(self.url)}\noptions = {self.options}\npublish_timeout = "5s"'


@contextmanager
def nats_stream() -> Iterator[Outage]:
    with Nats() as server:
        stream = Stream(server.url, "backlog")
        stream.create()

        async def delete() -> None:
            async with await nats.connect(server.url) as client:
                await client.jetstream().delete_stream(stream.name)

        topic = "backlog.orders"
        yield Outage(
            topic=topic,
            type="nats",
            url=server.url,
            lack=f"no stream listens on subject '{topic}'; create one that does",
            begin=lambda: asyncio.run(delete()),
            mend=stream.create,
            payloads=lambda: [one.payload for one in stream.arrivals()],
        )


@contextmanager
def kafka_topic() -> Iterator[Outage]:
    with Kafka(auto_create_topics=False) as server, closing(KafkaRig(server)) as rig:

        def delete() -> None:
            delete_topic(server, rig.topic)
            wait_for(lambda: rig.topic not in topic_names(server), what="the end of the topic")

        yield Outage(
            topic=rig.topic,
            type="kafka",
            url=server.url,
            lack=f"topic '{rig.topic}' does not exist; create it",
            begin=delete,
            mend=lambda: rig.create_topic(rig.topic),
            payloads=lambda: [record.value() or b"" for record in records(server, rig.topic)],
        )


@contextmanager
def rabbitmq_exchange() -> Iterator[Outage]:
    with RabbitMQ() as server, closing(RabbitMQRig(server)) as rig:
        exchange = "shop"

        async def delete(channel: AbstractChannel) -> None:
            await channel.exchange_delete(exchange)

        async def create(channel: AbstractChannel) -> None:
            made = await channel.declare_exchange(exchange, ExchangeType.DIRECT, durable=True)
            await (await channel.get_queue(rig.topic)).bind(made, rig.topic)

        on_channel(server, create)
        yield Outage(
            topic=rig.topic,
            type="rabbitmq",
            url=server.url,
            options=f'{{ exchange = "{exchange}" }}',
            lack=f"no exchange '{exchange}' in vhost '/'; create it",
            whole=True,
            begin=lambda: on_channel(server, delete),
            mend=lambda: on_channel(server, create),
            payloads=lambda: [each.payload for each in rig.read()],
        )


@contextmanager
def redis_memory() -> Iterator[Outage]:
    with Redis() as server, closing(RedisRig(server)) as rig:

        def limit(size: int) -> None:
            command(server, "CONFIG", "SET", "maxmemory", size)

        yield Outage(
            topic=rig.topic,
            type="redis",
            url=server.url,
            lack="when used memory > 'maxmemory'; free memory or raise maxmemory",
            whole=True,
            begin=lambda: limit(1),
            mend=lambda: limit(0),
            payloads=lambda: [each.payload for each in rig.read()],
        )


@contextmanager
def webhook() -> Iterator[Outage]:
    with Receiver() as receiver, closing(HttpRig(receiver)) as rig:
        refused = [0]

        def mend() -> None:
            refused[0] = len(rig.arrivals())
            receiver.answer_all(204)

        yield Outage(
            topic="orders",
            type="http",
            url=receiver.url + rig.path,
            options="{ allow_private = true, concurrency = 64 }",
            lack="HTTP 410; open the endpoint again, or put its new address into the destination's url",
            begin=lambda: receiver.answer_all(410),
            mend=mend,
            payloads=lambda: [each.payload for each in rig.read()[refused[0] :]],
        )


OUTAGES: dict[str, Callable[[], AbstractContextManager[Outage]]] = {
    "nats": nats_stream,
    "kafka": kafka_topic,
    "rabbitmq": rabbitmq_exchange,
    "redis": redis_memory,
    "http": webhook,
}
