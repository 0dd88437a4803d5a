"""The command line. Commands import what they need when they run, so that `--help` answers immediately."""

from outspark.cli.app import main

__all__ = ["main"]
