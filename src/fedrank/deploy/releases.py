"""Sums over the people of a site that are released once in a run: clipped per person, with noise, and charged.

    propensity    clicks in pairs of results that were swapped at random (`fedrank.ranking.swaps`)
    quality       of the model against the logged order, on held-out lists
    gate          estimated clicks of the model against the logged order, on held-out lists (`fedrank.ranking.gate`)

Each site adds all of its noise, also in a run with secure aggregation: a site needs its own noised sum to compare it
with those of the others, and whatever is computed from noised sums costs no more privacy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedrank.privacy.guarantees import Guarantee, Setting
from fedrank.privacy.mechanisms import Gaussian
from fedrank.ranking import swaps
from fedrank.ranking.gate import SENSITIVITY, width
from fedrank.ranking.propensity import SWAPS
from fedrank.types import Messages, Source, has_trait

if TYPE_CHECKING:
    from fedrank.deploy.plan import Plan

PROPENSITY, QUALITY, GATE = "propensity", "quality", "gate"  # wire kinds, keys of charges, and file names
NOISE = 4.0  # standard deviation, in multiples of what one person can add: ε is below 1 at δ = 1e-5
BOUND = 0.5  # of each number that a person adds to the quality
WORDS = {
    PROPENSITY: "clicks in randomly swapped pairs of positions",
    QUALITY: "measures on held-out lists, of the model and of the logged order",
    GATE: "estimated clicks on held-out lists, of the model against the logged order",
}


@dataclass(frozen=True)
class Release:
    """A sum of one vector per person, with Gaussian noise."""

    kind: str
    numbers: int
    clip: float  # L2 norm of the vector of a person
    noise: float  # in multiples of clip
    people: int  # at a site, at most

    @property
    def mechanism(self) -> Gaussian:
        return Gaussian(self.clip, self.noise, unit="person", people=self.people)

    @property
    def deviation(self) -> float:
        """Standard deviation of the noise of each number of one site."""
        return self.clip * self.noise

    def guarantees(self, plan: Plan) -> tuple[Guarantee, ...]:
        """The cost of this release against each observer."""
        experiment = plan.experiment
        setting = Setting(len(plan.sites), self.numbers, 1.0, (1,), experiment.learner, experiment.aggregator)
        return tuple(self.mechanism.guarantees(setting))

    def sums(self, values: NDArray[np.float64], source: Source | None = None) -> list[float]:
        """The sum of these vectors [people, numbers], each clipped, with noise from the secure source."""
        rows = values if len(values) else np.zeros((1, self.numbers))  # a site without people adds noise, too
        one = np.ones(len(rows), np.int64)
        messages = Messages(rows.astype(np.float32), one, np.zeros_like(one), np.zeros(self.numbers), 1)
        sent = self.mechanism.protect(messages, 1, source or self.mechanism.source())
        return [float(one) * self.people for one in sent.updates[0]]

    def is_plausible(self, sums: object) -> bool:
        """Whether a received value can be such a sum."""
        most = self.people * self.clip + 40 * self.deviation
        return (
            isinstance(sums, list)
            and len(sums) == self.numbers
            and all(type(one) in (int, float) and abs(one) <= most for one in sums)
        )


def releases_of(plan: Plan, measures: Sequence[str] = ()) -> tuple[Release, ...]:
    """What a site releases in a run besides updates, if its policy lists these measures."""
    if plan.simulated or plan.forests is not None or plan.silos is not None:
        return ()
    experiment = plan.experiment
    if not has_trait(experiment.mechanism, "people"):
        return ()
    common = experiment.privacy.release_noise or NOISE, experiment.clients.people
    found = []
    if experiment.data.propensities == SWAPS:
        found.append(Release(PROPENSITY, 2 * swaps.PAIRS, swaps.CLIP, *common))
    if names := [name for name in experiment.measures if name in measures]:
        numbers = 2 * len(names) + 1
        found.append(Release(QUALITY, numbers, BOUND * math.sqrt(numbers), *common))
    if experiment.gate is not None:
        biases = 1 if experiment.data.propensities == SWAPS else 2  # noised counts do not determine trust bias
        found.append(Release(GATE, width(1, biases), SENSITIVITY, *common))
    return tuple(found)


def release_of(plan: Plan, kind: str, measures: Sequence[str] = ()) -> Release | None:
    return next((one for one in releases_of(plan, measures) if one.kind == kind), None)


def person_quality(
    model: NDArray[np.float64], given: NDArray[np.float64], who: NDArray[np.int64]
) -> NDArray[np.float64]:
    """[people, 2 x measures + 1]: difference from and value of the logged order, means over lists, and BOUND as count.

    `model` and `given` are [measures, lists], NaN where a list has no click; `who` is the person of a list.
    """
    people = int(who.max(initial=-1)) + 1
    known = np.isfinite(model).all(axis=0) & np.isfinite(given).all(axis=0)
    lists = np.bincount(who[known], minlength=people)
    has = lists > 0
    found = np.zeros((people, 2 * len(model) + 1))
    for number, (new, old) in enumerate(zip(model, given, strict=True)):
        for place, values, low in ((0, new - old, 0.0), (1, old, BOUND)):
            mean = np.bincount(who[known], values[known], minlength=people)[has] / lists[has] - low
            found[has, 2 * number + place] = np.clip(mean, -BOUND, BOUND)
    found[has, -1] = BOUND
    return found


@dataclass(frozen=True)
class SiteQuality:
    """One measure of the model and of the logged order at a site, from noised sums."""

    model: float
    given: float
    people: float  # noised
    error: float  # standard error of the difference that noise alone causes


def quality_of(sums: Sequence[float], deviation: float) -> list[SiteQuality]:
    """The measures that a site released; NaN where noise hides the number of people."""
    people = sums[-1] / BOUND
    if people * BOUND <= 2 * deviation:
        return [SiteQuality(math.nan, math.nan, people, math.nan)] * (len(sums) // 2)
    pairs = zip(sums[:-1:2], sums[1::2], strict=False)
    found = [(difference / people, given / people + BOUND) for difference, given in pairs]
    return [SiteQuality(given + difference, given, people, deviation / people) for difference, given in found]
