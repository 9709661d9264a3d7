"""Digests of what fedrank computes: every built-in experiment for two rounds, and a grid of methods.

    python -m tests.digests [--out FILE] [--only TEXT] [--quick]

`tests/test_golden.py` compares the methods and some experiments with stored digests; `make bits` repeats that under
other processors' names. This command computes all of them, to compare before and after a change that must not change
results. Real data are used where `FEDRANK_DATA` has them.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import hashlib
import json
import re
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

import fedrank as fr
from fedrank.attacks.poison import ATTACKS
from fedrank.data.synthetic_log import synthetic_log
from fedrank.data.synthetic_shown import Browsing, Showing, SimulatedShown, made_up_queries, simulate_shown
from fedrank.data.synthetic_text import synthetic_collection
from fedrank.data.synthetic_ubi import synthetic_ubi
from fedrank.data.text import Tokeniser
from fedrank.engine.practice import Practice
from fedrank.experiments.runner.schedule import run_experiment
from fedrank.experiments.spec.source import builtin_specs, read_spec
from fedrank.federated.aggregators import AGGREGATORS
from fedrank.federated.server_optimizers import SERVER_OPTIMIZERS
from fedrank.privacy.noise import SecureSource
from fedrank.ranking.propensity import Bias, ShownResults, propensities_of
from fedrank.silo.silos import Silo, SilosRule, make_silos
from fedrank.silo.training import CrossSilo, Global, Local, LocalPlus, SiloMethod
from fedrank.trees.binning import quantile_edges
from fedrank.trees.boosters import Grower, SelectiveGrower
from fedrank.trees.growing import GrowPlan, LocalClients, grow_forest
from fedrank.trees.mergers import WeightedSum
from fedrank.trees.noise import TreeNoise
from fedrank.trees.splits import Topics
from fedrank.unlearning.history import History, HistoryWriter
from fedrank.unlearning.methods import UNLEARNERS, Case
from tests.made_up import made_up_log, zipf_documents

CLICK_MODELS = np.random.default_rng(7).integers(120, size=1500).tolist()  # of each entry of a made-up log
_start = SecureSource.__init__


def digest(*parts: Any) -> str:
    total = hashlib.blake2b(digest_size=8)
    for part in parts:
        total.update(part if isinstance(part, bytes) else np.ascontiguousarray(part).tobytes())
    return total.hexdigest()


def of_run(folder: Path) -> str:
    """Rows, and what the model says: weights, or the scores of a forest on features that are always the same."""
    rows = (folder / "rounds.csv").read_bytes()
    if not (folder / "model.json").exists():
        return digest(rows)
    model = fr.load_model(folder)
    if isinstance(model, fr.Model):
        return digest(rows, model.weights)
    rng = np.random.default_rng(1)
    table = (rng.integers(0, 2000, size=(400, model.features)) / 1000).astype(np.float32)
    data = fr.RankingData(table, np.zeros(400, np.int8), np.arange(0, 401, 40), np.arange(10).astype(str))
    return digest(rows, np.asarray(model.score(data)))


def small(one: Any, folder: Path) -> Any:
    """Two rounds, or two trees, of few clients."""
    one = dataclasses.replace(one, evaluate_every=1)
    if one.kind == "trees":
        one = dataclasses.replace(one, booster=dataclasses.replace(one.booster, trees=2), tune=min(one.tune, 2))
        if one.data.name in (
            "synthetic-istella-x",
            "synthetic-istella-xl",
        ):  # of half a million documents and more
            file = folder / "short.txt"
            if not file.exists():
                from fedrank.data.letor import letor_lines

                file.write_text("".join(letor_lines(fr.synthetic("mq2007", 30))))
            same = dict.fromkeys(("train", "validation", "test"), str(file))
            one = dataclasses.replace(one, data=dataclasses.replace(one.data, name=None, **same))
        return one
    one = dataclasses.replace(one, rounds=60 if one.kind == "async" else 2)
    if one.kind == "federated" and one.clients.count > 50:
        one = dataclasses.replace(one, clients=dataclasses.replace(one.clients, count=10))
    return one


def experiments(folder: Path, names: Sequence[str], quick_only: bool = False) -> Iterator[tuple[str, Any]]:
    """Every variant of built-in experiments, each in its quick form and, where its data are here, in its own.

    With every name comes the experiment, small enough to be done at once.
    """
    log = None
    for name in names:
        forms = [True] if read_spec(name).about.quick else [False]
        if forms == [True] and not quick_only:
            forms.append(False)
        for quick in forms:
            grid = read_spec(name, quick=quick)
            if grid.kind == "silo" and not quick:
                continue  # minutes each, and the quick form has the same methods
            for variant in grid.variants:
                one = variant.experiment.single(variant.experiment.repeats()[0][0], 1)
                if getattr(one.data, "log", None) is not None:
                    log = log or made_up_log(folder / "log", CLICK_MODELS)
                    one = dataclasses.replace(one, data=dataclasses.replace(one.data, log=str(log)))
                    one = dataclasses.replace(one, clients=dataclasses.replace(one.clients, interactions=2))
                try:
                    one.data.require()
                except FileNotFoundError:
                    continue
                yield f"{name}{' quick' if quick else ''} {variant.name}", small(one, folder)


def of_experiment(one: Any, folder: Path) -> str:
    """Do it in a folder of its own."""
    with fixed_chance():
        done = run_experiment(one, "one", folder)
    return f"failed: {done.failed[0][1]}" if done.failed else of_run(done.finished[0].folder)


@contextlib.contextmanager
def fixed_chance() -> Iterator[None]:
    """Noise of private runs from known keys: only here, where nobody is to be protected."""
    number = 0

    def known(self: SecureSource, key: bytes | None = None) -> None:
        nonlocal number
        number += 1
        _start(self, key or number.to_bytes(32, "little"))

    SecureSource.__init__ = known  # type: ignore[method-assign]
    try:
        yield
    finally:
        SecureSource.__init__ = _start  # type: ignore[method-assign]


STORED = {  # experiments whose digests are stored, and which of their variants
    "quickstart": "",
    "aol4foltr/fig-5": "",
    "cs-f-ltr/few-queries": "exact-1.*=5",
    "live/cranfield": "federated",
}


def stored_experiments(folder: Path) -> dict[str, str]:
    """An experiment of each kind, in its quick form."""
    return {
        f"experiment {name}": of_experiment(one, folder / str(number))
        for number, (name, one) in enumerate(experiments(folder, list(STORED), quick_only=True))
        if re.search(STORED[name.split()[0]], name)
    }


def methods() -> dict[str, Callable[[], str]]:
    """Learners, rules, server steps, attacks, mechanisms and unlearners, a few rounds each."""
    clients = cache(lambda count, each: fr.make_clients(_train(), count, interactions=each))
    mixed = cache(
        lambda: fr.make_clients(
            _train(), 12, click_model=["navigational", "informational"], interactions=[3, 4], malicious=3
        )
    )
    learners = {
        "pdgd": fr.learners.Pdgd(),
        "batch": fr.learners.Pdgd(batch=True, clip_gradients=0.3),
        "clip": fr.learners.Pdgd(clip_weights=0.2),
        "far": fr.learners.Pdgd(rate=3000.0),
        "start": fr.learners.Pdgd(ranker=fr.rankers.Linear(start_norm=0.01)),
        "mlp": fr.learners.Pdgd(ranker=fr.rankers.Mlp(hidden=9)),
        "relu": fr.learners.Pdgd(ranker=fr.rankers.Relu(units=9, start="normal")),
        "lambdarank": fr.learners.LambdaRank(),
        "lambdarank mlp": fr.learners.LambdaRank(ranker=fr.rankers.Mlp(hidden=7)),
        "evolution": fr.learners.Evolution(truth=0.7),
        "evolution relu": fr.learners.Evolution(ranker=fr.rankers.Relu()),
        "evolution shared": fr.learners.Evolution(ranker=fr.rankers.Relu(), chance="shared"),
    }
    locals_ = {
        "prox": (fr.learners.Pdgd(), fr.local_steps.FedProx(0.1)),
        "per": (fr.learners.Pdgd(ranker=fr.rankers.Mlp(hidden=8)), fr.local_steps.FedPer()),
        "scaffold": (fr.learners.Pdgd(), fr.local_steps.Scaffold()),
    }
    todo: dict[str, Callable[[], str]] = {}
    for name, (learner, local) in locals_.items():
        todo[f"learner {name}"] = partial(of_rounds, fr.Federation(learner, local=local), mixed)
    for name, learner in learners.items():
        todo[f"learner {name}"] = partial(of_rounds, fr.Federation(learner), mixed)
    for name, rule in AGGREGATORS.items():
        todo[f"rule {name}"] = partial(of_rounds, fr.Federation(aggregator=rule()), mixed)
        if name != "none":
            todo[f"rule {name}, many"] = partial(
                of_rounds, fr.Federation(aggregator=rule()), partial(clients, 60, 1), rounds=3
            )
    for name, step in SERVER_OPTIMIZERS.items():
        todo[f"server {name}"] = partial(
            of_rounds, fr.Federation(fr.learners.Evolution(), server=step()), mixed, rounds=30
        )
    for name, attack in ATTACKS.items():
        settings = {"promote": {"features": (3,)}}.get(name, {})
        for rule in (fr.aggregators.Krum(), fr.aggregators.Median()):
            made = attack(**settings, **({"aggregator": rule} if name == "fang" else {}))
            federation = fr.Federation(aggregator=rule, attack=made)
            todo[f"attack {name} {type(rule).__name__}"] = partial(of_rounds, federation, mixed)
    original = fr.attacks.Fang(fr.aggregators.Median(), partial="original")
    federation = fr.Federation(aggregator=fr.aggregators.Median(), attack=original)
    todo["attack fang Median, original"] = partial(of_rounds, federation, mixed)
    for place in (
        fr.placements.OnClient(),
        fr.placements.AtServer(),
        fr.placements.SecureAggregation(sum="ideal"),
        fr.placements.SecureAggregation(),
    ):
        for mechanism in (fr.mechanisms.Gaussian(0.1, 1.0, place), fr.mechanisms.Laplace(0.1, 1.0, place)):
            name = f"mechanism {type(mechanism).__name__} {type(place).__name__} {getattr(place, 'sum', '')}"
            todo[name.strip()] = partial(of_rounds, fr.Federation(mechanism=mechanism), mixed)
    for name, unlearner in UNLEARNERS.items():
        if name == "certified":  # its noise is never the same
            continue
        todo[f"unlearn {name}"] = partial(of_unlearning, unlearner())
    return todo | generated() | forests() | silos() | judged_logs()


@cache
def _train() -> fr.RankingData:
    return fr.load("synthetic-mq2007").train


def generated() -> dict[str, Callable[[], str]]:
    """Every generator of synthetic data and logs."""
    todo: dict[str, Callable[[], str]] = {
        f"data {name}": partial(of_data, name)
        for name in ("synthetic-mq2007", "synthetic-mslr", "synthetic-categories", "synthetic-intents")
    }
    todo["data synthetic-istella-x, small"] = lambda: of_lists(fr.synthetic("istella-x", 40))
    for name, showing in SHOWN.items():
        todo[f"data shown, {name}"] = partial(of_shown, showing)
    todo["data log"] = partial(of_files, lambda folder: synthetic_log(folder, 60, documents=300, topics=5))
    todo["data ubi"] = partial(of_files, lambda folder: synthetic_ubi(folder, 20, documents=300, topics=5))
    todo["data practice"] = of_practice
    todo["data text"] = of_text
    todo["data zipf"] = lambda: digest(*zipf_documents(300, 50, 1000, 1, exponent=1.1))
    todo["data partition"] = of_partition
    return todo


SHOWN = {
    "rankers": Showing(),
    "noise": Showing(rankers=1, noise=0.3),
    "drawn": Showing(rankers=1, temperature=0.5),
}


def of_data(name: str) -> str:
    return of_lists(fr.load(name).train)


def of_lists(data: fr.RankingData) -> str:
    return digest(data.features, data.grades)


def of_shown(showing: Showing) -> str:
    log = shown_log(showing)
    parts = [log.truth.features, log.truth.relevance, log.lists, log.clicks, log.query, log.user, log.rankers]
    return digest(*parts, log.clicks_a_list(log.truth.relevance), b"" if log.scores is None else log.scores)


def shown_log(showing: Showing, trust: float = 0.0) -> SimulatedShown:
    return simulate_shown(made_up_queries(200), 4000, browsing=Browsing(0.9, trust), showing=showing)


def of_files(write: Callable[[Path], Any]) -> str:
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        return digest(*(file.read_bytes() for file in sorted(Path(folder).iterdir())))


def of_practice() -> str:
    made = Practice.begin(queries=40)
    log = of_files(lambda folder: made.write_log(folder, 300))
    return digest(log.encode(), made.features, made.relevance, made.clicks_a_search())


def of_text() -> str:
    made = synthetic_collection(400, 60)
    texts = [*made.documents.title, *made.documents.text, *made.queries]
    grades = [part for query in range(len(made.queries)) for part in made.judgements(query)]
    return digest("\n".join(texts).encode(), *grades)


def of_partition() -> str:
    clients = fr.make_clients(_train(), 6, partition=fr.partitions.Dirichlet(0.5))
    return digest(clients.queries, clients.pools)


def forests() -> dict[str, Callable[[], str]]:
    """Trees of our own growers; those of LightGBM are that library's."""
    rules = Grower(trees=4, leaves=8, min_data_in_leaf=5, rate=0.3)
    queries = cache(lambda: _train().select(np.arange(60)))
    edges = cache(lambda: quantile_edges(queries(), 32))

    def together(noise: TreeNoise | None = None) -> str:
        plan, source = GrowPlan(rules, edges(), 7, (0, 1, 2), noise=noise), SecureSource(key=b"1" * 32)
        stores = [plan.store(queries().select(np.arange(i, 60, 3)), source=source) for i in range(3)]
        return digest(*(text.encode() for text, _ in grow_forest(LocalClients(plan, stores))))

    def topics() -> str:
        portions = Topics(3)(fr.load("synthetic-mq2007"), np.random.default_rng(1))
        return digest(*(part.features for portion in portions for part in (portion.train, portion.merge)))

    def merged() -> str:
        width = queries().features.shape[1]
        models = [fr.Model(fr.rankers.Linear(), row, width) for row in np.random.default_rng(1).random((3, width))]
        return digest(*(WeightedSum(scale=scale).merge(models, queries()).score(queries()) for scale in SCALES))

    return {
        "trees grower": lambda: of_steps(rules, queries()),
        "trees selective grower": lambda: of_steps(SelectiveGrower(trees=4, leaves=8, min_data_in_leaf=5), queries()),
        "trees grown together": together,
        "trees with noise in histograms": partial(together, TreeNoise("histograms")),
        "trees with random splits": partial(together, TreeNoise("random-splits")),
        "trees split by topics": topics,
        "trees merged": merged,
    }


