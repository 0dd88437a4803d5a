"""What every table contract must offer. A contract holds all its SQL; loops and commands only fill in parameters."""

from __future__ import annotations
