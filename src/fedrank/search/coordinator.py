"""The coordinator of a federation of search clients: `fedrank search aggregate`, built on `fedrank deploy`.

The coordinator has no access to searches. It evaluates models on a small built-in synthetic collection; the results
show whether a model works at all, not how well it ranks the documents of its users.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedrank.data.collection import SYNTHETIC
from fedrank.data.live_features import LIVE_1
from fedrank.deploy.make_plans import do_runs, parties_of, plan_runs
from fedrank.deploy.settings import FEDERATION, read_federation
from fedrank.experiments.runner.privacy_rule import with_noise
from fedrank.experiments.runner.schedule import Results
from fedrank.experiments.spec.grid import Grid, read_tables
from fedrank.progress import Progress, quiet
from fedrank.ranking.model import Model, save_model
from fedrank.ranking.rankers import Linear
from fedrank.search.impressions import LEARNER, first_weights

START = "start.json"  # initial model of all clients, in the coordinator's home
# Chosen on two divisions of five judged collections (benchmarks/search_together.py), when one result of the engine
# stayed first, not two. CLIP is half of the median update, and STEP the norm by which the model changes in all rounds
# together if all updates agree.
ROUNDS, CLIP, STEP = 2, 0.23, 2.0
MAX_PEOPLE = 200  # per round, under secure aggregation; with more people there are more rounds
SEARCHES = 30  # per person, who takes part in one round
LEARNING_RATE = 0.03  # of a person's update, apart from how a person learns alone
SIGNAL = 7.0  # people / (σ √(T d)), the rule of `fedrank privacy plan`, at least; with less, some collections lost
FEWEST = 300  # people, at any ε: with 100, one of five collections lost more than .005
EXPECTED = (
    "What to expect: little. In simulations under an earlier rule for the first results, groups that are large enough "
    "gained less than .01 nDCG@10 over the start on queries that were not searched before; it was not measured since. "
    "The new model is compared with yours on your own clicks before it is used."
)
TITLE = "Federated learning from personal searches, evaluated on a synthetic collection that no participant searches"


def built_in(home: Path, people: int, epsilon: float) -> Grid[Any]:
    """The experiment for this number of people, with the noise that limits the cost of all rounds to `epsilon`."""
    save_model(
        Model(Linear(), first_weights(LIVE_1), len(LIVE_1.names), feature_names=LIVE_1.names), Path(home) / START
    )
    tables = _tables(people) | {"start": str((Path(home) / START).absolute())}
    tables["mechanism"] |= {"noise": _experiment(people, epsilon).mechanism.noise}
    return read_tables(tables)


def rounds_for(people: int) -> int:
    """The number of rounds, each with at most `MAX_PEOPLE`."""
    return max(ROUNDS, math.ceil(people / MAX_PEOPLE))


def people_needed(epsilon: float) -> int:
    """The smallest number of people for whom this ε leaves enough of what they teach."""
    people = FEWEST
    while _signal(experiment := _experiment(people, epsilon)) < SIGNAL:
        people = _enough(experiment)
    return people


def too_few(experiment: Any) -> str:
    """Why an experiment has too few people for its noise, with the number that would do; "" if it has enough."""
    people, needed = experiment.clients.count, _enough(experiment)
    if people >= needed:
        return ""
    return (
        f"{people:,} people are too few: with the noise of this ε, what they teach can do harm, and at least "
        f"{needed:,} are needed; invite more people, choose a larger ε up to 8, or search alone"
    )


def check_people(people: int, epsilon: float) -> None:
    """Refuse an ε for which these people are too few."""
    needed = people_needed(epsilon)
    if people < needed:
        raise ValueError(
            f"ε = {epsilon:g} needs at least {needed:,} people, and {people:,} joined: with fewer, chance and noise "
            "can do harm; invite more people, use a larger --epsilon up to 8, or let everyone search alone; nothing "
            "was planned"
        )


def _enough(experiment: Any) -> int:
    people: int = experiment.clients.count
    return max(FEWEST, math.ceil(people * SIGNAL / _signal(experiment)))


def _signal(experiment: Any) -> float:
    """people / (σ √(T d)), with the noise that people add for those who are absent or collude."""
    mechanism, size = experiment.mechanism, experiment.rounds * len(LIVE_1.names)
    return float(experiment.clients.count * math.sqrt(mechanism.placement.honest / size) / mechanism.noise)


def _tables(people: int) -> dict[str, Any]:
    rounds = rounds_for(people)
    return {
        "title": TITLE,
        "rounds": rounds,
        "evaluate_every": rounds,
        "measures": ["ndcg@10"],
        "data": {"collection": SYNTHETIC, "features": LIVE_1.version},
        "clients": {"count": people, "interactions": SEARCHES, "schedule": "dealt"},
        "learner": {
            "name": "pdgd", "rate": LEARNING_RATE, "temperature": LEARNER.temperature, "keep": LEARNER.keep,
        },
        "server": {"name": "add", "rate": STEP / CLIP / rounds},
        "mechanism": {"name": "gaussian", "clip": CLIP, "noise": 1.0, "placement": {"name": "secure-aggregation"}},
    }  # fmt: skip


def _experiment(people: int, epsilon: float) -> Any:
    """The experiment without its start, with the noise for this ε."""
    if not 0 < epsilon < math.inf:
        raise ValueError(f"epsilon must be positive and finite (got {epsilon}); give a number such as 8")
    return with_noise(read_tables(_tables(people)).base, epsilon)


def aggregate(
    home: Path,
    out: Path,
    name: str,
    epsilon: float,
    stop: Callable[[], bool],
    progress: Progress = quiet,
    say: Callable[[str], None] = lambda line: None,
) -> Results:
    """Run, or resume, the experiment with all people who joined; the server sees only the sum of a round's updates."""
    from fedrank.deploy.flare_jobs import run_deployed

    parties = parties_of(home)
    check_people(len(parties), epsilon)
    grid = built_in(home, len(parties), epsilon)
    runs = plan_runs(grid, name, out, parties, read_federation(Path(home) / FEDERATION).name)
    return do_runs(
        grid,
        runs,
        lambda task, plan, on_progress: run_deployed(home, task, plan, on_progress, stop, say),
        stop,
        progress,
    )
