"""Plug-ins: commands, methods and specifications of installed packages, found by entry points.

    [project.entry-points."fedrank.commands"]
    weights = "fedrank_lab.commands:app"                        # a typer.Typer: `fedrank weights ...`

    [project.entry-points."fedrank.methods"]
    "aggregator.shrunk-median" = "fedrank_lab.rules:ShrunkMedian"  # aggregator = "shrunk-median" in a specification

    [project.entry-points."fedrank.specs"]
    papers = "fedrank_papers.specs"                             # a package of TOML files: `fedrank run thesis/fig-3-1`

`examples/plugin` and `reproduction` are complete packages.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from importlib import resources
from importlib.metadata import EntryPoint, entry_points
from importlib.resources.abc import Traversable

COMMANDS, METHODS, SPECS = "fedrank.commands", "fedrank.methods", "fedrank.specs"


@cache
def commands() -> tuple[EntryPoint, ...]:
    """Return the commands of installed packages, by name."""
    return tuple(sorted(entry_points(group=COMMANDS), key=lambda one: one.name))


@cache
def methods() -> dict[str, str]:
    """Return methods of installed packages as `family.name` -> `module:Class`, without importing them."""
    found = sorted(entry_points(group=METHODS), key=lambda one: one.name)
    return {one.name: one.value for one in found if "." in one.name and ":" in one.value}


@cache
def spec_folders() -> tuple[Traversable, ...]:
    """Return folders of specifications in installed packages; missing packages are skipped."""
    found = []
    for one in sorted(entry_points(group=SPECS), key=lambda one: one.name):
        with suppress(ImportError):
            found.append(resources.files(one.value))
    return tuple(found)
