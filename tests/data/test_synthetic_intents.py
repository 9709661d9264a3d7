"""Synthetic data whose queries have intents: repeatable, in shape, and with labels that differ."""

from __future__ import annotations

import numpy as np
import pytest

from fedrank.data.catalog import CATALOG, load
from fedrank.data.synthetic_intents import IDLE, OVERALL, OWN, SHARED, SHARES, synthetic_intents


def test_the_same_seed_gives_the_same_set():
    one, same, other = (synthetic_intents(20, seed=seed) for seed in (3, 3, 4))
    assert np.array_equal(one.features, same.features)
    assert np.array_equal(one.intents, same.intents)
    assert one.features.shape != other.features.shape or not np.array_equal(one.features, other.features)


def test_shape_names_and_shares():
    data = synthetic_intents()
    assert data.features.shape[1] == len(data.feature_names) == SHARED + 4 * OWN + IDLE
    assert data.features.shape[1] == CATALOG["synthetic-intents"].features
    assert data.intents.shape == (CATALOG["synthetic-intents"].intents, data.documents)
    assert data.intents.mean(axis=1) == pytest.approx(SHARES, abs=0.001)
    assert data.grades.mean() == pytest.approx(OVERALL, abs=0.001)
    union = data.intents.max(axis=0)
    assert union.mean() == pytest.approx(0.24, abs=0.02), "as in ClueWeb09"
    assert np.mean(union & data.grades) == pytest.approx(0.17, abs=0.02), "the whole is not the union, as there"


def test_every_intent_trusts_its_own_signals():
    data = synthetic_intents()
    for intent in range(4):
        relevant = data.intents[intent] > 0
        by_group = [data.features[:, SHARED + OWN * n : SHARED + OWN * (n + 1)].sum(axis=1) for n in range(4)]
        found = [np.corrcoef(group, relevant)[0, 1] for group in by_group]
        assert np.argmax(found) == intent
        assert max(found) > 0.15 > 0.05 > sorted(found)[-2]


def test_folds_keep_intents_with_their_documents():
    fold, whole = load("synthetic-intents", 2), synthetic_intents()
    assert (fold.train.queries, fold.test.queries) == (120, 40)
    for part in (fold.train, fold.validation, fold.test):
        places = part.query_ids.astype(int) - 1
        assert np.array_equal(part.intents, whole.select(places).intents)


def test_nothing_to_learn_from_is_refused():
    with pytest.raises(ValueError, match="queries must be at least 1"):
        synthetic_intents(0)
