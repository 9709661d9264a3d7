"""Analyse finished runs: comparisons, claims and warnings, without layout.

Experiments that were tested on the same queries are joined: one table, one set of curves, one test.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank.data.catalog import SHARED_QUERIES
from fedrank.experiments.report.claims import Stated, Verdict, judge_all
from fedrank.experiments.report.contrast import Contrast, contrast
from fedrank.experiments.report.formatting import heading
from fedrank.experiments.report.published_values import PublishedComparison, compare_published
from fedrank.experiments.report.run_values import Repeat, RunValues, Threat, VariantRuns, read_run
from fedrank.experiments.report.statistics import LEVEL, holm
from fedrank.experiments.runner.folder import LAST
from fedrank.experiments.runner.runs import DISCOUNT, Run, Runs, load_runs
from fedrank.experiments.spec.grid import NOTHING, About, Grid, Published, read_tables
from fedrank.experiments.spec.kinds import KINDS
from fedrank.federated.compatibility import sends_nothing
from fedrank.files import error_message, read_text
from fedrank.names import did_you_mean
from fedrank.ranking.baseline_ranking import LOGGED, START_ALONE
from fedrank.ranking.stored_estimate import stored_estimate
from fedrank.toml import parse_toml, readable

WORSE = "Worse than doing nothing"
MAX_NAMED = 4  # variants of one warning, experiments in a title
FEWEST = 3  # repeats for a band: the interval of two is twelve times as wide as their standard error


@dataclass(frozen=True)
class Comparison:
    """One variant against the baseline, or against doing nothing, in one column."""

    contrast: Contrast
    p: float  # corrected for all comparisons of the column (Holm)
    comparisons: int  # that were tested

    @property
    def verdict(self) -> str:
        """Better or worse if significant, else empty."""
        if not self.p < LEVEL:
            return ""
        return "better" if self.contrast.difference > 0 else "worse"


def _corrected(contrasts: Mapping[str, Contrast]) -> dict[str, Comparison]:
    """Comparisons of one column, corrected for how many were tested."""
    corrected = holm([found.p for found in contrasts.values()])
    tested = sum(found.tested for found in contrasts.values())
    return {name: Comparison(found, p, tested) for (name, found), p in zip(contrasts.items(), corrected, strict=True)}


@dataclass(frozen=True)
class BaselineResult:
    """What users have without learning, next to the variants that were tested on the same queries."""

    order: str  # by which documents come to them
    values: VariantRuns  # as if it were a variant
    comparisons: dict[str, dict[str, Comparison]]  # column -> variant name -> comparison, over queries

    def below(self, column: str) -> list[str]:
        """Variants that are significantly worse than doing nothing."""
        return [name for name, found in self.comparisons.get(column, {}).items() if found.verdict == "worse"]


@dataclass(frozen=True)
class Analysis:
    """Everything a report says about one experiment."""

    name: str
    title: str
    folder: Path
    grid: Grid[Any] | None  # what was asked; None where that cannot be read
    text: str  # what was asked, as TOML
    measures: tuple[str, ...]
    variants: tuple[VariantRuns, ...]
    baseline: VariantRuns | None
    baseline_reason: str  # why this one
    runs: Runs  # all of them, finished or not
    expected: int | None  # repeats asked of every variant
    nothing: tuple[BaselineResult, ...]  # one, or several where variants differ in their data; none in older folders
    comparisons: dict[str, dict[str, Comparison]] = field(default_factory=dict)  # column -> variant name -> comparison
    published: tuple[PublishedComparison, ...] = ()
    claims: tuple[Verdict, ...] = ()
    notes: tuple[str, ...] = ()
    parts: tuple[Analysis, ...] = ()  # the experiments that are compared here; none where it is one

    @property
    def columns(self) -> tuple[str, ...]:
        """What is compared; a sum over rounds only where all variants had as many."""
        if not self.served:
            return self.measures
        sums = () if self.parts and len({run.asked for run in self.runs.finished}) > 1 else ("online_sum",)
        return (*self.measures, "online", *sums)

    @property
    def served(self) -> bool:
        """Whether users were shown lists while the models learned."""
        readings = (reading for variant in self.variants for reading in variant.repeats.values())
        return any(not math.isnan(reading.values.get("online", math.nan)) for reading in readings)

    @property
    def is_tested(self) -> bool:
        """Whether anything could be tested: one repeat cannot."""
        return any(not math.isnan(one.p) for found in self.comparisons.values() for one in found.values())

    @property
    def kind(self) -> str:
        """Empty where it is not known."""
        if self.parts:
            return self.parts[0].kind
        return "" if self.grid is None else self.grid.kind

    @property
    def axis(self) -> str:
        """What grows from left to right in a learning curve."""
        return KINDS[self.kind or "federated"].axis

    @property
    def about(self) -> About:
        """What was said about all variants together."""
        return About() if self.grid is None else self.grid.about

    @property
    def main(self) -> str:
        """The column that decides which variant is best: the first measure."""
        return self.columns[0]

    @property
    def best(self) -> VariantRuns:
        means = [variant.summary(self.main).mean for variant in self.variants]
        return self.variants[max(range(len(means)), key=lambda i: -math.inf if math.isnan(means[i]) else means[i])]

    @property
    def rows(self) -> tuple[VariantRuns, ...]:
        """What a table of final values has a row for: every variant, and doing nothing."""
        return (*self.variants, *(each.values for each in self.nothing))

    def nothing_for(self, variant: VariantRuns) -> BaselineResult | None:
        """What its users would have without it."""
        return next((each for each in self.nothing if variant.name in each.comparisons[self.main]), None)

    @property
    def unfinished(self) -> Runs:
        return Runs(tuple(run for run in self.runs if run.status != "finished"))


def analyse(runs: Runs, baseline: str | None = None) -> list[Analysis]:
    """One entry for each experiment with a finished run; ValueError if there is none."""
    readings: dict[Path, RunValues] = {}
    each = []
    threats: dict[str, Threat | None] = {}
    for run in runs:  # one by one, while its files are still in memory
        if run.status == "finished":
            try:
                readings[run.path] = read_run(run, threats)
            except KeyError as missing:
                run = run.broken(f"one of its files lacks {missing}")
            except (OSError, ValueError, TypeError) as problem:  # damaged, or changed or deleted meanwhile
                run = run.broken(error_message(problem))
        each.append(run)
    checked = Runs(tuple(each))
    if not len(checked.finished):
        if not len(checked):
            raise ValueError("no runs to report on; give the folder that `fedrank run` wrote to")
        first = next(run for run in checked if run.status != "finished")
        raise ValueError(
            f"none of {len(checked)} runs is finished, so there is nothing to report; the first is {first.status}: "
            f"{first.reason} ({first.path})"
        )
    groups = [group for group in checked.group("folder").values() if len(group.finished)]
    if baseline is not None and baseline != NOTHING:
        _check_baseline(baseline, checked, groups)
    return [_analyse(group, readings, baseline) for group in groups]


def _check_baseline(baseline: str, runs: Runs, groups: Sequence[Runs]) -> None:
    names = {run.variant for run in runs} | {f"{run.experiment}/{run.variant}" for run in runs}
    meant = {group[0].folder: label for group in groups for label in _labels(group) if is_of(baseline, group, label)}
    if len(meant) > 1:
        known = " or ".join(f"{folder}/{label}" for folder, label in meant.items())
        raise ValueError(f"{len(meant)} experiments have a variant {baseline!r}; say which one is meant: {known}")
    if not meant and baseline not in names and not any(baseline in _labels(group) for group in groups):
        raise ValueError(f"no variant {baseline!r} to compare with{did_you_mean(baseline, names)}")


def is_of(wanted: str, runs: Runs, variant: str) -> bool:
    """Whether EXPERIMENT/VARIANT or FOLDER/VARIANT names this variant; of a folder its end is enough."""
    if not wanted.endswith(f"/{variant}"):
        return False
    position = Path(wanted.removesuffix(f"/{variant}"))
    folder = runs[0].folder.resolve()
    return (
        position == Path(runs[0].experiment)
        or folder.parts[-len(position.parts) :] == position.parts
        or position.resolve() == folder
    )


def other_data(finished: Runs) -> list[str]:
    """What to say where runs of one experiment did not read the same data."""
    sums: dict[str, set[str]] = {}
    for run in finished:
        for file, checksum in run.files.items():
            sums.setdefault(file, set()).add(checksum)
    return [
        f"Runs read {len(versions)} different versions of {file}, so their results are not comparable; run those again "
        "that read an old one."
        for file, versions in sums.items()
        if len(versions) > 1
    ]


def _analyse(runs: Runs, readings: Mapping[Path, RunValues], baseline: str | None) -> Analysis:
    first = runs.finished[0]
    grid, text, notes = _read_grid(first)
    labels = {name: label for label, name in _labels(runs).items()}
    groups = runs.finished.group("variant")
    names = [] if grid is None else grid.names  # variants appear in the order in which they were asked for
    positions = {name: position for position, name in enumerate(names)}
    variants = tuple(
        VariantRuns(name, labels[name], group[0].settings, {run.repeat: readings[run.path] for run in group})
        for (name,), group in sorted(groups.items(), key=lambda item: positions.get(item[0][0], len(names)))
    )
    recorded = dict.fromkeys(name for run in runs.finished for name in readings[run.path].values)
    measures = tuple(name for name in recorded if name not in ("online", "online_sum"))
    nothing = baseline_results(variants, measures)
    named = None if grid is None else grid.about.baseline
    own = next((name for name, label in labels.items() if is_of(baseline or "", runs, label)), baseline)
    chosen, reason = _baseline(variants, nothing, own, named, labels)
    if chosen is None and reason:
        notes.append(reason)
    threats = [variant.threat for variant in variants if variant.threat is not None]
    if any(threat.attack for threat in threats) and not any(threat.malicious for threat in threats):
        notes.append("An attack is set, but no client is malicious, so there was no attack; set clients.malicious.")
    problems = [problem for run in runs.finished if (problem := readings[run.path].problem)]
    if problems:
        notes.append(
            f"The attackers of {len(problems)} runs are unknown because their specifications cannot be read "
            f"({problems[0]})."
        )
    shared = dict.fromkeys(note for run in runs.finished for note in run.notes if SHARED_QUERIES in note)
    notes += [f"Warning: {note}." for note in shared]
    notes += other_data(runs.finished)
    counts = {len(variant.repeats) for variant in variants}
    if len(counts) > 1:
        notes.append(
            "Variants have different numbers of finished repeats, so their means cover different folds and seeds; "
            "differences from the baseline use only the repeats that both have."
        )
    analysis = Analysis(
        name=first.experiment,
        title=(grid and grid.title) or first.title or first.experiment,
        folder=first.folder,
        grid=grid,
        text=text,
        measures=measures,
        variants=variants,
        baseline=chosen,
        baseline_reason=reason,
        runs=runs,
        expected=None if grid is None or "data.name" in grid.about.vary else len(grid.repeats()),
        nothing=nothing,
    )
    comparisons = {column: compare(analysis, column) for column in analysis.columns} if chosen else {}
    notes += untested(analysis, comparisons)
    published = _published(analysis, notes)
    notes += _better_alone(analysis)
    return replace(
        analysis,
        comparisons=comparisons,
        published=published,
        claims=_claims(analysis),
        notes=tuple(dict.fromkeys(notes)),
    )


def _read_grid(run: Run) -> tuple[Grid[Any] | None, str, list[str]]:
    """The specification of the runs: experiment.toml next to them, or the copy in one of them."""
    for file in (run.folder / "experiment.toml", run.path / "spec.toml"):
        if file.exists():
            try:
                text = read_text(file)
                return read_tables(parse_toml(text), full_check=False), text, []
            except ValueError as problem:
                reason = "; ".join(str(problem).splitlines())
                return None, "", [f"{file} cannot be read, so the settings are taken from the runs: {reason}"]
    return None, "", ["There is no experiment.toml next to the runs, so the settings are taken from the runs."]


def _labels(runs: Runs) -> dict[str, str]:
    """Short label -> variant name. Settings called "name" need no key: "krum, malicious=1"."""
    named = {run.variant: run.settings for run in runs}
    keys = list(dict.fromkeys(key for settings in named.values() for key in settings))
    ends = [key.rsplit(".", 1)[-1] for key in keys]
    short = {key: end if ends.count(end) == 1 or end == "name" else key for key, end in zip(keys, ends, strict=True)}
    labels = {}
    for name, settings in named.items():
        starts = ("" if short[key] == "name" else f"{short[key]}=" for key in settings)
        texts = [start + readable(value) for start, value in zip(starts, settings.values(), strict=True)]
        labels[name] = ", ".join(texts) if "=" in name and texts else name
    if len(set(labels.values())) < len(labels):
        labels = {name: name for name in labels}
    return {label: name for name, label in labels.items()}


def baseline_results(variants: Sequence[VariantRuns], measures: Sequence[str]) -> tuple[BaselineResult, ...]:
    """What users have without learning: one for all variants that were tested on the same queries in the same order."""
    groups: list[tuple[dict[Repeat, RunValues], list[VariantRuns]]] = []
    for variant in variants:
        found = {repeat: each.without_model for repeat, each in variant.repeats.items() if each.nothing}
        if not found:
            continue
        for repeats, members in groups:
            shared = repeats.keys() & found.keys()
            if shared and all(_same(repeats[repeat], found[repeat]) for repeat in shared):
                repeats |= found
                members.append(variant)
                break
        else:
            groups.append((found, [variant]))
    several = len(groups) > 1
    made = []
    for repeats, members in groups:
        order = ", ".join(sorted({reading.given for reading in repeats.values()}))
        name, label = (f" (as for {members[0].name})", f" (as for {members[0].label})") if several else ("", "")
        what = "public start alone" if order.startswith(START_ALONE) else "do nothing"
        values = VariantRuns(f"{NOTHING}{name}", f"{what}{label}", {}, dict(sorted(repeats.items())))
        columns = [column for column in measures if all(column in reading.values for reading in repeats.values())]
        # One model may be judged by its queries here, since it is what users would get.
        comparisons = {
            column: _corrected({each.name: contrast(each, values, column, single=True) for each in members})
            for column in columns
        }
        made.append(BaselineResult(order, values, comparisons))
    return tuple(made)


def _same(one: RunValues, other: RunValues) -> bool:
    """Whether two runs were tested on the same queries, whose documents were given in the same order."""
    return np.array_equal(one.query_ids, other.query_ids) and all(
        np.array_equal(one.queries[name], other.queries[name], equal_nan=True)
        for name in one.queries.keys() & other.queries.keys()
    )


def below_nothing(analysis: Analysis) -> list[str]:
    """A warning for models that rank worse than what users have without them."""
    lines, reported = [], set[str]()
    labels = {variant.name: variant.label for variant in analysis.variants}
    for column in analysis.measures:
        for each in analysis.nothing:
            below = [name for name in each.below(column) if name not in reported]
            reported.update(below)
            if not below:
                continue
            found = each.comparisons[column]
            texts = [
                f"{labels[name]} by {-found[name].contrast.difference:.4f} (p {'<' if found[name].p < 0.001 else '='} "
                f"{max(found[name].p, 0.001):.3f} over {found[name].contrast.counted:,} {found[name].contrast.unit})"
                for name in below[:MAX_NAMED]
            ]
            more = f", and {len(below) - MAX_NAMED} more" if len(below) > MAX_NAMED else ""
            if each.order == LOGGED:
                lines.append(
                    f"By replay, the logged order has a significantly higher {column} than {', '.join(texts)}{more}. "
                    "This does not show that the model is worse."
                )
            else:
                lines.append(
                    f"{WORSE}: the {column} of {each.order} is significantly higher than that of "
                    f"{', '.join(texts)}{more}."
                )
    return lines


def worse_than_nothing(folder: str | Path) -> str:
    """What a report says of a run whose model is significantly worse than doing nothing by judgements; "" otherwise."""
    if not (Path(folder) / "run.json").is_file():
        return ""
    try:
        (analysis,) = analyse(load_runs(folder))
    except ValueError:  # not finished, or another kind of run
        return ""
    return next((line for line in below_nothing(analysis) if line.startswith(WORSE)), "")


def about_replay(analysis: Analysis) -> list[str]:
    """For a search log: stored estimates of what users would click, and what replay of logged clicks means."""
    if all(each.order != LOGGED for each in analysis.nothing):
        return []
    lines = []
    for run in analysis.runs.finished:
        try:
            found = stored_estimate(run.path)
            lines += [f"Estimated clicks, {run.label}: {found.verdict}."] if found is not None else []
        except ValueError as problem:
            lines.append(f"{problem}.")
    more = [f"{len(lines) - MAX_NAMED} more runs have an estimate."] if len(lines) > MAX_NAMED else []
    if not lines:
        return [
            "Values are replays of logged clicks, which favour the logged order: to learn whether users would click "
            "more or less, run fedrank model estimate."
        ]
    replay = "All other values are replays of logged clicks, which favour the logged order."
    return [*lines[:MAX_NAMED], *more, replay]


def _baseline(
    variants: Sequence[VariantRuns],
    nothing: Sequence[BaselineResult],
    wanted: str | None,
    named: str | None,
    labels: Mapping[str, str],
) -> tuple[VariantRuns | None, str]:
    choices = [*variants, *(each.values for each in nothing)]
    if len(variants) < 2 and NOTHING not in (wanted, named):
        return None, ""
    for name, reason in ((wanted, "as requested"), (named, "named by the experiment")):
        if not name:
            continue
        for variant in choices:
            if name in (variant.name, variant.label):
                return variant, reason
        if name == NOTHING:
            few = "was not measured by these runs" if not nothing else "differs between the variants"
            return None, f"What users have without learning {few}, so nothing is compared with it."
        if name in labels or name in labels.values():
            return None, f"The baseline {name!r} has no finished run yet, so nothing is compared with it."
        if name == named:
            return None, f"The experiment names the baseline {name!r}, but no variant is called that."
    for variant in variants:
        if variant.settings.get("method.name") == "retrain":
            return variant, "unlearning should equal retraining"
    return variants[0], "the first variant, because no baseline was named"


def compare(analysis: Analysis, column: str) -> dict[str, Comparison]:
    """Every variant against the baseline in one column."""
    base = analysis.baseline
    assert base is not None
    others = [variant for variant in analysis.variants if variant is not base and _has(variant, column)]
    if not others or not _has(base, column):
        return {}
    return _corrected({variant.name: contrast(variant, base, column) for variant in others})


def untested(analysis: Analysis, comparisons: Mapping[str, Mapping[str, Comparison]]) -> list[str]:
    """Comparisons that could not be tested, with the reason."""
    labels = {variant.name: variant.label for variant in analysis.variants}
    reasons: dict[str, tuple[dict[str, None], dict[str, None]]] = {}
    for column, found in comparisons.items():
        for name, comparison in found.items():
            if comparison.contrast.reason:
                which, columns = reasons.setdefault(comparison.contrast.reason, ({}, {}))
                which[labels[name]] = columns[column] = None
    return [
        f"Not tested: {', '.join(heading(column) for column in columns)} of "
        f"{f'{len(which)} variants' if len(which) > MAX_NAMED else '; '.join(which)} against the baseline. "
        f"Reason: {reason}."
        for reason, (which, columns) in reasons.items()
    ]


def _has(variant: VariantRuns, column: str) -> bool:
    """Whether there is anything to compare: a learner that shows no lists has no online quality."""
    return any(not math.isnan(value) for value in variant.values(column).values())


def _better_alone(analysis: Analysis) -> list[str]:
    """Warn about protected variants whose model is worse than models that clients learn alone."""
    if analysis.grid is None:
        return []
    asked = {each.name: each.experiment for each in analysis.grid.variants}
    apart = [each for each in analysis.variants if sends_nothing(getattr(asked.get(each.name), "aggregator", None))]
    protected = [each for each in analysis.variants if each.is_protected]
    column, found = analysis.main, []
    for variant, alone in itertools.product(protected, apart):
        test = contrast(variant, alone, column)
        if test.p * len(protected) * len(apart) < LEVEL and test.difference < 0:
            ours, theirs = variant.summary(column).mean, alone.summary(column).mean
            found.append(
                f"{variant.label}: do not federate at this ε. With {column} of {ours:.3f} it ends significantly below "
                f"{alone.label} ({theirs:.3f}), where no data leave a client. Add people or use a larger ε."
            )
    return found


def _published(analysis: Analysis, notes: list[str]) -> tuple[PublishedComparison, ...]:
    values = []
    for row in analysis.about.published:
        column = column_of(row)
        variant: VariantRuns | None = analysis.baseline or analysis.variants[0]
        if row.variant is not None:
            variant = next((each for each in analysis.variants if row.variant in (each.name, each.label)), None)
        if variant is None or column not in analysis.columns:
            what = f"variant {row.variant!r}" if variant is None else f"measure {column!r}"
            notes.append(f"A published value of {row.value:g} has no counterpart: no finished run has the {what}.")
            continue
        values.append(compare_published(row, column, variant))
    return tuple(values)


def column_of(row: Published) -> str:
    """The column that a published value is of. A mean nDCG never exceeds 1: papers print the discounted sum."""
    return "online_sum" if row.measure == "online" and row.value > 1 else row.measure


def _claims(analysis: Analysis) -> tuple[Verdict, ...]:
    named = {variant.name: variant for variant in analysis.variants}

    def variant_named(name: str, other: str) -> VariantRuns | None:
        if name == NOTHING and name not in named and other in named:
            beside = analysis.nothing_for(named[other])
            return None if beside is None else beside.values
        return named.get(name)

    stated = []
    for claim in analysis.about.claims:
        column = claim.measure or analysis.main
        higher, lower = variant_named(claim.higher, claim.lower), variant_named(claim.lower, claim.higher)
        found = Contrast(reason="no repeat of both variants is finished")
        if higher is not None and lower is not None:
            found = contrast(higher, lower, column)
        reasons = (run.not_testable for run in analysis.runs.finished if run.variant in (claim.higher, claim.lower))
        if reason := next(filter(None, reasons), None):
            found = Contrast(reason=f"not testable: {reason}")
        published = {row.variant: row.value for row in analysis.about.published if column_of(row) == column}
        reported = claim.difference or None
        if reported is None and {claim.higher, claim.lower} <= published.keys():
            reported = published[claim.higher] - published[claim.lower]
        highest = 1.0  # value that the column can have
        if column == "online_sum":
            rounds = max((run.asked or run.round for run in analysis.runs.finished), default=1)
            highest = (1 - DISCOUNT**rounds) / (1 - DISCOUNT)
        stated.append(Stated(claim.says, column, found, claim.within, reported, highest))
    return judge_all(stated)


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
    variants = tuple(
        replace(
            variant,
            name=f"{part.name}/{variant.name}",
            label=part.name if variant.name == "only" else f"{part.name}: {variant.label}",
            experiment=part.name,
        )
        for part in parts
        for variant in part.variants
    )
    measures = tuple(column for column in parts[0].measures if all(column in part.measures for part in parts))
    nothing = baseline_results(variants, measures)
    chosen, reason = _joined_baseline(parts, variants, baseline)
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


def _joined_baseline(
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


def what_final_means(analysis: Analysis) -> list[str]:
    """Sentences that hold for every report, and those on online quality and comparisons where there are any."""
    behind = {run.behind_final for run in analysis.runs.finished}
    sentences = ["A final value is that of a run's last model." if behind == {1} else _FINAL]
    if analysis.served:
        sentences += [
            "Online is the mean online nDCG@10 in the same rounds.",
            f"The discounted online sum adds {DISCOUNT}^(r - 1) x the online nDCG@10 of round r over all rounds; lists "
            "without a relevant document count as 0.",
        ]
    sentences += [
        "± is the sample standard deviation over repeats (folds x seeds); intervals of a mean are 95% confidence "
        "intervals by Student's t over repeats, which share their data: they describe the variation between repeats "
        "only.",
    ]
    tests = [RULE, "Effects are differences in standard deviations of what is counted (Cohen's d)."]
    return sentences if analysis.baseline is None and not analysis.claims else sentences + tests


RULE = (
    "Two variants are compared by one rule, in tables as in claims. Where values are known by query: a paired "
    "bootstrap over the test queries of the last models (for rewards: training queries), then over seeds, around the "
    "difference of final values; degrees of freedom by Satterthwaite. Where another seed has other test queries: the "
    "corrected t-test of Nadeau and Bengio (2003) over splits. Where values are known of runs only, such as online "
    "quality: a t-test over at least three folds, corrected for the queries they share. Seeds measure random variation "
    "in training and are never counted as data. p is corrected for the number of comparisons (Holm). These conclusions "
    "are about this data set; “in general” is tested over data sets."
)
_FINAL = f"A final value is the mean of the last {LAST} offline evaluations of a run (all of them if there were fewer)."
