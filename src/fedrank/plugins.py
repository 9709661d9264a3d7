"""Plug-ins: commands and methods of installed packages, found by their entry points.

    [project.entry-points."fedrank.commands"]
    weights = "fedrank_lab.commands:app"                        # a typer.Typer: `fedrank weights ...`

    [project.entry-points."fedrank.methods"]
    "aggregator.shrunk-median" = "fedrank_lab.rules:ShrunkMedian"  # aggregator = "shrunk-median" in a specification

`examples/plugin` is a complete package. fedrank's own applications add their commands in the same way.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points

COMMANDS, METHODS = "fedrank.commands", "fedrank.methods"


@cache
def commands() -> tuple[EntryPoint, ...]:
    """Commands of installed packages, by name."""
    return tuple(sorted(entry_points(group=COMMANDS), key=lambda one: one.name))


@cache
def methods() -> dict[str, str]:
    """Methods of installed packages as `family.name` -> `module:Class`; nothing is imported."""
    found = sorted(entry_points(group=METHODS), key=lambda one: one.name)
    return {one.name: one.value for one in found if "." in one.name and ":" in one.value}
