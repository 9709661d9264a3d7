"""Published values next to ours: the difference of two means in units of its standard error."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from fedrank.experiments.report.run_values import VariantRuns
from fedrank.experiments.report.statistics import LEVEL, Summary, t_quantile
from fedrank.experiments.spec.grid import Published

WITHIN, OUTSIDE, UNSURE = "within", "outside", "undecided"


@dataclass(frozen=True)
class PublishedComparison:
    """A value from a paper next to ours."""

    column: str
    variant: VariantRuns
    value: float
    spread: float | None
    source: str
    measured: Summary
    error: float = math.nan  # standard error of the difference of both means
    degrees_of_freedom: float = math.nan
    how: str = ""  # where the error comes from
    error_is_upper_bound: bool = False  # whether it includes differences between folds, so it cannot confirm a value

    @property
    def difference(self) -> float:
        return self.measured.mean - self.value

    @property
    def z(self) -> float:
        """The difference in standard errors; NaN where there is none."""
        return self.difference / self.error if self.error > 0 else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """95% confidence interval of ours - theirs."""
        half = t_quantile(1 - LEVEL / 2, self.degrees_of_freedom) * self.error if self.error > 0 else math.nan
        return self.difference - half, self.difference + half

    @property
    def verdict(self) -> str:
        low, high = self.interval
        if math.isnan(low):
            if self.error == 0:
                return WITHIN if abs(self.difference) <= _rounding(self.value) else OUTSIDE
            return f"{UNSURE}: one repeat has no spread"
        if not low <= 0 <= high and abs(self.difference) > _rounding(self.value):
            return OUTSIDE
        return (
            f"{UNSURE}: with one seed per fold the variation between seeds is unknown"
            if self.error_is_upper_bound
            else WITHIN
        )


def _rounding(value: float) -> float:
    """Half a unit of the last digit that was printed."""
    return 0.5 * 10.0 ** -len(f"{value:.10f}".rstrip("0").partition(".")[2])


def compare_published(row: Published, column: str, variant: VariantRuns) -> PublishedComparison:
    """Put a published value next to the final values of a variant.

    Both were measured on the same queries, so they differ only by random variation in training. If values are published
    by fold, the error is the standard error of the mean paired difference. Otherwise our error is that of seeds within
    folds, and the same variation is assumed for each run behind the published mean (the stated number of runs, or one
    per fold). With one seed per fold this variation is unknown; the spread between folds is an upper bound, which can
    refute a value but not confirm it.
    """
    known = {repeat: value for repeat, value in variant.values(column).items() if not math.isnan(value)}
    summary = variant.summary(column)
    by_fold: dict[int, list[float]] = {}
    for repeat, value in known.items():
        assert isinstance(repeat, tuple)
        by_fold.setdefault(repeat[0], []).append(value)
    base = PublishedComparison(column, variant, row.value, row.spread, row.source, summary)
    folds, runs = len(by_fold), len(known)
    if runs < 2:
        return base
    if row.folds and folds >= 2 and set(by_fold) <= set(range(1, len(row.folds) + 1)):
        differences = [float(np.mean(values)) - row.folds[fold - 1] for fold, values in by_fold.items()]
        error = float(np.std(differences, ddof=1)) / math.sqrt(folds)
        return replace(base, error=error, degrees_of_freedom=folds - 1, how="paired by folds")
    theirs = row.repeats or folds
    free = runs - folds
    if free >= 1:
        within = sum(
            float(np.var(values, ddof=1)) * (len(values) - 1) for values in by_fold.values() if len(values) > 1
        )
        seed_sd = math.sqrt(within / free)
        error = seed_sd * math.sqrt(1 / runs + 1 / theirs)
        return replace(base, error=error, degrees_of_freedom=free, how="variation of seeds within folds")
    error = summary.sd * math.sqrt(1 / runs + 1 / theirs)
    return replace(
        base, error=error, degrees_of_freedom=runs - 1, how="spread between folds", error_is_upper_bound=True
    )
