"""Propensities from logged random swaps, by sums over people that can be released with noise.

In every search the engine draws one pair of adjacent positions, swaps its two results with probability 1/2, and logs
both facts. Either result is then equally likely in either position, so of the clicks in drawn pairs, those in the lower
position relative to those in the upper one estimate the ratio of their propensities (Joachims, Swaminathan and
Schnabel, WSDM 2017). A person contributes one vector of clicks, which is clipped; all else is computed from noised sums
and costs no more privacy.

Propensities depend on the layout of a page, so sites may differ. A site compares its own noised sums with those of the
others. The more they differ, the less it uses those of the others; if they differ significantly, it uses its own alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedrank.data.logs import SearchLog
from fedrank.ranking.propensity import CERTAIN, DIGITS, WIDEST, Propensities

Reals = NDArray[np.float64]

PAIRS = 9  # adjacent pairs of the first ten positions
MOST = 50  # lists of one person that count, the earliest ones
CLIP = 3.0  # norm of the clicks of one person
LEVEL = 0.01  # of the test for equal ratios at two sites
SWAPS_LOGGED = "logged random swaps, as noised sums over people"
UNEVEN = 5.0  # standard errors from 1/2, beyond which swaps were not drawn with probability 1/2


class NoSwaps(ValueError):
    """A log does not tell which results were swapped at random."""


def swap_counts(log: SearchLog, rows: NDArray[np.int64], who: NDArray[np.int64]) -> Reals:
    """[people, 2 x PAIRS]: clicks in the upper and lower position of drawn pairs; `who` is the person of each row."""
    people = int(who.max(initial=-1)) + 1
    if log.swap is None or log.clicks is None or log.first is None:
        raise NoSwaps(what_to_log("none is logged"))
    drawn, first = np.asarray(log.swap)[rows].astype(np.int64), np.asarray(log.first)[rows]
    upper = np.abs(drawn) - 1
    longest = log.lists.shape[1]
    usable = (drawn != 0) & (upper < PAIRS) & (upper + 1 < longest) & (first == 0)
    usable &= np.asarray(log.lists)[rows, np.minimum(np.maximum(upper, 0) + 1, longest - 1)] >= 0
    if not usable.any():
        raise NoSwaps(what_to_log("none is logged"))
    swapped = float(np.mean(drawn[usable] < 0))
    if abs(swapped - 0.5) > UNEVEN * math.sqrt(0.25 / usable.sum()):
        raise NoSwaps(what_to_log(f"{swapped:.0%} of {usable.sum():,} drawn pairs were swapped, and not half of them"))
    order = np.flatnonzero(usable)
    order = order[np.argsort(who[order], kind="stable")]  # rows are in order of time
    earlier = np.arange(len(order)) - np.searchsorted(who[order], who[order])  # of the same person
    order = order[earlier < MOST]
    counts = np.zeros((people, 2 * PAIRS))
    for lower in (0, 1):
        clicked = np.asarray(log.clicks)[rows[order], upper[order] + lower] > 0
        np.add.at(counts, (who[order], 2 * upper[order] + lower), clicked)
    return counts


def what_to_log(problem: str) -> str:
    """A sentence for a log whose swaps cannot be used."""
    return (
        f"propensities need random swaps, and {problem}; in every search, draw one of the first {PAIRS} positions, "
        "swap its result with the next one with probability 1/2, and log query_attributes.swap = "
        '{"position": 3, "swapped": true} with the position from 1, whether or not it was swapped'
    )


@dataclass(frozen=True, eq=False)
class Ratios:
    """Logarithms of the ratios of propensities of adjacent positions; NaN where noise hides them."""

    log: Reals  # [PAIRS]
    variance: Reals  # [PAIRS], of counts and of noise

    @classmethod
    def of(cls, counts: Reals, noise: float) -> Ratios:
        """From sums of clicks [2 x PAIRS] with Gaussian noise of this standard deviation."""
        both = counts.reshape(-1, 2)
        known: NDArray[np.bool_] = np.all((both > 2 * noise) & (both > 0), axis=1)
        some = np.where(known[:, None], both, 1.0)
        variance = ((some + noise**2) / some**2).sum(axis=1)
        return cls(
            np.where(known, np.log(some[:, 1] / some[:, 0]), np.nan), np.where(known, variance, np.inf).astype(float)
        )


@dataclass(frozen=True, eq=False)
class SiteEstimate:
    """The propensities that a site uses, and how they follow from its own sums and those of the others."""

    propensities: Propensities
    p: float  # of the test for equal ratios at this site and the others; NaN if nothing can be compared
    own_share: float  # mean weight of the own sums


def site_propensities(own: Ratios | None, others: Ratios | None) -> SiteEstimate:
    """Propensities from the sums of one site and of all others: pooled if equal, otherwise closer to the own ones."""
    if own is None or others is None:
        one = own or others
        assert one is not None, "at least one site has counted"
        return SiteEstimate(_propensities(one, ()), math.nan, float(own is not None))
    from scipy.stats import chi2

    both = np.isfinite(own.log) & np.isfinite(others.log)
    apart = np.where(both, own.log - others.log, 0.0)
    spread = np.where(both, own.variance + others.variance, np.inf)
    excess, p = 0.0, math.nan
    if both.any():
        total, pairs = float(np.sum(apart**2 / spread)), int(both.sum())
        p = float(chi2.sf(total, pairs))
        # Variance between sites by the method of moments (DerSimonian and Laird, 1986).
        excess = math.inf if p < LEVEL else max(0.0, (total - pairs) / float(np.sum(1 / spread)))
    with np.errstate(invalid="ignore"):
        share = np.where(both, own.variance / (spread + excess), np.where(np.isfinite(own.log), 0.0, 1.0))
        value = np.where(both, own.log - share * apart, np.where(np.isfinite(own.log), own.log, others.log))
        variance = (1 - share) ** 2 * np.where(share < 1, own.variance, 0.0)
        variance += share**2 * np.where(share > 0, others.variance + (0.0 if math.isinf(excess) else excess), 0.0)
    notes = (f"ratios differ from those of the other sites (p = {p:.2g}), so this site uses its own",)
    found = _propensities(Ratios(value, variance), notes if math.isinf(excess) else ())
    return SiteEstimate(found, p, float(np.mean(1 - share)))


def _propensities(ratios: Ratios, notes: tuple[str, ...]) -> Propensities:
    logs = np.concatenate([[0.0], np.cumsum(ratios.log)])  # NaN from the first unknown ratio on
    error = CERTAIN * np.sqrt(np.concatenate([[0.0], np.cumsum(ratios.variance)]))
    with np.errstate(invalid="ignore"):
        sure = np.isfinite(logs) & (2 * error < math.log(WIDEST))
        values = [np.where(sure, np.exp(one), np.nan).round(DIGITS) for one in (logs, logs - error, logs + error)]
    slope, low, high = values
    return Propensities(slope, np.zeros(len(slope)), low, high, SWAPS_LOGGED, notes=notes)
