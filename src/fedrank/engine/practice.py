"""Synthetic hospitals for practice: documents, a search engine, people who click, and a known truth.

The engine ranks by BM25 of title and body. People's preferences also depend on titles and popularity, so a model on the
features `engine-1` can improve on it. Sites have different documents, page layouts and people. In each search the
service draws one pair of neighbours, swaps it with probability 1/2, and logs both as `query_attributes.swap`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedrank import kernels
from fedrank.data.engine_features import ENGINE_1
from fedrank.data.synthetic_shown import rounded_normals
from fedrank.data.synthetic_text import synthetic_collection
from fedrank.engine.team_draft import team_draft
from fedrank.engine.trial_record import read_plan
from fedrank.files import write_atomic
from fedrank.ranking.model import Model
from fedrank.seeds import rng_for
from fedrank.trees.export import plain_scores
from fedrank.trees.model_files import load_model
from fedrank.types import Features

EXAMINED = {  # by site: probability that a person looks at each position; what fits on the screen, then a drop
    "north": (1.0, 0.95, 0.9, 0.35, 0.3, 0.25, 0.2, 0.2, 0.15, 0.15),
    "east": (1.0, 0.9, 0.85, 0.8, 0.75, 0.7, 0.25, 0.2, 0.2, 0.15),
    "south": (1.0, 0.5, 0.45, 0.4, 0.4, 0.35, 0.3, 0.1, 0.1, 0.1),
}
SITES = tuple(EXAMINED)
QUERIES, EVENTS, DOCUMENTS = "ubi_queries.ndjson", "ubi_events.ndjson", "docs.jsonl"
FOUND, PLACES = 20, 10  # documents that match a query, and that are displayed
UNSEEN = 200  # queries that are in no log
BEGINNING, BETWEEN = 1_767_225_600, 150_000  # 1 January 2026; mean seconds between two searches of a person
WANTED = {"all_match": 1.0, "title_match": 0.7, "popularity": 0.7}  # what people prefer
NOISE = 1.0  # deviation of what people prefer for other reasons
ROBOT_SEARCHES = 400
LOST, REPEATED = 0.02, 0.03  # shares of searches that were not logged, and of events that were logged twice
WRONG_CLOCK = 50  # one person in this number has a clock that is days ahead; others are off by up to two minutes
_TOP_LABEL = 4


class Truth(NamedTuple):
    """The true quality of a ranking, per query."""

    clicks: NDArray[np.float64]  # expected clicks per search
    ndcg: NDArray[np.float64]  # nDCG@10 by true relevance; NaN without a relevant document


@dataclass(frozen=True, eq=False)
class Practice:
    """One organisation: queries, the results of the engine, and the probability that each satisfies a person."""

    site: str
    queries: list[str]  # those that are asked, then those that are in no log
    names: list[str]  # of documents
    corpus: list[dict[str, str]]  # the documents as in a file
    found: NDArray[np.int64]  # [queries, FOUND]: rows of documents in the engine's order
    features: Features  # [queries, FOUND, features]
    relevance: NDArray[np.float64]  # [queries, FOUND], 0 .. 1
    seed: int
    trust: float = 0.0  # probability that an irrelevant document seems relevant at position 1; 1 / k of it at k

    @classmethod
    def begin(cls, site: str = "north", seed: int = 1, queries: int = 240, trust: float = 0.0) -> Practice:
        """Create documents, queries and a truth; the same arguments give the same organisation."""
        if site not in EXAMINED or not 0 <= trust < 1:
            raise ValueError(f"site must be one of {', '.join(SITES)} (got {site}), trust from 0 to 1 (got {trust})")
        made = synthetic_collection(queries=queries + UNSEEN, seed=len(SITES) * seed + SITES.index(site))
        rng = rng_for(seed, "practice", site, "popularity")
        popularity = kernels.elementary.exp_each(3.0 + 2.0 * rounded_normals(rng, len(made.documents))).astype(int)
        documents = replace(made.documents, popularity=[str(number) for number in popularity])
        index = ENGINE_1.index(documents)
        everything = np.arange(len(documents))
        found, features = [], []
        for query in made.queries:
            table = index.describe(query, everything)
            best = np.argsort(-table[:, ENGINE_1.names.index("all_match")], kind="stable")[:FOUND]
            found.append(best)
            features.append(table[best])
        described = np.stack(features)
        scaled = described / ENGINE_1.ranges[1]
        columns = [ENGINE_1.names.index(name) for name in WANTED]
        apart = scaled[:, :, columns] - scaled[:, :, columns].mean(axis=1, keepdims=True)  # people compare results
        seen = (apart / apart.std(axis=(0, 1))).astype(np.float64).reshape(-1, len(columns))
        quality = kernels.sums.products(seen, np.array([list(WANTED.values())])).reshape(described.shape[:2])
        quality += NOISE * rounded_normals(rng, *quality.shape)
        relevance = 1 / (1 + kernels.elementary.exp_each(-2.5 * (quality - np.quantile(quality, 0.9))))
        corpus = [
            {"id": id, "title": title, "text": text, "popularity": popular}
            for id, title, text, popular in zip(
                documents.ids, documents.title, documents.text, documents.popularity, strict=True
            )
        ]
        return cls(site, made.queries, documents.ids, corpus, np.stack(found), described, relevance, seed, trust)

    @property
    def asked(self) -> int:
        """Number of queries that people ask; the later ones are in no log."""
        return len(self.queries) - UNSEEN

    @property
    def slope(self) -> NDArray[np.float64]:
        """[PLACES]: click probability of a relevant document minus that of an irrelevant one."""
        return np.array(EXAMINED[self.site]) - self.intercept

    @property
    def intercept(self) -> NDArray[np.float64]:
        """[PLACES]: click probability of an irrelevant document."""
        intercept: NDArray[np.float64] = np.array(EXAMINED[self.site]) * self.trust / np.arange(1, PLACES + 1)
        return intercept

    def write_log(
        self,
        folder: str | Path,
        searches: int = 8_640,
        people: int = 250,
        *,
        first: int = 0,
        swaps: bool = True,
        model: str | Path | Model | None = None,
    ) -> None:
        """Write the documents, searches and clicks of some weeks as User Behavior Insights (UBI).

        `first` is the number of earlier searches, and `model` the ranker in use. Without `swaps`, nothing is random in
        the lists. The log contains a robot, lines that are not JSON, events that were logged twice, clicks on results
        that were not displayed, searches that were not logged, and clocks of browsers that are wrong.
        """
        folder, rng = Path(folder), rng_for(self.seed, "practice", self.site, "log", first)
        order = self._order(model)
        queries, events = list[str](), list[str]()
        for number, (query, client, time) in enumerate(self._searches(searches, people, first, rng), first):
            shown = order[query, :PLACES].copy()
            at, swapped = int(rng.integers(PLACES - 1)), bool(rng.random() < 0.5)
            if swaps and swapped:
                shown[[at, at + 1]] = shown[[at + 1, at]]
            id = f"{self.site}-{number}"
            clicks = self._click_lines(id, client, time, query, shown, rng)
            if rng.random() >= LOST:
                about: dict[str, object] = {"swap": {"position": at + 1, "swapped": swapped}} if swaps else {}
                queries.append(self._query_line(id, client, time, query, shown, about))
            for line in clicks:
                events += [line, line] if rng.random() < REPEATED else [line]
            if number % 500 == 0:
                events += [_event(id, client, time, f"never-shown-{number}"), "{cut off"]
        for number in range(ROBOT_SEARCHES):
            id, time = f"robot-{first}-{number}", BEGINNING + BETWEEN / people * first + 5.0 * number
            query = int(rng.integers(self.asked))
            queries.append(self._query_line(id, "robot", time, query, order[query, :PLACES], {}))
            events += [_event(id, "robot", time, self._name(query, row)) for row in order[query, :PLACES]]
        write_atomic(folder / DOCUMENTS, "".join(json.dumps(row) + "\n" for row in self.corpus))
        write_atomic(folder / QUERIES, "\n".join(queries) + "\n")
        write_atomic(folder / EVENTS, "\n".join(events) + "\n")

    def write_trial(
        self, trial: str | Path, folder: str | Path, searches: int = 1000, first: int = 0, people: int = 250
    ) -> None:
        """Write some days of a trial: interleaved lists of both models and clicks on them, in the format of UBI.

        `first` is the number of earlier searches.
        """
        plan, folder = read_plan(trial), Path(folder)
        rng = rng_for(self.seed, "practice", self.site, "trial", plan.id, first)
        orders = [self._order(model.path) for model in (plan.old, plan.new)]
        queries, events = [], []
        for number, (query, client, time) in enumerate(self._searches(searches, people, first, rng), first):
            id = f"{plan.id}-{number}"
            old, new = ([self._name(query, row) for row in order[query]] for order in orders)
            mixed = team_draft(old, new, plan.places, plan.key, id)
            place_of = {self._name(query, row): row for row in range(FOUND)}
            shown = np.array([place_of[document] for document, _ in mixed])
            teams = {"trial": plan.id, "teams": [team for _, team in mixed]}
            lists = {"old": old[: plan.places], "new": new[: plan.places]}
            queries.append(self._query_line(id, client, time, query, shown, {**teams, **lists}))
            events += self._click_lines(id, client, time, query, shown, rng)
        write_atomic(folder / QUERIES, "\n".join(queries) + "\n")
        write_atomic(folder / EVENTS, "\n".join(events) + "\n")

    def truth(self, model: str | Path | Model | None = None, *, shown: bool = False) -> Truth:
        """The true quality of a model or, without one, of the engine; with `shown`, of its lists with random swaps."""
        order = self._order(model)
        lists = [order]
        for at in range(PLACES - 1) if shown else ():
            swapped = order.copy()
            swapped[:, [at, at + 1]] = order[:, [at + 1, at]]
            lists += [order, swapped]
        found = [self._truth(one) for one in lists[1 if shown else 0 :]]
        return Truth(*(np.mean(values, axis=0) for values in zip(*found, strict=True)))

    def clicks_a_search(self, model: str | Path | Model | None = None, *, shown: bool = False) -> float:
        """The true expected number of clicks per search on queries as people ask them."""
        return float(kernels.sums.inner(self.truth(model, shown=shown).clicks[: self.asked], _falling(self.asked)))

    def ndcg(self, model: str | Path | Model | None = None, *, shown: bool = False) -> float:
        """Mean nDCG@10 by true relevance on the queries that are in no log."""
        return float(np.nanmean(self.truth(model, shown=shown).ndcg[self.asked :]))

    def _truth(self, order: NDArray[np.int64]) -> Truth:
        shown = np.take_along_axis(self.relevance, order, axis=1)
        clicks = kernels.sums.products(shown[:, :PLACES], self.slope[None])[:, 0] + self.intercept.sum()
        gains = 2.0 ** np.rint(_TOP_LABEL * shown) - 1
        discounts = 1 / np.log2(np.arange(2.0, PLACES + 2))[None]
        best = kernels.sums.products(np.ascontiguousarray(-np.sort(-gains)[:, :PLACES]), discounts)[:, 0]
        own = kernels.sums.products(np.ascontiguousarray(gains[:, :PLACES]), discounts)[:, 0]
        return Truth(clicks, np.divide(own, best, out=np.full(len(own), np.nan), where=best > 0))

    def _order(self, model: str | Path | Model | None) -> NDArray[np.int64]:
        """[queries, FOUND]: positions in the engine's list, in the order of a model; without one, of the engine."""
        if not model:
            return np.tile(np.arange(FOUND), (len(self.queries), 1))
        ranker = model if isinstance(model, Model) else load_model(model)
        scores = np.stack([plain_scores(ranker, table) for table in self.features])
        order: NDArray[np.int64] = np.argsort(-scores, axis=1, kind="stable")
        return order

    def _searches(
        self, count: int, people: int, first: int, rng: np.random.Generator
    ) -> Iterator[tuple[int, str, float]]:
        """(query, browser, seconds): some queries are asked more often, and few people search most."""
        queries = rng.choice(self.asked, size=count, p=_falling(self.asked))
        persons = rng.choice(people, size=count, p=_falling(people))
        times = BEGINNING + BETWEEN / people * (first + np.arange(count) + rng.random(count))
        for query, person, time in zip(queries.tolist(), persons.tolist(), times.tolist(), strict=True):
            yield query, f"{self.site}-browser-{person}", time

    def _query_line(
        self, id: str, client: str, time: float, query: int, shown: Sequence[int] | NDArray[np.int64],
        attributes: dict[str, object],
    ) -> str:  # fmt: skip
        return json.dumps(
            {
                "query_id": id,
                "client_id": client,
                "user_id": client.replace("browser", "person"),
                "timestamp": int(1000 * time),
                "user_query": self.queries[query],
                "query_response_hit_ids": [self._name(query, int(row)) for row in shown],
                "query_attributes": attributes,
            }
        )

    def _click_lines(
        self, id: str, client: str, time: float, query: int, shown: NDArray[np.int64], rng: np.random.Generator
    ) -> list[str]:
        chance = self.slope * self.relevance[query, shown] + self.intercept
        clicked = shown[rng.random(len(shown)) < chance]
        return [_event(id, client, time + 5 + _clock(client), self._name(query, int(row))) for row in clicked]

    def _name(self, query: int, place: int) -> str:
        return self.names[int(self.found[query, place])]


def _falling(count: int) -> NDArray[np.float64]:
    """[count]: shares in proportion to 1 / k^0.7."""
    shares = kernels.elementary.power_each(np.arange(1.0, count + 1), -0.7)
    part: NDArray[np.float64] = shares / shares.sum()
    return part


def _clock(client: str) -> float:
    """Seconds by which the clock of a browser is ahead."""
    person = int(client.rpartition("-")[2])
    return 3 * 86_400.0 if person % WRONG_CLOCK == WRONG_CLOCK - 1 else float(37 * person % 241 - 120)


def _event(query: str, client: str, time: float, document: str) -> str:
    return json.dumps(
        {
            "action_name": "click",
            "query_id": query,
            "client_id": client,
            "timestamp": int(1000 * time),
            "event_attributes": {"object": {"object_id": document}},
        }
    )
