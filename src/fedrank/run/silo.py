"""One run of kind "silo": organisations made from a collection train, and are judged on queries they kept aside."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank.data.collection import Collection, load_collection
from fedrank.data.ranking import RankingData
from fedrank.data.text import Tokeniser
from fedrank.protect.promises import up
from fedrank.rank.given import Given
from fedrank.rank.measures import Evaluator
from fedrank.rank.model import Model, save_model
from fedrank.rank.rankers import Linear
from fedrank.run.data import described
from fedrank.run.federated import per_query
from fedrank.run.folder import Card, Paid
from fedrank.run.writer import NOISE, RunWriter
from fedrank.silo.features import FEATURE_NAMES, RANGES
from fedrank.silo.silos import Silo, SilosRule, make_silos
from fedrank.silo.training import PARAMETERS, Lists, LocalPlus, own_bm25
from fedrank.spec.families import describe
from fedrank.spec.silo import SiloExperiment
from fedrank.types import Weights

CONVENTIONS = {
    "rounds": "row r is after pass r of every silo over its own lists",
    "final": "the last evaluation",
    "quality": "on the test queries of all silos, each ranking the documents of its own silo; where every silo has its "
    "own model, the mean over the models",
    "interactions": "documents trained on, counted again in every pass",
}
NOT_COVERED = (
    "that a document exists, and how long it is",
    "the queries: every silo holds the key and can look up which words another asks for",
)
_RANKER = Linear()
_BYTES = 4  # a weight on its way


def perform_silo(experiment: SiloExperiment, writer: RunWriter) -> None:
    """Make the silos, let them tell each other what the method asks for, once, and train pass by pass."""
    method, seed, last = experiment.method, writer.task.seed, experiment.rounds
    card = silo_card(experiment)
    collection = _collection(experiment.data.source)
    silos = silos_of(experiment, seed)
    kept = writer.begin(lambda models: evaluator(_ranking_part(models), _RANKER), online=False)
    # What silos told each other was noised, and that is paid once: a resumed run goes on with the same lists.
    lists = method.lists(silos, seed) if kept is None else _unpacked(kept)
    weights = method.first(len(silos)) if kept is None else kept["weights"]
    test = RankingData.join(lists.test)
    evaluator = Evaluator(test, experiment.measures)
    conventions = CONVENTIONS | ({} if card.mechanism is None else {"noise": NOISE})
    writer.know(
        notes=_notes(collection, silos, lists.added),
        conventions=conventions,
        data=described(collection.name, sum(data.queries for data in lists.train), test.queries, test),
        behind_final=1,
    )
    packed = _packed(lists)
    writer.keep(writer.round, packed | {"weights": weights})
    documents = sum(data.documents for data in lists.train)
    sent = _BYTES * PARAMETERS * len(silos) if weights.ndim == 1 else 0
    for round in range(writer.round + 1, last + 1):
        weights = method.step(weights, lists, round, seed)
        traffic = sent + (lists.bytes if round == 1 else 0)
        ends = round == last
        model = weights if ends or round % experiment.evaluate_every == 0 else None
        writer.add(round, interactions=documents, bytes_up=traffic, bytes_down=traffic, model=model)
        writer.turn(round, last, lambda weights=weights: packed | {"weights": weights}, ends)  # type: ignore[misc]
    ranking = _ranking_part(weights)
    origin = writer.origin(collection.name)
    save_model(
        Model(_RANKER, ranking, len(FEATURE_NAMES), test.normalised, FEATURE_NAMES, origin, test.ranges),
        writer.folder / "model.json",
    )
    writer.finish(
        last,
        queries=(test.query_ids.tolist(), per_query(evaluator, ranking, _RANKER)),
        nothing=Given("BM25 of title and body", evaluator.per_query_of_scores(own_bm25(silos))),
        clients=_by_silo(experiment.measures, ranking, lists, evaluator),
        card=card,
    )


def _packed(lists: Lists) -> dict[str, Any]:
    """Lists as the parts of a checkpoint."""
    parts: dict[str, Any] = {"added": lists.added, "lists": {"bytes": lists.bytes, "silos": len(lists.train)}}
    for kind, sets in (("train", lists.train), ("test", lists.test)):
        for silo, data in enumerate(sets):
            for name in _ARRAYS:
                parts[f"{kind}.{silo}.{name}"] = getattr(data, name)
            parts[f"{kind}.{silo}.about"] = {name: getattr(data, name) for name in _ABOUT}
    return parts


def _unpacked(kept: Mapping[str, Any]) -> Lists:
    def one(place: str) -> RankingData:
        arrays = {name: kept[f"{place}.{name}"] for name in _ARRAYS}
        about = kept[f"{place}.about"]
        ranges = RANGES if about["normalised"] == "global" else None
        return RankingData(**arrays, **about, feature_names=FEATURE_NAMES, ranges=ranges)

    silos = range(kept["lists"]["silos"])
    train, test = (tuple(one(f"{kind}.{silo}") for silo in silos) for kind in ("train", "test"))
    return Lists(train, test, kept["added"], kept["lists"]["bytes"])


_ARRAYS, _ABOUT = ("features", "grades", "offsets", "query_ids"), ("name", "top_grade", "normalised")


# Runs that differ in method or seed share a collection, and those that differ in method alone share silos.
_collection: Callable[[str], Collection] = lru_cache(maxsize=2)(load_collection)


def silos_of(experiment: SiloExperiment, seed: int) -> list[Silo]:
    """The organisations of an experiment."""
    return _silos(experiment.data.source, SilosRule(**asdict(experiment.silos)), seed)


@lru_cache(maxsize=4)
def _silos(name: str, rule: SilosRule, seed: int) -> list[Silo]:
    return make_silos(_collection(name), rule, Tokeniser(), seed)


def _ranking_part(weights: Weights) -> Weights:
    """Without the bias, which moves no document."""
    return np.ascontiguousarray(weights[..., : len(FEATURE_NAMES)])


def _by_silo(measures: tuple[str, ...], weights: Weights, lists: Lists, everybody: Evaluator) -> dict[str, Any]:
    """A row for each silo: its model on its own test queries, and on those of all silos."""
    rows = []
    for silo, own in enumerate(lists.test):
        model = weights[silo] if weights.ndim == 2 else weights
        rows.append([*Evaluator(own, measures)(model, _RANKER), *everybody(model, _RANKER)])
    columns = {
        "client": range(len(rows)),
        "queries": [data.queries for data in lists.train],
        "interactions": [data.documents for data in lists.train],
    }
    names = [*measures, *(f"{name} everywhere" for name in measures)]
    return columns | dict(zip(names, np.transpose(rows), strict=True))


def _notes(collection: Collection, silos: list[Silo], added: NDArray[np.int64]) -> list[str]:
    notes = [
        f"silo {silo.number}: {silo.documents:,} documents, {len(silo.train)} queries to train on and "
        f"{len(silo.test)} to be tested on; {more:,} documents of others in its training lists"
        for silo, more in zip(silos, added, strict=True)
    ]
    if collection.unknown:
        notes.append(f"{collection.unknown:,} judgements name a query or a document that is not there; left out")
    return notes


def silo_card(experiment: SiloExperiment) -> Card:
    """What may be claimed."""
    method, delta, budget = experiment.method, experiment.privacy.delta, experiment.privacy.budget
    sees, not_covered = [], []
    mechanism, promise, spent = None, None, math.inf
    if method.first(1).ndim == 1:
        sees.append("the server and the other silos see the model as every silo leaves it")
        not_covered.append("the weights that a silo sends while training, which tell of its own documents and queries")
    if isinstance(method, LocalPlus):
        sees.append("silos find documents of each other, with their lengths and term counts")
        not_covered += NOT_COVERED
        spent = method.sketcher.privacy(delta) if method.counts == "sketch" else math.inf
        if spent < math.inf:
            mechanism, promise = describe(method) | {"name": "sketch"}, _promise(spent, delta)
    if budget is not None and sees and spent > budget:
        claim = "adds no noise, so that no ε holds"
        if promise is not None:
            claim = f"costs ε = {up(spent)} for one occurrence of a term"
        raise ValueError(f"the method {claim}, and the budget is {budget:g}; use more noise, or another budget")
    summary = "; ".join(sees or ["silos tell each other nothing"]).capitalize() + "."
    if promise is not None:
        summary += (
            f" Sketches are noised: ε = {up(spent)} at δ = {delta:g} for one occurrence of one term, paid "
            "once for all queries of all silos; a word that stands k times costs as a group of k."
        )
    elif sees:
        summary += " Nothing is noised, and nothing can be claimed."
    return Card(
        clients=experiment.silos.count,
        mechanism=mechanism,
        who_sees_what="; ".join(sees),
        delta=delta,
        budget=budget,
        promises=() if promise is None else (promise,),
        not_covered=tuple(not_covered),
        summary=summary,
    )


def _promise(epsilon: float, delta: float) -> Paid:
    return Paid(
        against="silos and relays that see sketches or answers",
        epsilon=epsilon,
        epsilon_each_time=epsilon,
        times=1,
        paid_per="once",
        delta=delta,
        unit="one occurrence of one term in one field of one document",
        neighbours="one occurrence is replaced by another term: lengths are published",
        because="Gaussian noise in the sketch of the document and in that of the document frequencies",
    )
