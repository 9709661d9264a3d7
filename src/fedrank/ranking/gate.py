"""The adoption gate: it rejects a new model that is worse and admits one that is better.

In a trial, lists of both models are interleaved (team draft), and clicks decide. The test may be checked after every
search, stops early if the new model does harm, and needs only two counts.

Counts of several users could be pooled and protected by noise, but fedrank does not do so: it takes hundreds of users,
and the party that adds up could report any result.

Before a trial, sites decide from held-out searches whether a federated model may be exported. Each person contributes
one bounded vector, and only noised sums of these vectors leave a site:

    values = person_values(shown, who, scores, against, propensities_position, propensities_trust)  [people, columns]
    rows = person_rows(nothing, alone)                       [people, columns], L2 norm at most SENSITIVITY per person
    sums = PersonSums.read(rows.sum(axis=0) + noise, sigma)  after noise with standard deviation sigma was added
    decide(sums.sums[0], sums.squares, sums.count, sums.sigma, margin, alpha) -> GateDecision
    decide_all([sums of each site], GateRules()) -> FederatedDecision

Each value has 1 + DIRECTIONS columns per bias: the difference in clicks, and how it changes with the propensities,
whose error is often larger than that of the clicks. `width(comparisons, biases)` is the length of a person's vector.
Propensities need intervals (`Propensities.low`, `high`): without them, they are taken as exact.

The claim is about people and not about clicks: the mean over people of a person's difference, clipped to [-1, 1]. A few
people who lose more than one click per list count as if they lost one, so a model can pass although all people together
would click less. Only a trial shows that.

The estimate may veto a model, and a pass allows its export; a trial decides on adoption.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedrank.ranking.estimate import MAX_RATIO, Interval, new_places
from fedrank.ranking.propensity import CERTAIN, Propensities, Reals, ShownResults

Ruling = Literal["adopt", "refuse", "undecided"]
Outcome = Literal["pass", "veto", "inconclusive"]

MIN_PEOPLE = 20  # per decision; below it, nothing is concluded
CLAIM = "as a mean over people, with each person's difference clipped to ±1"
DIRECTIONS = 3  # principal directions of the error of propensities
_SCALE = 0.5  # of the count and the square in a person's vector; smaller needs less noise for the values
SENSITIVITY = math.sqrt(1 + 2 * _SCALE**2)  # maximum L2 norm of a person's vector


class Team(IntEnum):
    """Which model chose a position of an interleaved list."""

    NEITHER = -1
    OLD = 0
    NEW = 1


@dataclass(frozen=True, eq=False)
class Draft:
    """An interleaved list, and which model chose each position."""

    shown: NDArray[np.int64]
    team: NDArray[np.int8]  # [positions] of Team; NEITHER if both chose the same

    def winner(self, clicked: NDArray[np.bool_]) -> int:
        """The model whose documents got more clicks; NEITHER for a tie."""
        new, old = (int(np.sum(clicked & (self.team == team))) for team in (Team.NEW, Team.OLD))
        return Team.NEITHER if new == old else Team.NEW if new > old else Team.OLD


def team_draft(old: NDArray[np.integer], new: NDArray[np.integer], positions: int, rng: np.random.Generator) -> Draft:
    """Interleave two rankings of the same documents (team draft): they choose in turn, and a coin decides who is first.

    A document that both would choose belongs to neither, and clicks on it do not count. Two equal rankings give that
    ranking.
    """
    orders = (list(map(int, old)), list(map(int, new)))
    shown: list[int] = []
    team: list[int] = []

    def wish(side: int) -> int | None:
        return next((document for document in orders[side] if document not in shown), None)

    while len(shown) < positions:
        one, other = wish(Team.OLD), wish(Team.NEW)
        if one is None and other is None:
            break
        if one is not None and one == other:
            shown.append(one)
            team.append(Team.NEITHER)
            continue
        leads = int(rng.integers(2))
        for side in (leads, 1 - leads):
            document = wish(side)
            if document is not None and len(shown) < positions:
                shown.append(document)
                team.append(side)
    return Draft(np.array(shown, np.int64), np.array(team, np.int8))


@dataclass(frozen=True)
class Gate:
    """Decides when a new model has won or lost often enough. Counts are of searches that one of the two won.

    Two bets: that the new model wins more than half of these searches, and that it wins less. At any number of
    interim analyses, a model that is not better wins the first bet with probability at most `level`, and a model that
    is not worse wins the second with probability at most `harm`. Stakes are constant, so only the counts matter, and
    counts of several clients can be added up.
    """

    level: float = 0.05  # maximum probability of adopting a model that is not better
    stake: float = 0.2  # stake of the bet that it wins more than half; nearly optimal if it wins 60 %
    harm: float = 0.05  # maximum probability of rejecting early a model that is not worse
    harm_stake: float = 0.4  # stake of the other bet; large, to reject broken models soon
    most: int = 400  # decided searches of one client after which the model is rejected

    def __post_init__(self) -> None:
        for name in ("level", "stake", "harm", "harm_stake"):
            if not 0 < getattr(self, name) < 1:
                raise ValueError(f"{name} must be between 0 and 1 (got {getattr(self, name)})")
        if self.most < 1:
            raise ValueError(f"most must be at least 1 (got {self.most})")

    def evidence(self, wins: float, losses: float) -> tuple[float, float]:
        """Evidence (for the new model, against it): logarithms of the wealth of each bet, starting at 1."""
        return (
            wins * math.log1p(self.stake) + losses * math.log1p(-self.stake),
            losses * math.log1p(self.harm_stake) + wins * math.log1p(-self.harm_stake),
        )

    def verdict(self, wins: float, losses: float) -> Ruling:
        """Decide by the counts so far; call it after every decided search, or after every round of a federation."""
        gained, against = self.evidence(wins, losses)
        if against >= -math.log(self.harm):
            return "refuse"
        if gained >= -math.log(self.level):
            return "adopt"
        return "refuse" if wins + losses >= self.most else "undecided"


# Before a trial


def person_values(
    shown: ShownResults,
    who: NDArray[np.integer],
    scores: NDArray[np.floating],
    against: NDArray[np.floating],
    propensities_position: Propensities,
    propensities_trust: Propensities | None = None,
) -> Reals:
    """[people, biases x (1 + DIRECTIONS)]: what each person contributes to a comparison of two rankings, in [-1, 1].

    The first columns, one per bias, are the estimated clicks per list by `scores` minus those by `against`. The others
    are their changes if propensities are one standard error larger in each of DIRECTIONS directions.

    Both rankings are [results], and higher scores rank first; for an order, give minus the positions. `who` [searches]
    is the person of each search, by the numbers in `shown.search`. Rows are the people in ascending order of their
    numbers. A person's values do not depend on other people if the propensities do not.
    """
    if not len(scores) == len(against) == len(shown):
        raise ValueError(
            f"scores ({len(scores)}) and the scores they are compared with ({len(against)}) must have one value per "
            f"result ({len(shown)})"
        )
    new, old = new_places(shown, scores), new_places(shown, against)
    search, of_result = np.unique(shown.search, return_inverse=True)
    people, of_search = np.unique(np.asarray(who)[search], return_inverse=True)
    of_result, lists = of_search[of_result.ravel()], np.bincount(of_search, minlength=len(people))
    positions = int(shown.position.max(initial=0)) + 1

    def per_person(slope: Reals, extra: Reals) -> Reals:
        some = new != old if extra.any() else (new != old) & shown.clicked  # the others contribute nothing
        here, there, before = shown.position[some], new[some], old[some]
        ratio = np.clip((slope[there] - slope[before]) / slope[here], -MAX_RATIO, MAX_RATIO)
        gained = ratio * (shown.clicked[some] - extra[here]) + extra[there] - extra[before]
        each: Reals = np.bincount(of_result[some], weights=gained, minlength=len(people)) / lists
        return each

    centres, changes = [], []
    for by in (propensities_position, propensities_trust):
        if by is not None:
            centre, *ends = (per_person(*one) for one in _scenarios(by, positions))
            centres.append(centre)
            changes += [(up - down) / 2 for up, down in zip(ends[::2], ends[1::2], strict=True)]
    return np.clip(np.stack([*centres, *changes], axis=1), -1.0, 1.0)


def _scenarios(by: Propensities, positions: int) -> list[tuple[Reals, Reals]]:
    """Slopes and extras of all positions: the estimates, then one standard error up and down in each direction.

    Below the last known position, slopes are between the last one and a continued power law.
    """
    known = int(np.argmin(by.known)) if not by.known.all() else len(by.slope)
    if known < 2:
        raise ValueError("propensities must be known for the first two positions at least")
    logs, offset = np.log(by.slope[:known]), by.extra[:known] / by.slope[:known]
    fall = np.log(np.arange(known + 1, positions + 1) / known) * logs[-1] / math.log(known) / 2
    slope = np.exp(np.concatenate([logs, logs[-1] + fall]))[:positions]
    extra = np.concatenate([offset, np.full(len(fall), offset[-1])])[:positions] * slope
    found = [(slope, extra)]
    for steps, more in _directions(by, known)[:DIRECTIONS]:
        for sign in (1, -1):
            step = np.clip(sign * steps[:known] / by.slope[:known], -1.0, 1.0)  # of the logarithms
            more_below = sign * more[known - 1] * slope[known:] / by.slope[known - 1]
            moved = slope * np.exp(np.concatenate([step, np.full(len(fall), step[-1])])[:positions])
            found.append((moved, extra + np.concatenate([sign * more[:known], more_below])[:positions]))
    return found + [found[0]] * (1 + 2 * DIRECTIONS - len(found))


def _directions(by: Propensities, known: int) -> Reals:
    """[directions, 2, positions]: principal joint errors of slopes and extras."""
    if by.directions is not None:
        return by.directions
    # Ratios of adjacent positions have independent errors, so the errors of logarithms add up.
    error = np.maximum.accumulate(np.log(by.high[:known] / by.low[:known]) / (2 * CERTAIN))
    shared = np.minimum.outer(error**2, error**2) * np.outer(by.slope[:known], by.slope[:known])
    sizes, vectors = np.linalg.eigh(shared)
    steps = (np.sqrt(np.maximum(sizes, 0.0)) * vectors).T[::-1]
    steps *= np.where(steps.sum(axis=1, keepdims=True) < 0, -1.0, 1.0)  # the same sign at all sites
    return np.stack([steps, np.zeros_like(steps)], axis=1)


def person_rows(nothing: Reals, alone: Reals | None = None) -> Reals:
    """[people, columns]: what each person contributes to the sums that a site releases, bounded by SENSITIVITY.

    `nothing` and `alone` are the `person_values` against the engine's order and against the site's own model. Columns
    are the count, the largest squared difference, and the values, whose L2 norm is at most 1.
    """
    compared = [nothing] if alone is None else [nothing, alone]
    biases = nothing.shape[1] // (1 + DIRECTIONS)
    norm = np.maximum(np.linalg.norm(np.hstack(compared), axis=1, keepdims=True), 1.0)
    compared = [values / norm for values in compared]
    largest = np.max([(values[:, :biases] ** 2).max(axis=1, keepdims=True) for values in compared], axis=0)
    return np.hstack([np.full((len(nothing), 1), _SCALE), _SCALE * largest, *compared])


def width(comparisons: int = 2, biases: int = 2) -> int:
    """The length of a person's vector."""
    return 2 + comparisons * biases * (1 + DIRECTIONS)