SCALES: tuple[Literal["none", "fixed", "query"], ...] = ("none", "fixed", "query")


def of_steps(rules: Grower, data: fr.RankingData) -> str:
    return digest(*(step.tree.encode() for step in rules.grow(data, None, 1)))


def silos() -> dict[str, Callable[[], str]]:
    """Every way for silos to train, on documents that are spread by chance and by topics."""
    methods: dict[str, SiloMethod] = {
        "local": Local(),
        "global": Global(combine="mean"),
        "local-plus": LocalPlus(width=64, depth=7, k=10),
        "exact": CrossSilo(counts="exact", k=10),
        "sketch": CrossSilo(width=64, depth=7, k=10),
        "lookup": CrossSilo(width=64, depth=7, k=10, noise_in="lookup"),
    }
    made = cache(lambda split: make_silos(synthetic_collection(300, 60), SilosRule(3, split), Tokeniser(), 1))
    todo: dict[str, Callable[[], str]] = {"silo topics": lambda: of_homes(made("topics"))}
    for name, method in methods.items():
        todo[f"silo {name}"] = partial(of_silos, method, partial(made, "random" if name == "local" else "topics"))
    return todo


def of_homes(silos: Sequence[Silo]) -> str:
    return digest(*(part for silo in silos for part in (silo.fields["body"].terms, silo.fields["body"].counts)))


