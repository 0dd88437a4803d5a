"""Which tables settings name, as far as that can be told without asking a database."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

_PART = re.compile(r'"[^"]*"|[^."]+')


@dataclass(frozen=True, slots=True)
class Target:
    """A table as its URL and name spell it."""

    servers: frozenset[tuple[str, str]]
    database: str
    schema: str | None
    table: str
    session: tuple[str, str]
    """What decides about the search path: the role and the options of the connection."""

    @classmethod
    def of(cls, url: str, table: str) -> Target | None:
        """None where the URL hides it, or is not understood."""
        # Only settings with several sources or inboxes come here, so that nothing else waits for the driver to load.
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
        """Is it the same table? False also where only the database can tell."""
        if self.database != other.database or not self.servers & other.servers:
            return False
        same_path = self.schema is not None or self.session == other.session
        return (self.schema, self.table) == (other.schema, other.table) and same_path


def _spread(ports: list[str], count: int) -> list[str]:
    """One port goes for all hosts; an empty one is the default."""
    spread = ports * count if len(ports) == 1 else [*ports, *[""] * count][:count]
    return [port or "5432" for port in spread]


def _names(text: str) -> tuple[str | None, str]:
    parts = [part[1:-1] if part.startswith('"') else part.lower() for part in _PART.findall(text.strip())]
    return (parts[-2] if len(parts) > 1 else None), (parts[-1] if parts else "")
