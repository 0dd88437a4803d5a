"""A PostgreSQL with TLS, from Debian's package: the embedded one is built without."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from urllib.parse import quote

import psycopg
from psycopg import sql

from outspark.tools.servers import pginstall
from outspark.tools.servers.postgres import Postgres
from tests.integration.tls.certificates import NAME, Certificates, Pair
from tests.integration.tls.passwords import EVERY
from tests.integration.tls.recorder import HOST
from tests.parts import postgres_with_tls

_RULES = f"""
host all postgres {HOST}/32 trust
hostssl all relay {HOST}/32 scram-sha-256 clientcert=verify-ca
hostssl all reader,odd {HOST}/32 scram-sha-256
"""


class TlsPostgres(Postgres):
    """User `relay` has to show a certificate and a password, `reader` only a password, `odd` an odd one."""

    def __init__(self, certificates: Certificates, pair: Pair, password: str) -> None:
        files = {"ssl_cert_file": "server.pem", "ssl_key_file": "server.key", "ssl_ca_file": "ca.pem"}
        super().__init__(options={"ssl": "on", "fsync": "off", "hba_file": "rules.conf", **files})
        self._copies = {"server.pem": pair.cert, "server.key": pair.key, "ca.pem": certificates.ca}
        self._password = password

    def tls_url(self, user: str, password: str, **parameters: str) -> str:
        given = {"sslmode": "verify-full", "hostaddr": HOST, **parameters}
        host = given.pop("host", NAME)
        query = "&".join(f"{name}={quote(value, safe='')}" for name, value in given.items())
        return f"postgresql://{user}:{quote(password, safe='')}@{host}:{self.port}/postgres?{query}"

    def make_users(self) -> None:
        with psycopg.connect(self.url(), autocommit=True) as admin:
            for user, password in {"relay": self._password, "reader": self._password, "odd": EVERY}.items():
                words = sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}")
                admin.execute(words.format(sql.Identifier(user), sql.Literal(password)))

    def _prepare(self, folder: Path) -> None:
        programs = postgres_with_tls()
        assert programs is not None
        self._account, self._programs = pginstall.account(), programs
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._hand_over(folder)
        self._initdb(folder)
        (folder / "rules.conf").write_text(_RULES)
        self._hand_over(folder / "rules.conf")
        for name, path in self._copies.items():
            shutil.copy(path, folder / name)
            (folder / name).chmod(0o600)
            self._hand_over(folder / name)

    def _hand_over(self, path: Path) -> None:
        if self._account is not None:
            os.chown(path, self._account.uid, self._account.gid)
