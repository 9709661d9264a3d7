"""Golden curves and digests: results that are equal on every processor, and change only on purpose.

After a deliberate change, `python -m tests.test_golden` writes them anew. `make bits` runs this file under other
processors' names. A processor's features reach results through the code that Numba compiles, the system's mathematical
library, the matrix library and NumPy's own loops; each is told that it runs on a lesser machine.
"""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path

import pytest

import fedrank as fr
from fedrank.ranking.learners import LEARNERS
from tests import digests, needs

FILE = Path(__file__).parent / "golden" / "curves.json"
DIGESTS = FILE.with_name("digests.json")
CASES = {
    "pdgd": (lambda: fr.learners.Pdgd(), 5),
    "pdgd-batch": (lambda: fr.learners.Pdgd(batch=True), 5),
    "pdgd-mlp": (lambda: fr.learners.Pdgd(ranker=fr.rankers.Mlp(hidden=8)), 5),
    "lambdarank": (lambda: fr.learners.LambdaRank(), 5),
    "evolution": (lambda: LEARNERS["evolution"](), 4),
    "evolution-shared": (lambda: fr.learners.Evolution(chance="shared"), 4),
    "logged-clicks": (lambda: fr.learners.LoggedClicks(), 5),
    "logged-clicks-hinge": (lambda: fr.learners.LoggedClicks(loss="hinge"), 5),
}


def curve(name: str) -> list[float]:
    """Online quality of rounds 1 .. 12, then the length of the last model and its offline nDCG@10."""
    make, interactions = CASES[name]
    learner = make()
    fold = fr.load("synthetic-mq2007")
    clients = fr.make_clients(fold.train, 4, click_model="navigational", interactions=interactions)
    outcomes = list(fr.simulate(fr.Federation(learner=learner), clients, 12, seed=1))
    quality = fr.Evaluator(fold.test, ["ndcg@10"])(outcomes[-1].weights, learner.ranker)[0]
    length = math.sqrt(math.fsum(weight * weight for weight in outcomes[-1].weights.tolist()))
    return [*(one.online for one in outcomes), length, float(quality)]


@pytest.mark.parametrize("name", sorted(CASES))
def test_curves_are_as_they_were(name):
    needs.same_bytes()
    assert repr(curve(name)) == repr(json.loads(FILE.read_text())[name])  # to the last bit; NaN equals NaN


def test_every_learner_has_a_curve():
    assert {one for one in LEARNERS for name in CASES if f"{name}-".startswith(f"{one}-")} == set(LEARNERS)


@pytest.mark.parametrize("name", digests.methods())
def test_methods_compute_what_they_did(name):
    needs.same_bytes()
    assert digests.methods()[name]() == json.loads(DIGESTS.read_text())[name]


@pytest.mark.long
def test_experiments_compute_what_they_did(tmp_path):
    needs.same_bytes()
    stored = json.loads(DIGESTS.read_text())
    found = digests.stored_experiments(tmp_path)
    assert found == {name: value for name, value in stored.items() if name.startswith("experiment ")}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        found = {name: work() for name, work in digests.methods().items()} | digests.stored_experiments(Path(folder))
    DIGESTS.write_text(json.dumps(found, indent=1) + "\n")
    FILE.write_text(json.dumps({name: curve(name) for name in CASES}, indent=1) + "\n")
