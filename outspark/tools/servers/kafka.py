"""A Kafka broker for demo, bench and tests: one node in KRaft combined mode, from the server's jars."""

from __future__ import annotations

import base64
import signal
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from outspark.errors import ServerStartError
from outspark.spark.java import java_home
from outspark.tools.servers.kafka_jars import class_path
from outspark.tools.servers.process import GuardedProcess
from outspark.tools.servers.server import HOST, Server, free_port

_READY_TIMEOUT = 180.0
_STARTED = b"Kafka Server started"
_MEMORY = ["-Xms256m", "-Xmx512m", "-XX:+UseSerialGC"]
_COMPILE_LESS = "-XX:TieredStopAtLevel=1"
_LOG = "-Dorg.slf4j.simpleLogger."
_LOGGING = [f"{_LOG}defaultLogLevel=warn", f"{_LOG}log.kafka.server.KafkaRaftServer=info"]
# One node, so nothing can be replicated, and no group waits for members that may still come.
_ALONE = {
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    # After a SIGKILL the node must not wait long for its former self to be declared dead.
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "500",
    "log.cleaner.dedupe.buffer.size": "8388608",
}
_AUTHORISED = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    # All clients of the listener without passwords, the node itself included.
    "super.users": "User:ANONYMOUS",
    "allow.everyone.if.no.acl.found": "true",
}


class Kafka(Server):
    """`with Kafka() as server: Producer({"bootstrap.servers": server.address})`.

    With `users` (name and password) it has a second listener, `sasl_url`, that asks for SASL/PLAIN and obeys
    ACLs. `max_message_bytes` is the broker's limit for a batch; its own default is 1 MiB. `quick` starts in about
    half the time and serves slower.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        port: int | None = None,
        auto_create_topics: bool = True,
        partitions: int = 1,
        max_message_bytes: int | None = None,
        users: Mapping[str, str] | None = None,
        quick: bool = False,
    ) -> None:
        super().__init__(folder, port)
        self._users = dict(users or {})
        self._machine = [*_MEMORY, _COMPILE_LESS] if quick else _MEMORY
        self._settings = {
            "auto.create.topics.enable": str(auto_create_topics).lower(),
            "num.partitions": str(partitions),
        }
        if max_message_bytes is not None:
            self._settings["message.max.bytes"] = str(max_message_bytes)
        self._controller_port: int | None = None
        self._sasl_port: int | None = None

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def url(self) -> str:
        return f"kafka://{self.address}"

    @property
    def sasl_url(self) -> str:
        if self._sasl_port is None:
            raise ServerStartError("Kafka was not started with users, so it has no SASL listener")
        return f"kafka://{HOST}:{self._sasl_port}"

    def _prepare(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        if self._controller_port is None:
            self._controller_port = free_port()
        if self._users and self._sasl_port is None:
            self._sasl_port = free_port()

    def _launch(self, folder: Path, port: int) -> GuardedProcess:
        config = folder / "server.properties"
        config.touch(mode=0o600)
        config.write_text("".join(f"{name}={value}\n" for name, value in self._config(folder, port).items()))
        if not (folder / "data" / "meta.properties").exists():
            _format(folder, config)
        log = folder / "server.log"
        written = log.stat().st_size if log.exists() else 0
        process = GuardedProcess(
            java_command("kafka.Kafka", str(config), options=self._machine),
            folder=folder,
            stop_signal=signal.SIGTERM,
            discard=self._temporary,
        )
        process.await_ready(lambda: _STARTED in _tail(log, written), _READY_TIMEOUT)
        return process

    def _config(self, folder: Path, port: int) -> dict[str, str]:
        listeners = {"CLIENT": port, "CONTROLLER": self._controller_port}
        protocols = {"CLIENT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT"}
        if self._users:
            listeners["SASL"] = self._sasl_port
            protocols["SASL"] = "SASL_PLAINTEXT"
        addresses = {name: f"{name}://{HOST}:{port}" for name, port in listeners.items()}
        return {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@{HOST}:{self._controller_port}",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "CLIENT",
            "listeners": ",".join(addresses.values()),
            "advertised.listeners": ",".join(
                text for name, text in addresses.items() if name != "CONTROLLER"
            ),
            "listener.security.protocol.map": ",".join(f"{name}:{text}" for name, text in protocols.items()),
            "log.dirs": str(folder / "data"),
            **_ALONE,
            **self._settings,
            **(_sasl(self._users) if self._users else {}),
        }


def java_command(main: str, *arguments: str, options: Sequence[str] = (_COMPILE_LESS,)) -> list[str]:
    """The command line of one of Kafka's own programs, such as its console consumer."""
    java = str(java_home() / "bin" / "java")
    return [java, *options, *_LOGGING, "-cp", class_path(), main, *arguments]


def _sasl(users: Mapping[str, str]) -> dict[str, str]:
    logins = " ".join(f"user_{name}={_quoted(password)}" for name, password in users.items())
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    return {
        "listener.name.sasl.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl.plain.sasl.jaas.config": f"{module} required {logins};",
        **_AUTHORISED,
    }


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _format(folder: Path, config: Path) -> None:
    cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    # As one argument: an id may begin with a hyphen.
    argv = java_command("kafka.tools.StorageTool", "format", f"--cluster-id={cluster}", "-c", str(config))
    done = subprocess.run(
        argv, check=False, cwd=folder, capture_output=True, text=True, timeout=_READY_TIMEOUT
    )
    if done.returncode != 0:
        raise ServerStartError(f"Kafka's storage cannot be formatted:\n{done.stdout}{done.stderr}")


def _tail(log: Path, start: int) -> bytes:
    with log.open("rb") as file:
        file.seek(start)
        return file.read()
