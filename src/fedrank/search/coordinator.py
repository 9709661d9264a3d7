"""The coordinator of a federation of search clients: `fedrank search aggregate`, built on `fedrank deploy`.

The coordinator has no access to searches. It evaluates models on a small built-in synthetic collection; the results
show whether a model works at all, not how well it ranks the documents of its users.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedrank.data.collection import SYNTHETIC
from fedrank.data.live_features import LIVE_1
from fedrank.deploy.folder_members import read_home
from fedrank.deploy.make_plans import A_DAY, do_runs, parties_of, plan_runs, run_in_folder
from fedrank.deploy.settings import FEDERATION, read_federation
from fedrank.experiments.runner.privacy import noise_needed
from fedrank.experiments.runner.schedule import Results
from fedrank.experiments.spec.grid import Grid, read_tables
from fedrank.progress import Progress, quiet
from fedrank.ranking.model import Model, save_model
from fedrank.ranking.rankers import Linear
from fedrank.search.impressions import LEARNER, first_weights

START = "start.json"  # initial model of all clients, in the coordinator's home
ROUNDS, CLIP = 10, 0.1
ON_CLIENT: Mapping[str, Any] = {"name": "client"}
SUMMED: Mapping[str, Any] = {"name": "secure-aggregation"}
SEARCHES = 30  # per person and round
TITLE = "Federated learning from personal searches, evaluated on a synthetic collection that no participant searches"


def built_in(home: Path, people: int, epsilon: float, placement: Mapping[str, Any] = ON_CLIENT) -> Grid[Any]:
    """The experiment for this number of people, with the noise that limits the cost of all rounds to `epsilon`."""
    if not 0 < epsilon < math.inf:
        raise ValueError(f"epsilon must be positive and finite (got {epsilon}); give a number such as 8")
    save_model(
        Model(Linear(), first_weights(LIVE_1), len(LIVE_1.names), feature_names=LIVE_1.names), Path(home) / START
    )
    tables: dict[str, Any] = {
        "title": TITLE,
        "rounds": ROUNDS,
        "evaluate_every": ROUNDS,
        "measures": ["ndcg@10"],
        "start": str((Path(home) / START).absolute()),
        "data": {"collection": SYNTHETIC, "features": LIVE_1.version},
        "clients": {"count": people, "interactions": SEARCHES},
        "learner": {
            "name": "pdgd", "rate": LEARNER.rate, "temperature": LEARNER.temperature, "keep": LEARNER.keep,
        },
        "mechanism": {"name": "gaussian", "clip": CLIP, "noise": 1.0, "placement": dict(placement)},
    }  # fmt: skip
    needed = max(noise for noises in noise_needed(read_tables(tables).base, [epsilon]).values() for noise in noises)
    if math.isinf(needed):
        raise ValueError(f"ε = {epsilon:g} is too small for {ROUNDS} rounds: no noise is sufficient; give a larger ε")
    return read_tables(tables | {"mechanism": tables["mechanism"] | {"noise": needed}})


def aggregate(
    shared: Path,
    home: Path,
    out: Path,
    name: str,
    epsilon: float,
    stop: Callable[[], bool],
    progress: Progress = quiet,
    patience: float = A_DAY,
    say: Callable[[str], None] = lambda line: None,
) -> Results:
    """Run, or resume, the experiment with all clients that joined through the shared folder."""
    federation = read_home(home)
    parties = federation.parties()
    grid = built_in(home, max(1, len(parties)), epsilon)
    runs = plan_runs(grid, name, out, parties, federation.name)
    return do_runs(
        grid,
        runs,
        lambda task, plan, on_progress: run_in_folder(shared, home, task, plan, on_progress, stop, patience, say=say),
        stop,
        progress,
    )


def aggregate_online(
    home: Path,
    out: Path,
    name: str,
    epsilon: float,
    stop: Callable[[], bool],
    progress: Progress = quiet,
    say: Callable[[str], None] = lambda line: None,
) -> Results:
    """The same over the network, with secure aggregation: the server sees only the sum of a round's updates."""
    from fedrank.deploy.flare_jobs import run_deployed

    parties = parties_of(home)
    grid = built_in(home, max(2, len(parties)), epsilon, SUMMED)
    runs = plan_runs(grid, name, out, parties, read_federation(Path(home) / FEDERATION).name)
    return do_runs(
        grid,
        runs,
        lambda task, plan, on_progress: run_deployed(home, task, plan, on_progress, stop, say),
        stop,
        progress,
    )
