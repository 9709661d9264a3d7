"""The features `live-1` of one query and its candidates, from words in their order.

A document is a row of stems as 31-bit hashes: title first, then body. `fedrank.data.live_features` defines every
column, and writes the columns of the client's history.
"""

from __future__ import annotations

import math

import numpy as np

from fedrank.kernels.compile import compiled
from fedrank.kernels.elementary import log, log1p

(
    BM25, BM25_TITLE, BM25_BODY, ENGINE, RANK, COVERED, COVERED_TITLE, COVERED_HEAD, ALL, ALL_TITLE, RAREST,
    RAREST_TITLE, ADJACENT, NEAR, WINDOW, FIRST, TITLE_PRECISION, LENGTH, TITLE_LENGTH, MAX_TF, BM25_EACH, LOG_TF,
    FEEDBACK, EXPANDED, LATENT, LATENT_FEEDBACK,
) = range(26)  # fmt: skip
HEAD = 50  # words at the beginning of a body
NEAR_WORDS = 8
BEST = 5  # pseudo-relevant documents
HEAVIEST = 30  # number of their terms that expand a query
EXPANSION = 0.5  # total weight of these, relative to 1 for the query's terms
NONE = np.int32(-1)


@compiled(inline=True)
def place_of(keys, key):
    """The index of a key in a hash table of 2^n slots, or of the free slot (NONE) for it."""
    mask = len(keys) - 1
    place = (np.int64(key) * 40503) & mask
    while keys[place] != NONE and keys[place] != key:
        place = (place + 1) & mask
    return place


@compiled()
def table_of(entries):
    """Return an empty hash table that stays at most half full."""
    size = 2
    while size < 2 * entries:
        size *= 2
    return np.full(size, NONE, np.int32)


@compiled(inline=True)
def rarity(frequencies, documents, key):
    """idf of a term, ln(1 + (N - n + 0.5) / (n + 0.5)); 0 if no document has it.

    Frequencies are counted in buckets of hashes, so a count may exceed the number of documents.
    """
    having = min(np.float64(frequencies[key & (len(frequencies) - 1)]), np.float64(documents))
    return log1p((documents - having + 0.5) / (having + 0.5)) if having > 0.0 else 0.0


@compiled(inline=True)
def worth(tf, length, mean_length, k1, b):
    """The saturation factor of BM25, 0 .. 1."""
    if tf == 0.0:
        return 0.0
    return tf / (tf + k1 * (1.0 - b + b * (length / mean_length if mean_length > 0.0 else 1.0)))


@compiled()
def smallest_window(places, which, count, matched, held):
    """The length of the shortest window with all matched terms; `held` [terms] is scratch."""
    held[:] = 0
    have = 0
    start = 0
    smallest = places[count - 1] - places[0] + 1
    for end in range(count):
        if held[which[end]] == 0:
            have += 1
        held[which[end]] += 1
        while have == matched:
            smallest = min(smallest, places[end] - places[start] + 1)
            held[which[start]] -= 1
            if held[which[start]] == 0:
                have -= 1
            start += 1
    return smallest


@compiled()
def neighbours(places, which, count, adjacent, near):
    """Mark pairs (j, j + 1) of the query's terms that are adjacent in that order, or near in any order."""
    for k in range(count):
        for other in range(k + 1, count):
            distance = places[other] - places[k]
            if distance > NEAR_WORDS:
                break
            step = which[other] - which[k]
            if abs(step) == 1:
                near[min(which[other], which[k])] = True
            if step == 1 and distance == 1:
                adjacent[which[k]] = True


@compiled()
def count_words(words, keys, places, counts):
    """Count distinct words of a document; clears the `places` of the previous one in `keys`. Returns their number."""
    distinct = 0
    for word in words:
        place = place_of(keys, word)
        if keys[place] == NONE:
            keys[place] = word
            places[distinct] = place
            distinct += 1
            counts[place] = 0
        counts[place] += 1
    return distinct


