"""Result lists and clicks of simulated users: lists sampled from scores, or sorted by them.

Numbers of draws within an interaction's stream: 0 query, 1 user, 2 .. 21 clicks and stops, 22 + d document d, and far
after them whether the best document stays first.
"""

from __future__ import annotations

import numpy as np

from fedrank.kernels.chance import uniform
from fedrank.kernels.compile import compiled
from fedrank.kernels.elementary import exponentials, log, logarithms
from fedrank.kernels.measures import LOWEST, as_integers, keys_above, lower_bounds, position_of, sort_keys
from fedrank.kernels.rankers import score

SHOWN = 10
FIRST_CLICK_DRAW = 2
FIRST_DOCUMENT_DRAW = 22
KEEP_DRAW = 1 << 40
FAR_APART = 500.0  # above this spread of scores, e^(score - highest) nears underflow, and logarithms are used


@compiled(inline=True)
def rates(scores, count, temperature, scratch, out):
    """out[d] = e^((score - highest score) / temperature); returns the spread of the scores, in temperatures."""
    highest = scores[0]
    lowest = scores[0]
    for d in range(1, count):
        highest = max(highest, scores[d])
        lowest = min(lowest, scores[d])
    for d in range(count):
        scratch[d] = (np.float64(scores[d]) - np.float64(highest)) / temperature
    exponentials(scratch, count, out)
    return (np.float64(highest) - np.float64(lowest)) / temperature


@compiled()
def insert(keys, shown, filled, key, document):
    """Insert into the ascending list of the len(keys) smallest; returns its new length."""
    at = filled if filled < len(keys) else len(keys) - 1
    while at > 0 and keys[at - 1] > key:
        keys[at] = keys[at - 1]
        shown[at] = shown[at - 1]
        at -= 1
    keys[at] = key
    shown[at] = document
    return min(filled + 1, len(keys))


@compiled()
def best_of(scores, count):
    """The best document; the first in a tie."""
    best = 0
    for d in range(1, count):
        if scores[d] > scores[best]:
            best = d
    return best


@compiled(inline=True)
def can_arrive(draws, exps, count, deadline):
    """The number of documents that can arrive before a deadline: the time -log(u) / rate is at least (1 - u) / rate."""
    some = np.int64(0)
    for d in range(count):
        some += 1.0 - draws[d] < deadline * exps[d]
    return some


@compiled(inline=True)
def plackett_luce(page, spread, count, temperature, first, stream, race):
    """Draw the top of a Plackett-Luce ranking: documents race, and arrive at exponential times of rate e^score.

    Exact: equivalent to sorting scores with Gumbel noise. Only documents that can arrive before a deadline need their
    time, -log(u) / rate; since that is at least (1 - u) / rate, one multiplication excludes the others. The deadline
    moves until enough have arrived. The document `first`, if any, arrives before all others. Returns the length of the
    list, with the documents in page.shown.
    """
    scores, exps, shown = page.scores, page.rates, page.shown
    draws, times, early, ranks = race.draws, race.times, race.early, race.ranks
    size = min(SHOWN, count)
    for d in range(count):
        draws[d] = uniform(stream, FIRST_DOCUMENT_DRAW + d)
    total = 0.0
    for d in range(count):
        total += exps[d]
    if not spread < FAR_APART or not total > 0.0:  # far apart, or NaN
        filled = 0
        for d in range(count):
            log_time = log(-log(draws[d])) - scores[d] / temperature if d != first else -np.inf
            if filled < size or log_time < times[size - 1]:
                filled = insert(times[:size], shown, filled, log_time, d)
        return size

    if first >= 0:
        draws[first] = 1.0  # it arrives before any deadline
    deadline = 1.8 * SHOWN / total  # with equal rates, about 1.8 times as many as needed arrive by then
    while True:
        while can_arrive(draws, exps, count, deadline) < size:  # takes several iterations if scores are far apart
            deadline *= 2.5
        candidates = 0
        for d in range(count):
            early[candidates] = d
            candidates += 1.0 - draws[d] < deadline * exps[d]
        for i in range(candidates):
            race.chosen[i] = draws[early[i]]
        logarithms(race.chosen, candidates, times)
        arrived = 0
        for i in range(candidates):
            times[i] = -times[i] / exps[early[i]]
            arrived += times[i] < deadline
        if arrived >= size or candidates == count:
            break
        deadline *= 2.5
    for i in range(candidates):  # a candidate's rank is the number of earlier ones
        rank = np.int64(0)
        for j in range(i):
            before = np.int64(times[j] <= times[i])
            rank += before
            ranks[j] += 1 - before
        ranks[i] = rank
    for i in range(candidates):
        if ranks[i] < size:
            shown[ranks[i]] = early[i]
    return size


@compiled(inline=True)
def show(weights, hidden, table, query, display, stream, page, race):
    """Score the documents of a query and draw a list; returns (its length, the spread of the scores).

    The list is in page.shown. With display.logged it is all documents in their order.
    """
    begin = table.offsets[query]
    count = table.offsets[query + 1] - begin
    score(weights, hidden, table.features, begin, begin + count, page.scores)
    spread = rates(page.scores, count, display.temperature, race.chosen, page.rates)
    if display.logged:
        for d in range(count):
            page.shown[d] = d
        return count, spread
    first = np.int64(-1)
    if display.keep > 0.0 and uniform(stream, KEEP_DRAW) < display.keep:
        first = best_of(page.scores, count)
    return plackett_luce(page, spread, count, display.temperature, first, stream, race), spread


@compiled()
def best_first(bits, count, order, best, bounds, keys, ordered, shown):
    """The first 10 of `count` documents by score, ties as in evaluation.

    `bits` [longest, 1] are those of float32 scores. Returns the list's length with the documents in `shown`, or -1 if a
    score is NaN. The rest is scratch.
    """
    if as_integers(bits[:count].reshape(count), order[:count].reshape(count)) > 0:
        return -1
    size = min(SHOWN, count)
    bounds[0] = LOWEST
    if size < count:
        lower_bounds(order, 0, count, size, best, bounds)
    candidates = keys_above(order, 0, count, 0, bounds[0], keys)
    sort_keys(keys, candidates, ordered)
    for i in range(size):
        shown[i] = position_of(ordered[i], count)
    return size


@compiled(inline=True)
def read_and_click(grades, shown, count, click, stop, attention, stream, clicked):
    """Read `count` shown documents from the top, and mark clicks.

    Draws FIRST_CLICK_DRAW + 2i and the one after it decide position i.
    """
    left = False
    for i in range(count):
        clicked[i] = False
        if left:
            continue
        grade = grades[shown[i]]
        if uniform(stream, FIRST_CLICK_DRAW + 2 * i) < click[grade] * attention[i]:
            clicked[i] = True
            left = uniform(stream, FIRST_CLICK_DRAW + 2 * i + 1) < stop[grade]


@compiled()
def click_what_has_a_grade(grades, count, clicked):
    """The clicks of a search log: documents with a label above 0 were clicked."""
    for d in range(count):
        clicked[d] = grades[d] > 0


@compiled(inline=True)
def shown_ndcg(grades, shown, size, ideal, discount):
    """nDCG@10 of a shown list; 0 for a query without a relevant document."""
    if ideal == 0.0:
        return 0.0
    gain = 0.0
    for i in range(min(size, SHOWN)):
        gain += (2.0 ** grades[shown[i]] - 1.0) * discount[i]
    return gain / ideal
