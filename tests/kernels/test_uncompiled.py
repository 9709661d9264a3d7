"""Kernels are plain Python: run uncompiled, they give what they give compiled."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

WORK = """
import sys
import numpy as np
import fedrank as fr
import fedrank.federated.backends
from fedrank.federated.clients import make_clients
from fedrank.federated.server_optimizers import Adam, Add, Momentum
from fedrank.seeds import Chance
from tests.made_up import made_up_data

data = made_up_data(queries=6, features=6, longest=14)
clients = make_clients(data, 3, click_model=["perfect", "informational"], interactions=[2, 3])
out = {}
with np.errstate(over="ignore"):  # 64-bit counters wrap on purpose
    for name, learner in (
        ("pdgd", fr.learners.Pdgd()),
        ("mlp", fr.learners.Pdgd(ranker=fr.rankers.Mlp(hidden=5))),
        ("lambdarank", fr.learners.LambdaRank()),
        ("logged", fr.learners.LoggedClicks()),
    ):
        start = learner.ranker.first(6, np.random.default_rng(1))
        far = 1e4 * np.ones_like(start)
        for kind, weights in (("near", start), ("far", far)):
            arrived = learner(weights, clients, Chance(1, 1))
            out[f"{name}-{kind}"] = arrived.updates
            out[f"{name}-{kind}-online"] = arrived.observed.online
        out[name + "-quality"] = fr.Evaluator(data, ["ndcg@10", "map", "err@5", "mrr", "p@3"])(start, learner.ranker)
    fedrank.federated.backends.ENOUGH_ROUNDS = 1  # many rounds in one call, however few there are
    for server in (Add(), Momentum(), Adam()):
        *_, last = fr.simulate(fr.Federation(server=server), clients, 3)
        out["rounds-" + type(server).__name__] = last.weights
    out["normalised"] = fr.normalise(data, "query").features
    with open(sys.argv[2], "w") as file:
        file.write("1 qid:a 1:0.5 3:-1.25e-2 # x\\n0 qid:a 2:7\\n2 qid:b 1:1e3\\n")
    read = fr.read_letor(sys.argv[2], cache=False)
    out["letor"], out["grades"] = read.features, read.grades
np.savez(sys.argv[1], **out)
"""


@pytest.mark.process
def test_uncompiled_equals_compiled(tmp_path):
    results = []
    for disable in ("0", "1"):
        environment = os.environ | {"NUMBA_DISABLE_JIT": disable}
        file = tmp_path / f"{disable}.npz"
        subprocess.run(
            [sys.executable, "-c", WORK, str(file), str(tmp_path / "letor.txt")],
            env=environment,
            check=True,
            cwd=os.getcwd(),
        )
        results.append(np.load(file))
    compiled, plain = results
    assert set(compiled.files) == set(plain.files)
    for name in compiled.files:
        assert compiled[name] == pytest.approx(plain[name], rel=2e-4, abs=1e-6, nan_ok=True), name
    assert np.abs(compiled["pdgd-near"]).max() > 0
