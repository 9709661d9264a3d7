"""Measure what three hospitals gain from learning together from their click logs, on logs with a known truth.

    python -m benchmarks.organisations --out FOLDER [--seeds 10] [--check]     # resumes; about 10 CPU minutes
    python -m benchmarks.organisations --out FOLDER --quick

Each seed generates three hospitals (`fedrank.engine.practice`) with different documents, page layouts and people, and
builds their data sets from UBI files with robots, duplicates, lost searches and wrong clocks. nDCG@10 by true relevance
on 200 queries for each site that are in no log; 95 % confidence intervals over seeds.

Rankings: "do nothing" (the engine); "clicks as logged" (deployed, not corrected); "alone" (each site, corrected by its
propensities); "deployed" (three clients, each corrected by its own propensities); "one curve" (deployed, all corrected
by the propensities of all logs together); "pooled" (all logs in one place, each corrected by its own propensities);
"oracle" (deployed, true propensities); "ε = 4" and "ε = 1" (deployed, noise at each site, the person is the unit, each
person is in one round; propensities are without noise); "secure, ε = 1" (the same noise once in the sum of all sites);
"the plan" (as in the tutorial: ε = 2 with propensities from noised swaps, quality and gate; only in its world);
"alone, four" (the mean of four models that a site trains alone, which differ in chance); "combined, ..." (each site
combines that mean with the received model, SHARE of the latter). The difference between the last two is what
the other sites contribute; "alone, four" is what averaging alone contributes. Noise comes from the secure source of the
system, so rows with ε differ between runs of this program; all others are the same.

Worlds: "usual" has 8,640 searches of 250 people for each site; "small" a quarter of the searches; in "trust" people
also click on top results that are not relevant; in "people" the same number of searches is made by 1,000 people;
"tutorial" has 34,560 searches of 1,000 people. Settings were chosen on seeds 901 to 903 of "usual", by true relevance,
so they cost no privacy: rates .01 to .3 and 20 to 300 rounds without noise, 260 settings with noise. SHARE was chosen
among .2, .25, .33, .4 and .5 on seeds 901 to 908 of "usual" and "small", 901 to 905 of "people" and 901 of "tutorial";
the mean of four was added to "combined" after a first look at 4 to 5 seeds with one own model.

Goals (world "usual"): deployed is at most .01 below pooled, at most .01 below alone at every site, and above alone in
the mean, each at the worse end of the interval.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import json
import math
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import fedrank as fr
from benchmarks.offpolicy import interval
from benchmarks.private_noise import noise_multiplier
from fedrank.data.build_shown import ShownBuild, UbiSource, build_shown
from fedrank.data.engine_features import ENGINE_1
from fedrank.data.log_fold import log_part
from fedrank.data.logs import SearchLog
from fedrank.data.ranking import RankingData
from fedrank.data.ubi import UbiRules
from fedrank.engine.practice import DOCUMENTS, EVENTS, FOUND, QUERIES, SITES, Practice
from fedrank.experiments.runner.position_bias import shown_results
from fedrank.experiments.runner.releases import NOISE, PersonRelease
from fedrank.federated.partition import Split
from fedrank.federated.server_optimizers import Add
from fedrank.files import write_atomic
from fedrank.privacy.mechanisms import Gaussian
from fedrank.ranking import swaps
from fedrank.ranking.learners import LoggedClicks
from fedrank.ranking.measures import Evaluator
from fedrank.ranking.propensity import (
    NotIdentifiable,
    Propensities,
    ShownResults,
    correct,
    given_propensities,
    propensities_of,
)
from fedrank.ranking.rankers import Linear

MARGIN = 0.01
WORLDS = {  # searches and people for each site, trust
    "usual": (8640, 250, 0.0),
    "small": (2160, 250, 0.0),
    "trust": (8640, 250, 0.5),
    "people": (8640, 1000, 0.0),
    "tutorial": (34_560, 1000, 0.0),
}
PLAIN = (200, 1000, 0.03)  # without noise: rounds, steps of each site in a round, learning rate
STEPS, RATE, CLIP = 1000, 1.0, 6.8  # with noise: steps of a person, learning rate, half the median update
NOISY = {4.0: (8, 1.0), 1.0: (4, 1.5)}  # by ε: rounds, server rate
SHARE, OWN = 0.25, 4  # of the received model in a combined one; number of own models in their mean
Values = NDArray[np.float64]


class Site(NamedTuple):
    """A hospital with its log."""

    truth: Practice
    data: RankingData  # the log
    shown: ShownResults
    judge: Evaluator  # queries that are in no log
    log: SearchLog

    def corrected(self, by: Propensities) -> RankingData:
        found = correct(self.data.grades > 0, self.data.position, by)
        return replace(self.data, relevance=found.relevance)

    def own(self) -> Propensities:
        return propensities_of(self.shown, self.data.features)

    def oracle(self) -> Propensities:
        slope = self.truth.slope / self.truth.slope[0]
        return given_propensities(slope, self.truth.intercept - slope * self.truth.intercept[0])


@dataclass(frozen=True)
class Sites:
    """A partition: client c has the queries of part c."""

    sizes: tuple[int, ...]

    def __call__(self, data: RankingData, count: int, rng: np.random.Generator) -> Split:
        ends = np.cumsum([0, *self.sizes])
        pools = tuple(np.arange(first, last, dtype=np.int32) for first, last in pairwise(ends))
        return Split(pools, np.arange(count, dtype=np.int32))


def site_of(name: str, seed: int, searches: int, people: int, trust: float, folder: Path) -> Site:
    """Generate a hospital and build its data set as an engineer would."""
    truth = Practice.begin(name, seed, trust=trust)
    truth.write_log(folder, searches, people)
    settings = ShownBuild(features="engine-1", ubi=UbiRules(person="user_id"))
    log = build_shown(UbiSource(folder / QUERIES, folder / EVENTS), folder / DOCUMENTS, folder / "built", settings)
    data = log_part(log, np.arange(len(log)), "global", ENGINE_1.ranges)
    unseen = slice(truth.asked, None)
    count = len(truth.queries) - truth.asked
    judged = RankingData(
        (truth.features[unseen] / ENGINE_1.ranges[1]).reshape(count * FOUND, -1).astype(np.float32),
        np.rint(4 * truth.relevance[unseen]).astype(np.int8).ravel(),
        np.arange(count + 1) * FOUND,
        np.arange(count).astype(str),
        top_grade=4,
    )
    data = replace(data, features=np.array(data.features))
    return Site(truth, data, shown_results(log), Evaluator(judged, ["ndcg@10"]), log)


def one_curve(sites: Sequence[Site]) -> Propensities:
    """The propensities of all logs together, as if all pages had the same layout."""
    rows: dict[str, list[Any]] = {}
    for site in sites:
        for name, column in vars(site.shown).items():
            ends = [int(part.max()) + 1 for part in rows.get(name, ())]
            numbers = name in ("pair", "query", "search")
            rows.setdefault(name, []).append(column + (max(ends, default=0) if numbers else 0))
    return propensities_of(ShownResults(**{name: np.concatenate(parts) for name, parts in rows.items()}))


def from_noised_swaps(sites: Sequence[Site], people: int) -> list[RankingData]:
    """The logs, corrected by propensities from noised sums of logged swaps, as the plan of the tutorial asks for."""
    release = PersonRelease("propensity", 2 * swaps.PAIRS, swaps.CLIP, NOISE, people)
    sums = [np.array(release.sums(swaps.swap_counts(one.log, np.arange(len(one.log)), one.data.who))) for one in sites]
    found = []
    for number, site in enumerate(sites):
        others = [each for place, each in enumerate(sums) if place != number]
        own = swaps.Ratios.of(sums[number], release.deviation)
        rest = swaps.Ratios.of(np.sum(others, axis=0), release.deviation * math.sqrt(len(others)))
        found.append(site.corrected(swaps.site_propensities(own, rest).propensities))
    return found


def learned(
    parts: Sequence[RankingData],
    seed: int,
    epsilon: float = math.inf,
    people: int = 1,
    pooled: bool = False,
    secure: bool = False,
) -> Values:
    """The weights that sites learn together, or that are learned from all their data in one place.

    With secure aggregation, sites share the noise of a sum.
    """
    first = np.cumsum([0, *(int(part.who.max()) + 1 for part in parts)])
    named = [replace(part, who=part.who + shift) for part, shift in zip(parts, first, strict=False)]
    data = RankingData.join(named) if len(named) > 1 else named[0]
    sizes = tuple(part.queries for part in parts)
    partition = Sites((sum(sizes),) if pooled else sizes)
    if math.isinf(epsilon):
        rounds, steps, rate = PLAIN
        steps = steps * len(parts) if pooled else steps
        clients = fr.make_clients(data, len(partition.sizes), partition=partition, interactions=steps, seed=seed)
        federation = fr.Federation(LoggedClicks(rate=rate))
    else:
        rounds, server = NOISY[epsilon]
        clients = fr.make_clients(data, len(sizes), partition=partition, interactions=STEPS, people=people, seed=seed)
        multiplier = noise_multiplier(epsilon) / (math.sqrt(len(parts)) if secure else 1.0)
        noise = Gaussian(CLIP, multiplier, unit="person", people=math.ceil(people / rounds))
        federation = fr.Federation(LoggedClicks(rate=RATE), server=Add(server), mechanism=noise, dealt=rounds)
    *_, last = fr.simulate(federation, clients, rounds, seed)
    return np.asarray(last.weights)


def perform(world: str, seed: int, folder: Path) -> dict[str, list[float]]:
    """nDCG@10 at each site, by ranking; a ranking is missing if propensities are not identifiable."""
    searches, people, trust = WORLDS[world]
    sites = [site_of(name, seed, searches, people, trust, folder / name) for name in SITES]

    def judged_each(models: Sequence[Values]) -> list[float]:
        return [float(site.judge(weights, Linear())[0]) for site, weights in zip(sites, models, strict=True)]

    def judged(weights: Values) -> list[float]:
        return judged_each([weights] * len(sites))

    found = {"do nothing": [site.truth.ndcg() for site in sites]}
    found["clicks as logged"] = judged(learned([site.data for site in sites], seed))
    oracle = [site.corrected(site.oracle()) for site in sites]
    found["oracle"] = judged(learned(oracle, seed))
    try:
        curve = one_curve(sites)
        found["one curve"] = judged(learned([site.corrected(curve) for site in sites], seed))
        own = [site.corrected(site.own()) for site in sites]
    except NotIdentifiable:
        return found
    each = [[learned([part], seed + 1000 * number) for number in range(OWN)] for part in own]
    alone = [np.mean([one / np.linalg.norm(one) for one in models], axis=0) for models in each]
    found["alone"], found["alone, four"] = judged_each([models[0] for models in each]), judged_each(alone)
    found["pooled"] = judged(learned(own, seed, pooled=True))
    received = {"deployed": learned(own, seed)}
    received |= {f"ε = {epsilon:g}": learned(own, seed, epsilon, people) for epsilon in NOISY}
    received["secure, ε = 1"] = learned(own, seed, 1.0, people, secure=True)
    if world == "tutorial":
        received["the plan"] = learned(from_noised_swaps(sites, people), seed, 1.0, people)
    for name, weights in received.items():
        found[name] = judged(weights)
        found[f"combined, {name}"] = judged_each([combined(one, weights) for one in alone])
    return found


def combined(own: Values, received: Values) -> Values:
    """What a site uses: its own model and the received one, each with norm 1."""
    mixed: Values = (1 - SHARE) * own / np.linalg.norm(own) + SHARE * received / np.linalg.norm(received)
    return mixed


RECEIVED = ("deployed", "ε = 4", "ε = 1", "secure, ε = 1", "the plan")
ORDER = (
    "do nothing",
    "clicks as logged",
    "alone",
    "alone, four",
    "one curve",
    "pooled",
    "oracle",
    *RECEIVED,
    *(f"combined, {name}" for name in RECEIVED),
)


def difference(rows: Sequence[dict[str, list[float]]], one: str, other: str, site: int | None = None) -> list[float]:
    """[seeds]: how much better one ranking is than another, at a site or in the mean."""
    both = [row for row in rows if one in row and other in row]
    apart = [np.subtract(row[one], row[other]) for row in both]
    return [float(values.mean() if site is None else values[site]) for values in apart]


def report(world: str, rows: Sequence[dict[str, list[float]]]) -> list[str]:
    """Print a table; returns the goals that are missed."""
    searches, people, trust = WORLDS[world]
    print(f"\n{world}: {searches:,} searches of {people:,} people for each site, trust {trust:g}, {len(rows)} seeds")
    print(f"{'':24}{'mean':>7}  {'95 % interval':15}" + "".join(f"{site:>8}" for site in SITES) + "   minus alone")
    for name in ORDER:
        values = np.array([row[name] for row in rows if name in row])
        if not len(values) and "the plan" in name:
            continue
        if not len(values):
            print(f"{name:24}  refused: propensities are not identifiable")
            continue
        mean, low, high = interval(values.mean(axis=1).tolist())
        apart = difference(rows, name, "alone")
        against = "{:+.4f} ({:+.4f} to {:+.4f})".format(*interval(apart)) if apart and name != "alone" else ""
        if name.startswith("combined"):
            against += "; minus four {:+.4f} ({:+.4f} to {:+.4f})".format(
                *interval(difference(rows, name, "alone, four"))
            )
        short = f"   {len(values)} seeds" if len(values) < len(rows) else ""
        each = "".join(f"{value:8.4f}" for value in values.mean(axis=0))
        print(f"{name:24}{mean:7.4f}  {low:.4f} to {high:.4f}{each}   {against}{short}")
    missed = []
    for name, apart, least in (
        ("deployed - pooled", difference(rows, "deployed", "pooled"), -MARGIN),
        ("deployed - alone", difference(rows, "deployed", "alone"), 0.0),
        *(
            (f"deployed - alone, {site}", difference(rows, "deployed", "alone", k), -MARGIN)
            for k, site in enumerate(SITES)
        ),
    ):
        if apart:
            mean, low, high = interval(apart)
            met = low >= least
            print(f"{name:26} {mean:+.4f} ({low:+.4f} to {high:+.4f}), at least {least:+.2f}: {'yes' if met else 'no'}")
            missed += [] if met else [f"{world}: {name}"]
    return missed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of results; finished seeds are not repeated")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--worlds", nargs="+", default=list(WORLDS), choices=list(WORLDS))
    parser.add_argument("--quick", action="store_true", help="one seed of the usual world, few rounds")
    parser.add_argument("--check", action="store_true", help="exit 1 if a goal is missed")
    asked = parser.parse_args()
    if asked.quick:
        global PLAIN
        PLAIN, asked.seeds, asked.worlds = (10, 100, 0.03), 1, ["usual"]
    missed, begun = [], time.process_time()
    for world in asked.worlds:
        rows = []
        for seed in range(1, asked.seeds + 1):
            path = asked.out / f"{world}-{seed}{'-quick' if asked.quick else ''}.json"
            if not path.exists():
                folder = asked.out / "logs"
                shutil.rmtree(folder, ignore_errors=True)
                write_atomic(path, json.dumps(perform(world, seed, folder)) + "\n")
                shutil.rmtree(folder)
            rows.append(json.loads(path.read_text()))
        found = report(world, rows)
        missed += found if world == "usual" else []
    verdict = f"Missed: {'; '.join(missed)}" if missed else "All goals are met."
    print(f"\n{time.process_time() - begun:.0f} s of CPU time. {verdict}")
    return 1 if asked.check and missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
