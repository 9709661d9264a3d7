"""Measure the error rates of click estimates and of the gate before a trial, on simulated logs with a known truth.

    python -m benchmarks.gate --out FILE [--logs 150] [--federations 300] [--jobs 2]   # resumes; 20 minutes of CPU time
    python -m benchmarks.gate --out FILE --check                                       # exit 1 if a target is missed

Estimates: a log has 10,000 searches on 250 queries, drawn from 1,000 queries. Lists are randomised by swaps of adjacent
results, sampled with known scores, or ranked by one of three rankers, with or without trust bias. Models are between
random and perfect. Coverage is that of the 95 % interval of the verdict, for the true difference from the engine over
all 1,000 queries; where the log does not reveal the engine, that of the model's clicks.

Gate: three sites with different propensities and engines, 10,000 searches each for propensities and 300 people with 10
held-out searches on average. Three models per federation: one whose true difference from doing nothing is 0 over all
people, one below it, and one above it. Noise is that of one Gaussian release with δ = 1e-5 per person.

Targets, each by a binomial test at level 1 %: coverage of at least .93 in every variant; no model below the engine is
called better more often than in 2.5 % of all logs; models that are not better pass the gate at most with the stated
error rate.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import json
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import binom

from fedrank.data.synthetic_shown import Browsing, Relevant, Showing, SimulatedShown, made_up_queries, simulate_shown
from fedrank.privacy.accounting import GaussianEvent, epsilon
from fedrank.ranking.estimate import (
    DOUBLY_ROBUST,
    CannotTell,
    both_propensities,
    engine_order,
    estimate_clicks,
    with_errors,
)
from fedrank.ranking.gate import SENSITIVITY, GateRules, PersonSums, decide_all, person_rows, person_values
from fedrank.ranking.propensity import ShownResults

SEARCHES, QUERIES, POPULATION = 10_000, 250, 1000
PEOPLE, HELD_OUT = 300, 3000
DELTA, EPSILONS = 1e-5, (None, 4.0, 1.0)
RULES = GateRules()
LEAST = 0.93
ZERO = 0.001  # clicks per list; federations where random weights gain more have no null model
SWAPS, SAMPLED, THREE = "swaps", "sampled lists", "three rankers"
VARIANTS: dict[str, tuple[str, float, int]] = {  # name: randomisation, trust, candidates per query
    "swaps": (SWAPS, 0.0, 10),
    "swaps, trust .3": (SWAPS, 0.3, 10),
    "swaps, 30 candidates": (SWAPS, 0.0, 30),
    "sampled lists": (SAMPLED, 0.0, 10),
    "sampled lists, trust .3": (SAMPLED, 0.3, 10),
    "three rankers, trust .3": (THREE, 0.3, 10),
}
Floats = NDArray[np.float64]


def results(log: SimulatedShown) -> ShownResults:
    return ShownResults.of_lists(log.lists, log.clicks, log.first, log.query)


def with_swaps(log: SimulatedShown, seed: int) -> SimulatedShown:
    """The same searches, each with a random pair of adjacent results, swapped with probability 1/2."""
    rng, lists = np.random.default_rng([seed, 1]), log.lists.copy()
    upper = rng.integers(lists.shape[1] - 1, size=len(lists))
    some = np.flatnonzero(rng.random(len(lists)) < 0.5)
    at = upper[some]
    lists[some, at], lists[some, at + 1] = log.lists[some, at + 1], log.lists[some, at]
    positions = np.arange(lists.shape[1])
    chance = log.browsing.slope(positions) * log.truth.relevance[lists] + log.browsing.intercept(positions)
    return replace(log, lists=lists, clicks=(rng.random(lists.shape) < chance).astype(np.uint8))


def top(truth: Relevant, scores: Floats, positions: int) -> NDArray[np.int64]:
    """[queries, positions]: the highest candidates of every query."""
    order = np.argsort(-scores[truth.candidates], axis=1, kind="stable")[:, :positions]
    return np.take_along_axis(truth.candidates, order, axis=1)


def clicks_of(lists: NDArray[np.int64], truth: Relevant, browsing: Browsing, share: Floats, counted: int) -> float:
    """True clicks per list in the first `counted` positions, for lists [queries, positions]."""
    at = np.arange(min(counted, lists.shape[1]))
    each = truth.relevance[lists[:, at]] @ browsing.slope(at) + browsing.intercept(at).sum()
    return float(each @ share / share.sum())


def gains(
    truth: Relevant, engine: Floats, model: Floats, browsing: Browsing, share: Floats, counted: int
) -> tuple[float, float]:
    """True clicks per list more than by the engine: of its ten results in the model's order, and of the model's ten."""
    shown = top(truth, engine, 10)
    order = np.argsort(-model[shown], axis=1, kind="stable")
    lists = (np.take_along_axis(shown, order, axis=1), top(truth, model, 10))
    before = clicks_of(shown, truth, browsing, share, counted)
    reordered, chosen = (clicks_of(one, truth, browsing, share, counted) - before for one in lists)
    return reordered, chosen


def between(truth: Relevant, rng: np.random.Generator) -> Callable[[float], Floats]:
    """Weights from random (0) to perfect (1)."""
    other = rng.normal(size=len(truth.best))
    other /= np.linalg.norm(other)
    return lambda mix: mix * truth.best + (1 - mix) * other


def estimated(variant: str, number: int) -> dict[str, Any]:
    """One log, one model, and what the estimate says about it."""
    how, trust, candidates = VARIANTS[variant]
    rng, browsing = np.random.default_rng([number, 2]), Browsing(1.0, trust)
    population = made_up_queries(POPULATION, documents=candidates, seed=number + 1)
    rows = population.candidates[rng.integers(population.queries, size=QUERIES)]
    own = np.arange(rows.size).reshape(rows.shape)
    truth = Relevant(population.features[rows.ravel()], population.relevance[rows.ravel()], own, population.best)
    showing = {
        SWAPS: Showing(rankers=1),
        SAMPLED: Showing(rankers=1, temperature=0.5),
        THREE: Showing(),
    }[how]
    log = simulate_shown(truth, SEARCHES, number, browsing=browsing, showing=showing, popularity=0.0)
    if how == SWAPS:
        log = with_swaps(log, number)
    weights = between(population, rng)(rng.random())
    shown = results(log)
    engine = engine_order(shown, None if log.scores is None else log.scores.ravel())
    try:
        found = estimate_clicks(shown, (truth.features @ weights)[shown.pair], truth.features, engine=engine)
    except CannotTell as problem:
        return {"refused": problem.because}
    same = np.ones(population.queries)
    first, model = population.features @ log.rankers[0], population.features @ weights
    reordered, chosen = gains(population, first, model, browsing, same, found.positions)
    answer = {"finding": found.finding, "engine": found.engine, "no_trust": found.no_trust, "true": reordered}
    answer |= {"chosen": chosen, "positions": found.positions}
    if found.engine:
        intervals = {row.bias: row.difference for row in found.rows if row.name == DOUBLY_ROBUST}
        true, whole = reordered, found.difference
    else:
        intervals = {row.bias: row.model for row in found.rows if row.name == DOUBLY_ROBUST}
        true = clicks_of(top(population, model, 10), population, browsing, same, found.positions)
        lows, highs = [one.low for one in intervals.values()], [one.high for one in intervals.values()]
        whole = next(iter(intervals.values()))._replace(low=min(lows), high=max(highs))
    answer["inside"] = whole.low <= true <= whole.high
    return answer | {f"inside, {bias}": one.low <= true <= one.high for bias, one in intervals.items()}


def federation(trust: float, number: int) -> dict[str, Any]:
    """Three sites decide on three models."""
    rng = np.random.default_rng([number, 3])
    truth = made_up_queries(QUERIES, seed=number + 1)
    weights_of = between(truth, rng)
    sites = []
    for site, eta in enumerate((0.7, 1.0, 1.3)):
        seed, browsing = 10 * number + site, Browsing(eta, trust)
        showing = Showing(rankers=1, skill=float(rng.uniform(0.4, 0.8)))
        log = simulate_shown(
            truth,
            SEARCHES + HELD_OUT,
            seed,
            browsing=browsing,
            showing=showing,
            people=PEOPLE,
            popularity=0.5,
            activity=0.3,
        )
        log = with_swaps(log, seed)
        share = np.arange(1.0, QUERIES + 1) ** -0.5
        alone = truth.best + 0.5 * rng.normal(size=len(truth.best)) / np.sqrt(len(truth.best))
        sites.append((log, truth.features @ log.rankers[0], browsing, share, truth.features @ alone))

    def true(mix: float) -> list[float]:
        model = truth.features @ weights_of(mix)
        return [gains(truth, engine, model, browsing, share, 10)[0] for _, engine, browsing, share, _ in sites]

    low, high = 0.0, 1.0
    for _ in range(12):
        middle = (low + high) / 2
        low, high = (middle, high) if np.mean(true(middle)) < 0 else (low, middle)
    mixes = {"equal": low, "below": max(low - 0.15, 0.0), "above": min(low + 0.3, 1.0)}
    answer: dict[str, Any] = {name: {"true": true(mix)} for name, mix in mixes.items()}
    rows: dict[str, list[list[Floats]]] = {name: [] for name in mixes}
    for log, engine, *_, alone in sites:
        every = results(log)
        found, _ = both_propensities(every.select(every.search < SEARCHES), truth.features)
        if "trust" not in found:
            return answer | {"refused": "trust bias is not identifiable"}
        shown = every.select(every.search >= SEARCHES)
        by = with_errors(found["position"]), with_errors(found["trust"])
        for name, mix in mixes.items():
            scores = (truth.features @ weights_of(mix))[shown.pair]
            # Models that are not better are far below the own one, so only doing nothing can let them pass.
            compared = (engine, alone) if name == "above" else (engine,)
            values = [person_values(shown, log.user, scores, other[shown.pair], *by) for other in compared]
            rows[name].append([person_rows(*values[: number + 1]) for number in range(len(values))])
    for target in EPSILONS:
        sigma = 0.0 if target is None else SENSITIVITY * multiplier(target)
        for name, each in rows.items():
            for comparisons in range(1, len(each[0]) + 1):
                sums = []
                for both in each:
                    vector = both[comparisons - 1].sum(axis=0)
                    noised = vector + sigma * rng.normal(size=len(vector))
                    sums.append(PersonSums.read(noised, sigma, comparisons))
                decision = decide_all(sums, RULES)
                answer[name][f"{target} {comparisons}"] = [decision.outcome, decision.pooled.interval.low]
    return answer


@cache
def multiplier(target: float) -> float:
    """Noise of one release, relative to the sensitivity."""
    return float(brentq(lambda noise: epsilon(GaussianEvent(noise), 1, DELTA) - target, 0.3, 20))


def work(job: tuple[str, Any, int]) -> tuple[tuple[str, Any, int], dict[str, Any]]:
    kind, variant, number = job
    return job, estimated(variant, number) if kind == "estimate" else federation(variant, number)


def read(path: Path) -> dict[tuple[str, Any, int], dict[str, Any]]:
    lines = path.read_text().splitlines() if path.exists() else []
    found = {}
    for line in lines:
        try:
            job, answer = json.loads(line)
        except ValueError:  # a line that was cut off when the benchmark was stopped
            continue
        found[job[0], job[1], job[2]] = answer
    return found


def within(passed: int, of: int, rate: float) -> bool:
    """Whether this number is compatible with the rate."""
    return of == 0 or float(binom.sf(passed - 1, of, rate)) > 0.01


def report(found: dict[tuple[str, Any, int], dict[str, Any]]) -> list[str]:
    missed = []
    print("\nestimates: coverage of the verdict's interval (position-only, trust); called better, of those below")
    for variant in VARIANTS:
        every = [one for (kind, name, _), one in found.items() if (kind, name) == ("estimate", variant)]
        told = [one for one in every if "refused" not in one and not one["no_trust"]]
        if not told:
            continue
        inside, position, trust = (
            np.mean([one[key] for one in told]) for key in ("inside", "inside, position", "inside, trust")
        )
        better = [one for one in told if one["finding"] == "better"]
        wrong = sum(one["true"] <= 0 for one in better)
        chosen = sum(one["chosen"] <= 0 for one in better)
        below, untold = sum(one["true"] <= 0 for one in told), sum(bool(one.get("no_trust")) for one in every)
        worse = [one for one in told if one["finding"] == "worse"]
        print(
            f"  {variant:26} {inside:.3f} ({position:.3f}, {trust:.3f}) of {len(told)}; refused "
            f"{sum('refused' in one for one in every)}, no trust {untold}; better {len(better)}, of "
            f"them below the engine {wrong} (if it chooses among all candidates {chosen}) of {below} below; worse "
            f"{len(worse)}, of them above {sum(one['true'] > 0 for one in worse)}"
        )
        if not within(sum(not one["inside"] for one in told), len(told), 1 - LEAST):
            missed.append(f"coverage, {variant}")
        if not within(wrong, len(told), 0.025):
            missed.append(f"called better, {variant}")
    alpha = RULES.spend(0)
    print(f"\ngate: share that passes, is inconclusive, is vetoed; at most {alpha:g} of models that are not better")
    for trust in sorted({name for kind, name, _ in found if kind == "gate"}):
        every = [one for (kind, name, _), one in found.items() if (kind, name) == ("gate", trust)]
        told = [one for one in every if "refused" not in one]
        print(f"  trust {trust:g}: {len(told)} federations, {len(every) - len(told)} refused")
        for comparisons in (1, 2):
            for target in EPSILONS:
                for model in ("below", "equal", "above") if comparisons == 1 else ("above",):
                    some = [one for one in told if model == "above" or np.mean(one[model]["true"]) < ZERO]
                    outcomes = [one[model][f"{target} {comparisons}"][0] for one in some]
                    shares = [outcomes.count(each) for each in ("pass", "inconclusive", "veto")]
                    pooled = sum(one[model][f"{target} {comparisons}"][1] > 0 for one in some)
                    gained = np.mean([np.mean(one[model]["true"]) for one in some])
                    against = "nothing" if comparisons == 1 else "nothing and alone"
                    print(
                        f"    ε {target or '∞'}, against {against}, {model} ({gained:+.3f}): "
                        + ", ".join(f"{share} of {len(some)}" for share in shares)
                        + f"; better over all people: {pooled}"
                    )
                    if model != "above" and not within(max(shares[0], pooled), len(some), alpha):
                        missed.append(f"gate, trust {trust:g}, ε {target}, {model}")
    return missed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out", type=Path, required=True, help="results, one line each; finished ones are not repeated"
    )
    parser.add_argument("--logs", type=int, default=150, help="logs per variant")
    parser.add_argument("--federations", type=int, default=300, help="federations with and without trust bias")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--check", action="store_true", help="exit 1 if a target is missed")
    asked = parser.parse_args()
    done = read(asked.out)
    jobs: list[tuple[str, Any, int]] = []
    for number in range(max(asked.logs, asked.federations)):
        jobs += [("estimate", variant, number) for variant in VARIANTS if number < asked.logs]
        jobs += [("gate", trust, number) for trust in (0.0, 0.3) if number < asked.federations]
    left = [job for job in jobs if job not in done]
    with asked.out.open("a") as file:

        def finish(answers: Iterable[tuple[tuple[str, Any, int], dict[str, Any]]]) -> None:
            for job, answer in answers:
                file.write(json.dumps([job, answer], default=bool) + "\n")
                file.flush()

        if asked.jobs > 1:
            with ProcessPoolExecutor(asked.jobs) as pool:
                finish(pool.map(work, left))
        else:
            finish(map(work, left))
    missed = report(read(asked.out))
    print(f"\nMissed: {'; '.join(missed)}" if missed else "\nAll targets are met.")
    return 1 if asked.check and missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
