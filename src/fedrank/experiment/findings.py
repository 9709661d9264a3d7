"""What the finished runs of one experiment say: values, comparisons, curves, costs and weights, without any layout."""

from __future__ import annotations

import json
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank.experiment.claims import Stated, Verdict, judge_all
from fedrank.experiment.statistics import (
    Paired,
    Summary,
    bonferroni,
    half_width,
    pair,
    paired_t,
    randomisation_test,
    summarise,
)
from fedrank.experiment.store import DISCOUNT, LAST, Run, Runs, read_toml
from fedrank.names import nearest
from fedrank.protect.promises import up

LEVEL = 0.05  # corrected p below which a difference is called significant
POINTS = 240  # of a drawn curve; more cannot be seen
COUNTED = {"trees": "number of trees", "silo": "pass"}  # what a row of rounds.csv is, by kind; else a round
COSTS = ("interactions", "bytes_up", "bytes_down", "seconds", "cpu_seconds")

Repeat = tuple[int, int]  # fold, seed
Line = tuple[NDArray[np.int64], NDArray[np.float64]]  # rounds, values


@dataclass(frozen=True)
class Curve:
    """A column over rounds, averaged over repeats."""

    rounds: NDArray[np.int64]
    mean: NDArray[np.float64]
    half: NDArray[np.float64]  # half the 95% confidence interval; NaN for one repeat
    repeats: int
    window: int = 1  # rounds of the running mean; 1 where nothing was smoothed


@dataclass(frozen=True)
class Threat:
    """Who attacked a run, what defended it, and what else it was."""

    attack: dict[str, Any]  # its table in the spec; empty where none is set
    malicious: int
    clients: int
    rule: dict[str, Any]  # likewise
    rest: str  # the spec without all that; runs with the same rest can be compared


@dataclass(frozen=True)
class Reading:
    """What a report keeps of one run: little enough that a thousand runs fit into memory."""

    values: dict[str, float]
    curves: dict[str, Line]
    window: int
    costs: dict[str, float]
    query_ids: NDArray[np.str_]
    queries: dict[str, NDArray[np.float64]]
    clients: dict[str, NDArray[np.float64]]  # measure -> [clients], on their own queries; empty where all are alike
    weights: NDArray[np.float64] | None  # of a linear model
    feature_names: tuple[str, ...]
    privacy: dict[str, Any] | None = None  # the privacy card
    threat: Threat | None = None  # who attacked, and what defended
    receipt: dict[str, Any] | None = None  # of unlearning
    promotion: float | None = None  # share of the documents to be promoted that reach the top ten


@dataclass(frozen=True)
class Variant:
    """All finished repeats of one variant."""

    name: str
    label: str  # short and unique within the experiment
    settings: dict[str, Any]
    repeats: dict[Repeat, Reading]

    def values(self, column: str) -> dict[Hashable, float]:
        return {repeat: reading.values.get(column, math.nan) for repeat, reading in self.repeats.items()}

    def summary(self, column: str) -> Summary:
        return summarise(list(self.values(column).values()))

    def cost(self, name: str) -> float:
        return summarise([reading.costs.get(name, math.nan) for reading in self.repeats.values()]).mean

    def curve(self, column: str) -> Curve | None:
        """Mean over repeats at the rounds that all of them have."""
        lines = [reading.curves[column] for reading in self.repeats.values() if column in reading.curves]
        if not lines:
            return None
        rounds = reduce(np.intersect1d, [line[0] for line in lines])
        if not len(rounds):  # forests that stopped at different sizes may share none
            return None
        values = np.array([line[1][np.isin(line[0], rounds)] for line in lines])
        window = next(iter(self.repeats.values())).window if column == "online" else 1
        return Curve(rounds, values.mean(axis=0), half_width(values), len(lines), window)

    def weights(self) -> NDArray[np.float64] | None:
        """[repeats, features] of linear models; None where there are none, or of different lengths."""
        found = [reading.weights for reading in self.repeats.values() if reading.weights is not None]
        return np.array(found) if found and len({len(weights) for weights in found}) == 1 else None

    @property
    def threat(self) -> Threat | None:
        return next(iter(self.repeats.values())).threat

    def privacy(self) -> dict[str, Any] | None:
        """The card of the repeat that spent most; None where no run of this variant has one."""
        cards = [reading.privacy for reading in self.repeats.values() if reading.privacy]
        return max(cards, key=_spent) if cards else None

    def claim(self) -> str:
        """What may be claimed, in a few words: against the server if possible, else against the public."""
        card = self.privacy()
        for row in (card or {}).get("promises", ()):
            if row.get("epsilon") is not None:
                return f"ε = {up(row['epsilon'])}, {row['against']}"
        return "no ε"


