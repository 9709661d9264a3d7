"""Tests of published findings: a claim holds, does not hold, or is undecided with this design."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from fedrank.experiments.report.contrast import FEWEST, ONE_TRAINING, Contrast
from fedrank.experiments.report.statistics import LEVEL, t_quantile

# The smallest difference of interest, of a measure between 0 and 1, fixed before any rerun. Half a hundredth of nDCG is
# the order of the smallest gains that papers on these data sets report; a reciprocal rank changes by a half or not at
# all at the top of a list, so it needs twice as much for the same number of changed lists.
SMALLEST = 0.005
SMALLEST_RECIPROCAL = 0.01
RECIPROCAL = ("mrr", "reward")  # beginnings of the names of such measures
ENOUGH = 0.8  # power of a design that is worth its time
MOST = 1_000  # repeats; beyond this, another design is needed
HOLDS = "holds"
FAILS = "does not hold"
OPEN = "undecided"
UNTESTED = "not tested here"
CANNOT = "this design cannot decide"


@dataclass(frozen=True)
class Stated:
    """A claim, and the contrast of the variant that is said to be higher with the other one."""

    says: str
    column: str
    contrast: Contrast
    within: float | None = None  # if given: the two are said to differ by no more than this
    reported: float | None = None  # the difference that the paper reports
    scale: float = 1.0  # the highest value of the measure

    @property
    def smallest(self) -> float:
        """The smallest difference of interest, in the scale of the measure; never above what the paper reports."""
        general = (SMALLEST_RECIPROCAL if self.column.startswith(RECIPROCAL) else SMALLEST) * self.scale
        return min(general, abs(self.reported)) if self.reported else general


@dataclass(frozen=True, kw_only=True)
class Verdict(Stated):
    """A claim and what the runs say about it."""

    verdict: str  # HOLDS, FAILS, OPEN or UNTESTED
    level: float = LEVEL  # at which it was judged: its share of LEVEL
    low: float = math.nan  # confidence interval of the difference at that level
    high: float = math.nan
    sought: float = math.nan  # the difference that power is for: the paper's, or the smallest of interest
    power: float = math.nan  # of the design, for that difference
    reason: str = ""  # why the verdict is not clear
    outlook: str = ""  # where it is OPEN: what more repeats would show; part of the reason
    needed: str = ""  # in short: how many queries, runs or data sets would decide it, or would make a test possible


def judge_all(claims: Sequence[Stated]) -> tuple[Verdict, ...]:
    """Judge the claims of one experiment together, the clearest first (Holm's step-down procedure).

    The clearest one must be clear at LEVEL / claims, the next one at LEVEL / (claims - 1), and so on; from the first
    that is undecided, all others are undecided as well.
    """
    verdicts: dict[int, Verdict] = {}
    clearest = sorted(range(len(claims)), key=lambda i: _decided_at(claims[i]))
    left = sum(claim.contrast.tested for claim in claims)
    for i in clearest:
        verdicts[i] = judge(claims[i], LEVEL / max(left, 1))
        left -= verdicts[i].verdict in (HOLDS, FAILS)
    return tuple(verdicts[i] for i in range(len(claims)))


def judge(claim: Stated, level: float = LEVEL) -> Verdict:
    """Judge one claim by the confidence interval of its difference.

    Without `within` a claim holds if the lower bound is above 0, and does not hold if the upper bound is below the
    smallest difference of interest. With `within` it holds if the interval lies inside ± within, and does not if it
    lies outside.
    """
    found, within = claim.contrast, claim.within
    # The difference that a design should be able to show.
    sought = within if within is not None else abs(claim.reported) if claim.reported else claim.smallest
    power = found.power(sought, level) if within is None else found.power_alike(within, level)
    low, high = found.interval(level)
    if found.repeats == 0 and not found.counted:
        return Verdict(**vars(claim), verdict=UNTESTED, level=level, reason=found.reason)
    if not found.tested:
        reason = f"{CANNOT}: {found.reason}{_on_these_queries(found)}"
        return Verdict(
            **vars(claim), verdict=OPEN, level=level, sought=sought, power=0.0, reason=reason, needed=_for_a_test(found)
        )
    if within is not None:
        verdict = HOLDS if -within < low and high < within else FAILS if low > within or high < -within else OPEN
    else:
        verdict = HOLDS if low > 0 else FAILS if high < claim.smallest else OPEN
    judged = Verdict(**vars(claim), verdict=verdict, level=level, low=low, high=high, sought=sought, power=power)
    if verdict != OPEN:
        return judged
    needed, outlook = _needed(claim, level)
    could = f"power {power:.2f} to show them alike"
    if within is None:
        whose = "the paper's difference" if claim.reported else "the smallest of interest"
        could = f"power {power:.2f} for {sought:.3g}, {whose}"
    return replace(judged, reason=f"{could}; {outlook}", outlook=outlook, needed=needed)


def _for_a_test(found: Contrast) -> str:
    """What a design without a test lacks."""
    if found.unit in ("folds", "splits", "data sets") and found.counted < FEWEST:
        return f"at least {FEWEST} {found.unit}"
    return "at least 2 seeds" if found.reason == ONE_TRAINING else ""


def _on_these_queries(found: Contrast) -> str:
    """The result over repeats, which holds for exactly these queries."""
    if math.isnan(found.seed_error):
        return ""
    half = t_quantile(1 - LEVEL / 2, found.repeats - 1) * found.seed_error
    low, high = found.difference - half, found.difference + half
    return f"; on exactly these, {found.repeats} repeats put it between {low:+.4g} and {high:+.4g}"


def _decided_at(claim: Stated) -> float:
    """The smallest level at which the interval would decide the claim: its p; infinite where there is no test."""
    found = claim.contrast
    if not found.tested:
        return math.inf
    if claim.within is None:
        return min(found.beyond(found.difference), found.beyond(claim.smallest - found.difference))
    far = abs(found.difference)
    return min(found.beyond(claim.within - far), found.beyond(far - claim.within))


def _needed(claim: Stated, level: float) -> tuple[str, str]:
    """What would decide a claim if the difference is the one that was measured; in short, and with what is too few."""
    from scipy.special import ndtri

    found, within = claim.contrast, claim.within
    if within is None:  # above 0, or below the smallest difference of interest: the nearer verdict
        distance = max(found.difference, claim.smallest - found.difference)
    else:
        distance = abs(within - abs(found.difference))
    error = distance / float(ndtri(1 - level / 2) + ndtri(ENOUGH))
    if error <= found.floor:
        times = (found.floor / error) ** 2
        here = f"{found.counted:,} queries" if found.unit == "queries" else f"{found.unit} of one data set"
        about = f"{max(1.1, math.ceil(10 * times) / 10):.1f}" if times < 10 else f"{math.ceil(times)}"
        more = f"more than {MOST:,} times" if times > MOST else f"about {about} times"
        return f"{more.removeprefix('about ')} the queries", (
            f"too few queries: no number of runs on these {here} would decide it, {more} as many queries would"
        )
    count, what = (found.counted, "data sets") if found.unit == "data sets" else (found.repeats, "runs")
    variance, room = count * (found.error**2 - found.floor**2), error**2 - found.floor**2
    if variance > MOST * room:
        more = f"more than {MOST:,}"
        return f"{more} {what}", f"too few {what}: {more} would be needed, instead of {count:,}"
    wanted = max(math.ceil(variance / room), count + 1)
    return f"{wanted:,} {what}", f"too few {what}: about {wanted:,} instead of {count:,} would decide it"
