"""Audits a spec of any kind: runs inference attacks on the messages of its clients, and reports the findings."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from fedrank import __version__
from fedrank.attacks import audits, forests, sketches
from fedrank.attacks.audits import Audit, Finding, Plan, PlannedAttack, skipped
from fedrank.attacks.forests import ForestAudit, Roots, SharedForests
from fedrank.attacks.membership import LEVEL, REPEATS, RUNS, ShareDone
from fedrank.attacks.sketches import SketchAudit
from fedrank.data.ranking import RankingData
from fedrank.experiments.runner.data import clients_of, load_fold
from fedrank.experiments.runner.folder import FORMAT
from fedrank.experiments.runner.privacy import setting_of
from fedrank.experiments.runner.silo import silos_of
from fedrank.experiments.spec.grid import Grid, Variant
from fedrank.experiments.spec.silo import SiloExperiment
from fedrank.experiments.spec.trees import TreesExperiment
from fedrank.progress import Progress, quiet
from fedrank.seeds import rng_for
from fedrank.trees.boosters import Booster, usable_validation
from fedrank.trees.forest import Forest
from fedrank.trees.forest_checkpoint import ForestCheckpoint
from fedrank.trees.histograms import Histograms
from fedrank.trees.mergers import Alone, Bagged, Cyclic, Pooled
from fedrank.trees.row_store import RowStore, drawn_features, elected_for_root
from fedrank.trees.training import train_locally
from fedrank.types import Source

ALL_ATTACKS = "audit"  # label of the progress of all attacks
SECONDS = 110.0  # for all attacks together, unless the number of messages is given
NO_LIMIT = "giving --messages"
TREES = 100  # maximum in an attacked forest, to limit the running time


def audit_experiment(
    grid: Grid[Any],
    *,
    messages: int | None = None,
    repeats: int = REPEATS,
    runs: int = RUNS,
    source: Source | None = None,
    progress: Progress = quiet,
    seconds: float = SECONDS,
    clock: Callable[[], float] = time.monotonic,
) -> list[Finding]:
    """Attack every variant of a spec, with its first fold and seed.

    Without `messages`, all attacks together take at most about this many `seconds`: with several variants, fewer
    messages of each are attacked, and an attack that does not finish in time is skipped, which its finding says.
    `source` and `clock` are for tests: by default, noise comes from the system's secure source.
    """
    began, variants = clock(), len(grid.variants)
    effort = {"messages": messages, "repeats": repeats, "runs": runs, "source": source}
    plans = [_plan(variant, grid, effort) for variant in grid.variants]
    steps = [(number, step) for number, plan in enumerate(plans) for step in plan]
    attacks = [step for _, step in steps if isinstance(step, PlannedAttack)]
    whole = sum(attack.seconds for attack in attacks)
    found: list[Finding] = []
    begun, before = 0, 0.0
    for number, step in steps:
        name = grid.variants[number].name
        if isinstance(step, Finding):
            found.append(replace(step, variant=name))
            continue
        begun += 1
        what = f"{name}: {step.what}" if variants > 1 else step.what
        until = math.inf if messages is not None else began + seconds
        tell = _Line(progress, clock, until, before / whole, step.seconds / whole)
        tell.detail = f"attack {begun} of {len(attacks)}, {what}"
        try:
            if step.seconds > until - clock():
                raise OutOfTime
            tell(0.0)
            found += [replace(each, variant=name) for each in step.make(tell)]
        except OutOfTime:
            reason = f"the attack does not finish within two minutes; run it without a limit by {NO_LIMIT}"
            found.append(replace(skipped(step.what, reason), variant=name))
        before += step.seconds
    progress(ALL_ATTACKS, 1, 1)
    return found


class OutOfTime(Exception):
    """An attack was stopped, because its time is over."""


@dataclass
class _Line:
    """The one line of progress: the share of all attacks by their expected durations."""

    progress: Progress
    clock: Callable[[], float]
    until: float
    before: float  # share of the attacks before this one
    own: float  # share of this attack
    detail: str = ""

    def __call__(self, share: float) -> None:
        if self.clock() > self.until:
            raise OutOfTime
        done = self.before + self.own * share
        self.progress(ALL_ATTACKS, min(done, 0.999), 1, f"{done:.0%}, {self.detail}")


def _plan(variant: Variant[Any], grid: Grid[Any], effort: Mapping[str, Any]) -> Plan:
    """The attacks that apply to a variant; `effort` has the number of attacked messages and the source of noise."""
    (fold, seed), experiment = grid.repeats()[0], variant.experiment
    if isinstance(experiment, SiloExperiment):
        return SketchAudit(
            method=experiment.method,
            silos=partial(silos_of, experiment, seed),
            delta=experiment.privacy.delta,
            seed=seed,
            level=_level(sketches.TESTS, grid),
            source=effort["source"],
        ).plan()
    if isinstance(experiment, TreesExperiment):
        noiseless = isinstance(experiment.merge, Histograms) and experiment.merge.private == "no"
        return ForestAudit(
            roots=partial(_roots, experiment, fold, seed) if noiseless else None,
            forests=None if isinstance(experiment.merge, Alone) else partial(_shared, experiment, fold, seed),
            seed=seed,
            level=_level(forests.TESTS, grid),
            note=_smaller(experiment),
        ).plan()
    clients = clients_of(experiment, fold, seed)
    setting = setting_of(experiment, clients.data.features.shape[1])
    if effort["messages"] is None:
        share = audits.SECONDS / len(grid.variants)
        effort = {**effort, "messages": audits.messages_for(max(setting.interactions), share)}
    return Audit(
        setting=setting,
        clients=clients,
        mechanism=experiment.mechanism,
        local=experiment.local,
        delta=experiment.privacy.delta,
        seed=seed,
        level=_level(audits.TESTS, grid),
        **effort,
    ).plan()


def _level(tests: int, grid: Grid[Any]) -> float:
    return LEVEL / (tests * len(grid.variants))


def _smaller(experiment: TreesExperiment) -> str:
    """How attacked forests differ from those of a run."""
    differs = []
    if experiment.booster.trees > TREES:
        differs.append(
            f"attacked forests have at most {TREES} trees, forests of a run at most {experiment.booster.trees:,}"
        )
    if experiment.tune:
        differs.append("settings were not tuned")
    return "; ".join(differs)


def _shared(experiment: TreesExperiment, number: int, seed: int, on_progress: ShareDone) -> list[SharedForests]:
    """The forests that clients share."""
    # As in a run: trees use raw features.
    fold = load_fold(replace(experiment.data, normalise=experiment.data.normalise or "none"), number)
    booster: Booster = replace(experiment.booster, trees=min(TREES, experiment.booster.trees))  # type: ignore[type-var]
    if experiment.split is None:
        [forest] = _grown(
            booster, 1, on_progress, lambda grow: [grow(fold.train, usable_validation(fold.validation), seed=seed)]
        )
        return [SharedForests(forest, (fold.train,), (fold.test,))]
    portions = experiment.split(fold, rng_for(seed, "split"))
    train = tuple(portion.train for portion in portions)
    held_out = tuple(fold.test if portion.test is None else portion.test for portion in portions)
    merge = experiment.merge
    if isinstance(merge, (Bagged, Cyclic, Histograms, Pooled)):
        [forest] = _grown(booster, 1, on_progress, lambda grow: [merge(portions, (), grow, seed)[0]])
        if isinstance(merge, Pooled) or (isinstance(merge, Histograms) and merge.edges == "pooled"):
            train, held_out = (RankingData.join(train),), (fold.test,)
        return [SharedForests(forest, train, held_out)]
    local = _grown(booster, len(portions), on_progress, lambda grow: train_locally(portions, grow, seed))
    return [
        SharedForests(*each)
        for each in zip(local, ((one,) for one in train), ((one,) for one in held_out), strict=True)
    ]


def _roots(experiment: TreesExperiment, number: int, seed: int) -> Roots:
    """The first histograms that the server sees."""
    merge = experiment.merge
    assert isinstance(merge, Histograms)
    assert experiment.split is not None
    fold = load_fold(replace(experiment.data, normalise=experiment.data.normalise or "none"), number)
    train = tuple(portion.train for portion in experiment.split(fold, rng_for(seed, "split")))
    rules = Histograms.rules(experiment.booster)
    edges = merge.edges_for(train, rules.bins)
    features = drawn_features(edges.features, rules.feature_share, seed, 0)
    if 0 < merge.vote < len(features):
        rows = sum(one.documents for one in train)
        features = elected_for_root([RowStore(one, edges, rules, seed) for one in train], merge.vote, rows.bit_length())
    return Roots((RankingData.join(train),) if merge.secure else train, edges, rules, features, seed)


def _grown(booster: Booster, forests: int, on_progress: ShareDone, grow: Any) -> Sequence[Forest]:
    """Grow forests, and report progress."""
    forestry = ForestCheckpoint(booster)
    forestry.turn = lambda: on_progress(
        sum(1.0 if grown.whole else len(grown.trees) / booster.trees for grown in forestry.forests) / forests
    )
    grown: Sequence[Forest] = grow(forestry)
    return grown


def as_facts(found: Sequence[Finding], grid: Grid[Any]) -> dict[str, Any]:
    """All counts, for `json_text`."""
    fold, seed = grid.repeats()[0]
    return {
        "format": FORMAT,
        "fedrank": __version__,
        "title": grid.title,
        "kind": grid.kind,
        "fold": fold,
        "seed": seed,
        "level": LEVEL,
        "findings": list(found),
    }
