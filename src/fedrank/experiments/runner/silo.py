"""One run of kind "silo": organisations made from a collection train, and are evaluated on held-out queries."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank.data.collection import Collection, load_collection
from fedrank.data.ranking import RankingData
from fedrank.data.text import Tokeniser
from fedrank.experiments.runner.data import described
from fedrank.experiments.runner.federated import per_query
from fedrank.experiments.runner.folder import Card, Paid
from fedrank.experiments.runner.writer import NOISE, RunWriter
from fedrank.experiments.spec.families import describe
from fedrank.experiments.spec.silo import SiloExperiment
from fedrank.files import write_atomic
from fedrank.privacy.guarantees import up
from fedrank.ranking.baseline_ranking import BaselineRanking
from fedrank.ranking.measures import Evaluator, average
from fedrank.ranking.model import Model, save_model
from fedrank.ranking.rankers import Linear
from fedrank.seeds import rng_for
from fedrank.silo.costs import measure_sketches
from fedrank.silo.features import FEATURE_NAMES, RANGES
from fedrank.silo.silos import Silo, SilosRule, make_silos
from fedrank.silo.training import PARAMETERS, SILO_METHODS, CrossSilo, Lists, Local, LocalPlus, own_bm25, own_lists
from fedrank.types import Weights

CONVENTIONS = {
    "rounds": "row r is after pass r of every silo over its own lists",
    "final": "the last evaluation",
    "quality": "on the test queries of all silos, each ranking the documents of the silo; with one model per silo, the "
    "mean over the models",
    "interactions": "documents trained on, counted again in every pass",
}
NOT_COVERED = (
    "that a document exists, and its length",
    "the queries: every silo has the key and can look up the query words of others",
)
WEIGHTS = "the weights that a silo sends while training, which reveal information about its documents and queries"
BM25 = "BM25 of title and body"  # name of the baseline
SKETCHES = "sketches.json"  # results and cost of questions, if requested
_RANKER = Linear()
_BYTES = 4  # of a transmitted weight


def perform_silo(experiment: SiloExperiment, writer: RunWriter) -> None:
    """Create the silos, exchange once what the method needs, and train pass by pass."""
    method, seed, last = experiment.method, writer.task.seed, experiment.rounds
    silo_card(experiment)  # raises an error if the budget is exceeded
    collection = _collection(experiment.data.source)
    silos = silos_of(experiment, seed)
    card = silo_card(experiment, silos)
    checkpoint = writer.begin(lambda models: evaluator(_ranking_part(models), _RANKER), online=False)
    # Exchanged data are noised and charged once: a resumed run continues with the same lists.
    lists = _made(experiment, seed) if checkpoint is None else _unpacked(checkpoint)
    members = len(lists.train)
    weights = method.first(members) if checkpoint is None else checkpoint["weights"]
    test = RankingData.join(lists.test)
    evaluator = Evaluator(test, experiment.measures)
    conventions = CONVENTIONS | ({} if card.mechanism is None else {"noise": NOISE})
    notes = _notes(collection, silos, lists.added)
    if experiment.measure_sketches and isinstance(method, LocalPlus) and method.counts == "sketch":
        notes.append(_measured(method, silos, writer.folder / SKETCHES, seed))
    writer.update_facts(
        notes=notes,
        conventions=conventions,
        data=described(collection.name, sum(data.queries for data in lists.train), test.queries, test),
        behind_final=1,
    )
    packed = _packed(lists)
    writer.save_checkpoint(writer.round, packed | {"weights": weights})
    documents = method.trained_on(lists)
    sent = _BYTES * PARAMETERS * members if weights.ndim == 1 else 0
    for round in range(writer.round + 1, last + 1):
        weights = method.step(weights, lists, round, seed)
        traffic = sent + (lists.bytes if round == 1 else 0)
        ends = round == last
        model = weights if ends or round % experiment.evaluate_every == 0 else None
        writer.add(round, interactions=documents, bytes_up=traffic, bytes_down=traffic, model=model)
        writer.after_round(round, last, lambda weights=weights: packed | {"weights": weights}, ends)  # type: ignore[misc]
    ranking = _ranking_part(weights)
    _save(ranking, test, writer, writer.origin(collection.name))
    writer.finish(
        last,
        queries=(test.query_ids.tolist(), per_query(evaluator, ranking, _RANKER)),
        baseline=BaselineRanking(BM25, evaluator.per_query_of_scores(own_bm25(silos))),
        clients=_by_silo(experiment.measures, ranking, lists, evaluator),
        card=card,
    )


class SiloEvaluation:
    """A run whose model was trained at the silos, evaluated on the test queries of a collection on this machine."""

    def __init__(self, experiment: SiloExperiment, writer: RunWriter) -> None:
        method = experiment.method
        assert isinstance(method, CrossSilo)
        self.experiment, self.writer = experiment, writer
        self.collection = load_collection(experiment.data.source)
        top = max(self.collection.top_grade, 1)
        self._lists = own_lists(self.collection, writer.task.seed, top, method.normalise)
        self._evaluator = Evaluator(self._lists.test, experiment.measures)

    @property
    def card(self) -> Card:
        return silo_card(self.experiment)

    def begin(self, conventions: Mapping[str, str]) -> None:
        """Describe the run in its folder; `conventions` replace those of a simulation."""
        test = self._lists.test
        self.writer.update_facts(
            conventions=CONVENTIONS | dict(conventions) | {"noise": NOISE},
            data=described(self.collection.name, 0, test.queries, test),
            behind_final=1,
        )
        self.writer.begin(online=False)

    def add(self, model: Model) -> None:
        """Evaluate and save the final model."""
        writer, test, last = self.writer, self._lists.test, self.experiment.rounds
        self._values = per_query(self._evaluator, model.weights, _RANKER)
        for number in range(1, last + 1):
            writer.add(number, values=average(self._values).tolist() if number == last else None)
        _save(model.weights, test, writer, model.notes | writer.origin(self.collection.name))

    def finish(self, notes: Sequence[str]) -> None:
        last = self.experiment.rounds
        self.writer.report_progress(last, last)
        self.writer.finish(
            last,
            queries=(self._lists.test.query_ids.tolist(), self._values),
            baseline=BaselineRanking(BM25, self._evaluator.per_query_of_scores(self._lists.bm25)),
            notes=list(notes),
        )


def _save(weights: Weights, test: RankingData, writer: RunWriter, notes: dict[str, Any]) -> None:
    shape = len(FEATURE_NAMES), test.normalised, FEATURE_NAMES, notes, test.ranges
    save_model(Model(_RANKER, weights, *shape), writer.folder / "model.json")


def _packed(lists: Lists) -> dict[str, Any]:
    """Lists as parts of a checkpoint."""
    parts: dict[str, Any] = {"added": lists.added, "lists": {"bytes": lists.bytes, "silos": len(lists.test)}}
    for kind, sets in (("train", lists.train), ("test", lists.test)):
        for silo, data in enumerate(sets):
            for name in _ARRAYS:
                parts[f"{kind}.{silo}.{name}"] = getattr(data, name)
            parts[f"{kind}.{silo}.about"] = {name: getattr(data, name) for name in _ABOUT}
    return parts


def _unpacked(checkpoint: Mapping[str, Any]) -> Lists:
    def one(location: str) -> RankingData:
        arrays = {name: checkpoint[f"{location}.{name}"] for name in _ARRAYS}
        about = checkpoint[f"{location}.about"]
        ranges = RANGES if about["normalised"] == "global" else None
        return RankingData(**arrays, **about, feature_names=FEATURE_NAMES, ranges=ranges)

    train, test = (
        tuple(one(f"{kind}.{silo}") for silo in range(many))
        for kind, many in (("train", len(checkpoint["added"])), ("test", checkpoint["lists"]["silos"]))
    )
    return Lists(train, test, checkpoint["added"], checkpoint["lists"]["bytes"])


_ARRAYS, _ABOUT = ("features", "grades", "offsets", "query_ids"), ("name", "top_grade", "normalised")


# Runs that differ in method or seed share a collection; runs that differ only in method share silos.
_collection: Callable[[str], Collection] = lru_cache(maxsize=2)(load_collection)


def silos_of(experiment: SiloExperiment, seed: int) -> list[Silo]:
    """The organisations of an experiment."""
    return _silos(experiment.data.source, SilosRule(**asdict(experiment.silos)), seed)


def _made(experiment: SiloExperiment, seed: int) -> Lists:
    """The training data of every silo; runs that differ only in training share them, including their noise."""
    method = experiment.method
    kind = next((kind for kind in (LocalPlus, Local) if isinstance(method, kind)), None)
    if kind is None or type(method) not in SILO_METHODS.values():
        return method.lists(silos_of(experiment, seed), seed)
    settings = {each.name: getattr(method, each.name) for each in fields(kind) if each.name not in _OF_TRAINING}
    return _lists(kind(**settings), experiment.data.source, SilosRule(**asdict(experiment.silos)), seed)


@lru_cache(maxsize=6)
def _lists(method: Local, name: str, rule: SilosRule, seed: int) -> Lists:
    return method.lists(_silos(name, rule, seed), seed)


_OF_TRAINING = ("rate", "batch", "steps")


@lru_cache(maxsize=4)
def _silos(name: str, rule: SilosRule, seed: int) -> list[Silo]:
    return make_silos(_collection(name), rule, Tokeniser(), seed)


def _ranking_part(weights: Weights) -> Weights:
    """The weights without the bias, which does not affect rankings."""
    return np.ascontiguousarray(weights[..., : len(FEATURE_NAMES)])


def _by_silo(measures: tuple[str, ...], weights: Weights, lists: Lists, everybody: Evaluator) -> dict[str, Any]:
    """One row per silo: its model on its own test queries, and on those of all silos."""
    rows = []
    for silo, own in enumerate(lists.test[: len(lists.train)]):
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
        f"silo {silo.number}: {silo.documents:,} documents, {len(silo.train)} training queries and "
        f"{len(silo.test)} test queries; {more:,} documents of other silos in its training lists"
        for silo, more in zip(silos, added, strict=False)
    ]
    outside = silos[len(added) :]
    if outside:
        tested = sum(len(silo.test) for silo in outside)
        notes.append(
            f"{len(outside)} more silos do not participate; the model is also tested on their {tested} queries"
        )
    if collection.unknown:
        notes.append(f"{collection.unknown:,} judgements refer to a missing query or document; they are ignored")
    return notes


def _measured(method: LocalPlus, silos: list[Silo], path: Path, seed: int) -> str:
    """Measure the sketches of the first silo's bodies with queries of the others; writes and describes the results."""
    members = [silo for silo in silos if silo.train]
    asked = [term for silo in members[1:] for query in silo.train for term in query.terms]
    rule = replace(method.rule, k=max(1, *method.most(members)))
    key = rng_for(seed, "key of the silos").bytes(32)
    found = measure_sketches(members[0].fields["body"], asked, method.sketcher, rule, key)
    write_atomic(path, json.dumps(asdict(found), indent=2))
    return (
        f"a sketch query for one of {found.terms} terms finds a fraction {found.cover:.2f} of the best {found.k} of "
        f"{found.documents:,} documents in {found.milliseconds:.3g} ms and {found.megabytes:.3g} MB; querying the "
        f"sketches of all documents finds {found.naive_cover:.2f} in {found.naive_milliseconds:.3g} ms and "
        f"{found.naive_megabytes:.3g} MB"
    )


