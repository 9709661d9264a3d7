"""Pairwise Differentiable Gradient Descent (Oosterhuis and de Rijke, CIKM 2018): learning from a list and its clicks.

`learn` uses any list with clicks; `pdgd_clients` lets simulated clients search, click and learn in one loop.
"""

from __future__ import annotations

import math

import numpy as np

from fedrank.kernels.chance import stream, uniform
from fedrank.kernels.compile import compiled
from fedrank.kernels.elementary import discounts, exp, log, log1p
from fedrank.kernels.rankers import add_gradients, add_scaled, copy_as_float32
from fedrank.kernels.records import (
    Candidates,
    ClickModelArrays,
    ClientArrays,
    ClientLabels,
    Corrections,
    Display,
    Draws,
    Page,
    Race,
    Steps,
)
from fedrank.kernels.show import (
    FAR_APART,
    SHOWN,
    best_of,
    click_what_has_a_grade,
    rates,
    read_and_click,
    show,
    shown_ndcg,
)


@compiled()
def log_add(a, b):
    high = max(a, b)
    if high == -np.inf:
        return high
    return high + log1p(exp(min(a, b) - high))


@compiled(inline=True)
def considered_positions(clicked, size):
    """The number of positions up to the one after the last click; 0 without clicks."""
    for i in range(size - 1, -1, -1):
        if clicked[i]:
            return min(i + 2, size)
    return 0


@compiled(inline=True)
def pair_weights(page, spread, count, size, considered, display, scales):
    """scales[i] = sum over the pairs of position i of +-(rho x slope): the weight of its score's gradient.

    With Z_i = sum of e^score over documents not shown before position i, swapping positions a < b changes the list's
    probability by the product over i = a+1 .. b of Z_i / (Z_i + e_a - e_b). Z_i and Z_i - e_b are accumulated from the
    end as sums of positive terms, since subtraction would cancel when scores are far apart.

    If the best document stays first with some probability, lists that begin with it are more likely by a factor; a
    pair whose swap is impossible has weight 0.
    """
    exps, shown, clicked = page.rates, page.shown, page.clicked
    for i in range(size):
        scales[i] = 0.0
    if not spread < FAR_APART:  # also if scores are NaN
        pair_weights_in_logarithms(page, count, size, considered, display, page.scores, display.temperature, scales)
        return
    top = np.empty(size)  # e^score by position
    tail = np.empty(size + 1)  # Z by position
    for i in range(size):
        top[i] = exps[shown[i]]
        exps[shown[i]] = 0.0
    rest = 0.0
    for d in range(count):
        rest += exps[d]
    for i in range(size):
        exps[shown[i]] = top[i]
    tail[size] = rest
    for i in range(size - 1, -1, -1):
        tail[i] = tail[i + 1] + top[i]
    best = -1
    kept = 1.0  # likelihood ratio of a list that begins with the best document
    if display.keep > 0.0:
        best = best_of(page.scores, count)
        kept = display.keep * tail[0] / exps[best] + (1.0 - display.keep)
    without = np.empty(size)  # Z_i - e_b for i = a+1 .. b
    for b in range(1, considered):
        without[b] = tail[b + 1]
        for i in range(b - 1, 0, -1):
            without[i] = without[i + 1] + top[i]
        for a in range(b):
            if clicked[a] == clicked[b]:
                continue
            inverse = 1.0  # P(list) / P(swapped list)
            for i in range(a + 1, b + 1):
                inverse *= (without[i] + top[a]) / tail[i]
            if best >= 0 and a == 0:
                if shown[0] == best:
                    inverse = inverse * kept / (1.0 - display.keep) if display.keep < 1.0 else np.inf
                elif shown[b] == best:
                    inverse *= (1.0 - display.keep) / kept
            odds = min(top[a], top[b]) / max(top[a], top[b])
            weight = odds / ((1.0 + odds) * (1.0 + odds)) / (1.0 + inverse)
            sign = 1.0 if clicked[a] else -1.0
            scales[a] += sign * weight
            scales[b] -= sign * weight