@dataclass(frozen=True, eq=False)
class PersonSums:
    """Noised sums over the people of a site."""

    count: float
    squares: float  # sum of the largest square of each person
    sums: Reals  # [comparisons, columns]: against doing nothing, then against the own model if it was compared
    sigma: float  # standard deviation of the noise on a sum; 0 without noise

    @staticmethod
    def read(vector: Reals, sigma: float, comparisons: int = 2) -> PersonSums:
        """Read the noised sum of `person_rows`; from outside, so everything is checked."""
        values, allowed = np.asarray(vector, np.float64), [width(comparisons, biases) for biases in (1, 2)]
        if values.ndim != 1 or len(values) not in allowed:
            raise ValueError(
                f"a gate's sums must be {allowed[0]} or {allowed[1]} numbers for {comparisons} comparisons (got "
                f"{values.size})"
            )
        if not np.isfinite(values).all() or not 0 <= sigma < math.inf:
            raise ValueError("a gate's sums and the standard deviation of their noise must be finite")
        return PersonSums(values[0] / _SCALE, values[1] / _SCALE, values[2:].reshape(comparisons, -1), float(sigma))

    @staticmethod
    def pooled(sites: Sequence[PersonSums], shared: bool = False) -> PersonSums:
        """The sums over all sites; errors of propensities are independent unless sites use `shared` ones."""
        if len({one.sums.shape for one in sites}) != 1:
            raise ValueError("sites must release the same comparisons and biases to be pooled")
        sums = np.sum([one.sums for one in sites], axis=0)
        if not shared:
            biases = sums.shape[1] // (1 + DIRECTIONS)
            sums[:, biases:] = np.linalg.norm([one.sums[:, biases:] for one in sites], axis=0)
        return PersonSums(
            sum(one.count for one in sites),
            sum(one.squares for one in sites),
            sums,
            math.sqrt(sum(one.sigma**2 for one in sites)),
        )