def silo_card(experiment: SiloExperiment, silos: Sequence[Silo] | None = None) -> Card:
    """The privacy card; with new noise in every answer, for one answer, or for all queries of these silos."""
    method, delta, budget = experiment.method, experiment.privacy.delta, experiment.privacy.budget
    sees, not_covered = [], []
    mechanism, guarantee, reason = None, None, ""
    if method.first(1).ndim == 1:
        sees.append("the server and the other silos see the model after the steps of every silo")
        not_covered.append(WEIGHTS)
    if isinstance(method, LocalPlus):
        sees.append("silos see documents of each other that match queries, with their lengths and term counts")
        not_covered += NOT_COVERED
        guarantee = _promised(method, delta, silos)
        if guarantee is not None:
            mechanism = describe(method) | {"name": method.noise_in}
        elif method.counts == "sketch" and method.noise_in == "paper":
            reason = " The published noise is added, equal for all rows of a document, which hides nothing."
    spent = math.inf if guarantee is None or guarantee.epsilon is None else guarantee.epsilon
    if budget is not None and sees and spent > budget:
        noise = "the published noise, which hides nothing" if reason else "no noise"
        claim = f"costs ε = {up(spent)} for one occurrence of a term" if guarantee else f"adds {noise}, so no ε holds"
        raise ValueError(f"the method {claim}, but the budget is {budget:g}; use more noise, or another budget")
    summary = "; ".join(sees or ["silos exchange nothing"]).capitalize() + "." + reason
    if guarantee is not None:
        claim = f"Every answer is noised: ε = {up(spent)} for one occurrence of one term, {guarantee.often}"
        if guarantee.paid_per == "once":
            claim = f"Sketches are noised: ε = {up(spent)} at δ = {delta:g} for one occurrence of one term, paid once"
            claim += " for all queries of all silos"
        summary += f" {claim}; a word that occurs k times costs as much as a group of k."
    elif sees:
        summary += " No privacy guarantee." if reason else " Noise is not added: no privacy guarantee."
    return Card(
        clients=experiment.silos.count,
        mechanism=mechanism,
        who_sees_what="; ".join(sees),
        delta=delta,
        budget=budget,
        promises=() if guarantee is None else (guarantee,),
        not_covered=tuple(not_covered),
        summary=summary,
    )