@compiled()
def pair_weights_in_logarithms(page, count, size, considered, display, now, warmth, scales):
    """Like `pair_weights` with every sum as a logarithm: slower, and safe for all scores.

    `page` and `display` define how the list was sampled. A pair's slope uses the scores `now`, divided by `warmth`,
    which differ if another model sampled it.
    """
    scores, shown, clicked, temperature = page.scores, page.shown, page.clicked, display.temperature
    is_shown = np.zeros(count, dtype=np.bool_)
    for i in range(size):
        is_shown[shown[i]] = True
    rest = -np.inf
    for d in range(count):
        if not is_shown[d]:
            rest = log_add(rest, np.float64(scores[d]) / temperature)
    tail = np.empty(size + 1)
    tail[size] = rest
    for i in range(size - 1, -1, -1):
        tail[i] = log_add(tail[i + 1], np.float64(scores[shown[i]]) / temperature)
    best = -1
    log_kept = 0.0
    if display.keep > 0.0:
        best = best_of(scores, count)
        log_kept = tail[0] - np.float64(scores[best]) / temperature
        if display.keep < 1.0:
            log_kept = log_add(log(display.keep) + log_kept, log1p(-display.keep))
    without = np.empty(size)
    for b in range(1, considered):
        without[b] = tail[b + 1]
        for i in range(b - 1, 0, -1):
            without[i] = log_add(without[i + 1], np.float64(scores[shown[i]]) / temperature)
        for a in range(b):
            if clicked[a] == clicked[b]:
                continue
            score_a = np.float64(scores[shown[a]]) / temperature
            log_inverse = 0.0
            for i in range(a + 1, b + 1):
                log_inverse += log_add(without[i], score_a) - tail[i]
            if best >= 0 and a == 0:
                if shown[0] == best:
                    log_inverse = log_inverse + log_kept - log1p(-display.keep) if display.keep < 1.0 else np.inf
                elif shown[b] == best:
                    log_inverse += log1p(-display.keep) - log_kept
            odds = exp(-abs(np.float64(now[shown[a]]) / warmth - np.float64(now[shown[b]]) / warmth))
            rho = 1.0 / (1.0 + exp(log_inverse)) if log_inverse < 700.0 else 0.0
            weight = odds / ((1.0 + odds) * (1.0 + odds)) * rho
            sign = 1.0 if clicked[a] else -1.0
            scales[a] += sign * weight
            scales[b] -= sign * weight


@compiled()
def pull_back(master, start, shared, strength):
    """FedProx: move the first `shared` parameters back towards the client's start."""
    for p in range(shared):
        master[p] -= strength * (master[p] - start[p])


@compiled()
def norm(vector):
    total = 0.0
    for i in range(len(vector)):
        total += vector[i] * vector[i]
    return math.sqrt(total)


@compiled()
def shorten(vector, longest):
    """Clip a vector to the norm `longest`."""
    length = norm(vector)
    if length > longest:
        for i in range(len(vector)):
            vector[i] *= longest / length


@compiled()
def add_clipped_gradients(master, weights, hidden, features, rows, scales, count, rate, longest, own):
    """master += rate x gradient of one interaction, clipped to the norm `longest`. `own` is scratch.

    A gradient that is NaN adds nothing, since no bound holds for it.
    """
    own[:] = 0.0
    add_gradients(own, weights, hidden, features, rows, scales, count)
    shorten(own, longest)
    if norm(own) < np.inf:
        add_scaled(master, rate, own)


