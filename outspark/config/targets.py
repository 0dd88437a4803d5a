"""Which tables the settings name, as far as their text shows it without a database."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

_PART = re.compile(r'"[^"]*"|[^."]+')


@dataclass(frozen=True, slots=True)
class Target:
    """A table as its URL and name spell it: what two spellings of the same table have in common."""

    servers: frozenset[tuple[str, str]]
    database: str
    schema: str | None
    table: str
    session: tuple[str, str]
    """Role and options of the connection: they decide the search path."""

    @classmethod
    def of(cls, url: str, table: str) -> Target | None:
        """None where the URL refers to a service file or is not valid."""
        # Imported here, because only settings with several sources or inboxes need psycopg.
        import psycopg
        from psycopg import conninfo, pq

        try:
            given = conninfo.conninfo_to_dict(url)
        except psycopg.Error:
            return None
        if given.get("service") or os.environ.get("PGSERVICE"):
            return None
        default = {one.keyword.decode(): (one.val or b"").decode() for one in pq.Conninfo.get_defaults()}
        value = {key: str(given.get(key) or default.get(key) or "") for key in ("hostaddr", "port", "user")}
        hosts = (value["hostaddr"] or str(given.get("host") or default.get("host") or "")).split(",")
        ports = value["port"].split(",")
        schema, name = _names(table)
        return cls(
            servers=frozenset(zip((host.lower() for host in hosts), _spread(ports, len(hosts)), strict=True)),
            database=str(given.get("dbname") or os.environ.get("PGDATABASE") or value["user"]),
            schema=schema,
            table=name,
            session=(value["user"], str(given.get("options") or default.get("options") or "")),
        )

    def is_surely(self, other: Target) -> bool:
        """True when both are certainly the same table; False also where only the database can tell."""
        if self.database != other.database or not self.servers & other.servers:
            return False
        same_path = self.schema is not None or self.session == other.session
        return (self.schema, self.table) == (other.schema, other.table) and same_path


def _spread(ports: list[str], count: int) -> list[str]:
    """The ports by host, as libpq assigns them: a single port is that of all hosts, an empty one is the default."""
    spread = ports * count if len(ports) == 1 else [*ports, *[""] * count][:count]
    return [port or "5432" for port in spread]


def _names(text: str) -> tuple[str | None, str]:
    parts = [part[1:-1] if part.startswith('"') else part.lower() for part in _PART.findall(text.strip())]
    return (parts[-2] if len(parts) > 1 else None), (parts[-1] if parts else "")
