"""Tuning: tries settings on the validation queries, separately for every variant, to make comparisons fair.

Tuning is an experiment like any other: its runs are in a folder, are skipped if finished and resumed if
interrupted, and `fedrank report` shows all tried settings. The result is a spec with the best ones, ready to run.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedrank.experiments.runner.runs import Runs, load_runs
from fedrank.experiments.runner.schedule import Results, run_experiment
from fedrank.experiments.spec.federated import FederatedExperiment
from fedrank.experiments.spec.grid import ABOUT, Grid, Variant, read_tables
from fedrank.files import write_atomic
from fedrank.progress import Progress, quiet

_Grid = Grid[FederatedExperiment]
_Variant = Variant[FederatedExperiment]


@dataclass(frozen=True)
class Tried:
    """One setting of one variant."""

    variant: str  # variant of the tuned experiment
    settings: dict[str, Any]  # the values tried
    quality: float  # mean over repeats of the final value of the first measure, on validation queries
    repeats: int
    spread: float = math.nan  # standard deviation over repeats; NaN for a single repeat
    chosen: bool = False
    edges: tuple[str, ...] = ()  # if chosen: values to try beyond the grid, one sentence per setting


def tuning_of(grid: _Grid, over: Mapping[str, Sequence[Any]]) -> _Grid:
    """The grid that tries every combination of values on the validation queries."""
    vary = grid.about.vary
    if twice := vary.keys() & over.keys():
        raise ValueError(f"{min(twice)} is varied by the spec already; tune another setting")
    tables = {key: value for key, value in grid.tables.items() if key not in ABOUT or key == "variants"}
    tables["data"] = {**tables["data"], "evaluate_on": "validation"}
    tables["vary"] = vary | {key: list(values) for key, values in over.items()}
    tables["title"] = f"Tuning of: {grid.title}" if grid.title else "Tuning"
    return read_tables(tables)


def tune(
    grid: _Grid,
    name: str,
    over: Mapping[str, Sequence[Any]],
    out: str | Path = "runs",
    *,
    workers: int = 1,
    progress: Progress = quiet,
) -> tuple[Results, list[Tried], Path | None]:
    """Run missing settings, then choose. Returns the results of runs, all tried settings, and the tuned spec's file.

    Nothing is chosen, and no file is written, while runs are interrupted. A setting with a failed run is never chosen:
    tuning is expected to try steps that are too large.
    """
    tuning, label = tuning_of(grid, over), f"{name}-tuning"
    results = run_experiment(tuning, label, out, workers=workers, progress=progress)
    if results.interrupted:
        return results, [], None
    folder = Path(out) / label
    reasons = {task.variant: reason for task, reason in reversed(results.failed)}
    tried = choose(grid, tuning, load_runs(folder), reasons)
    path = folder / "tuned.toml"
    write_atomic(path, tuned(grid, tried).toml())
    return results, tried, path


def choose(grid: _Grid, tuning: _Grid, runs: Runs, reasons: Mapping[str, str]) -> list[Tried]:
    """All tried settings, with the best of every variant marked; the first if several are equal. Failed ones are -inf.

    `reasons` has the reason of the first failed run of each tuning variant, for the error if no setting can be chosen.
    """
    measure, repeats = grid.measures[0], set(grid.repeats())
    rows = []
    for variant, tries in _groups(grid, tuning):
        found = []
        for one, settings in tries:
            # Earlier tuning may have left other repeats in this folder; a mean over those would not be comparable.
            mine = [run for run in runs.finished if run.variant == one.name and run.repeat in repeats]
            whole = len(mine) == len(repeats)
            finals = [run.final_value(measure) for run in mine]
            quality = float(np.mean(finals)) if whole else -math.inf
            spread = float(np.std(finals, ddof=1)) if whole and len(finals) > 1 else math.nan
            found.append(
                Tried(variant.name, settings, -math.inf if math.isnan(quality) else quality, len(mine), spread)
            )
        best = max(range(len(found)), key=lambda i: (found[i].quality, -i))
        if found[best].quality == -math.inf:
            reason = next(
                (reasons[one.name] for one, _ in tries if one.name in reasons), "see `fedrank watch FOLDER --list`"
            )
            raise ValueError(f"no tried setting of {variant.name} finished: {reason}")
        found[best] = replace(found[best], chosen=True, edges=_edges(found[best], found))
        rows += found
    return rows


def _edges(chosen: Tried, tried: Sequence[Tried]) -> tuple[str, ...]:
    """Numbers that were chosen at the end of the tried range: the best value may be outside."""
    found = []
    for key, value in chosen.settings.items():
        values = {row.settings[key] for row in tried if isinstance(row.settings[key], (int, float))}
        if isinstance(value, bool) or len(values) < 2:
            continue
        if value in (min(values), max(values)):
            end, more = ("smallest", "smaller") if value == min(values) else ("largest", "larger")
            found.append(
                f"{key} = {value} is the {end} value that was tried, and a {more} one may be better; try {more} values"
            )
    return tuple(found)


def tuned(grid: _Grid, tried: Sequence[Tried]) -> _Grid:
    """The grid with the chosen settings: one for all, or one for each variant, which then has a name."""
    chosen = {row.variant: row.settings for row in tried if row.chosen}
    variants = {}
    for variant in grid.variants:
        changes = copy.deepcopy(grid.about.variants.get(variant.given, {}))
        changes |= {key: value for key, value in variant.settings.items() if key != "variants"}
        variants[variant.name] = changes | chosen[variant.name]
    tables = {key: value for key, value in grid.tables.items() if key != "vary"}
    return read_tables(tables | {"variants": variants})


def _groups(grid: _Grid, tuning: _Grid) -> list[tuple[_Variant, list[tuple[_Variant, dict[str, Any]]]]]:
    """For every variant of a grid, its tuning variants with the tried values."""
    groups = []
    share = len(tuning.variants) // len(grid.variants)
    for row, variant in enumerate(grid.variants):
        # Both expand in the same order, and tuned settings vary fastest.
        mine = tuning.variants[row * share : (row + 1) * share]
        keys = [key for key in mine[0].settings if key != "variants" and key not in grid.about.vary]
        groups.append((variant, [(one, {key: one.settings[key] for key in keys}) for one in mine]))
    return groups