@dataclass(frozen=True)
class GateDecision:
    """One comparison: its outcome, and the difference in clicks per list: the lower value, and both intervals."""

    outcome: Outcome
    interval: Interval
    words: str


def decide(
    sums: Reals, squares: float, count: float, sigma: float, margin: float = 0.0, alpha: float = 0.05
) -> GateDecision:
    """Decide whether a model is better than minus `margin` clicks per list, from noised sums [columns] over people.

    The difference is the mean over people of clipped differences (see above). If it is truly at most minus the margin,
    the model passes with probability at most `alpha`. Noise and the error of propensities are part of the interval,
    which covers those of all biases. Without an estimate under trust bias, nothing passes.
    """
    if margin < 0 or not 0 < alpha < 0.5:
        raise ValueError(f"margin must be at least 0 (got {margin}), alpha between 0 and 0.5 (got {alpha})")
    if not count >= MIN_PEOPLE:
        return GateDecision(
            "inconclusive",
            Interval(0.0, -1.0, 1.0),
            f"the sums have the weight of {max(count, 0):.0f} people, but at least {MIN_PEOPLE} are needed",
        )
    z = NormalDist().inv_cdf(1 - alpha)
    values = np.asarray(sums, np.float64) / count
    biases = len(values) // (1 + DIRECTIONS)
    mean, changes = np.clip(values[:biases], -1.0, 1.0), values[biases:].reshape(biases, DIRECTIONS)
    # The square is noised, too; a bound from above keeps the interval from being too narrow.
    spread = np.clip((squares + z * sigma / _SCALE) / count, mean**2, 1.0) - mean**2
    noise = (sigma / count) ** 2
    by_propensities = np.maximum((changes**2).sum(axis=1) - DIRECTIONS * noise, 0.0)
    error = z * np.sqrt(spread / (count - 1) + by_propensities + noise * (1 + (mean / _SCALE) ** 2))
    found = Interval(float(mean.min()), float((mean - error).min()), float((mean + error).max()))
    told = f"{found.value:+.4f} clicks per list ({found.low:+.4f} to {found.high:+.4f}), {CLAIM}"
    if found.low > -margin and biases < 2:
        outcome: Outcome = "inconclusive"
        told += "; trust bias was not estimated, and with it the model may be worse"
    elif found.low > -margin:
        outcome = "pass"
    else:
        outcome = "veto" if found.high < 0 else "inconclusive"
    return GateDecision(outcome, found, told)