def of_silos(method: SiloMethod, make: Callable[[], Sequence[Silo]]) -> str:
    silos = make()
    lists = method.lists(silos, 1, SecureSource(key=b"1" * 32))
    weights = method.first(len(silos))
    for round in range(3):
        weights = method.step(weights, lists, round, 1)
    return digest(weights, *(data.features for data in (*lists.train, *lists.test)))


def judged_logs() -> dict[str, Callable[[], str]]:
    """What is estimated from logs of shown lists."""

    def found(bias: Bias, showing: Showing, by_features: bool = False) -> str:
        log = shown_log(showing, 0.2 if bias == "trust" else 0.0)
        shown = ShownResults.of_lists(log.lists, log.clicks, log.first, log.query)
        known = propensities_of(shown, log.truth.features if by_features else None, bias)
        return digest(known.slope, known.extra, known.low, known.high)

    few = Showing(rankers=2, bent=0.02)
    return {
        "propensities": partial(found, "position", Showing()),
        "propensities with trust": partial(found, "trust", Showing(rankers=1, noise=0.3)),
        "propensities by regression": partial(found, "position", few, True),
    }


def of_rounds(federation: fr.Federation, make: Callable[[], fr.SimulatedClients], rounds: int = 6) -> str:
    clients = make()
    source = SecureSource(key=b"1" * 32)
    parts = []
    for outcome in fr.simulate(federation, clients, rounds, 3, noise=source if federation.mechanism else None):
        parts += [outcome.weights, outcome.online]
    return digest(*parts)


