"""What each person contributes to a decision before a trial, list by list."""

from __future__ import annotations

import math


def person_values(shown, who, scores, against, slope, extra, most):
    """Person -> estimated clicks per list by scores minus those by against, in [-1, 1]."""
    by_search: dict[int, list[int]] = {}
    for row, search in enumerate(shown.search):
        by_search.setdefault(int(search), []).append(row)
    found: dict[int, list[float]] = {}
    for search, rows in by_search.items():
        at = sorted(int(shown.position[row]) for row in rows)
        new, old = (
            dict(zip(sorted(rows, key=lambda row: (-by[row], shown.position[row])), at, strict=True))
            for by in (scores, against)
        )
        total = 0.0
        for row in rows:
            k = int(shown.position[row])
            if k < len(slope):
                there, before = (slope[one] if one < len(slope) else 0.0 for one in (new[row], old[row]))
                ratio = max(-most, min(most, (there - before) / slope[k]))
                total += ratio * (int(shown.clicked[row]) - extra[k])
            total += sum(sign * extra[one] for sign, one in ((1, new[row]), (-1, old[row])) if one < len(extra))
        found.setdefault(int(who[search]), []).append(total)
    return {person: max(-1.0, min(1.0, sum(each) / len(each))) for person, each in found.items()}


def interval(values, sigma, scale, z):
    """Mean over people with its bounds; noise on the sum, the count and the squares is part of them."""
    count = len(values)
    mean = sum(values) / count
    squares = sum(value * value for value in values) + z * sigma / scale
    spread = min(1.0, squares / count) - mean * mean
    error = z * math.sqrt(spread / (count - 1) + (sigma / count) ** 2 * (1 + (mean / scale) ** 2))
    return mean, mean - error, mean + error
