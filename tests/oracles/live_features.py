"""The features live-1 in plain Python, from words: dictionaries and loops, no hashes, no compiled code.

Documents are (title words, body words), lists of stems; `world` are all documents of the client.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter


def idf(world, term):
    having = sum(term in title or term in body for title, body in world)
    return math.log(1 + (len(world) - having + 0.5) / (having + 0.5)) if having else 0.0


def mean(values):
    values = list(values)
    return sum(values) / len(values) if values else 0.0


def share(tf, length, mean_length, k1, b):
    return tf / (tf + k1 * (1 - b + b * (length / mean_length if mean_length else 1))) if tf else 0.0


def bm25(weights, words, mean_length, k1, b):
    """Sum over terms with weights."""
    return sum(w * share(words.count(term), len(words), mean_length, k1, b) for term, w in weights.items())


def vector(world, words):
    weights = {term: math.log(1 + tf) * idf(world, term) for term, tf in Counter(words).items()}
    length = math.sqrt(sum(w * w for w in weights.values()))
    return {term: w / length for term, w in weights.items()} if length else weights


def cosine(a, b):
    dot = sum(a[key] * b.get(key, 0.0) for key in a)
    lengths = math.sqrt(sum(w * w for w in a.values()) * sum(w * w for w in b.values()))
    return max(dot, 0.0) / lengths if lengths else 0.0


def total(vectors):
    summed = Counter()
    for one in vectors:
        for term, weight in one.items():
            summed[term] += weight
    return dict(summed)


def window(words, terms):
    """Length of the shortest stretch with all terms, by trying all of them."""
    return min(
        end - start
        for start in range(len(words))
        for end in range(start + 1, len(words) + 1)
        if terms <= set(words[start:end])
    )


def features(query, candidates, scores, world, order=lambda term: term, query_vector=None, vectors=None):
    """[candidates, 26]; `order` decides between expansion terms of the same weight."""
    asked = list(dict.fromkeys(query))[:32]
    rare = {term: idf(world, term) for term in asked}
    whole = sum(rare.values())
    rarest = max(asked, key=lambda term: rare[term], default=None)
    means = mean(len(t) + len(b) for t, b in world), mean(len(t) for t, b in world), mean(len(b) for t, b in world)
    unit = [vector(world, title + body) for title, body in candidates]
    rows = []
    for place, (title, body) in enumerate(candidates):
        words = title + body
        there, in_title = {t for t in asked if t in words}, {t for t in asked if t in title}

        def part(value):
            return value / whole if whole else 0.0

        own = bm25(rare, words, means[0], 0.9, 0.4)
        pairs = list(itertools.pairwise(asked))
        adjacent = [pair for pair in pairs if pair in list(itertools.pairwise(words))]
        near = [
            (a, b)
            for a, b in pairs
            if any(
                abs(i - j) <= 8
                for i, one in enumerate(words)
                if one == a
                for j, other in enumerate(words)
                if other == b
            )
        ]
        largest = max((words.count(term) for term in asked), default=0)
        logs = part(sum(rare[term] * math.log(1 + words.count(term)) for term in asked))
        each = own / len(asked) if asked else 0.0
        best = [unit[b] for b in range(min(5, len(candidates))) if b != place]
        around = total(best)
        heavy = [(term, weight) for term, weight in around.items() if term not in asked and weight > 0]
        heavy = sorted(heavy, key=lambda pair: (-pair[1], order(pair[0])))[:30]
        heavy_weight = sum(weight for _, weight in heavy)
        extra = {term: 0.5 * whole * weight / heavy_weight for term, weight in heavy}
        rows.append(
            [
                part(own),
                part(bm25(rare, title, means[1], 1.2, 0.75)),
                part(bm25(rare, body, means[2], 1.2, 0.75)),
                max(scores[place], 0.0) / scores[0] if scores[0] > 0 else 0.0,
                1 / (place / 10 + 1),
                part(sum(rare[term] for term in there)),
                part(sum(rare[term] for term in in_title)),
                part(sum(rare[term] for term in asked if term in body[:50])),
                float(bool(asked) and len(there) == len(asked)),
                float(bool(asked) and len(in_title) == len(asked)),
                float(rarest in words),
                float(rarest in title),
                len(adjacent) / len(pairs) if pairs else 0.0,
                len(near) / len(pairs) if pairs else 0.0,
                len(there) / window(words, there) * len(there) / len(asked) if there else 0.0,
                1 / (1 + min(words.index(term) for term in there) / 20) if there else 0.0,
                sum(word in asked for word in title) / len(title) if title else 0.0,
                min(1.0, math.log(1 + len(words)) / 11.5),
                min(1.0, math.log(1 + len(title)) / 4),
                largest / (largest + 2),
                each / (each + 2),
                logs / (logs + 1),
                cosine(around, unit[place]),
                (own + bm25(extra, words, means[0], 0.9, 0.4)) / (1.5 * whole) if whole else 0.0,
                0.0 if vectors is None else cosine(_numbered(query_vector), _numbered(vectors[place])),
                0.0
                if vectors is None
                else cosine(
                    total(_numbered(vectors[b]) for b in range(min(5, len(candidates))) if b != place),
                    _numbered(vectors[place]),
                ),
            ]
        )
    return rows


def _numbered(values):
    return dict(enumerate(map(float, values)))
