"""Tuning: try settings on the validation queries, separately for every variant, so that a comparison is fair.

Tuning is an experiment like any other: its runs lie in a folder, are skipped when finished and resumed when
interrupted, and `fedrank report` shows all that was tried. What it adds is the choice, as a spec that is ready to run.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedrank.experiment.federated_spec import Experiment
from fedrank.experiment.schedule import Results, run_experiment
from fedrank.experiment.spec import Variant, from_tables, to_tables, to_toml
from fedrank.experiment.store import Runs, load_runs

if TYPE_CHECKING:
    from rich.console import Console

_Variant = Variant[Experiment]


@dataclass(frozen=True)
class Tried:
    """One setting of one variant."""

    variant: str  # of the experiment that is tuned
    settings: dict[str, Any]  # the values tried
    quality: float  # mean over repeats of the final value of the first measure, on validation queries
    repeats: int
    chosen: bool = False


def tuning_of(experiment: Experiment, over: Mapping[str, Sequence[Any]]) -> Experiment:
    """The experiment that tries every combination of values on the validation queries."""
    tables = to_tables(experiment)
    known = {**experiment.vary}
    if twice := known.keys() & over.keys():
        raise ValueError(f"{min(twice)} is varied by the spec already; tune another setting")
    tables["data"] = {**tables["data"], "evaluate_on": "validation"}
    tables["vary"] = known | {key: list(values) for key, values in over.items()}
    tables["title"] = f"Tuning of: {experiment.title}" if experiment.title else "Tuning"
    for key in ("baseline", "published"):
        tables.pop(key, None)
    return _read(tables)


def tune(
    experiment: Experiment,
    name: str,
    over: Mapping[str, Sequence[Any]],
    out: str | Path = "runs",
    *,
    workers: int = 1,
    threads: int = 1,
    console: Console | None = None,
) -> tuple[Results, list[Tried], Path | None]:
    """Run what is missing, then choose. Returns what became of the runs, all that was tried, and the tuned spec's file.

    There is no choice, and no file, while runs are interrupted. A setting with a failed run is never chosen: finding
    out which steps are too long is what tuning is for.
    """
    asked = tuning_of(experiment, over)
    label = f"{name}-tuning"
    results = run_experiment(asked, label, out, workers=workers, threads=threads, console=console)
    if results.interrupted:
        return results, [], None
    folder = Path(out) / label
    tried = choose(experiment, asked, load_runs(folder))
    path = folder / "tuned.toml"
    path.write_text(to_toml(tuned(experiment, tried)), encoding="utf-8")
    return results, tried, path


def choose(experiment: Experiment, asked: Experiment, runs: Runs) -> list[Tried]:
    """All that was tried, with the best setting of every variant marked; of equals, the first. Failed ones are -inf."""
    measure, repeats = experiment.measures[0], set(experiment.repeats())
    rows = []
    for variant, tries in _groups(experiment, asked):
        found = []
        for one, settings in tries:
            # Earlier tunings may have left other repeats here; a mean over those would not compare.
            mine = [run for run in runs.finished if run.variant == one.name and (run.fold, run.seed) in repeats]
            whole = len(mine) == len(repeats)
            quality = float(np.mean([run.final(measure) for run in mine])) if whole else -math.inf
            found.append(Tried(variant.name, settings, -math.inf if math.isnan(quality) else quality, len(mine)))
        best = max(range(len(found)), key=lambda i: (found[i].quality, -i))
        if found[best].quality == -math.inf:
            raise ValueError(f"nothing that was tried for {variant.name} finished; see `fedrank runs` for the reasons")
        rows += [dataclasses.replace(row, chosen=i == best) for i, row in enumerate(found)]
    return rows


def tuned(experiment: Experiment, tried: Sequence[Tried]) -> Experiment:
    """The experiment with the chosen settings: one for all, or one for each variant, which then has a name."""
    tables = to_tables(experiment)
    chosen = {row.variant: row.settings for row in tried if row.chosen}
    variants = {}
    for variant in experiment.expand():
        changes = copy.deepcopy(experiment.variants.get(variant.given, {}))
        changes |= {key: value for key, value in variant.settings.items() if key != "variants"}
        variants[variant.name] = changes | chosen[variant.name]
    tables.pop("vary", None)
    tables["variants"] = variants
    return _read(tables)


def _read(tables: dict[str, Any]) -> Experiment:
    found = from_tables(tables)
    assert isinstance(found, Experiment)  # as the one whose tables these are
    return found


def show_tried(tried: Sequence[Tried], measure: str, console: Console) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("variant", "setting"):
        table.add_column(heading)
    for heading in (f"{measure}, validation", "repeats"):
        table.add_column(heading, justify="right")
    for row in tried:
        setting = ", ".join(f"{key} = {value}" for key, value in row.settings.items())
        style = "bold" if row.chosen else ""
        mark = "  <- chosen" if row.chosen else ""
        quality = "failed" if row.quality == -math.inf else f"{row.quality:.4f}"
        table.add_row(
            Text(row.variant), Text(setting + mark, style=style), Text(quality, style=style), str(row.repeats)
        )
    console.print(table)


def _groups(experiment: Experiment, asked: Experiment) -> list[tuple[_Variant, list[tuple[_Variant, dict[str, Any]]]]]:
    """For every variant of the experiment, the variants of its tuning that belong to it, with the values tried."""
    wide = asked.expand()
    groups = []
    share = len(wide) // len(experiment.expand())
    for place, variant in enumerate(experiment.expand()):
        # Both expand in the same order, and what is tuned varies fastest.
        mine = wide[place * share : (place + 1) * share]
        keys = [key for key in mine[0].settings if key != "variants" and key not in experiment.vary]
        groups.append((variant, [(one, {key: one.settings[key] for key in keys}) for one in mine]))
    return groups
