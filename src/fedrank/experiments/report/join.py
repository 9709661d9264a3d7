"""Combine experiments that were tested on the same queries: one table, one set of curves, one test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedrank.experiments.report.analysis import Analysis, baseline_results, compare, is_of, other_data, untested
from fedrank.experiments.report.run_values import Repeat, VariantRuns
from fedrank.experiments.runner.runs import Runs
from fedrank.experiments.spec.grid import NOTHING

MAX_NAMED = 4  # experiments in a title


def join(reported: Sequence[Analysis], baseline: str | None = None) -> list[Analysis]:
    """The same findings, where those that can be compared are one. What they do not share is left out of it."""
    groups: list[list[Analysis]] = []
    for analysis in reported:
        group = next((group for group in groups if all(_fit(one, analysis) for one in group)), None)
        if group is None:
            groups.append([analysis])
        else:
            group.append(analysis)
    return [group[0] if len(group) == 1 else _joined(group, baseline) for group in groups]


def _fit(one: Analysis, other: Analysis) -> bool:
    """Whether two experiments share a measure, and queries that it was measured on."""
    if one.kind != other.kind or not {*one.measures} & {*other.measures}:
        return False
    if one.runs.finished[0].data.get("name") != other.runs.finished[0].data.get("name"):
        return False
    ours, theirs = _tested_on(one), _tested_on(other)
    shared = [(repeat, repeat) for repeat in ours if repeat in theirs]
    if not shared:  # other seeds of the same folds can be in one table, although they are not paired
        shared = [(first, second) for first in ours for second in theirs if first[0] == second[0]]
    return bool(shared) and all(np.array_equal(ours[first], theirs[second]) for first, second in shared)


def _tested_on(analysis: Analysis) -> dict[Repeat, NDArray[np.str_]]:
    return {repeat: reading.query_ids for variant in analysis.variants for repeat, reading in variant.repeats.items()}


def _joined(parts: Sequence[Analysis], baseline: str | None) -> Analysis:
    parts = [replace(part, name=name) for part, name in zip(parts, _names(parts), strict=True)]
    variants = tuple(_as_of(part.name, variant) for part in parts for variant in part.variants)
    measures = tuple(column for column in parts[0].measures if all(column in part.measures for part in parts))
    nothing = baseline_results(variants, measures)
    chosen, reason = _baseline(parts, variants, baseline)
    if baseline == NOTHING and len(nothing) == 1:
        chosen, reason = nothing[0].values, "as requested"
    notes: list[str] = []
    if unshared := sorted({column for part in parts for column in part.measures} - {*measures}):
        notes.append(f"Not measured by all of these experiments, and left out: {', '.join(unshared)}.")
    if len({run.asked for part in parts for run in part.runs.finished}) > 1 and any(part.served for part in parts):
        notes.append(
            "Experiments differ in their rounds: sums over rounds are left out, and final values are from different "
            "numbers of rounds."
        )
    runs = Runs(tuple(replace(run, variant=f"{part.name}/{run.variant}") for part in parts for run in part.runs))
    notes += other_data(runs.finished)
    names = [part.name for part in parts]
    listed = ", ".join(names[:-1]) + f" and {names[-1]}" if len(names) <= MAX_NAMED else f"{len(names)} experiments"
    analysis = Analysis(
        name=", ".join(names),
        title=f"{listed}, compared",
        folder=parts[0].folder,
        grid=None,
        text="",
        measures=measures,
        variants=variants,
        baseline=chosen,
        baseline_reason=reason,
        claims=tuple(replace(claim, says=f"{part.name}: {claim.says}") for part in parts for claim in part.claims),
        runs=runs,
        expected=parts[0].expected if len({part.expected for part in parts}) == 1 else None,
        nothing=nothing,
        parts=tuple(parts),
    )
    known = {variant.name: variant for variant in variants}
    published = tuple(
        replace(entry, variant=known.get(f"{part.name}/{entry.variant.name}", entry.variant))
        for part in parts
        for entry in part.published
        if entry.column in analysis.columns
    )
    compared = {column: compare(analysis, column) for column in analysis.columns}
    notes += untested(analysis, compared)
    # Notes on comparisons within one experiment, unless they apply to all.
    notes += [f"{part.name}: {note}" for part in parts for note in part.notes if note not in notes]
    return replace(analysis, comparisons=compared, published=published, notes=tuple(dict.fromkeys(notes)))


def _names(parts: Sequence[Analysis]) -> list[str]:
    """A name for each experiment: its own, or as much of its folder as tells it from the others."""
    for length in range(max(len(part.folder.parts) for part in parts) + 1):
        names = ["/".join(part.folder.parts[-length:]) if length else part.name for part in parts]
        if max(Counter(names).values()) == 1:
            break
    return names


def _as_of(name: str, variant: VariantRuns) -> VariantRuns:
    alone = variant.name == "only"
    label = name if alone else f"{name}: {variant.label}"
    return replace(variant, name=f"{name}/{variant.name}", label=label, experiment=name)


def _baseline(
    parts: Sequence[Analysis], variants: Sequence[VariantRuns], wanted: str | None
) -> tuple[VariantRuns, str]:
    """The requested variant, or the baseline of the first experiment that has one."""
    runs = {part.name: part.runs for part in parts}
    for variant in variants:
        own = variant.name.removeprefix(f"{variant.experiment}/"), variant.own_label
        if wanted in (variant.name, variant.label, *own):
            return variant, "as requested"
        if wanted and any(is_of(wanted, runs[variant.experiment], name) for name in own):
            return variant, "as requested"
    for part in parts:
        if part.baseline is not None:
            for variant in variants:
                if variant.name == f"{part.name}/{part.baseline.name}":
                    return variant, f"the baseline of {part.name}"
    return variants[0], "the first variant, because no baseline was named"
