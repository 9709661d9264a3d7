"""How numbers are written: digits by column, signs, intervals, durations, bytes."""

from __future__ import annotations

import math

from fedrank.experiments.report.statistics import Summary

HEADINGS = {
    "online": "online nDCG@10",
    "online_sum": "discounted online sum",
    "interactions": "interactions",
    "bytes_up": "sent by clients",
    "bytes_down": "sent to clients",
    "seconds": "time",
    "cpu_seconds": "processor time",
}


def heading(column: str) -> str:
    return HEADINGS.get(column, column)


def number(column: str, value: float) -> str:
    """A value with the digits that its column deserves."""
    if math.isnan(value):
        return "-"
    return _without_zero_sign(f"{value:,.2f}" if column == "online_sum" else f"{value:.4f}")


def signed(column: str, value: float) -> str:
    """A difference with its sign, where what is shown of it has one.

    >>> signed("map", -0.00001), signed("map", 0.25)
    ('0.0000', '+0.2500')
    """
    shown = number(column, value)
    return f"+{shown}" if value > 0 and shown.strip("0.") else shown


def interval(column: str, low: float, high: float) -> str:
    """The confidence interval of a difference; a dash where there is none."""
    return "-" if math.isnan(low) else f"{signed(column, low)} to {signed(column, high)}"


def mean_interval(column: str, summary: Summary) -> str:
    """The confidence interval of a mean; a dash where there is none."""
    return "-" if math.isnan(summary.low) else f"{number(column, summary.low)} to {number(column, summary.high)}"


def effect_size(value: float, digits: int = 2) -> str:
    """Cohen's d, with its sign."""
    return "-" if math.isnan(value) else _without_zero_sign(f"{value:+.{digits}f}")


def _without_zero_sign(shown: str) -> str:
    """A number as it is shown; what rounds to zero has no sign."""
    return shown if shown.strip("+-0.,") else shown.lstrip("+-")


def spread(column: str, summary: Summary) -> str:
    if math.isnan(summary.sd):
        return number(column, summary.mean)
    return f"{number(column, summary.mean)} ± {number(column, summary.sd)}"


def duration(seconds: float) -> str:
    """Seconds for people: 0.4 s, 12 s, 3 min 05 s, 2 h 07 min.

    >>> duration(185)
    '3 min 05 s'
    """
    if math.isnan(seconds):
        return "-"
    if seconds < 59.5:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def probability(p: float) -> str:
    if math.isnan(p):
        return "-"
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def amount(name: str, value: float) -> str:
    """Bytes, seconds and counts for people.

    >>> amount("bytes_up", 73_600.0)
    '73.6 kB'
    """
    if math.isnan(value):
        return "-"
    if name.endswith("seconds"):
        return duration(value)
    if not name.startswith("bytes"):
        return f"{value:,.0f}"
    for unit in ("B", "kB", "MB", "GB"):
        if value < 999.5:
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:,.1f} TB"