@compiled()
def match_features(row, asked, number, idf, total, rarest, words, title, length, mean_lengths):
    """Fill the columns on positions of the query's terms in one document; returns its unscaled BM25.

    Term number[p] of the query is in slot p of the table `asked`.
    """
    n = len(idf)
    tf, tf_title, head = np.zeros(n), np.zeros(n), np.zeros(n, np.bool_)
    places, which = np.empty(len(words), np.int64), np.empty(len(words), np.int64)
    count = 0
    in_title = 0
    for p in range(len(words)):
        at = place_of(asked, words[p])
        if asked[at] == NONE:
            continue
        j = number[at]
        tf[j] += 1.0
        if p < title:
            tf_title[j] += 1.0
            in_title += 1
        elif p < title + HEAD:
            head[j] = True
        places[count], which[count] = p, j
        count += 1
    row[LENGTH] = min(1.0, log(1.0 + length) / 11.5)
    row[TITLE_LENGTH] = min(1.0, log(1.0 + title) / 4.0)
    if n == 0 or count == 0:
        return 0.0
    bm25 = of_title = of_body = covered = covered_title = covered_head = logs = largest = 0.0
    matched = matched_title = 0
    for j in range(n):
        bm25 += idf[j] * worth(tf[j], len(words), mean_lengths[0], 0.9, 0.4)
        of_title += idf[j] * worth(tf_title[j], title, mean_lengths[1], 1.2, 0.75)
        of_body += idf[j] * worth(tf[j] - tf_title[j], len(words) - title, mean_lengths[2], 1.2, 0.75)
        logs += idf[j] * log1p(tf[j])
        largest = max(largest, tf[j])
        if tf[j] > 0.0:
            covered += idf[j]
            matched += 1
        if tf_title[j] > 0.0:
            covered_title += idf[j]
            matched_title += 1
        if head[j]:
            covered_head += idf[j]
    if total > 0.0:
        row[BM25], row[BM25_TITLE], row[BM25_BODY] = bm25 / total, of_title / total, of_body / total
        row[COVERED], row[COVERED_TITLE], row[COVERED_HEAD] = (
            covered / total,
            covered_title / total,
            covered_head / total,
        )
        row[LOG_TF] = logs / (logs + total)
    row[ALL] = 1.0 if matched == n else 0.0
    row[ALL_TITLE] = 1.0 if matched_title == n else 0.0
    row[RAREST] = 1.0 if tf[rarest] > 0.0 else 0.0
    row[RAREST_TITLE] = 1.0 if tf_title[rarest] > 0.0 else 0.0
    if n > 1:
        adjacent, near = np.zeros(n - 1, np.bool_), np.zeros(n - 1, np.bool_)
        neighbours(places, which, count, adjacent, near)
        row[ADJACENT], row[NEAR] = adjacent.sum() / (n - 1), near.sum() / (n - 1)
    window = smallest_window(places, which, count, matched, np.zeros(n, np.int64))
    row[WINDOW] = matched / window * matched / n
    row[FIRST] = 1.0 / (1.0 + places[0] / 20.0)
    row[TITLE_PRECISION] = in_title / title if title > 0 else 0.0
    row[MAX_TF] = largest / (largest + 2.0)
    row[BM25_EACH] = bm25 / n / (bm25 / n + 2.0)
    return bm25


@compiled()
def expansion(weights, own, terms, used, asked, total, extra):
    """Select the heaviest terms of the best documents except one, and divide half the query's weight among them.

    `weights` [slots, best] are unit vectors of the best documents, `own` the one to leave out (-1: none), `used` the
    slots with a term. Terms of the query are left out; in a tie, the smaller hash comes first.
    """
    chosen = np.full(HEAVIEST, -1, np.int64)
    heavy = np.zeros(HEAVIEST)
    for place in used:
        extra[place] = 0.0
        weight = 0.0
        for b in range(weights.shape[1]):
            if b != own:
                weight += weights[place, b]
        if weight <= 0.0 or weight < heavy[HEAVIEST - 1] or asked[place_of(asked, terms[place])] != NONE:
            continue
        at = HEAVIEST
        while at > 0 and (
            chosen[at - 1] < 0
            or weight > heavy[at - 1]
            or (weight == heavy[at - 1] and terms[place] < terms[chosen[at - 1]])
        ):
            at -= 1
        if at < HEAVIEST:
            for i in range(HEAVIEST - 1, at, -1):
                heavy[i], chosen[i] = heavy[i - 1], chosen[i - 1]
            heavy[at], chosen[at] = weight, place
    whole = heavy.sum()
    for i in range(HEAVIEST):
        if chosen[i] >= 0:
            extra[chosen[i]] = EXPANSION * total * heavy[i] / whole