@dataclass(frozen=True)
class GateRules:
    """What a model must fulfil before its export, and how the error rate of a year is spent."""

    margin: float = 0.05  # maximum loss of a site, in clicks per list
    alpha: float = 0.05  # maximum probability in a year of passing a model that is not better
    plans: int = 4  # maximum number of plans in a year; each spends an equal part of alpha

    def __post_init__(self) -> None:
        if not 0 < self.margin < 1 or not 0 < self.alpha < 0.5 or self.plans < 1:
            raise ValueError(
                f"margin must be between 0 and 1 (got {self.margin}), alpha between 0 and 0.5 (got {self.alpha}), "
                f"plans at least 1 (got {self.plans})"
            )

    def spend(self, before: int) -> float:
        """The error rate of the next plan, after `before` plans of the same year."""
        if before >= self.plans:
            raise ValueError(
                f"{before} plans were decided in the last year, and the error rate covers {self.plans}; wait, or "
                "decide by a trial"
            )
        return self.alpha / self.plans


@dataclass(frozen=True)
class FederatedDecision:
    """The decision on a federated model: all sites and all people together."""

    outcome: Outcome
    sites: tuple[tuple[GateDecision, ...], ...]  # per site: against doing nothing, and against the own model
    pooled: GateDecision  # against doing nothing
    words: tuple[str, ...] = field(default=())


def decide_all(
    sites: Sequence[PersonSums],
    rules: GateRules | None = None,
    before: int = 0,
    names: Sequence[str] = (),
    shared: bool = False,
) -> FederatedDecision:
    """Decide on a model: no site may lose more than the margin, and all people together must gain.

    Every part has the same error rate, and a model passes only if all parts do, so it is also that of the whole.
    `before` plans were decided in the same year; sites use `shared` propensities, or their own.
    """
    rules = rules or GateRules()
    alpha = rules.spend(before)
    compared = ("doing nothing", "the own model alone")
    each = tuple(
        tuple(decide(sums, one.squares, one.count, one.sigma, rules.margin, alpha) for sums in one.sums)
        for one in sites
    )
    total = PersonSums.pooled(sites, shared)
    pooled = decide(total.sums[0], total.squares, total.count, total.sigma, 0.0, alpha)
    parts = [
        (f"{names[number] if names else f'site {number + 1}'} against {what}", one)
        for number, decisions in enumerate(each)
        for what, one in zip(compared, decisions, strict=False)
    ]
    parts.append((f"all people against {compared[0]}", pooled))
    outcomes = [one.outcome for _, one in parts]
    outcome: Outcome = "veto" if "veto" in outcomes else "inconclusive" if "inconclusive" in outcomes else "pass"
    return FederatedDecision(outcome, each, pooled, tuple(f"{what}: {one.outcome}, {one.words}" for what, one in parts))
