"""The parts of a machine that `@pytest.mark.needs(part)` can ask for, and what is missing where one is."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from shutil import which

from outspark.errors import OutsparkError
from outspark.spark.java import java_home
from outspark.tools.servers.kafka_jars import class_path
from outspark.tools.servers.nats import program
from outspark.tools.servers.rabbitmq import program as rabbitmq_program
from outspark.tools.servers.redis import program as redis_program
from tests import netns

OLDEST_PROGRAMS = Path("/usr/lib/postgresql/15/bin")
"""The oldest PostgreSQL that is supported, as Debian's package brings it; the embedded one is newer."""

INTEROP = Path(__file__).parents[1] / ".venv" / "interop"
"""The environment that `make interop` makes, with omni-box in it and its oldest version beside it."""


def _nats() -> str | None:
    return _package("nats", "nats") or _answer(program)


def _kafka() -> str | None:
    # Fetches the server at first sight, so that a machine that cannot skips its tests.
    return _package("confluent_kafka", "kafka") or _java() or _answer(class_path)


def _rabbitmq() -> str | None:
    return _package("aio_pika", "rabbitmq") or _answer(rabbitmq_program)


def _amqp_tools() -> str | None:
    return None if which("amqp-get") else "there is no amqp-get on this machine; run: apt install amqp-tools"


def _postgres_15() -> str | None:
    there = (OLDEST_PROGRAMS / "postgres").exists()
    return None if there else "there is no PostgreSQL 15 on this machine; run: apt install postgresql-15"


def _redis() -> str | None:
    return _package("redis", "redis") or _answer(redis_program)


def _http() -> str | None:
    return _package("httpcore", "http") or _package("uvicorn", "server")


def _openssl() -> str | None:
    return None if shutil.which("openssl") else "the program openssl is not on the path"


def _postgres_tls() -> str | None:
    if postgres_with_tls() is not None:
        return None
    return "the embedded PostgreSQL has no TLS, and there is no Debian package of one: apt install postgresql"


def postgres_with_tls() -> Path | None:
    """The programs of the newest PostgreSQL that Debian's packages installed."""
    found = Path("/usr/lib/postgresql").glob("*/bin/postgres")
    return max((path.parent for path in found), key=lambda path: float(path.parent.name), default=None)


def _java() -> str | None:
    return _answer(java_home)


def _spark() -> str | None:
    # PySpark's mapInArrow insists on pandas when a job is built, though no data pass through it.
    return _package("pyspark", "spark") or _package("pandas", "spark") or _java()


def _omni_box() -> str | None:
    there = (INTEROP / ".installed").exists()
    return None if there else "there is no omni-box, which needs Python 3.12 or later; run: make interop"


def _netns() -> str | None:
    return netns.lack()


PARTS: dict[str, Callable[[], str | None]] = {
    "kafka": _kafka,
    "nats": _nats,
    "postgres-15": _postgres_15,
    "rabbitmq": _rabbitmq,
    "amqp-tools": _amqp_tools,
    "redis": _redis,
    "http": _http,
    "openssl": _openssl,
    "postgres-tls": _postgres_tls,
    "java": _java,
    "spark": _spark,
    "netns": _netns,
    "omni-box": _omni_box,
}


@cache
def missing(part: str) -> str | None:
    """One line on what this machine lacks for the part, or None."""
    if part not in PARTS:
        raise ValueError(f"needs({part!r}) is not one of: {', '.join(sorted(PARTS))}")
    return PARTS[part]()


def _package(name: str, extra: str) -> str | None:
    return (
        None if find_spec(name) else f"the package {name} is not installed: pip install 'outspark[{extra}]'"
    )


def _answer(look: Callable[[], object]) -> str | None:
    try:
        look()
    except OutsparkError as error:
        return str(error)
    return None
