"""The server jars of Apache Kafka: fetched once with Maven, kept in a cache folder of the user's."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from outspark.errors import ServerStartError

VERSION = "4.1.1"

_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1"
_FETCH_TIMEOUT = 600.0
# slf4j-simple: the server logs through slf4j and brings no logger of its own.
_POM = f"""\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>outspark</groupId>
  <artifactId>kafka-jars</artifactId>
  <version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{VERSION}</version>
    </dependency>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId><version>{VERSION}</version>
    </dependency>
    <dependency>
      <groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>1.7.36</version>
    </dependency>
  </dependencies>
</project>
"""


def class_path() -> str:
    """What `java -cp` takes. Fetches the jars when they are missing; ServerStartError when that fails."""
    jars = _cache_folder() / f"kafka-{VERSION}"
    if not jars.is_dir():
        _fetch(jars)
    return str(jars / "*")


def _fetch(jars: Path) -> None:
    """Complete under a name of its own, then renamed: another process never sees half of the jars."""
    maven = shutil.which("mvn")
    if maven is None:
        raise ServerStartError(
            f"Kafka {VERSION} is not in {jars.parent}, and there is no `mvn` to fetch it; on Debian: apt install maven"
        )
    jars.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".kafka-", dir=jars.parent) as name:
        draft = Path(name)
        (draft / "pom.xml").write_text(_POM)
        _run(maven, draft)
        try:
            (draft / "jars").rename(jars)
        except OSError:
            if not jars.is_dir():  # otherwise another process was faster
                raise


def _run(maven: str, folder: Path) -> None:
    argv = [maven, "-q", "-B", "-f", str(folder / "pom.xml"), f"{_PLUGIN}:copy-dependencies"]
    argv += [f"-DoutputDirectory={folder / 'jars'}", "-DincludeScope=runtime"]
    try:
        fetched = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=_FETCH_TIMEOUT)
    except subprocess.TimeoutExpired:
        raise ServerStartError(
            f"mvn did not fetch Kafka {VERSION} within {_FETCH_TIMEOUT:g} s; is Maven Central in reach?"
        ) from None
    if fetched.returncode != 0 or not (folder / "jars").is_dir():
        raise ServerStartError(f"mvn cannot fetch Kafka {VERSION}: {_first_error(fetched.stdout)}")


def _first_error(output: str) -> str:
    found = re.search(r"^\[ERROR\] (.+)$", output, re.MULTILINE)
    return found[1] if found else "it gives no reason"


def _cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "outspark"