def _promised(method: LocalPlus, delta: float, silos: Sequence[Silo] | None) -> Paid | None:
    """The guarantee; None if there is none."""
    if method.counts == "exact" or method.noise_in == "paper":
        return None
    if method.noise_in == "lookup":
        times, each = 1 if silos is None else _released_numbers(silos), method.epsilon
        paid_per, because = "released number", "Laplace noise on every released count and document frequency"
    elif math.isinf(each := method.sketcher.privacy(delta)):
        return None
    else:
        times, paid_per = 1, "once"
        because = "Gaussian noise in the sketch of the document and in that of the document frequencies"
    return Paid(
        against="silos and relays that see sketches or answers",
        epsilon=each * times,
        epsilon_each_time=each,
        times=times,
        paid_per=paid_per,
        delta=delta,
        unit="one occurrence of one term in one field of one document",
        neighbours="one occurrence is replaced by another term: lengths are published",
        because=because,
    )


def _released_numbers(silos: Sequence[Silo]) -> int:
    """Numbers released about one document by the silo that is queried most: for a training term, its count and
    document frequency; for a test term, the latter."""
    members = [silo for silo in silos if silo.train]
    asked = [
        sum(2 * len(one.terms) for one in silo.train) + sum(len(one.terms) for one in silo.test) for silo in members
    ]
    return sum(asked) - min(asked)
