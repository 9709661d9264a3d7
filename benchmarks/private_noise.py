"""Measure what differential privacy costs in quality: ε, people, rounds and server rate, with every arm tuned alike.

    python -m benchmarks.private_noise --out FOLDER --jobs 16 --minutes 18       # resumes; about 5 hours of CPU time
    python -m benchmarks.private_noise --out FOLDER --report --picture docs/private-noise.png

Every person takes part once with four searches (δ = 1e-5), so all arms learn from the same number of clicks. People are
dealt into T groups, one for each round, and the price is that of one Gaussian, solved exactly. Each arm but "do
nothing" and "usual" tries 36 settings on validation queries (5 folds x 12 seeds); the best one is tested once (5 folds
x 20 fresh seeds). nDCG@10. Noise has keys here, for reproducibility; it would not protect anything.

Arms: "no noise"; "recipe" (2, 4 or 8 rounds, clip = half the median update, noise on the sum, server rate tuned);
"planned" (the recipe, tuned on generated data, where it costs no privacy); "start" (the recipe from a public model:
that of the other MQ collection, or BM25); "many" (100 rounds, server rate 1, clip and local rate tuned); "local" (noise
on every message); "published" (the noise of the FPDGD paper; the stated ε is not the ε that holds); "usual" (100
rounds, server rate 1, clip = median update, not tuned); "alone" (one person, or one organisation without noise);
"nothing" (the BM25 order); "start alone" (the public model); "every" (all people in every round with new searches, so
T times as many clicks).
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import functools
import json
import math
import multiprocessing
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import fedrank as fr
from fedrank.data.catalog import Fold, load
from fedrank.data.ranking import RankingData
from fedrank.ranking.baseline_ranking import baseline_order, baseline_weights
from fedrank.ranking.measures import Evaluator
from fedrank.seeds import Chance, rng_for

DELTA, SEARCHES, LOCAL_RATE = 1e-5, 4, 0.1
FOLDS, TUNING_SEEDS, TEST_SEEDS = (1, 2, 3, 4, 5), tuple(range(1, 13)), tuple(range(101, 121))
EPSILONS, PEOPLE, CENTRE = (0.5, 1.0, 4.0), (100, 1000, 10_000), (1.0, 1000)
OTHER = {"mq2008": "mq2007-85", "mq2007-85": "mq2008"}  # the collection of the public model
RATES = tuple(float(each) for each in np.geomspace(0.5, 400, 12).round(3))
GENERATED = "synthetic-mq2007"  # tunes the arm "planned"
MEASURE = "ndcg@10"
Values = NDArray[np.float64]


@dataclass(frozen=True)
class Cell:
    """One question: an arm in one situation."""

    arm: str
    data: str
    people: int = 1000
    epsilon: float = math.inf
    clicks: str = "navigational"
    ranker: str = "linear"
    learner: str = "pdgd"
    sites: int = 1  # organisations with people / sites persons each; "alone" is one of them
    shares: str = ""  # noise of organisations: "": σ in all; "absent": also without one; "collude": also of one alone
    rounds: int = 0  # a fixed number of rounds, for the study of rounds; 0: as the arm says

    @property
    def noise(self) -> float:
        """Noise of a complete sum, in multiples of σ."""
        return {"": 1.0, "absent": self.sites / max(self.sites - 1, 1), "collude": self.sites}[self.shares] ** 0.5

    @property
    def name(self) -> str:
        return "_".join(str(value).replace(" ", "-") for value in asdict(self).values())


@dataclass(frozen=True)
class Setting:
    """What is tuned."""

    rounds: int = 1
    rate: float = 1.0  # of the server
    clip: float = math.inf  # in multiples of the median update
    local: float = LOCAL_RATE
    bound: float = 0.0  # published noise: Δ


def settings_of(cell: Cell) -> list[Setting]:
    """The settings that an arm tries: 36, or one."""
    scale = 10.0 if cell.ranker == "mlp" else 1.0  # its gradients are smaller
    if cell.arm in ("nothing", "start alone"):
        return [Setting()]
    if cell.arm == "usual":
        return [Setting(100, 1.0, 1.0)]
    if cell.rounds:
        return [Setting(cell.rounds, float(rate), 0.5) for rate in np.geomspace(0.5, 400, 36)]
    if cell.arm == "no noise" or (cell.arm == "alone" and cell.sites > 1):
        rates = (1.0, 6.0, 25.0, 100.0, 200.0, 400.0)
        return [Setting(t, scale * r) for t in (1, 2, 4, 10, 25, 100) for r in rates]
    if cell.arm in ("recipe", "planned", "start", "local"):
        return [Setting(t, scale * r, 0.5) for t in (2, 4, 8) for r in RATES]
    if cell.arm == "every":
        return [Setting(t, r, 0.5) for t in (4, 10, 25) for r in RATES]
    if cell.arm == "many":
        clips, locals_ = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0), (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
        return [Setting(100, 1.0, c, scale * r) for c in clips for r in locals_]
    if cell.arm == "alone":
        return [Setting(local=float(rate)) for rate in np.geomspace(1e-3, 1e3, 36)]
    if cell.arm == "published":
        bounds, locals_ = (0.1, 0.3, 1.0, 3.0), (0.1, 1.0, 10.0)
        return [Setting(t, 1.0, math.inf, r, b) for t in (1, 4, 100) for b in bounds for r in locals_]
    raise ValueError(f"unknown arm {cell.arm!r}")


def noise_multiplier(epsilon: float, delta: float = DELTA) -> float:
    """σ / sensitivity of one Gaussian mechanism, exact (Balle and Wang, ICML 2018)."""
    if math.isinf(epsilon):
        return 0.0

    def normal(x: float) -> float:
        return math.erfc(-x / math.sqrt(2)) / 2

    def spent(sigma: float) -> float:
        return normal(0.5 / sigma - epsilon * sigma) - math.exp(epsilon) * normal(-0.5 / sigma - epsilon * sigma)

    low, high = 1e-3, 1e4
    while high / low > 1 + 1e-9:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if spent(middle) <= delta else (middle, high)
    return high


@functools.cache
def fold_of(name: str, fold: int) -> Fold:
    return load(name, fold)


@functools.cache
def evaluator_of(name: str, fold: int, part: str) -> Evaluator:
    return Evaluator(getattr(fold_of(name, fold), part), [MEASURE])


def ranker_of(cell: Cell) -> Any:
    return fr.rankers.Linear() if cell.ranker == "linear" else fr.rankers.Mlp()


def learner_of(cell: Cell, setting: Setting) -> Any:
    if cell.learner == "logged-clicks":
        return fr.learners.LoggedClicks(ranker=ranker_of(cell), rate=setting.local)
    return fr.learners.Pdgd(ranker=ranker_of(cell), rate=setting.local, clip_weights=setting.bound / 2)


def logged(data: RankingData, cell: Cell, seed: int) -> RankingData:
    """A log of the BM25 order: four lists for each person, examined with probability 1 / rank, clicks corrected."""
    rng = rng_for(seed, "study log")
    model = fr.make_clients(data, 1, click_model=cell.clicks)
    order = data.features @ baseline_weights(data).astype(np.float32)
    rows, sizes = [], []
    for query in rng.integers(data.queries, size=cell.people * SEARCHES):
        first = data.offsets[query]
        top = first + np.argsort(-order[first : data.offsets[query + 1]], kind="stable")[:10]
        rows.append(top)
        sizes.append(len(top))
    taken = np.concatenate(rows)
    ranks = np.concatenate([np.arange(1, size + 1) for size in sizes])
    clicked = rng.random(len(taken)) < model.click[0][data.grades[taken]] / ranks
    ids = np.arange(len(sizes)).astype(str)
    return RankingData(
        data.features[taken], data.grades[taken], np.cumsum([0, *sizes]), ids, data.name, data.top_grade,
        relevance=(clicked * ranks).astype(np.float32),
    )  # fmt: skip


def clients_of(cell: Cell, data: RankingData, seed: int) -> Any:
    """One row for each person, in order of their organisations."""
    if cell.learner == "logged-clicks":
        shown = logged(data, cell, seed)
        everybody = fr.make_clients(shown, cell.people, click_model=cell.clicks, interactions=SEARCHES)
        return replace(
            everybody,
            pool=np.arange(cell.people, dtype=np.int32),
            queries=np.arange(shown.queries, dtype=np.int32),
            pools=np.arange(cell.people + 1, dtype=np.int64) * SEARCHES,
        )
    if cell.sites == 1:
        return fr.make_clients(data, cell.people, click_model=cell.clicks, interactions=SEARCHES)
    rows = np.arange(cell.people) * cell.sites // cell.people
    sites = fr.make_clients(
        data, cell.sites, partition=fr.partitions.Own(), click_model=cell.clicks, interactions=SEARCHES, seed=seed
    )
    people = sites.rows(rows)
    return replace(people, ids=np.arange(cell.people, dtype=np.int64))


def start_of(cell: Cell, fold: int, seed: int) -> Values:
    """The first model: zero, random for a neural ranker, or a public one."""
    data = fold_of(cell.data, fold).train
    if cell.arm in ("start", "start alone"):
        return public_model(cell.data, fold)
    return np.asarray(ranker_of(cell).first(data.features.shape[1], rng_for(seed, "first")), dtype=np.float64)


@functools.cache
def public_model(name: str, fold: int) -> Values:
    """A model of another collection, learned without noise; BM25 where there is no other one with these features."""
    if name not in OTHER:
        return np.asarray(baseline_weights(fold_of(name, fold).train), dtype=np.float64)
    cell = Cell("no noise", OTHER[name])
    return np.mean([learn(cell, Setting(25, 25.0), fold, seed)[0] for seed in (901, 902, 903)], axis=0)


def median_update(cell: Cell, fold: int) -> float:
    """Median norm of the first updates on validation queries, at the usual local rate."""
    data = fold_of(cell.data, fold).validation
    some = replace(cell, people=200, sites=1)
    learner = learner_of(cell, Setting(local=LOCAL_RATE))
    found = learner(start_of(some, fold, 1), clients_of(some, data, 900), Chance(900, 1)).updates
    norms = np.sqrt((found.astype(np.float64) ** 2).sum(axis=1))
    return float(np.median(norms[norms > 0]))


def learn(cell: Cell, setting: Setting, fold: int, seed: int, median: float = 0.0) -> tuple[Values, float]:
    """The final model (for "alone", one for each of some people or organisations), and the norm of its noise."""
    clients = clients_of(cell, fold_of(cell.data, fold).train, seed)
    weights, learner, rng = start_of(cell, fold, seed), learner_of(cell, setting), rng_for(seed, "study noise")
    if cell.arm == "alone" and cell.sites == 1:
        some = clients.rows(rng_for(seed, "study alone").permutation(cell.people)[:20])
        return weights + learner(weights, some, Chance(seed, 1)).updates, 0.0
    clip = setting.clip * median * setting.local / LOCAL_RATE if math.isfinite(setting.clip) else math.inf
    sigma = noise_multiplier(cell.epsilon) if cell.arm not in ("no noise", "alone") else 0.0
    sites = np.arange(cell.people) * cell.sites // cell.people
    if cell.arm == "alone":
        own = [clients.rows(np.flatnonzero(sites == site)) for site in range(cell.sites)]
        one = replace(cell, arm="no noise", people=cell.people // cell.sites, sites=1)
        return np.stack(
            [_rounds(one, setting, each, weights, learner, math.inf, 0.0, seed, rng)[0] for each in own]
        ), 0.0
    return _rounds(cell, setting, clients, weights, learner, clip, sigma, seed, rng)


def _rounds(
    cell: Cell, setting: Setting, clients: Any, weights: Values, learner: Any, clip: float, sigma: float, seed: int,
    rng: np.random.Generator,
) -> tuple[Values, float]:  # fmt: skip
    count, rounds = cell.people, setting.rounds
    # Each organisation deals its own people; round t has every T-th of a random order.
    order = np.argsort(rng_for(seed, "study deal").random(count))
    sites = np.arange(count) * cell.sites // count
    order = order[np.argsort(sites[order], kind="stable")]
    turn = np.empty(count, dtype=np.int64)
    turn[order] = np.arange(count) % rounds
    planned, total_noise = count / rounds, np.zeros(weights.size)
    if cell.arm == "every":  # T Gaussian releases cost as much as one with less noise, by √T
        turn, planned, sigma = np.full(count, -1), float(count), sigma * math.sqrt(rounds)
    for number in range(rounds):
        rows, updates = np.flatnonzero((turn == number) | (turn < 0)), np.zeros((1, weights.size))
        if len(rows):
            updates = learner(weights, clients.rows(rows), Chance(seed, number + 1)).updates.astype(np.float64)
        if math.isfinite(clip):
            norms = np.sqrt((updates**2).sum(axis=1))
            updates *= np.minimum(1.0, clip / np.maximum(norms, 1e-30))[:, None]
        noise = np.zeros(weights.size)
        if cell.arm == "published":
            noise = rng.laplace(0.0, setting.bound / cell.epsilon, weights.size)
        elif sigma:
            # One message may be replaced by any other, which is twice as far as its absence.
            spread = 2 * sigma * clip * math.sqrt(planned) if cell.arm == "local" else sigma * clip * cell.noise
            noise = rng.normal(0.0, spread, weights.size)
        weights = weights + setting.rate / planned * (updates.sum(axis=0) + noise)
        total_noise += setting.rate / planned * noise
    return weights, float(np.linalg.norm(total_noise))


def scores(cell: Cell, model: Values, fold: int, part: str) -> Values:
    """[queries]: nDCG@10; the mean over models if there are several."""
    found = evaluator_of(cell.data, fold, part).per_query(model, ranker_of(cell))[0]
    return found if found.ndim == 1 else found.mean(axis=0)


def perform(cell: Cell, deadline: float) -> dict[str, Any] | None:
    """Tune on validation queries, test once. None: there was no time."""
    began = time.process_time()
    tried, tuning = settings_of(cell), replace(cell, data=GENERATED) if cell.arm == "planned" else cell
    medians = {fold: median_update(tuning, fold) for fold in FOLDS}
    chosen, valid = 0, []
    if len(tried) > 1:
        for setting in tried:
            if time.time() > deadline:
                return None
            runs = [(fold, seed) for fold in FOLDS for seed in TUNING_SEEDS]
            found = [scores(tuning, learn(tuning, setting, f, s, medians[f])[0], f, "validation") for f, s in runs]
            valid.append(float(np.mean([np.nanmean(each) for each in found])))
        chosen = int(np.argmax(valid))
    setting = tried[chosen]
    per_fold, noise, norms = [], [], []
    for fold in FOLDS:
        if cell.arm == "nothing":
            per_fold.append(baseline_order(evaluator_of(cell.data, fold, "test")).values[0])
            continue
        total = []
        for seed in TEST_SEEDS:
            if time.time() > deadline:
                return None
            if cell.arm == "start alone":
                model, size = start_of(cell, fold, seed), 0.0
            else:
                model, size = learn(cell, setting, fold, seed, medians[fold])
            total.append(scores(cell, model, fold, "test"))
            noise.append(size)
            norms.append(float(np.linalg.norm(np.atleast_2d(model), axis=1).mean()))
        per_fold.append(np.mean(total, axis=0))
    return {
        "cell": {name: str(value) if value == math.inf else value for name, value in asdict(cell).items()},
        "settings": len(tried),
        "seeds": [len(TUNING_SEEDS), len(TEST_SEEDS)],
        "chosen": {name: str(value) if value == math.inf else value for name, value in asdict(setting).items()},
        "validation": [round(each, 5) for each in valid],
        "median_update": round(float(np.mean(list(medians.values()))), 5),
        "sigma": round(noise_multiplier(cell.epsilon), 5),
        "noise_norm": round(float(np.mean(noise or [0.0])), 4),
        "model_norm": round(float(np.mean(norms or [0.0])), 4),
        "test": [[round(float(each), 4) if np.isfinite(each) else None for each in fold] for fold in per_fold],
        "cpu_seconds": round(time.process_time() - began, 1),
    }


def cells() -> list[Cell]:
    """All questions, the most important first."""
    main = ("mq2008", "mq2007-85")

    def situation(
        data: str, people: int, epsilons: tuple[float, ...], arms: tuple[str, ...], **more: Any
    ) -> Iterator[Cell]:
        if "no noise" in arms:
            yield Cell("no noise", data, people, **more)
        for epsilon in epsilons:
            yield from (Cell(arm, data, people, epsilon, **more) for arm in arms if arm != "no noise")

    everything = ("no noise", "recipe", "planned", "start", "many", "local", "published", "usual")
    few = ("no noise", "recipe", "usual", "many")
    found: list[Cell] = []
    for data in (*main, "ohsumed"):
        found += [Cell(arm, data) for arm in ("nothing", "start alone", "alone")]
        found += situation(data, 1000, (1.0,), everything)
    for data in main:
        found += situation(data, 1000, (0.5, 4.0), everything[1:])
        found += situation(data, 100, EPSILONS, everything)
        found += [Cell("start", data, people) for people in (100, 1000)]
    for sites, people in ((3, 750), (10, 2500)):
        for data in (*main, "ohsumed"):
            found += [Cell(arm, data, people, sites=sites) for arm in ("no noise", "alone")]
            shares = ("absent", "collude", "") if sites == 3 else ("",)
            found += [Cell("recipe", data, people, 1.0, sites=sites, shares=each) for each in shares]
        for data in main:
            found += [Cell("start", data, people, 1.0, sites=sites, shares="absent")]
    for clicks in ("informational", "perfect"):
        for data in main:
            found += situation(data, 1000, (1.0,), few, clicks=clicks)
    for data in main:
        found += situation(data, 1000, (1.0,), ("no noise", "recipe", "many"), learner="logged-clicks")
    for data in main:
        found += [Cell("recipe", data, 1000, 1.0, rounds=t) for t in (1, 2, 4, 8, 16, 32, 100)]
        found += [Cell("recipe", data, people, 1.0) for people in (30, 300, 3000)]
        found += [Cell("no noise", data, people) for people in (30, 300, 3000)]
    found += [Cell("recipe", "ohsumed", 1000, 1.0, rounds=t) for t in (1, 2, 4, 8, 16, 32, 100)]
    for data in main:
        found += [Cell("every", data, 1000, epsilon) for epsilon in (1.0, math.inf)]
    for data in main:
        found += situation(data, 10_000, (1.0,), ("recipe", "planned", "no noise", "start", "many", "local", "usual"))
    found += situation("mq2008", 1000, (1.0,), ("no noise", "recipe", "many"), ranker="mlp")
    for data in main:
        found += situation(data, 10_000, (0.5, 4.0), ("recipe", "planned", "start", "many", "local", "usual"))
        found += [Cell("start", data, 10_000)]
    found += situation("mq2007-85", 1000, (1.0,), ("no noise", "recipe", "many"), ranker="mlp")
    for data in main:
        found += [Cell("published", data, 10_000, epsilon) for epsilon in EPSILONS]
    return list(dict.fromkeys(found))


def run(options: argparse.Namespace) -> None:
    deadline = time.time() + 60 * options.minutes if options.minutes else math.inf
    waiting = [each for each in chosen_cells(options) if not (options.out / f"{each.name}.json").exists()]
    print(f"{len(waiting):,} cells to do", flush=True)
    if not waiting:
        return
    for name in sorted({each.data for each in waiting} | {GENERATED}):
        for fold in FOLDS:
            fold_of(name, fold)
    for clicks in ("pdgd", "logged-clicks"):  # compile once, before there are workers
        for ranker in ("linear", "mlp"):
            cell = Cell("recipe", waiting[0].data, 20, 1.0, learner=clicks, ranker=ranker)
            learn(replace(cell, arm="no noise"), Setting(2), 1, 1)
            scores(cell, start_of(cell, 1, 1), 1, "validation")
    work = [(cell, options.out, deadline) for cell in waiting]
    with multiprocessing.get_context("fork").Pool(options.jobs) as pool:
        for number, line in enumerate(pool.imap_unordered(_one, work), start=1):
            if line:
                print(f"{number}/{len(work)} {line}", flush=True)


def _one(work: tuple[Cell, Path, float]) -> str:
    cell, out, deadline = work
    if time.time() > deadline:
        return ""
    try:
        facts = perform(cell, deadline)
    except Exception as problem:  # the other cells continue
        return f"FAILED {cell.name}: {type(problem).__name__}: {problem}"
    if facts is None:
        return f"no time left for {cell.name}"
    path = out / f"{cell.name}.json"
    path.with_suffix(".part").write_text(json.dumps(facts), encoding="utf-8")
    path.with_suffix(".part").replace(path)
    mean = np.mean([np.mean([each for each in fold if each is not None]) for fold in facts["test"]])
    return f"{cell.name} {mean:.4f} {facts['chosen']} {facts['cpu_seconds']} s"


def read(out: Path) -> dict[Cell, dict[str, Any]]:
    """All finished cells."""
    found = {}
    for path in sorted(out.glob("*.json")):
        facts = json.loads(path.read_text(encoding="utf-8"))
        known = {name: math.inf if value == "inf" else value for name, value in facts["cell"].items()}
        facts["folds"] = [np.array(fold, dtype=np.float64) for fold in facts["test"]]
        found[Cell(**known)] = facts
    return found


def interval(one: list[Values], other: list[Values] | None = None) -> tuple[float, float, float]:
    """Mean and 95 % interval of a quality, or of a paired difference: a bootstrap over folds and their queries."""
    values = one if other is None else [a - b for a, b in zip(one, other, strict=True)]
    values = [each[np.isfinite(each)] for each in values]
    rng = np.random.default_rng(1)
    means = []
    for _ in range(2000):
        picked = (values[fold] for fold in rng.integers(len(values), size=len(values)))
        means.append(np.mean([each[rng.integers(len(each), size=len(each))].mean() for each in picked]))
    return float(np.mean([each.mean() for each in values])), *map(float, np.quantile(means, (0.025, 0.975)))


def report(out: Path, picture: Path | None) -> None:
    """Print every cell with its interval, the loss against no noise, and the chosen settings."""
    found = read(out)
    columns = "| Data | People | ε | Situation | Arm | nDCG@10 | Against no noise | Chosen |"
    print(f"{len(found)} cells, {sum(each['cpu_seconds'] for each in found.values()) / 3600:.1f} hours of CPU time\n")
    print(columns + "\n|" + "---|" * 8)
    for cell in cells():
        if cell not in found:
            continue
        facts = found[cell]
        value, low, high = interval(facts["folds"])
        reference = reference_of(cell, found)
        loss = "" if reference is None else "{:+.4f} ({:+.4f} to {:+.4f})".format(*interval(facts["folds"], reference))
        usual = Cell("", "")
        names = ("clicks", "ranker", "learner", "sites", "shares", "rounds")
        special = [f"{name} {getattr(cell, name)}" for name in names if getattr(cell, name) != getattr(usual, name)]
        chosen = facts["chosen"]
        setting = f"T {chosen['rounds']}, rate {chosen['rate']:g}, clip {chosen['clip']}, local {chosen['local']:g}"
        setting += f", noise {facts['noise_norm']:g} of {facts['model_norm']:g}"
        print(
            f"| {cell.data} | {cell.people:,} | {cell.epsilon:g} | {', '.join(special)} | {cell.arm} | {value:.4f} "
            f"({low:.4f} to {high:.4f}) | {loss} | {setting} |"
        )
    if picture is not None:
        draw(found, picture)
        draw_rule(found, picture.with_stem(f"{picture.stem}-rule"))


def reference_of(cell: Cell, found: dict[Cell, dict[str, Any]]) -> list[Values] | None:
    """The quality without noise in the same situation."""
    same = replace(cell, arm="no noise", epsilon=math.inf, shares="", rounds=0)
    return found[same]["folds"] if same in found and same != cell else None


def draw(found: dict[Cell, dict[str, Any]], picture: Path) -> None:
    """Quality against ε, one panel for each data set and number of people."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    lines = {
        "recipe": ("few rounds, large server rate", "#1b6ca8", "o"),
        "start": ("the same, from a public model", "#3a9a5b", "s"),
        "many": ("100 rounds", "#c8553d", "D"),
        "local": ("noise on every message", "#8a5fb0", "v"),
        "published": ("noise of the FPDGD paper (its ε)", "#e0a030", "x"),
    }
    levels = {"no noise": ("no noise", "black", "-"), "start alone": ("public model alone", "#3a9a5b", "--"),
              "nothing": ("do nothing (BM25)", "grey", "--"), "alone": ("one person alone", "grey", ":")}  # fmt: skip
    figure, axes = pyplot.subplots(2, 3, figsize=(10.0, 6.0), dpi=150, sharex=True, sharey="row")
    for row, data in enumerate(("mq2008", "mq2007-85")):
        for column, people in enumerate(PEOPLE):
            panel = axes[row][column]
            for arm, (label, colour, sign) in lines.items():
                points = [(e, Cell(arm, data, people, e)) for e in EPSILONS]
                values = [(x, *interval(found[cell]["folds"])) for x, cell in points if cell in found]
                if values:
                    x, mean, low, high = map(np.array, zip(*values, strict=True))
                    panel.errorbar(x, mean, yerr=(mean - low, high - mean), label=label, color=colour, marker=sign,
                                   markersize=4, capsize=2, linewidth=1.2, elinewidth=0.6)  # fmt: skip
            for arm, (label, colour, style) in levels.items():
                cell = Cell(arm, data, people if arm == "no noise" else 1000)
                if cell in found:
                    panel.axhline(interval(found[cell]["folds"])[0], label=label, color=colour, linestyle=style, lw=1)
            panel.set_xscale("log")
            panel.set_xticks(EPSILONS, [f"{each:g}" for each in EPSILONS])
            panel.minorticks_off()
            panel.set_title(f"{data}, {people:,} people", fontsize=9)
            panel.grid(alpha=0.3)
    for panel in axes[-1]:
        panel.set_xlabel("ε (δ = 1e-5)")
    for panel in axes[:, 0]:
        panel.set_ylabel("nDCG@10 on test queries")
    handles, labels = axes[0][1].get_legend_handles_labels()
    figure.legend(handles, labels, ncol=5, loc="lower center", frameon=False, fontsize=8)
    figure.tight_layout(rect=(0, 0.08, 1, 1))
    figure.savefig(picture)


