"""Golden curves: short runs whose values change only on purpose.

After a deliberate change: `python tests/test_golden.py` writes them anew.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import fedrank as fr
from fedrank.rank.learners import LEARNERS

FILE = Path(__file__).parent / "golden" / "curves.json"
CASES = {
    "pdgd": (lambda: fr.Pdgd(), 5),
    "pdgd-batch": (lambda: fr.Pdgd(batch=True), 5),
    "pdgd-mlp": (lambda: fr.Pdgd(ranker=fr.Mlp(hidden=8)), 5),
    "lambdarank": (lambda: fr.LambdaRank(), 5),
    "evolution": (lambda: LEARNERS["evolution"](), 4),
}


def curve(name: str) -> list[float]:
    """Online quality of rounds 1 .. 12, then the length of the last model and its offline nDCG@10."""
    make, interactions = CASES[name]
    learner = make()
    fold = fr.load("synthetic-mq2007")
    clients = fr.make_clients(fold.train, 4, user="navigational", interactions=interactions)
    outcomes = list(fr.simulate(fr.Federation(learner=learner), clients, 12, seed=1))
    quality = fr.Evaluator(fold.test, ["ndcg@10"])(outcomes[-1].weights, learner.ranker)[0]
    return [*(one.online for one in outcomes), float(np.linalg.norm(outcomes[-1].weights)), float(quality)]


@pytest.mark.parametrize("name", sorted(CASES))
def test_curves_are_as_they_were(name):
    # Processors differ in the last bits; a click that falls otherwise would be far outside this.
    assert curve(name) == pytest.approx(json.loads(FILE.read_text())[name], rel=1e-3, nan_ok=True)


def test_every_learner_has_a_curve():
    assert {name.split("-")[0] for name in CASES} == set(LEARNERS)


if __name__ == "__main__":
    FILE.write_text(json.dumps({name: curve(name) for name in CASES}, indent=1) + "\n")
