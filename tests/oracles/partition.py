"""Slow, obvious versions of label skew, shuffled intents and the overlap of clients."""

from __future__ import annotations

from itertools import combinations, pairwise


def labels_overlapping(grades, offsets, levels, each, count):
    """What each client holds if owners of a grade hold all of it: lists of (query, [rows])."""
    choices = list(combinations(range(levels), each))
    held = []
    for client in range(count):
        wanted = choices[client % len(choices)]
        mine = []
        for query in range(len(offsets) - 1):
            rows = [row for row in range(offsets[query], offsets[query + 1]) if grades[row] in wanted]
            if rows:
                mine.append((query, rows))
        held.append(mine)
    return held


def is_shuffle_of_intents(views, judged, offsets):
    """Whether, query by query, the views are the judged intents in some order."""
    for begin, end in pairwise(offsets):
        seen = sorted(tuple(view[begin:end]) for view in views.tolist())
        if seen != sorted(tuple(intent[begin:end]) for intent in judged.tolist()):
            return False
    return True


def main_grade(grades):
    """The most frequent positive grade of a query, of equally frequent ones the highest; 0 if there is none."""
    best, most = 0, 0
    for grade in range(1, max(grades, default=0) + 1):
        often = sum(1 for one in grades if one == grade)
        if often and often >= most:
            best, most = grade, often
    return best


def total_variation(some, others):
    """Half the summed difference of the shares of each grade, from two lists of grades."""
    every = set(some) | set(others)
    return sum(abs(some.count(g) / len(some) - others.count(g) / len(others)) for g in every) / 2