def draw_rule(found: dict[Cell, dict[str, Any]], picture: Path) -> None:
    """Loss against people / (σ · √(T · d)), which is proportional to the norm of what is learned over that of noise."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7.0, 4.0), dpi=150)
    signs = {"mq2008": ("#1b6ca8", "o"), "mq2007-85": ("#c8553d", "s"), "ohsumed": ("#3a9a5b", "^")}
    for arm, filled, name in (("recipe", True, "server rate tuned"), ("usual", False, "100 rounds, not tuned")):
        for data, (colour, sign) in signs.items():
            points = []
            for cell, facts in found.items():
                plain = (cell.clicks, cell.ranker, cell.learner) == ("navigational", "linear", "pdgd")
                reference = reference_of(cell, found)
                if cell.arm != arm or cell.data != data or not plain or reference is None or math.isinf(cell.epsilon):
                    continue
                size = facts["chosen"]["rounds"] * fold_of(data, 1).train.features.shape[1]
                signal = cell.people / (noise_multiplier(cell.epsilon) * cell.noise * math.sqrt(size))
                points.append((signal, -interval(facts["folds"], reference)[0]))
            if points:
                axes.scatter(*zip(*points, strict=True), color=colour if filled else "none", edgecolor=colour,
                             marker=sign, s=22, label=f"{data}, {name}")  # fmt: skip
    axes.set_xscale("log")
    axes.set_xlabel("people / (σ · √(rounds · parameters))")
    axes.set_ylabel("loss of nDCG@10 against no noise")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(picture)


def chosen_cells(options: argparse.Namespace) -> list[Cell]:
    renamed = (replace(each, data=options.data) if each.data == "mq2008" else each for each in cells())
    return [each for each in renamed if options.only in each.name]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the results, one file for each cell")
    parser.add_argument("--jobs", type=int, default=1, help="number of worker processes")
    parser.add_argument(
        "--minutes", type=float, default=0.0, help="time after which no more results are written; 0: none"
    )
    parser.add_argument("--data", default="mq2008", help="data set in place of MQ2008")
    parser.add_argument("--only", default="", help="only cells whose name contains this text")
    parser.add_argument(
        "--fewer-seeds", action="store_true", help="3 seeds for tuning and 5 for the test, not 12 and 20"
    )
    parser.add_argument("--report", action="store_true", help="print a table of the results in the folder")
    parser.add_argument("--picture", type=Path, help="with --report: file of the picture")
    parser.add_argument("--quick", action="store_true", help="one fold and one seed, to try the command")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.fewer_seeds:
        globals().update(TUNING_SEEDS=TUNING_SEEDS[:3], TEST_SEEDS=TEST_SEEDS[:5])
    if options.quick:
        globals().update(FOLDS=(1,), TUNING_SEEDS=(1,), TEST_SEEDS=(101,))
    if options.report:
        report(options.out, options.picture)
        return
    run(options)


if __name__ == "__main__":
    main()
