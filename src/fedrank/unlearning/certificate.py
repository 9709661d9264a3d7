"""Certified unlearning of linear rankers on logged clicks (descent-to-delete; Neel, Roth, Sharifi-Malvajerdi, 2021).

The loss of n lists is their mean softmax loss, with the weights of their clicks, plus l2 / 2 times the squared norm of
the model. No weight is negative, so the loss is convex, and the last term makes it l2-strongly convex: a model whose
gradient is at most `tolerance` long is within tolerance / l2 of the only minimum, wherever training started. Two such
models, one trained from the model that knew the removed data and one that never had them, are therefore at most
2 tolerance / l2 apart, and Gaussian noise of that sensitivity makes their releases (ε, δ)-indistinguishable. Nothing
depends on how much was removed, or on how the earlier model was trained.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank.data.ranking import RankingData
from fedrank.privacy.accounting import GaussianEvent
from fedrank.privacy.guarantees import Guarantee, cost_together, noise_for
from fedrank.privacy.noise import SecureSource, rounded_gaussian
from fedrank.types import Source, Weights

LISTS = 256  # read at a time: few, because the error of a sum grows with the number of its terms
PASSES = 200  # over the data, after which training has failed
UNIT = 2.0**-53  # relative error of one operation
FINE = 1e-3  # step of the grid, relative to the sensitivity
SLACK = 1e-8  # added to ε: a sampler errs by less (`GridNoise.log_error`)

Reals = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ListLoss:
    """The regularised loss of some lists of a data set, with its derivatives in float64."""

    data: RankingData
    queries: NDArray[np.integer[Any]]  # the lists
    l2: float
    rows: NDArray[np.int64] = field(init=False)  # documents of lists with clicks, without unknown weights
    starts: NDArray[np.int64] = field(init=False)  # of each list in `rows`, and the end
    weights: Reals = field(init=False)  # [rows]
    longest: float = field(init=False)  # norm of a row of features, at most

    def __post_init__(self) -> None:
        offsets, chosen = self.data.offsets, np.asarray(self.queries, np.int64)
        if not len(chosen):
            raise ValueError("no list remains, so there is nothing to train on; delete the model instead")
        lengths = np.diff(offsets)[chosen]
        of_list = np.repeat(np.arange(len(chosen)), lengths)
        rows = np.repeat(offsets[chosen] - np.cumsum(lengths) + lengths, lengths) + np.arange(lengths.sum())
        weights = self.data.labels[rows].astype(np.float64)
        if np.any(weights < 0) or np.any(np.isinf(weights)):
            raise ValueError(
                "a click weight is negative or infinite, so the loss is not convex and no theorem covers it; use "
                'bias = "position", which gives positive weights'
            )
        known = np.isfinite(weights)
        totals = np.bincount(of_list, np.where(known, weights, 0.0), minlength=len(chosen))
        kept = known & (totals[of_list] > 0)  # other lists have no gradient
        sizes = np.bincount(of_list[kept], minlength=len(chosen))
        starts = np.concatenate(([0], np.cumsum(sizes[sizes > 0])))
        for name, value in (("rows", rows[kept]), ("starts", starts), ("weights", weights[kept])):
            object.__setattr__(self, name, value)
        squares = [float(np.einsum("ij,ij->i", features, features).max()) for features, _, _ in self._blocks()]
        object.__setattr__(self, "longest", math.sqrt(max(squares, default=0.0)))
        if not math.isfinite(self.longest):
            raise ValueError("a feature is infinite or NaN; correct the data")

    def at(self, model: Weights, curvature: bool = False) -> tuple[float, Reals, Reals]:
        """Loss, gradient and, if requested, second derivative at a model."""
        size, value = len(model), 0.0
        gradient, hessian = np.zeros(size), np.zeros((size, size) if curvature else 0)
        for features, weights, starts in self._blocks():
            scores = features @ model
            counts = np.diff(starts, append=len(scores))
            highest = np.repeat(np.maximum.reduceat(scores, starts), counts)
            shares = np.exp(scores - highest)
            mass = np.add.reduceat(shares, starts)
            totals = np.add.reduceat(weights, starts)
            value += float(totals @ np.log(mass) + weights @ (highest - scores))
            shares /= np.repeat(mass, counts)
            pulls = shares * np.repeat(totals, counts)
            gradient += features.T @ (pulls - weights)
            if curvature:
                from scipy import sparse  # not loaded where a spec is only read

                of_lists = sparse.csr_matrix((shares, np.arange(len(shares)), np.append(starts, len(shares))))
                means = of_lists @ features
                features -= np.repeat(means, counts, axis=0)  # in place: new memory takes as long as the sums
                features *= np.sqrt(pulls)[:, None]
                hessian += features.T @ features  # BLAS computes half of a symmetric product
        count = len(self.queries)
        hessian = hessian / count + self.l2 * np.eye(size) if curvature else hessian
        return value / count + self.l2 / 2 * float(model @ model), gradient / count + self.l2 * model, hessian

    def rounding(self, model: Weights) -> float:
        """Upper bound on the error of the computed gradient: every operation may err by one unit, always the same way.

        Errors of scores change shares by their exponential; those of sums grow with the number of their terms.
        """
        length, documents = float(np.linalg.norm(model)), int(np.diff(self.starts).max(initial=1))
        mean_weight = float(self.weights.sum()) / len(self.queries)
        of_shares = (
            2 * math.expm1(min((len(model) + 3) * UNIT * self.longest * length, 700.0)) + (2 * documents + 24) * UNIT
        )
        edges = self.starts[::LISTS]
        terms = int(np.diff(edges, append=self.starts[-1]).max()) + len(edges) + 8
        of_sums = 2 * terms * UNIT
        return 1.1 * (mean_weight * self.longest * (of_shares + of_sums) + 4 * UNIT * self.l2 * length)

    def _blocks(self) -> Iterator[tuple[Reals, Reals, NDArray[np.int64]]]:
        """Features, click weights and first rows of a few lists at a time."""
        for first in range(0, len(self.starts) - 1, LISTS):
            starts = self.starts[first : first + LISTS + 1]
            some = slice(starts[0], starts[-1])
            features = self.data.features.take(self.rows[some], axis=0).astype(np.float64)
            yield features, self.weights[some], starts[:-1] - starts[0]


def minimise(loss: ListLoss, start: Weights, tolerance: float) -> tuple[Weights, int]:
    """A model with a gradient of at most `tolerance`, by Newton's method, and the number of passes over the data.

    The second derivative is computed again where the last one does not shorten the gradient to a tenth. Errors of
    floating point count as part of the gradient.
    """
    model, passes = np.array(start, dtype=np.float64), 2
    _check_error(loss.rounding(np.zeros(len(model))), tolerance)  # at the shortest model
    value, gradient, hessian = loss.at(model, curvature=True)
    here = True  # whether `hessian` is of this model
    while not (length := _length(gradient)) + (error := loss.rounding(model)) <= tolerance:
        if length <= tolerance:
            _check_error(error, tolerance)
        _check_progress(length, passes, tolerance)
        step, size = np.linalg.solve(hessian, gradient), 1.0
        while True:
            _check_progress(length, passes, tolerance)
            new, passes = model - size * step, passes + 1
            new_value, new_gradient, _ = loss.at(new)
            shorter = _length(new_gradient) / length
            if shorter < 0.5 or new_value <= value - 1e-4 * size * float(gradient @ step):
                break
            if here:
                size /= 2
            else:
                hessian, passes, here = loss.at(model, curvature=True)[2], passes + 1, True
                step = np.linalg.solve(hessian, gradient)
        model, value, gradient, here = new, new_value, new_gradient, False
        if shorter > 0.1:
            hessian, passes, here = loss.at(model, curvature=True)[2], passes + 1, True
    return model, passes


def _check_error(error: float, tolerance: float) -> None:
    if error > tolerance / 2:
        raise ValueError(
            f"tolerance = {tolerance:g} cannot be verified, because rounding errors may change the gradient by "
            f"{error:.1g}; use a tolerance of at least {4 * error:.1g}"
        )


def _check_progress(length: float, passes: int, tolerance: float) -> None:
    if passes >= PASSES or not math.isfinite(length):
        raise ValueError(
            f"the gradient is {length:.1g} after {passes} passes over the data, and tolerance = {tolerance:g}; use a "
            "larger tolerance or a larger l2"
        )


def _length(vector: Reals) -> float:
    return float(np.linalg.norm(vector)) * (1 + 1e-9)  # its own rounding error is far smaller


@dataclass(frozen=True)
class ReleaseNoise:
    """Gaussian noise that makes two models within `sensitivity` of each other (ε, δ)-indistinguishable."""

    sensitivity: float  # L2 distance of the models, at most
    parameters: int
    epsilon: float
    delta: float
    multiplier: float = field(init=False)  # standard deviation, in multiples of the sensitivity
    step: float = field(init=False)  # of the grid, a power of two

    def __post_init__(self) -> None:
        found = noise_for(guarantee_of, 1, self.delta, self.epsilon)
        if not math.isfinite(found):
            raise ValueError(f"no noise gives ε = {self.epsilon:g} at δ = {self.delta:g}; use larger values")
        object.__setattr__(self, "multiplier", found)
        step = 2.0 ** math.floor(math.log2(FINE * self.sensitivity / math.sqrt(self.parameters)))
        object.__setattr__(self, "step", step)

    @property
    def deviation(self) -> float:
        """Standard deviation in each parameter. Rounding to the grid moves two models apart by one diagonal at most."""
        return self.multiplier * (self.sensitivity + self.step * math.sqrt(self.parameters))

    def release(self, model: Weights, source: Source | None = None) -> Weights:
        """The model with noise, from the secure source of the system."""
        steps = np.rint(model / self.step)
        if np.abs(steps).max(initial=0) >= 2.0**51:
            raise ValueError(
                f"the model has weights up to {np.abs(model).max():.1g}, too large for noise of {self.deviation:.1g}; "
                "use a larger tolerance or a larger l2"
            )
        law = rounded_gaussian(self.deviation / self.step)
        assert 2 * len(model) * law.log_error <= SLACK, "the sampler is not exact enough"
        drawn = law.draw(model.shape, SecureSource() if source is None else source)
        noised: Weights = (steps + drawn).astype(np.float64) * self.step
        return noised


def guarantee_of(multiplier: float) -> Guarantee:
    """The guarantee of one release with this noise."""
    return Guarantee("public", GaussianEvent(multiplier), "noise on the model", slack=SLACK)


def epsilon_together(multipliers: Sequence[float], delta: float) -> float:
    """ε of several releases together, each indistinguishable from one that was retrained at its time."""
    return cost_together([(guarantee_of(one), 1) for one in multipliers], delta)
