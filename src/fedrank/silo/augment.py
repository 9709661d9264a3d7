"""Documents of partners for the queries of a silo, with their features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedrank.silo.features import BM25_OF, FEATURE_NAMES, FIELDS, Background, Real, features
from fedrank.silo.partners import Partner
from fedrank.silo.silos import Silo
from fedrank.types import Features


@dataclass(frozen=True)
class Matches:
    """Documents of partners for one query."""

    features: Features  # [documents, 16]
    partners: NDArray[np.int64]  # [documents]: which of them holds it
    answers: int = 0  # pairs of document and count that partners sent for it


def backgrounds(silo: Silo, partners: Sequence[Partner], terms: Sequence[str]) -> dict[str, Background]:
    """Statistics of all documents, by field: exact for own documents, as reported for those of partners."""
    own = {name: silo.fields[name].background(terms) for name in FIELDS}
    if not partners:
        return own
    answered = [partner.frequencies(terms) for partner in partners]
    return {
        name: Background(
            own[name].documents + sum(partner.documents for partner in partners),
            own[name].words + sum(partner.words[name] for partner in partners),
            own[name].frequencies + _estimate([each[name] for each in answered], partners[0].kind),
        )
        for name in FIELDS
    }


def _estimate(rows: Sequence[Real], kind: str) -> Real:
    """[terms]: from rows of several sketches, which are summed first."""
    total = sum(rows[1:], rows[0])
    found: Real = total.min(axis=-1) if kind == "count-min" else np.median(total, axis=-1)
    return found


def matches(
    partners: Sequence[Partner], terms: Sequence[str], about: Mapping[str, Background], most: int
) -> Matches:  # fmt: skip
    """The best documents of partners for a query, at most `most`, by BM25 of body and title.

    A document that a term did not find counts as not holding it.
    """
    parts: list[Features] = [np.empty((0, len(FEATURE_NAMES)), np.float32)]
    whose, answers = [np.empty(0, np.int64)], 0
    for number, partner in enumerate(partners):
        answered = partner.counts(terms)
        parts.append(features(answered.counts, answered.lengths, about))
        whose.append(np.full(len(answered.documents), number))
        answers += answered.answers
    rows = np.concatenate(parts)
    scores = bm25(rows)
    best = np.argsort(-scores, kind="stable")[:most]
    best = best[scores[best] > 0]
    return Matches(rows[best], np.concatenate(whose)[best], answers)


def bm25(rows: Features) -> Features:
    """[documents]: of body and title together, from features that were not scaled."""
    scores: Features = rows[:, list(BM25_OF.values())].sum(axis=1)
    return scores