@compiled(inline=True)
def add_pairs(master, weights, hidden, features, begin, page, considered, display, steps, scales, rows, own):
    """Add the gradient with the pair weights `scales` to `master`."""
    clipped = steps.clip_gradients > 0.0  # applies to the gradient before it is multiplied by the rate
    factor = (1.0 if clipped else steps.rate) / display.temperature
    for i in range(considered):
        rows[i] = begin + page.shown[i]
        scales[i] *= factor
    if not clipped:
        add_gradients(master, weights, hidden, features, rows, scales, considered)
    else:
        add_clipped_gradients(
            master, weights, hidden, features, rows, scales, considered, steps.rate, steps.clip_gradients, own
        )


@compiled(inline=True)
def learn(master, weights, hidden, features, begin, count, page, spread, size, display, steps, scales, rows, own):
    """Add the gradient of one list and its clicks to `master`; returns whether there was a pair to learn from.

    The query's documents are features[begin : begin + count]. `page` is from the time when the list was shown;
    gradients are taken at `weights`. The last three are scratch.
    """
    considered = considered_positions(page.clicked, size)
    if considered < 2:
        return False  # no click, or no unclicked document to compare with
    pair_weights(page, spread, count, size, considered, display, scales)
    add_pairs(master, weights, hidden, features, begin, page, considered, display, steps, scales, rows, own)
    return True


@compiled()
def learn_impression(master, weights, hidden, features, scores, shown, clicked, how_shown, how_stepped, own):
    """`learn` from an external list: `scores` [candidates] are those it was sampled from."""
    display, steps = Display(*how_shown), Steps(*how_stepped)
    count, size = len(scores), len(shown)
    page = Page(scores, np.empty(count), shown, clicked)
    spread = rates(scores, count, display.temperature, np.empty(count), page.rates)
    return learn(
        master, weights, hidden, features, 0, count, page, spread, size, display, steps, np.empty(size),
        np.empty(size, np.int64), own,
    )  # fmt: skip


@compiled()
def learn_drawn(master, weights, hidden, features, begin, count, page, drawn, display, steps, scales, rows, own):
    """`learn` from a complete list of a log with known sampling: `drawn` are its `Draws`, of this list.

    Pairs are weighted by the probabilities of the list and its swapped form then, and by their slope now.
    """
    considered = considered_positions(page.clicked, count)
    if considered < 2:
        return False
    for i in range(count):
        scales[i] = 0.0
    then = Page(drawn.scores, page.rates, page.shown, page.clicked)
    how = Display(True, drawn.temperature, drawn.keep)
    pair_weights_in_logarithms(then, count, count, considered, how, page.scores, display.temperature, scales)
    add_pairs(master, weights, hidden, features, begin, page, considered, display, steps, scales, rows, own)
    return True


@compiled()
def learn_drawn_impression(
    master, weights, hidden, features, scores, shown, clicked, draws, how_shown, how_stepped, own
):
    """`learn_drawn` for a single list; `scores` are those of the current model."""
    count = len(scores)
    page = Page(scores, np.empty(count), shown, clicked)
    return learn_drawn(
        master, weights, hidden, features, 0, count, page, Draws(*draws), Display(*how_shown), Steps(*how_stepped),
        np.empty(count), np.empty(count, np.int64), own,
    )  # fmt: skip


