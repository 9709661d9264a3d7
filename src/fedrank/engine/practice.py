"""A synthetic organisation for practice: four sites, a search engine, simulated clicks, and a known truth.

The engine ranks by BM25 of title and body. Users' preferences also depend on titles and popularity, so a model on the
features `engine-1` can improve on it. Documents change positions from time to time, as in a real log.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedrank import kernels
from fedrank.data.engine_features import ENGINE_1
from fedrank.data.synthetic_shown import Browsing, rounded_normals
from fedrank.data.synthetic_text import synthetic_collection
from fedrank.engine.team_draft import team_draft
from fedrank.engine.trial_record import read_plan
from fedrank.files import write_atomic
from fedrank.seeds import rng_for
from fedrank.trees.export import plain_scores
from fedrank.trees.model_files import load_model
from fedrank.types import Features

SITES = ("north", "east", "south", "west")
QUERIES, EVENTS, DOCUMENTS = "ubi_queries.ndjson", "ubi_events.ndjson", "docs.jsonl"
FOUND, PLACES = 20, 10  # documents that match a query, and that are displayed
BEGINNING = 1_767_225_600  # 1 January 2026
WANTED = {"all_match": 1.5, "title_match": 0.7, "popularity": 0.5}  # what users prefer
RESTLESS = 0.35  # variation of the engine's scores between two searches, relative to their total variation
ROBOT_SEARCHES = 150


@dataclass(frozen=True, eq=False)
class Practice:
    """The organisation: queries, the results of the engine, and the probability that each satisfies the user."""

    queries: list[str]
    names: list[str]  # of documents
    corpus: list[dict[str, str]]  # the documents as in a file
    found: NDArray[np.int64]  # [queries, FOUND]: rows of documents in the engine's order
    features: Features  # [queries, FOUND, features]
    relevance: NDArray[np.float64]  # [queries, FOUND], 0 .. 1
    browsing: Browsing
    seed: int

    @classmethod
    def begin(cls, seed: int = 1, queries: int = 240) -> Practice:
        """Create documents, queries and a truth; the same seed gives the same organisation."""
        made = synthetic_collection(queries=queries, seed=seed)
        rng = rng_for(seed, "practice", "popularity")
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
        spread = scaled.reshape(-1, len(ENGINE_1.names)).std(axis=0)
        columns = [ENGINE_1.names.index(name) for name in WANTED]
        seen = (scaled[:, :, columns] / spread[columns]).astype(np.float64).reshape(-1, len(columns))
        quality = kernels.sums.products(seen, np.array([list(WANTED.values())])).reshape(described.shape[:2])
        quality += 0.5 * rounded_normals(rng, *quality.shape)
        relevance = 1 / (1 + kernels.elementary.exp_each(-2.5 * (quality - np.quantile(quality, 0.85))))
        corpus = [
            {"id": id, "title": title, "text": text, "popularity": popular}
            for id, title, text, popular in zip(
                documents.ids, documents.title, documents.text, documents.popularity, strict=True
            )
        ]
        return cls(made.queries, documents.ids, corpus, np.stack(found), described, relevance, Browsing(), seed)

    def write_log(self, folder: str | Path, searches: int = 6000, site: str | None = None) -> None:
        """Write the documents, searches and clicks of one site, or of all four, as User Behavior Insights (UBI).

        The log contains a robot, clicks on results that were not displayed, and lines that are not JSON.
        """
        folder, rng = Path(folder), rng_for(self.seed, "practice", "log")
        queries: list[str] = []
        events: list[str] = []
        engine = self.features[:, :, ENGINE_1.names.index("all_match")].astype(np.float64)
        for number, (query, place, client, time) in enumerate(self._searches(searches, rng)):
            restless = RESTLESS * engine[query].std() * rounded_normals(rng, FOUND)
            shown = np.argsort(-(engine[query] + restless), kind="stable")[:PLACES]
            id = f"q{number:05d}"
            clicks = self._click_lines(id, client, time, query, shown, rng)
            if site not in (None, place):
                continue
            queries.append(self._query_line(id, client, time, query, shown, {"site": place}))
            events += clicks
            if number % 500 == 0:
                events += [_event(id, client, time, f"never-shown-{number}"), "{cut off"]
        for number in range(ROBOT_SEARCHES if site in (None, SITES[0]) else 0):
            id, time, query = f"r{number}", BEGINNING + 20 * number, int(rng.integers(len(self.queries)))
            queries.append(self._query_line(id, "robot", time, query, np.arange(PLACES), {"site": SITES[0]}))
            events += [_event(id, "robot", time, self._name(query, row)) for row in range(PLACES)]
        write_atomic(folder / DOCUMENTS, "".join(json.dumps(row) + "\n" for row in self.corpus))
        write_atomic(folder / QUERIES, "\n".join(queries) + "\n")
        write_atomic(folder / EVENTS, "\n".join(events) + "\n")

    def write_trial(
        self, trial: str | Path, folder: str | Path, searches: int = 1000, first: int = 0, people: int = 100
    ) -> None:
        """Write some days of a trial: interleaved lists of both models and clicks on them, in the format of UBI.

        `first` is the number of earlier searches, and `people` the number of users of each site.
        """
        plan, folder = read_plan(trial), Path(folder)
        rng = rng_for(self.seed, "practice", "trial", plan.id, first)
        orders = [self._order(model.path) for model in (plan.old, plan.new)]
        queries, events = [], []
        for number, (query, site, client, time) in enumerate(self._searches(searches, rng, first, people), first):
            id = f"{plan.id}-{number}"
            old, new = ([self._name(query, row) for row in order[query]] for order in orders)
            mixed = team_draft(old, new, plan.places, plan.key, id)
            place_of = {self._name(query, row): row for row in range(FOUND)}
            shown = np.array([place_of[document] for document, _ in mixed])
            teams = {"trial": plan.id, "teams": [team for _, team in mixed]}
            lists = {"old": old[: plan.places], "new": new[: plan.places]}
            queries.append(self._query_line(id, client, time, query, shown, {"site": site, **teams, **lists}))
            events += self._click_lines(id, client, time, query, shown, rng)
        write_atomic(folder / QUERIES, "\n".join(queries) + "\n")
        write_atomic(folder / EVENTS, "\n".join(events) + "\n")

    def clicks_a_search(self, model: str | Path | None = None) -> float:
        """The true expected number of clicks per search on lists of a model or of the engine."""
        order = self._order(model)
        shown = np.take_along_axis(self.relevance, order, axis=1)[:, :PLACES]
        return float(kernels.sums.products(shown, self.browsing.examined(np.arange(PLACES))[None]).mean())

    def _order(self, path: str | Path | None) -> NDArray[np.int64]:
        """[queries, FOUND]: positions in the engine's list, in the order of a model; without one, of the engine."""
        if not path:
            return np.tile(np.arange(FOUND), (len(self.queries), 1))
        model = load_model(path)
        scores = np.stack([plain_scores(model, table) for table in self.features])
        order: NDArray[np.int64] = np.argsort(-scores, axis=1, kind="stable")
        return order

    def _searches(
        self, count: int, rng: np.random.Generator, first: int = 0, users: int = 100
    ) -> Iterator[tuple[int, str, str, float]]:
        """(query, site, browser, seconds): sites have different topics, and few users search most."""
        queries = np.arange(len(self.queries))
        people = kernels.elementary.power_each(np.arange(1.0, users + 1), -0.7)
        people /= people.sum()
        for number in range(first, first + count):
            site = int(rng.integers(len(SITES)))
            own = queries[queries % len(SITES) == site] if rng.random() < 0.7 else queries
            query, person = int(rng.choice(own)), int(rng.choice(len(people), p=people))
            yield query, SITES[site], f"{SITES[site]}-{person}", BEGINNING + 97.0 * number

    def _query_line(
        self, id: str, client: str, time: float, query: int, shown: NDArray[np.int64], attributes: dict[str, object]
    ) -> str:
        return json.dumps(
            {
                "query_id": id,
                "client_id": client,
                "timestamp": int(1000 * time),
                "user_query": self.queries[query],
                "query_response_hit_ids": [self._name(query, int(row)) for row in shown],
                "query_attributes": attributes,
            }
        )

    def _click_lines(
        self, id: str, client: str, time: float, query: int, shown: NDArray[np.int64], rng: np.random.Generator
    ) -> list[str]:
        looked = self.browsing.examined(np.arange(len(shown)))
        clicked = rng.random(len(shown)) < looked * self.relevance[query, shown]
        return [_event(id, client, time + 5, self._name(query, int(row))) for row in shown[clicked]]

    def _name(self, query: int, place: int) -> str:
        return self.names[int(self.found[query, place])]


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
