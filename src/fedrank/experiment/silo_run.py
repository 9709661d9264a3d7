"""One run of kind "silo": organisations are made from a collection, train, and are judged on queries they kept aside.

A run takes seconds to minutes, so that it has no checkpoint: one that was stopped begins again.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank.data.collection import Collection, load_collection
from fedrank.data.ranking import RankingData
from fedrank.data.text import Tokeniser
from fedrank.experiment.families import describe
from fedrank.experiment.run import SECONDS_BETWEEN_NEWS, News, Task, queries_csv, write_facts
from fedrank.experiment.silo_spec import SiloExperiment
from fedrank.files import write_whole
from fedrank.protect.promises import up
from fedrank.rank.measures import Evaluator
from fedrank.rank.model import Model, save_model
from fedrank.rank.rankers import Linear
from fedrank.silo.augment import price
from fedrank.silo.features import FEATURE_NAMES
from fedrank.silo.silos import Silo, SilosRule, make_silos
from fedrank.silo.training import PARAMETERS, LocalPlus
from fedrank.types import Weights

CONVENTIONS = {
    "rounds": "row r is after pass r of every silo over its own lists",
    "final": "the last evaluation",
    "quality": "on the test queries of all silos, each ranking the documents of its own silo; where every silo has its "
    "own model, the mean over the models",
    "interactions": "documents trained on, counted again in every pass",
    "ties": "equal scores are ordered by a fixed shuffle of positions, which favours no order of the file",
}
NOT_COVERED = (
    "that a document exists, and how long it is",
    "the queries: every silo holds the key and can look up which words another asks for",
)
_RANKER = Linear()
_BYTES = 4  # a weight on its way


def perform_silo(
    task: Task, facts: dict[str, Any], threads: int, tell: Callable[[News], None], stop: Callable[[], bool]
) -> str:
    """Do one run and write its folder; returns finished or interrupted."""
    asked = task.experiment
    assert isinstance(asked, SiloExperiment)
    method, measures = asked.built, list(asked.measures)
    began, cpu = time.monotonic(), time.process_time()
    for old in ("queries.csv", "clients.csv", "model.json", "privacy.json"):
        (task.folder / old).unlink(missing_ok=True)
    card = _card(asked)
    name = asked.data.folder or asked.data.name or ""
    collection = _collection(name)
    silos = _silos(name, SilosRule(**asdict(asked.silos)), task.seed)
    lists = method.lists(silos, task.seed)
    test = RankingData.join(lists.test)
    facts |= {
        "behind_final": 1,
        "data": {
            "name": collection.name,
            "train_queries": sum(data.queries for data in lists.train),
            "test_queries": test.queries,
            "features": len(FEATURE_NAMES),
            "normalised": test.normalised,
            "top_grade": test.top_grade,
        },
        "notes": _notes(collection, silos, lists.added),
    }
    facts["conventions"] |= CONVENTIONS
    if card["mechanism"] is not None:
        facts["conventions"]["noise"] = "from the system's secure source: a repeated run gives other numbers"
    write_facts(task.folder, facts | {"status": "running"})

    evaluator = Evaluator(test, measures)
    weights = method.first(len(silos))
    passes = sum(data.documents for data in lists.train)
    sent = _BYTES * PARAMETERS * len(silos) if weights.ndim == 1 else 0
    lines, quality, told = [",".join(["round", "interactions", "bytes_up", "bytes_down", *measures])], math.nan, 0.0
    for round in range(1, asked.rounds + 1):
        weights = method.step(weights, lists, round, task.seed)
        traffic = lists.bytes + round * sent
        cells = [""] * len(measures)
        if round % asked.evaluate_every == 0 or round == asked.rounds:
            values = _means(evaluator(_ranking_part(weights), _RANKER))
            quality = float(values[0])
            cells = ["" if math.isnan(value) else repr(float(value)) for value in values]
        lines.append(",".join([*map(str, (round, round * passes, traffic, traffic)), *cells]))
        now = time.monotonic()
        if now - told >= SECONDS_BETWEEN_NEWS or round == asked.rounds:
            told = now
            left = (now - began) / round * (asked.rounds - round)
            tell(News(round, asked.rounds, quality, round * passes, now - began, left))
            if round < asked.rounds and stop():
                write_facts(task.folder, facts | {"status": "interrupted", "round": 0})
                return "interrupted"
    ranking = _ranking_part(weights)
    write_whole(task.folder / "rounds.csv", "\n".join(lines) + "\n")
    write_whole(task.folder / "queries.csv", queries_csv(evaluator, measures, ranking, _RANKER))
    write_whole(task.folder / "clients.csv", _clients_csv(measures, ranking, lists.train, lists.test, evaluator))
    notes = {"experiment": task.name, "variant": task.variant, "seed": task.seed, "data": collection.name}
    model = Model(_RANKER, ranking, len(FEATURE_NAMES), test.normalised, FEATURE_NAMES, notes)
    save_model(model, task.folder / "model.json")
    write_whole(task.folder / "privacy.json", json.dumps(card, indent=1, ensure_ascii=False) + "\n")
    seconds = f"{time.monotonic() - began:.3f},{time.process_time() - cpu:.3f}"
    write_whole(task.folder / "timing.csv", f"round,seconds,cpu_seconds\n{asked.rounds},{seconds}\n")
    write_facts(task.folder, facts | {"status": "finished", "round": asked.rounds})
    return "finished"


# Runs that differ in method or seed share a collection, and those that differ in method alone share silos.
_collection: Callable[[str], Collection] = lru_cache(maxsize=2)(load_collection)


@lru_cache(maxsize=4)
def _silos(name: str, rule: SilosRule, seed: int) -> list[Silo]:
    return make_silos(_collection(name), rule, Tokeniser(), seed)


def _ranking_part(weights: Weights) -> Weights:
    """Without the bias, which moves no document."""
    return np.ascontiguousarray(weights[..., : len(FEATURE_NAMES)])


def _means(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """[measures]: over the models, where there are several."""
    return values.mean(axis=1) if values.ndim == 2 else values


def _clients_csv(
    measures: list[str],
    weights: Weights,
    train: tuple[RankingData, ...],
    test: tuple[RankingData, ...],
    everybody: Evaluator,
) -> str:
    """A row for each silo: its model on its own test queries, and on those of all silos."""
    lines = [",".join(["client", "queries", "interactions", *measures, *(f"{name} everywhere" for name in measures)])]
    for silo, (learnt, judged) in enumerate(zip(train, test, strict=True)):
        model = weights[silo] if weights.ndim == 2 else weights
        values = [*Evaluator(judged, measures)(model, _RANKER), *everybody(model, _RANKER)]
        cells = ("" if math.isnan(value) else repr(float(value)) for value in values)
        lines.append(",".join([str(silo), str(learnt.queries), str(learnt.documents), *cells]))
    return "\n".join(lines) + "\n"


def _notes(collection: Collection, silos: list[Silo], added: NDArray[np.int64]) -> list[str]:
    notes = [
        f"silo {silo.number}: {silo.documents:,} documents, {len(silo.train)} queries to train on and "
        f"{len(silo.test)} to be tested on; {more:,} documents of others in its training lists"
        for silo, more in zip(silos, added, strict=True)
    ]
    if collection.unknown:
        notes.append(f"{collection.unknown:,} judgements name a query or a document that is not there; left out")
    return notes


def _card(asked: SiloExperiment) -> dict[str, Any]:
    """What may be claimed: `privacy.json`."""
    method, delta, budget = asked.built, asked.privacy.delta, asked.privacy.budget
    passes_on = method.first(1).ndim == 1
    sees, not_covered, promises = [], [], []
    if passes_on:
        sees.append("the server and the other silos see the model as every silo leaves it")
        not_covered.append("the weights that a silo sends while training, which tell of its own documents and queries")
    mechanism = None
    if isinstance(method, LocalPlus):
        sees.append("silos find documents of each other, with their lengths and term counts")
        not_covered += NOT_COVERED
        spent = price(method.sketcher, delta) if method.counts == "sketch" else math.inf
        if spent < math.inf:
            mechanism = describe(method) | {"name": "sketch"}
            promises.append(_promise(spent, delta))
    spent = promises[0]["epsilon"] if promises else math.inf
    if budget is not None and sees and spent > budget:
        claim = (
            f"costs ε = {up(spent)} for one occurrence of a term" if promises else "adds no noise, so that no ε holds"
        )
        raise ValueError(f"the method {claim}, and the budget is {budget:g}; use more noise, or another budget")
    summary = "; ".join(sees or ["silos tell each other nothing"]).capitalize() + "."
    if promises:
        summary += (
            f" Sketches are noised: ε = {up(spent)} at δ = {delta:g} for one occurrence of one term, paid once for all "
            "queries of all silos; a word that stands k times costs as a group of k."
        )
    elif sees:
        summary += " Nothing is noised, and nothing can be claimed."
    return {
        "format": 1,
        "mechanism": mechanism,
        "who_sees_what": "; ".join(sees),
        "delta": delta,
        "budget": budget,
        "promises": promises,
        "not_covered": not_covered,
        "summary": summary,
    }


def _promise(epsilon: float, delta: float) -> dict[str, Any]:
    return {
        "against": "silos and relays that see sketches or answers",
        "epsilon": epsilon,
        "epsilon_each_time": epsilon,
        "times": 1,
        "paid_per": "once",
        "delta": delta,
        "unit": "one occurrence of one term in one field of one document",
        "neighbours": "one occurrence is replaced by another term: lengths are published",
        "because": "Gaussian noise in the sketch of the document and in that of the document frequencies",
    }