@compiled()
def pdgd_clients(
    starts, key, how_stepped, how_shown, how_bent, hidden, documents, longest, client_arrays, views, people, draws,
    first, last, updates, online,
):  # fmt: skip
    """Clients first .. last - 1 search, click and learn; fills their rows of `updates`, `online` and personal weights.

    `starts` [1 or clients, parameters] float32; the tuples are those of `records`, without names. Corrections of a step
    also apply if no pair was found. For a client that takes its queries in order, random draws are keyed by the index
    of the query, independently of batches.
    """
    steps, display, corrections, table = (
        Steps(*how_stepped),
        Display(*how_shown),
        Corrections(*how_bent),
        Candidates(*documents),
    )
    held, seen, clicking, known = (
        ClientArrays(*client_arrays),
        ClientLabels(*views),
        ClickModelArrays(*people),
        Draws(*draws),
    )
    parameters = starts.shape[1]
    shared = parameters - corrections.personal.shape[1] if len(corrections.personal) > 0 else parameters
    # A step without a gradient still applies corrections and clips: an unclipped model would reveal a lack of clicks.
    bent = corrections.pull != 0.0 or len(corrections.drifts) > 0 or steps.clip_weights > 0.0
    weights = np.empty(parameters, dtype=np.float32)  # for computing scores
    master = np.empty(parameters)  # the same in double precision, so small steps are not lost
    most = longest if display.logged else SHOWN
    page = Page(
        np.empty(longest, dtype=np.float32),
        np.empty(longest),
        np.empty(most, dtype=np.int64),
        np.empty(most, dtype=np.bool_),
    )
    race = Race(
        np.empty(longest),
        np.empty(longest),
        np.empty(longest),
        np.empty(longest, dtype=np.int64),
        np.empty(longest, dtype=np.int64),
    )
    rows = np.empty(most, dtype=np.int64)
    scales = np.empty(most)
    gradient = np.empty(parameters if steps.clip_gradients > 0.0 else 0)
    discount = discounts(SHOWN)

    for c in range(first, last):
        start = starts[c if len(starts) > 1 else 0]
        for p in range(parameters):
            weights[p] = start[p]
            master[p] = start[p]
        for p in range(shared, parameters):
            weights[p] = corrections.personal[c, p - shared]
            master[p] = corrections.personal[c, p - shared]
        client = stream(key, held.ids[c])
        pool_start = held.pools[held.pool[c]]
        pool_size = held.pools[held.pool[c] + 1] - pool_start
        grades = seen.grades[seen.views[c]]
        quality = 0.0
        for interaction in range(held.interactions[c]):
            place = held.at[c] + interaction if len(held.at) > 0 else interaction
            chance = stream(client, place)
            query = held.queries[pool_start + (place if len(held.at) > 0 else np.int64(uniform(chance, 0) * pool_size))]
            begin, count = table.offsets[query], table.offsets[query + 1] - table.offsets[query]
            own = grades[begin : begin + count]

            size, spread = show(weights, hidden, table, query, display, chance, page, race)
            if display.logged:
                click_what_has_a_grade(own, count, page.clicked)
            else:
                who = (
                    clicking.click_model[c]
                    if clicking.click_model[c] >= 0
                    else np.int64(uniform(chance, 1) * len(clicking.click))
                )
                read_and_click(
                    own, page.shown, size, clicking.click[who], clicking.stop[who], clicking.attention[who], chance,
                    page.clicked,
                )  # fmt: skip
            quality += shown_ndcg(own, page.shown, size, seen.ideal[seen.views[c], query], discount)
            if corrections.pull != 0.0:  # before the gradient step, since both are taken at the same weights
                pull_back(master, start, shared, corrections.pull)
            if len(corrections.drifts) > 0:
                add_scaled(master, steps.rate, corrections.drifts[c])
            if len(known.scores) > 0:
                own_draw = Draws(known.scores[begin : begin + count], known.temperature, known.keep)
                moved = learn_drawn(
                    master, weights, hidden, table.features, begin, count, page, own_draw, display, steps, scales,
                    rows, gradient,
                )  # fmt: skip
            else:
                moved = learn(
                    master, weights, hidden, table.features, begin, count, page, spread, size, display, steps, scales,
                    rows, gradient,
                )  # fmt: skip
            if (moved or bent) and not steps.batch:
                if steps.clip_weights > 0.0:
                    shorten(master, steps.clip_weights)
                copy_as_float32(master, weights)
        if steps.clip_weights > 0.0 and steps.batch and held.interactions[c] > 0:
            shorten(master, steps.clip_weights)
        online[c] = quality / held.interactions[c] if held.interactions[c] > 0 else 0.0
        for p in range(shared):
            updates[c, p] = master[p] - start[p]
        for p in range(shared, parameters):
            updates[c, p] = 0.0
            corrections.personal[c, p - shared] = master[p]
