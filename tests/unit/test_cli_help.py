"""Help that teaches: every command has examples and exit codes, and answers without loading heavy parts."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from outspark.tools.reference import command_tree

HEAVY = ("pyspark", "sqlalchemy", "psycopg", "nats", "uvicorn", "opentelemetry")


def run(*args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "outspark", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("args", [["--help"], ["relay", "--help"], ["dead", "requeue", "--help"]])
def test_help_loads_nothing_heavy(args: list[str]) -> None:
    program = (
        "import json, sys\n"
        "from outspark.cli.app import app\n"
        "try:\n    app(sys.argv[1:])\n"
        "except SystemExit:\n    pass\n"
        "print(json.dumps(sorted(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program, *args], capture_output=True, text=True, check=True)
    loaded = {name.split(".")[0] for name in json.loads(done.stderr)}
    assert not loaded & set(HEAVY)


def test_every_command_teaches() -> None:
    for path, command in command_tree():
        if hasattr(command, "commands") or path[-1] in ("bench", "demo"):
            continue
        assert f"\n{' '.join(path)}" in (command.help or ""), f"{path} has no example"
        assert "Exit codes" in (command.epilog or ""), f"{path} does not say its exit codes"


def test_wrong_flags_are_two() -> None:
    assert run("stats", "--nonsense").returncode == 2
    assert run("nonsense").returncode == 2


def test_an_error_is_one_line_without_a_traceback() -> None:
    done = run("stats", "--config", "missing.toml")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "error: cannot read the settings file missing.toml: No such file or directory\n"
    assert "Traceback" in run("--debug", "stats", "--config", "missing.toml").stderr


def test_version_is_printed() -> None:
    assert run("version").stdout.startswith("outspark ")
    assert json.loads(run("version", "--json").stdout)["python"].startswith("3.")