@compiled()
def feedback_features(out, bm25, asked, total, words, offsets, frequencies, documents, mean_length):
    """Pseudo-relevance feedback: similarity to the best documents, and BM25 of the expanded query."""
    count = len(out)
    best = min(BEST, count)
    longest = 1
    for d in range(count):
        longest = max(longest, offsets[d + 1] - offsets[d])
    keys = table_of(longest)
    counts = np.zeros(len(keys), np.int64)
    places = np.empty(longest, np.int64)
    logs = np.empty(longest + 1)
    for tf in range(longest + 1):
        logs[tf] = log1p(np.float64(tf))
    terms = table_of(offsets[best] + 1)
    weights = np.zeros((len(terms), best))
    used = np.empty(offsets[best], np.int64)
    distinct_terms = 0
    for d in range(best):
        distinct = count_words(words[offsets[d] : offsets[d + 1]], keys, places, counts)
        length = 0.0
        for i in range(distinct):
            place = places[i]
            weight = logs[counts[place]] * rarity(frequencies, documents, keys[place])
            length += weight * weight
            at = place_of(terms, keys[place])
            if terms[at] == NONE:
                terms[at] = keys[place]
                used[distinct_terms] = at
                distinct_terms += 1
            weights[at, d] = weight
            keys[place] = NONE
        if length > 0.0:
            for at in used[:distinct_terms]:
                weights[at, d] /= math.sqrt(length)
    used = used[:distinct_terms]
    extra = np.zeros(len(terms))
    around = np.zeros(len(terms))  # sum of the best documents except the current one
    norm = 0.0
    for d in range(count):
        if d <= best:  # computed a last time for all that follow
            own = d if d < best else -1
            expansion(weights, own, terms, used, asked, total, extra)
            norm = 0.0
            for at in used:
                around[at] = 0.0
                for b in range(best):
                    if b != own:
                        around[at] += weights[at, b]
                norm += around[at] * around[at]
        begin, end = offsets[d], offsets[d + 1]
        distinct = count_words(words[begin:end], keys, places, counts)
        dot = length = 0.0
        more = 0.0
        for i in range(distinct):
            place = places[i]
            weight = logs[counts[place]] * rarity(frequencies, documents, keys[place])
            length += weight * weight
            at = place_of(terms, keys[place])
            if terms[at] != NONE:
                dot += weight * around[at]
                more += extra[at] * worth(np.float64(counts[place]), end - begin, mean_length, 0.9, 0.4)
            keys[place] = NONE
        out[d, FEEDBACK] = min(1.0, dot / math.sqrt(length * norm)) if dot > 0.0 else 0.0
        out[d, EXPANDED] = (bm25[d] + more) / ((1.0 + EXPANSION) * total) if total > 0.0 else 0.0


@compiled()
def cosine(a, b):
    """Cosine of two vectors, at least 0; 0 if one of them is zero."""
    dot = left = right = 0.0
    for i in range(len(a)):
        dot += np.float64(a[i]) * np.float64(b[i])
        left += np.float64(a[i]) * np.float64(a[i])
        right += np.float64(b[i]) * np.float64(b[i])
    return min(1.0, dot / math.sqrt(left * right)) if dot > 0.0 else 0.0


@compiled()
def latent_features(out, query_vector, vectors):
    """Cosines with the query's vector, and with the sum of the best other documents'."""
    best = min(BEST, len(out))
    around = np.zeros(vectors.shape[1])
    for b in range(best):
        around += vectors[b]
    for d in range(len(out)):
        out[d, LATENT] = cosine(query_vector, vectors[d])
        out[d, LATENT_FEEDBACK] = cosine(around - vectors[d] if d < best else around, vectors[d])


@compiled()
def live_features(
    out, wanted, words, offsets, titles, lengths, scores, frequencies, documents, mean_lengths, query_vector, vectors
):  # fmt: skip
    """Write columns 0 .. 25 for candidates in the engine's order.

    `wanted` are the query's distinct stems; document d is words[offsets[d] : offsets[d + 1]], of which the first
    titles[d] are its title; lengths[d] also counts words that are not stored. `vectors` has no columns if there are
    none.
    """
    out[:, : LATENT_FEEDBACK + 1] = 0.0
    idf = np.empty(len(wanted))
    asked = table_of(len(wanted) + 1)
    number = np.zeros(len(asked), np.int64)
    total = 0.0
    rarest = 0
    for j in range(len(wanted)):
        at = place_of(asked, wanted[j])
        asked[at], number[at] = wanted[j], j
        idf[j] = rarity(frequencies, documents, wanted[j])
        total += idf[j]
        if idf[j] > idf[rarest]:
            rarest = j
    bm25 = np.zeros(len(out))
    for d in range(len(out)):
        row = out[d]
        some = words[offsets[d] : offsets[d + 1]]
        bm25[d] = match_features(row, asked, number, idf, total, rarest, some, titles[d], lengths[d], mean_lengths)
        row[ENGINE] = max(scores[d], 0.0) / scores[0] if scores[0] > 0.0 else 0.0
        row[RANK] = 1.0 / (d / 10.0 + 1.0)
    if len(out) > 0:
        feedback_features(out, bm25, asked, total, words, offsets, frequencies, documents, mean_lengths[0])
    if vectors.shape[1] > 0:
        latent_features(out, query_vector, vectors)