def of_unlearning(unlearner: Any) -> str:
    clients = fr.make_clients(_train(), 5, interactions=4)
    federation = fr.Federation()
    first = np.zeros(_train().features.shape[1])
    last = None
    with tempfile.TemporaryDirectory() as folder:
        with HistoryWriter(folder, len(clients), first.size, 2) as writer:

            def note(arrived: fr.Messages) -> None:
                if writer.wants(arrived.round):
                    writer.add(arrived.round, arrived.ids, arrived.updates, arrived.weights)

            for outcome in fr.simulate(federation, clients, 8, 1, watch=note):
                last = outcome.state
        history = History.open(folder)
        return digest(unlearner(Case(federation, clients, (2,), 1, first, last, 8, history)).weights)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--out", type=Path, help="where to write; default: the screen")
    options.add_argument("--only", default="", help="only what has one of these texts in its name, as a|b")
    options.add_argument("--quick", action="store_true", help="only quick forms of experiments that have one")
    chosen = options.parse_args()
    warnings.simplefilter("ignore")
    found = {}

    def note(name: str, work: Callable[[], str]) -> None:
        if re.search(chosen.only, name):
            found[name] = work()
            print(f"{time.process_time():6.0f} s  {found[name]}  {name}", file=sys.stderr, flush=True)

    for name, work in methods().items():
        note(name, work)
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, one) in enumerate(experiments(Path(folder), list(builtin_specs()), chosen.quick)):
            note(name, partial(of_experiment, one, Path(folder) / str(number)))
    text = json.dumps(found, indent=1, sort_keys=True) + "\n"
    if chosen.out is None:
        sys.stdout.write(text)
    else:
        chosen.out.write_text(text)


if __name__ == "__main__":
    main()