@dataclass(frozen=True)
class Comparison:
    """One variant against the baseline in one column."""

    paired: Paired  # over (fold, seed)
    p: float  # Bonferroni over all comparisons of the column
    queries: int = 0  # tested on
    p_queries: float = math.nan  # randomisation test over queries, raw
    p_queries_corrected: float = math.nan

    @property
    def verdict(self) -> str:
        """Better or worse if significant, else empty."""
        if not self.p < LEVEL:
            return ""
        return "better" if self.paired.difference > 0 else "worse"


@dataclass(frozen=True)
class Published:
    """A value from a paper next to ours."""

    column: str
    variant: Variant
    value: float
    spread: float | None
    source: str
    measured: Summary

    @property
    def verdict(self) -> str:
        ours = self.measured
        if ours.n < 2:
            return "cannot say: one repeat has no spread"
        if ours.smallest <= self.value <= ours.largest or abs(self.value - ours.mean) <= 2 * ours.sd:
            return "within the spread of our repeats"
        return "outside"


@dataclass(frozen=True)
class Findings:
    """Everything a report says about one experiment."""

    name: str
    title: str
    folder: Path
    asked: dict[str, Any]  # experiment.toml
    asked_text: str
    measures: tuple[str, ...]
    variants: tuple[Variant, ...]
    baseline: Variant | None
    baseline_why: str
    comparisons: dict[str, dict[str, Comparison]]  # column -> variant name -> comparison
    published: tuple[Published, ...]
    claims: tuple[Verdict, ...]
    runs: Runs  # all of them, finished or not
    expected: int | None  # repeats asked of every variant
    notes: tuple[str, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        return (*self.measures, "online", "online_sum") if self.served else self.measures

    @property
    def served(self) -> bool:
        """Whether users were shown lists while the models learned."""
        readings = (reading for variant in self.variants for reading in variant.repeats.values())
        return any(not math.isnan(reading.values.get("online", math.nan)) for reading in readings)

    @property
    def counted(self) -> str:
        """What grows from left to right in a learning curve."""
        return COUNTED.get(str(self.asked.get("kind")), "round")

    @property
    def main(self) -> str:
        """The column that decides which variant is best: the first measure."""
        return self.columns[0]

    @property
    def best(self) -> Variant:
        return max(self.variants, key=lambda variant: _or_least(variant.summary(self.main).mean))

    @property
    def unfinished(self) -> Runs:
        return Runs(tuple(run for run in self.runs if run.status != "finished"))


def find(runs: Runs, baseline: str | None = None, by_query: bool = True) -> list[Findings]:
    """One entry for each experiment with a finished run; ValueError if there is none.

    `by_query` adds the randomisation test over queries, which takes the longest.
    """
    readings: dict[Path, Reading] = {}
    each = []
    for run in runs:  # one by one, while its files are still in memory
        now = run.checked()
        if now.status == "finished":
            readings[now.path] = _read(now)
        each.append(now)
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
    names = {run.variant for run in checked}
    if baseline is not None and baseline not in names and not any(baseline in _labels(group) for group in groups):
        raise ValueError(f"no variant {baseline!r} to compare with{nearest(baseline, names)}")
    return [_find(group, readings, baseline, by_query) for group in groups]


def _find(runs: Runs, readings: Mapping[Path, Reading], baseline: str | None, by_query: bool) -> Findings:
    first = runs.finished[0]
    asked, text, notes = _asked(first)
    labels = {name: label for label, name in _labels(runs).items()}
    groups = runs.finished.group("variant")
    variants = tuple(
        Variant(name, labels[name], group[0].settings, {run.repeat: readings[run.path] for run in group})
        for (name,), group in sorted(groups.items(), key=lambda item: _place(asked, item[1][0]))
    )
    recorded = dict.fromkeys(name for run in runs.finished for name in readings[run.path].values)
    measures = tuple(name for name in recorded if name not in ("online", "online_sum"))
    chosen, why = _baseline(variants, baseline, asked, labels)
    if chosen is None and why:
        notes.append(why)
    threats = [variant.threat for variant in variants if variant.threat is not None]
    if any(threat.attack for threat in threats) and not any(threat.malicious for threat in threats):
        notes.append("An attack is set, but nobody is malicious, so nobody attacked; set clients.malicious.")
    counts = {len(variant.repeats) for variant in variants}
    if len(counts) > 1:
        notes.append(
            "Variants have different numbers of finished repeats, so their means cover different folds and seeds; "
            "differences from the baseline use only the repeats that both have."
        )
    found = Findings(
        name=first.experiment,
        title=str(asked.get("title") or first.title or first.experiment),
        folder=first.folder,
        asked=asked,
        asked_text=text,
        measures=measures,
        variants=variants,
        baseline=chosen,
        baseline_why=why,
        comparisons={},
        published=(),
        claims=(),
        runs=runs,
        expected=_expected(asked),
        notes=(),
    )
    comparisons = {column: _compare(found, column, by_query, notes) for column in found.columns} if chosen else {}
    published = _published(found, notes)
    return replace(
        found,
        comparisons=comparisons,
        published=published,
        claims=_claims(found),
        notes=tuple(dict.fromkeys(notes)),
    )


def _asked(run: Run) -> tuple[dict[str, Any], str, list[str]]:
    for file in (run.folder / "experiment.toml", run.path / "spec.toml"):
        if file.exists():
            try:
                return read_toml(file), file.read_text(encoding="utf-8"), []
            except ValueError as problem:
                return {}, "", [str(problem)]
    return {}, "", ["There is no experiment.toml next to the runs: what was asked is known from the runs alone."]


def _read(run: Run) -> Reading:
    rounds = run.rounds
    values = {name: run.final(name) for name in run.measures}
    if "online" in rounds:
        values |= {"online": run.final("online"), "online_sum": run.online_sum()}
    number = rounds["round"].astype(np.int64)
    curves: dict[str, Line] = {}
    for name in run.measures:
        rows = np.flatnonzero(np.isfinite(rounds[name]))
        rows = rows[_thinned(len(rows))]
        if len(rows):
            curves[name] = number[rows], rounds[name][rows]
    window = max(1, len(number) // 50)
    # A model trained in one place serves nobody on the way.
    served = np.flatnonzero(np.isfinite(rounds.get("online", np.full(len(number), np.nan))))
    if len(served):
        rows = _thinned(len(served))
        curves["online"] = number[served][rows], running_mean(rounds["online"][served], window)[rows]
    costs = {name: run.total(name) for name in COSTS[:3] if name in rounds}
    costs |= {"seconds": run.seconds, "cpu_seconds": run.cpu_seconds}
    by_query = run.queries if (run.path / "queries.csv").exists() else (np.array([], dtype=np.str_), {})
    weights, names = _linear(run.model)
    return Reading(
        values,
        curves,
        window,
        costs,
        *by_query,
        run.clients[1],
        weights,
        names,
        run.privacy,
        _threat(run),
        run.receipt,
        run.promotion,
    )


def _threat(run: Run) -> Threat | None:
    """None where nobody can have attacked: an old run, or one that unlearned who did."""
    if "method.name" in run.settings:
        return None
    try:
        spec = run.spec
    except (OSError, ValueError):
        return None
    clients, data = spec.get("clients", {}), spec.get("data", {})
    attack, rule = ({"name": one} if isinstance(one, str) else one for one in map(spec.get, ("attack", "aggregator")))
    if not isinstance(clients, dict) or not isinstance(data, dict) or not isinstance(rule, dict):
        return None
    rest = {key: value for key, value in spec.items() if key not in ("attack", "aggregator", "seeds")}
    rest["clients"] = {key: value for key, value in clients.items() if key != "malicious"}
    rest["data"] = {key: value for key, value in data.items() if key != "folds"}
    known = attack if isinstance(attack, dict) else {}
    return Threat(known, clients.get("malicious", 0), clients.get("count", 0), rule, repr(rest))


def _spent(card: dict[str, Any]) -> float:
    return max((math.inf if row["epsilon"] is None else row["epsilon"] for row in card["promises"]), default=0.0)


def running_mean(values: NDArray[np.float64], window: int) -> NDArray[np.float64]:
    """Mean of the last `window` values up to each, or of as many as there are yet.

    >>> running_mean(np.array([1.0, 3.0, 5.0]), 2).tolist()
    [1.0, 2.0, 4.0]
    """
    sums = np.concatenate(([0.0], np.cumsum(values)))
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(0, ends - window)
    return (sums[ends] - sums[starts]) / (ends - starts)


def _thinned(n: int) -> NDArray[np.int64]:
    return np.unique(np.linspace(0, n - 1, min(n, POINTS)).round().astype(np.int64))


def _linear(model: dict[str, Any] | None) -> tuple[NDArray[np.float64] | None, tuple[str, ...]]:
    if model is None or not isinstance(model.get("ranker"), dict) or model["ranker"].get("name") != "linear":
        return None, ()
    try:
        weights = np.asarray(model.get("weights", []), dtype=np.float64)
    except (TypeError, ValueError):
        return None, ()
    names = tuple(str(name) for name in model.get("feature_names") or ())
    if weights.ndim != 1 or not len(weights) or not np.isfinite(weights).all():
        return None, ()
    if len(names) != len(weights):
        names = tuple(f"feature {i + 1}" for i in range(len(weights)))
    return weights, names


def _labels(runs: Runs) -> dict[str, str]:
    """Short label -> variant name. Settings called "name" need no key: "krum, malicious=1"."""
    named = {run.variant: run.settings for run in runs}
    keys = list(dict.fromkeys(key for settings in named.values() for key in settings))
    ends = [key.rsplit(".", 1)[-1] for key in keys]
    short = {key: end if ends.count(end) == 1 or end == "name" else key for key, end in zip(keys, ends, strict=True)}
    labels = {}
    for name, settings in named.items():
        if "=" not in name or not settings:
            labels[name] = name
            continue
        labels[name] = ", ".join(
            show(value) if short[key] == "name" else f"{short[key]}={show(value)}" for key, value in settings.items()
        )
    if len(set(labels.values())) < len(labels):
        labels = {name: name for name in labels}
    return {label: name for name, label in labels.items()}


def show(value: Any) -> str:
    """A setting as a person would write it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, int) and abs(value) >= 10_000:
        return f"{value:,}"
    if isinstance(value, dict):
        rest = ", ".join(f"{key} = {show(each)}" for key, each in value.items() if key != "name")
        return f"{value['name']} ({rest})" if "name" in value and rest else str(value.get("name", rest))
    if isinstance(value, (list, tuple)):
        return ", ".join(show(each) for each in value)
    return str(value)


def _place(asked: Mapping[str, Any], run: Run) -> tuple[int, ...]:
    """Variants appear in the order in which they were asked for."""
    place = []
    given = list(asked.get("variants") or {}) if isinstance(asked.get("variants"), dict) else []
    place.append(next((i for i, name in enumerate(given) if name in run.variant.split(",")), len(given)))
    vary = asked.get("vary")
    for key, values in vary.items() if isinstance(vary, dict) else ():
        known = isinstance(values, list) and run.settings.get(key) in values
        place.append(values.index(run.settings[key]) if known else len(values) if isinstance(values, list) else 0)
    return tuple(place)


def _baseline(
    variants: Sequence[Variant], wanted: str | None, asked: Mapping[str, Any], labels: Mapping[str, str]
) -> tuple[Variant | None, str]:
    if len(variants) < 2:
        return None, ""
    for name, why in ((wanted, "as chosen"), (asked.get("baseline"), "as the experiment says")):
        if not name:
            continue
        for variant in variants:
            if name in (variant.name, variant.label):
                return variant, why
        if name in labels or name in labels.values():
            return None, f"The baseline {name!r} has no finished run yet, so nothing is compared with it."
        if name == asked.get("baseline"):
            return None, f"The experiment names the baseline {name!r}, but no variant is called that."
    for variant in variants:
        if variant.settings.get("method.name") == "retrain":
            return variant, "retraining is what unlearning should come to"
    return variants[0], "the first variant, because no baseline was named"


def _compare(found: Findings, column: str, by_query: bool, notes: list[str]) -> dict[str, Comparison]:
    base = found.baseline
    assert base is not None
    others = [variant for variant in found.variants if variant is not base and _has(variant, column)]
    if not others or not _has(base, column):
        return {}
    tests = [paired_t(*pair(variant.values(column), base.values(column))) for variant in others]
    corrected = bonferroni([test.p for test in tests])
    raw, counts = [math.nan] * len(others), [0] * len(others)
    if by_query and column in found.measures:
        rows = [_query_differences(variant, base, column, notes) for variant in others]
        counts = [int(np.sum(~np.isnan(row))) for row in rows]
        table = np.full((len(rows), max(len(row) for row in rows)), np.nan)
        for i, row in enumerate(rows):
            table[i, : len(row)] = row
        raw = [float(p) for p in randomisation_test(table, np.zeros_like(table))]
    corrected_queries = bonferroni(raw)
    untested: dict[str, list[str]] = {}
    for variant, test in zip(others, tests, strict=True):
        if test.note.startswith("only"):
            notes.append(f"Comparisons rest on {test.note}. Add seeds to be surer.")
        elif test.note.startswith(("one pair", "no repeat", "all repeats")):
            untested.setdefault(test.note, []).append(variant.label)
    for note, labels in untested.items():
        which = f"{len(labels)} variants" if len(labels) > 4 else "; ".join(labels)
        notes.append(f"{which} against the baseline: {note}.")
    return {
        variant.name: Comparison(test, p, count, p_raw, p_corrected)
        for variant, test, p, count, p_raw, p_corrected in zip(
            others, tests, corrected, counts, raw, corrected_queries, strict=True
        )
    }


def _has(variant: Variant, column: str) -> bool:
    """Whether there is anything to compare: a learner that shows nobody a list has no online quality."""
    return any(not math.isnan(value) for value in variant.values(column).values())


def _query_differences(variant: Variant, base: Variant, column: str, notes: list[str]) -> NDArray[np.float64]:
    """Difference for every query of every fold, averaged over the seeds that both have."""
    shared = [repeat for repeat in variant.repeats if repeat in base.repeats]
    parts = []
    for fold in sorted({fold for fold, _ in shared}):
        readings = [(variant.repeats[repeat], base.repeats[repeat]) for repeat in shared if repeat[0] == fold]
        ids = readings[0][1].query_ids
        if any(not np.array_equal(ids, reading.query_ids) for both in readings for reading in both):
            notes.append(
                f"{variant.label} and the baseline were tested on different queries: there is no test over queries, "
                "and differences mix the effect of the data with that of the method."
            )
            return np.array([])
        if any(column not in reading.queries for both in readings for reading in both):
            continue
        parts.append(np.mean([ours.queries[column] - theirs.queries[column] for ours, theirs in readings], axis=0))
    return np.concatenate(parts) if parts else np.array([])


def _published(found: Findings, notes: list[str]) -> tuple[Published, ...]:
    values = []
    entries = found.asked.get("published") or []
    for entry in entries if isinstance(entries, list) else []:
        try:
            column, value = str(entry["measure"]), float(entry["value"])
            spread = None if entry.get("spread") is None else float(entry["spread"])
        except (KeyError, TypeError, ValueError, AttributeError):
            notes.append(f"A published value is not understood and left out: {json.dumps(entry, default=str)}")
            continue
        if column == "online" and value > 1:
            column = "online_sum"  # a mean nDCG never exceeds 1: papers print the discounted sum
        wanted = entry.get("variant")
        variant: Variant | None = found.baseline or found.variants[0]
        if wanted is not None:
            variant = next((v for v in found.variants if wanted in (v.name, v.label)), None)
        if variant is None or column not in found.columns:
            what = f"variant {wanted!r}" if variant is None else f"measure {column!r}"
            notes.append(f"A published value of {value:g} has no counterpart: no finished run has the {what}.")
            continue
        source = str(entry.get("source") or "")
        values.append(Published(column, variant, value, spread, source, variant.summary(column)))
    return tuple(values)


def _claims(found: Findings) -> tuple[Verdict, ...]:
    named = {variant.name: variant for variant in found.variants}
    asked_for_trees = found.asked.get("kind") == "trees"
    stated = []
    for entry in found.asked.get("claims") or []:
        column = str(entry.get("measure") or found.main)
        higher, lower = (named.get(entry[role]) for role in ("higher", "lower"))
        ours, theirs = ({} if variant is None else variant.values(column) for variant in (higher, lower))
        queries = None
        # Forests are grown with little luck, so one of them can be judged by its queries; other rankers are not.
        if asked_for_trees and higher is not None and lower is not None and column in found.measures:
            rows = _query_differences(higher, lower, column, [])
            queries = rows[~np.isnan(rows)]
        stated.append(Stated(str(entry["says"]), column, ours, theirs, entry.get("within"), queries))
    return judge_all(stated)


def _expected(asked: Mapping[str, Any]) -> int | None:
    data = asked.get("data")
    folds = data.get("folds") if isinstance(data, dict) else None
    seeds = asked.get("seeds")
    vary = asked.get("vary")
    varied = set(vary) if isinstance(vary, dict) else set()
    if not isinstance(folds, list) or not isinstance(seeds, list) or {"seeds", "data.folds", "data.name"} & varied:
        return None
    return len(folds) * len(seeds)


def what_final_means(found: Findings) -> list[str]:
    """Sentences that hold for every report, and those on online quality and comparisons where there are any."""
    behind = {run.behind_final for run in found.runs.finished}
    told = ["A final value is that of a run's last model." if behind == {1} else _FINAL]
    if found.served:
        told += [
            "Online is the mean online nDCG@10 in the same rounds.",
            "Round r is the model after the aggregation of round r.",
            f"The discounted online sum adds {DISCOUNT}^(r - 1) x the online nDCG@10 of round r over all rounds; lists "
            "without a relevant document count as 0.",
        ]
    told += [
        "± is the sample standard deviation over repeats (folds x seeds); intervals are 95% confidence intervals of "
        "the mean by Student's t, which take repeats as independent although repeats of one fold share their data.",
    ]
    tests = [
        "Differences from the baseline are paired over the (fold, seed) that both have: two-tailed Student's t-test, "
        "p multiplied by the number of comparisons in the column (Bonferroni). The test over queries flips the signs "
        "of per-query differences of the final models (averaged over seeds, queries of all folds) 10,000 times, "
        "corrected in the same way. The effect is Cohen's d of the paired differences.",
    ]
    return told if found.baseline is None else told + tests


_FINAL = f"A final value is the mean of the last {LAST} offline evaluations of a run (all of them if there were fewer)."


def _or_least(value: float) -> float:
    return -math.inf if math.isnan(value) else value


def _list(names: set[str]) -> str:
    shown = sorted(names)
    return ", ".join(shown[:12]) + (f" and {len(shown) - 12} more" if len(shown) > 12 else "")
