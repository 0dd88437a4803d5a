"""A PostgreSQL server for demo, bench and tests, from the programs of a wheel."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

from outspark.errors import ServerStartError
from outspark.tools.servers import pginstall
from outspark.tools.servers.process import GuardedProcess, run_as
from outspark.tools.servers.server import HOST, Server

_SUPERUSER = "postgres"
_READY_TIMEOUT = 30.0


class Postgres(Server):
    """`with Postgres(options={"max_connections": "200"}) as server: psycopg.connect(server.url())`.

    `options` are settings of postgresql.conf; fsync is on unless an option says otherwise. `programs` is a folder
    with another server's `initdb` and `postgres`. Any user of this machine may connect as superuser, so it is not for
    data that matter.
    """

    def __init__(
        self,
        data_dir: Path | None = None,
        *,
        port: int | None = None,
        options: Mapping[str, str] | None = None,
        programs: Path | None = None,
    ) -> None:
        super().__init__(data_dir, port)
        self._given = programs
        self._options = dict(options or {})

    def url(self, dbname: str = "postgres") -> str:
        return f"postgresql://{_SUPERUSER}@{HOST}:{self.port}/{dbname}"

    def stop(self, immediate: bool = False) -> None:
        """`immediate`: as in a crash, sessions are cut off and the next start recovers from the WAL."""
        self._end(signal.SIGQUIT if immediate else None)

    def _prepare(self, folder: Path) -> None:
        self._account = pginstall.account()
        self._programs = self._given or pginstall.programs(self._account)
        if (folder / "PG_VERSION").exists():
            return
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._account is not None:
            os.chown(folder, self._account.uid, self._account.gid)
        self._initdb(folder)

    def _initdb(self, folder: Path) -> None:
        argv: list[str | Path] = [self._programs / "initdb", "--pgdata", folder, "--username", _SUPERUSER]
        argv += ["--auth", "trust", "--encoding", "UTF8", "--locale", "C", "--no-sync", "--no-instructions"]
        done = subprocess.run(
            argv, check=False, cwd="/", capture_output=True, text=True, **run_as(self._account)
        )
        if done.returncode != 0:
            who = f" as user {self._account.name!r} (which must be able to reach it)" if self._account else ""
            output = (done.stdout + done.stderr).strip()
            raise ServerStartError(f"initdb failed in {folder}{who}:\n{output}")

    def _launch(self, folder: Path, port: int) -> GuardedProcess:
        settings = {
            "listen_addresses": HOST,
            "port": str(port),
            "unix_socket_directories": "",
            **self._options,
        }
        argv = [str(self._programs / "postgres"), "-D", str(folder)]
        for name, value in settings.items():
            argv += ["-c", f"{name}={value}"]
        process = GuardedProcess(
            argv,
            folder=folder,
            stop_signal=signal.SIGINT,  # "fast": does not wait for clients to leave
            account=self._account,
            discard=self._temporary,
        )
        process.await_ready(lambda: _is_ready(folder, process.pid), _READY_TIMEOUT)
        return process


def _is_ready(folder: Path, pid: int) -> bool:
    """As pg_ctl does it: line 1 of postmaster.pid is the server's pid, line 8 its state."""
    try:
        lines = (folder / "postmaster.pid").read_text().splitlines()
    except FileNotFoundError:
        return False
    return len(lines) >= 8 and lines[0] == str(pid) and lines[7].strip() == "ready"
