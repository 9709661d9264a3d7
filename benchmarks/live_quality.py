"""Check that the search client never falls below its engine: people search judged collections through `SearchClient`.

    python -m benchmarks.live_quality [--collections ...] [--people ...] [--repeats ...] [--searches 3000] [--seeds 1]
        [--out live_quality.jsonl] [--check] [--report]
    python -m benchmarks.live_quality --engine [--collections ...]

The needs of a collection (at most 120) are halved. One half is searched: a Zipf law chooses the need, a search has 70 %
of its words, and a share of searches repeats an earlier one. After 10, 100, 300, 1,000 and 3,000 searches the other
half and up to 540 further needs (unseen), the last search of each searched need (repeated) and all words of these needs
(reworded) are asked without recording. Quotation marks, colons, asterisks and minus signs that begin a word are left
out, so a need has no conditions. Figures are differences of nDCG@10 (all judged documents count in the ideal) to
the client's own engine on the same texts; `engine` and `bm25s` are the means themselves, the latter with its own
tokenizer, stop words and Snowball stemmer. `cost`: what mixed lists lost against sorted ones, over all searches. `given
up`: lives in which the engine's order or the order without memory won. Intervals (95 %) are over needs, each
the mean of its lives.

Five collections come from FEDRANK_DATA; `docstrings` is made here from NumPy and SciPy. `--collections debian-italian
...` are others: the short description of a package is the query for the rest, from Translation-it.bz2 of a Debian
release (main/i18n) in the folder --translations. The start weights and the rules of the memory were chosen with the six
collections and seven languages in view; debian-slovak, -polish, -ukrainian and -czech were not. A cell is a person in a
collection after some searches, over all lives. Lives that are in the file already are not repeated. What a query finds
and the features of these documents do not depend on the person, so lives share them, and titles and snippets are left
out; everything else is the client's.

--engine searches all needs (at most 660 of a collection) once instead, with all words and without clicks: nDCG@10 of
the engine, and differences to it of bm25s, of the order with the start weights, and of RM3 (the 10 heaviest terms of
the 10 best documents with half of the weight, as in Anserini), alone and as the engine below the start weights.

--check fails if a person's mean difference on unseen needs is not above 0, or a cell is below -.005, or from 100
searches on lists cost more than .003 or (careful, informational and careless people) repeated needs are not better
beyond the interval.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import bz2
import inspect
import json
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from fedrank.data.collection import Collection, load_collection
from fedrank.data.documents import Documents
from fedrank.search import client as client_module
from fedrank.search.client import SearchClient
from fedrank.search.impressions import best_order
from fedrank.search.index import Candidacy, Engine, term
from fedrank.search.lists import raw_features, still_there
from fedrank.search.opponents import GIVEN_UP
from fedrank.search.result_pages import ResultPages
from fedrank.search.results import Filters, Result, Snippet
from fedrank.seeds import rng_for

COLLECTIONS = ("cranfield", "cisi", "msmarco-mini", "nfcorpus", "vaswani", "docstrings")
DEBIAN = {  # with the languages of their translations; the first seven were used to choose the start weights
    "debian-german": "de",
    "debian-french": "fr",
    "debian-italian": "it",
    "debian-danish": "da",
    "debian-russian": "ru",
    "debian-portuguese": "pt_BR",
    "debian-spanish": "es",
    "debian-slovak": "sk",
    "debian-polish": "pl",
    "debian-ukrainian": "uk",
    "debian-czech": "cs",
}
WITHOUT_STEMMER = ("debian-slovak", "debian-ukrainian")
WITHOUT_STOP_WORDS = ("debian-slovak", "debian-polish", "debian-ukrainian", "debian-czech")  # in bm25s
PACKAGES = 5_000  # of each of these, evenly spaced
NEEDS = 120  # of a collection, evenly spaced, half of which are searched
MORE = 540  # further needs that are only measured, where a collection has them
MOMENTS = (10, 100, 300, 1_000, 3_000)
EXPANDED, TOO_COMMON = 10, 0.1  # documents and terms of RM3; share of documents above which a term is not added
WORDS = 0.7  # share of a need's words in a search
# click probability and probability to leave after a click: of a document without relevance, and of the most relevant
PEOPLE = {
    "careful": ((0.05, 0.95), (0.2, 0.9)),
    "informational": ((0.4, 0.9), (0.1, 0.5)),
    "careless": ((0.4, 0.6), (0.3, 0.5)),
    "random": ((0.5, 0.5), (0.3, 0.3)),
    "adversarial": ((0.8, 0.0), (0.5, 0.5)),
}
HONEST = ("careful", "informational", "careless")
ASKED = ("unseen", "repeated", "reworded")
LOWEST, COST = -0.005, 0.003


@dataclass(frozen=True)
class Life:
    """One person's searches in one collection."""

    collection: str
    person: str
    repeats: float
    searches: int
    seed: int


class Clock:
    """Time that passes between searches."""

    now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


@dataclass(frozen=True, eq=False)
class Indexed:
    """A collection in a search folder; document i of the store is `rows[i]` of the collection."""

    collection: Collection
    store: Path
    rows: dict[int, int]
    needs: list[int]
    more: list[int]
    references: dict[tuple[int, str], tuple[float, ...]] = field(default_factory=dict)  # nDCG@10 of engine and bm25s
    found: dict[Any, Candidacy] = field(default_factory=dict)  # by terms
    features: dict[str, Any] = field(default_factory=dict)  # by query

    def ndcg(self, need: int, ids: Sequence[int]) -> float:
        judged, grades = self.collection.judgements(need)
        grade_of = dict(zip(judged.tolist(), grades.tolist(), strict=True))
        return dcg([grade_of.get(self.rows[id], 0) for id in ids[:10]]) / dcg(np.sort(grades)[::-1])


@contextmanager
def shared_features(one: Indexed) -> Iterator[None]:
    """Let all lives share what does not depend on the person, and leave out titles and snippets."""
    candidates_for, still_there, of_rows = Engine.candidates_for, client_module.still_there, client_module.raw_features

    def candidates(self, terms, filters, by_date, among=None, parsed=None):
        assert among is None, "lives share the candidates among all documents"
        assert not parsed, "the texts of needs are searched without conditions"
        if (asked := frozenset(terms.items())) not in one.found:
            one.found[asked] = candidates_for(self, terms, filters, by_date)
        return one.found[asked]

    def raw_features(store, query, found, _):
        if query.text not in one.features:
            one.features[query.text] = of_rows(store, query, *still_there(store, found))
        return one.features[query.text]

    def results(self, shown, positions, clicked):
        ids = shown.candidates[shown.shown[list(positions)]].tolist()
        return tuple(
            Result(id, n, "file", "", "", "", 0, Snippet(""), False) for n, id in zip(positions, ids, strict=True)
        )

    with (
        patch.object(Engine, "candidates_for", candidates),
        patch.object(client_module, "still_there", lambda store, found: (found, None)),
        patch.object(client_module, "raw_features", raw_features),
        patch.object(ResultPages, "results", results),
    ):
        yield


def dcg(grades: Sequence[int] | np.ndarray) -> float:
    best = np.asarray(grades[:10], float)
    return float(((2.0**best - 1) / np.log2(np.arange(len(best)) + 2)).sum())


def docstrings() -> Collection:
    """A collection from another field: the first sentence of a docstring is the query for the rest."""
    some = ("linalg", "optimize", "signal", "stats", "special", "sparse", "spatial", "interpolate", "ndimage")
    modules = [np, np.linalg, np.fft, np.random, *(import_module(f"scipy.{name}") for name in some)]
    seen: dict[str, tuple[str, str, str]] = {}
    for module in modules:
        for name in sorted(dir(module)):
            text = inspect.getdoc(getattr(module, name, None)) or ""
            paragraphs = [one for one in text.split("\n\n") if "(" not in one.split("\n")[0]]
            if len(paragraphs) > 2 and len(text) > 400 and len(paragraphs[0].split()) > 3:
                seen.setdefault(text, (name, paragraphs[0], "\n".join(paragraphs[1:])))
    return known_items("docstrings", list(seen.values()))


def descriptions(name: str, translations: Path) -> Collection:
    """Descriptions of Debian packages in another language."""
    seen: dict[str, tuple[str, str, str]] = {}
    with bz2.open(translations / f"Translation-{DEBIAN[name]}.bz2", "rt", encoding="utf-8") as file:
        for entry in file.read().split("\n\n"):
            about, _, text = entry.partition(f"\nDescription-{DEBIAN[name]}: ")
            short, _, rest = text.partition("\n")
            if len(rest) > 300 and len(short.split()) > 3:
                seen.setdefault(rest, (about.split("\n")[0].removeprefix("Package: "), short, rest))
    return known_items(name, evenly(list(seen.values()), PACKAGES))


def known_items(name: str, items: Sequence[tuple[str, str, str]]) -> Collection:
    """A collection of (title, query, text), where each query has one right answer."""
    names, queries, texts = (list(column) for column in zip(*items, strict=True))
    ids = [str(row) for row in range(len(names))]
    grades = [{row: 1} for row in range(len(ids))]
    return Collection.of(name, Documents(ids, names, texts, [""] * len(ids)), ids, queries, grades)


def without_operators(text: str) -> str:
    """The text of a need without the characters that make conditions, which are punctuation here."""
    return re.sub(r"(?<!\S)-+", " ", re.sub(r'["“”„‟«»*:]', " ", text))


def language_of(name: str) -> str:
    if name in WITHOUT_STEMMER:
        return "none"
    return name.removeprefix("debian-") if name in DEBIAN else "english"


@cache
def indexed(name: str, folder: Path, translations: Path) -> Indexed:
    if name in DEBIAN:
        collection = descriptions(name, translations)
    else:
        collection = docstrings() if name == "docstrings" else load_collection(name)
    collection = replace(collection, queries=[without_operators(text) for text in collection.queries])
    documents, lines, rows = collection.documents, folder / f"{name}.jsonl", {}
    with lines.open("w") as file:
        for row, (title, text) in enumerate(zip(documents.title, documents.text, strict=True)):
            if (title + text).strip():
                rows[len(rows) + 1] = row
                file.write(json.dumps({"id": row, "title": title, "text": text}) + "\n")
    with SearchClient(folder / name, language=language_of(name)) as client:
        found = client.index([lines])
        assert found.documents == len(rows), f"{name}: {found.documents} documents, expected {len(rows)}"
    judged = [q for q in range(len(collection.queries)) if collection.judgements(q)[1].any()]
    needs = evenly(judged, NEEDS)
    return Indexed(collection, folder / name, rows, needs, evenly(sorted({*judged} - {*needs}), MORE))


def evenly(values: Sequence[Any], count: int) -> list[Any]:
    return [values[i] for i in np.unique(np.linspace(0, len(values) - 1, count).astype(int))] if values else []


@cache
def bm25s_of(one: Indexed):
    """A function from a text to the ids of the ten best documents of another BM25."""
    import bm25s
    from Stemmer import Stemmer

    documents, name, language = one.collection.documents, one.collection.name, language_of(one.collection.name)
    stem = None if name in WITHOUT_STEMMER else Stemmer(language)
    stop = None if name in WITHOUT_STOP_WORDS else language
    texts = [f"{documents.title[row]} {documents.text[row]}" for row in one.rows.values()]
    engine = bm25s.BM25()
    engine.index(bm25s.tokenize(texts, stopwords=stop, stemmer=stem, show_progress=False), show_progress=False)

    def best(text: str) -> list[int]:
        asked = bm25s.tokenize([text], stopwords=stop, stemmer=stem, show_progress=False)
        return [int(row) + 1 for row in engine.retrieve(asked, k=10, show_progress=False)[0][0]]

    return best


def rm3(client: SearchClient, terms: Mapping[int, int]) -> Candidacy:
    """What the engine finds for a query and the heaviest terms of its best documents."""
    found, rows = still_there(client.store, client.engine.candidates_for(terms, Filters(), False))
    share: dict[int, float] = {}
    for row, score in enumerate(found.scores[:EXPANDED].tolist()):
        words, counts = np.unique(rows.words[rows.offsets[row] : rows.offsets[row + 1]], return_counts=True)
        for word, count in zip(words.tolist(), (counts / counts.sum()).tolist(), strict=True):
            share[word] = share.get(word, 0.0) + score * count
    most = TOO_COMMON * client.engine.documents
    rare = (word for word in share if client.engine._searcher.doc_freq("words", term(word)) <= most)
    heaviest = sorted(rare, key=lambda word: -share[word])[:EXPANDED]
    weights = {word: count / sum(terms.values()) for word, count in terms.items()}
    for word in heaviest:
        weights[word] = weights.get(word, 0.0) + share[word] / sum(share[one] for one in heaviest)
    return client.engine.candidates_for(weights, Filters(), False)  # type: ignore[arg-type]  # weights may be fractions


def compare_engines(names: Sequence[str], folder: Path, translations: Path) -> None:
    """Print nDCG@10 of the engine, and differences of others to it."""
    print("| collection (needs) | engine | bm25s | start weights | RM3 | RM3, start weights | RM3 to start weights |")
    print("|---|---|---|---|---|---|---|")
    for name in names:
        one, found = indexed(name, folder, translations), []
        with SearchClient(one.store) as client:
            for need in (needs := [*one.needs, *one.more]):
                request = client.request(text := one.collection.queries[need])
                terms, orders = client.features.engine_terms(text), []
                for candidates in (client.engine.candidates_for(terms, Filters(), False), rm3(client, terms)):
                    candidates, rows = still_there(client.store, candidates)
                    raw = raw_features(client.store, request, candidates, rows)
                    order = best_order(client.rows.scores(client.rows.weights(), raw))
                    orders += [candidates.documents.tolist(), candidates.documents[order].tolist()]
                engine, start, expanded, both = (one.ndcg(need, ids) for ids in orders)
                other = one.ndcg(need, bm25s_of(one)(text))
                found.append([other - engine, start - engine, expanded - engine, both - engine, both - start, engine])
        *differences, engine = np.array(found).T
        cells = [f"{short(mean)} ± {short(margin)[1:]}" for mean, margin in map(interval, differences)]
        print(f"| {name} ({len(needs)}) | {short(engine.mean())[1:]} | {' | '.join(cells)} |", flush=True)


def searches(life: Life, needs: Sequence[int], queries: Sequence[str], rng: np.random.Generator):
    """The needs and texts of a person's searches."""
    chance = 1.0 / np.arange(1, len(needs) + 1)
    chance /= chance.sum()
    past: list[tuple[int, str]] = []
    for _ in range(life.searches):
        if past and rng.random() < life.repeats:
            one = past[rng.integers(len(past))]
        else:
            need = int(needs[rng.choice(len(needs), p=chance)])
            words = queries[need].split()
            kept = np.sort(rng.permutation(len(words))[: max(round(WORDS * len(words)), 1)])
            one = need, " ".join(words[word] for word in kept)
        past.append(one)
        yield one


def clicks(life: Life, grades: Sequence[float], rng: np.random.Generator) -> Iterator[int]:
    """Positions that a person opens, from the top; relevance labels are scaled to 0 .. 1."""
    (low, high), (stays, leaves) = PEOPLE[life.person]
    for position, grade in enumerate(grades):
        if rng.random() < low + (high - low) * grade:
            yield position
            if rng.random() < stays + (leaves - stays) * grade:
                return


def live(life: Life, folder: Path, translations: Path) -> dict[str, object]:
    """One life: differences by moment, and by need for the intervals."""
    one = indexed(life.collection, folder, translations)
    # Purposes without the person, so all people search the same; a quarter of repeats swaps the halves, as a seed does.
    number, repeats = (*COLLECTIONS, *DEBIAN).index(life.collection), round(100 * life.repeats)
    halves = np.array_split(rng_for(0, "halves", number).permutation(one.needs), 2)
    searched, rest = halves if (life.seed + repeats) % 2 else halves[::-1]
    unseen = [*rest.tolist(), *one.more]
    rng = rng_for(life.seed, "live quality", number, repeats)
    clicking, top = rng_for(life.seed, "clicks", list(PEOPLE).index(life.person)), one.collection.top_grade
    store, clock = folder / "life", Clock()
    shutil.rmtree(store, ignore_errors=True)
    shutil.copytree(one.store, store)
    texts: dict[int, str] = {}
    cost: list[float] = []
    moments = []
    with SearchClient(store, clock=clock) as client, shared_features(one):
        with client.store.writing():
            client.store.set(chance=life.seed)
        for number, (need, text) in enumerate(searches(life, searched, one.collection.queries, rng), 1):
            shown = client.search(text)
            ids = [result.id for result in shown.results]
            judged, grades = one.collection.judgements(need)
            grade_of = dict(zip(judged.tolist(), grades.tolist(), strict=True))
            recorded = client.rows.get(shown.impression)
            if recorded.kind == "plain":
                cost.append(0.0)
            else:
                sorted_list = recorded.candidates[best_order(recorded.scores)[:10]].tolist()
                cost.append(one.ndcg(need, sorted_list) - one.ndcg(need, ids))
            clock.now += 10
            for position in clicks(life, [grade_of.get(one.rows[id], 0) / top for id in ids], clicking):
                client.open_document(shown.impression, position)
                clock.now += 10
            clock.now += 120
            texts[need] = text
            if number in MOMENTS or number == life.searches:
                asked = {
                    "unseen": [(need, one.collection.queries[need]) for need in unseen],
                    "repeated": list(texts.items()),
                    "reworded": [(need, one.collection.queries[need]) for need in texts],
                }
                moments.append(
                    {"after": number, "cost": float(np.mean(cost))}
                    | {"given up": given_up(client)}
                    | {name: measure(client, one, some) for name, some in asked.items()}
                )
                client.learn_setting("on")
    return asdict(life) | {"moments": moments}


def given_up(client: SearchClient) -> int:
    return sum(bool(client.store.setting(name, 0)) for name in GIVEN_UP.values())


def measure(client: SearchClient, one: Indexed, asked: Sequence[tuple[int, str]]):
    """Mean nDCG@10 of engine and bm25s, and the differences of the shown order to the engine by need."""
    client.learn_setting("off")
    engine, other, difference = [], [], []
    for need, text in asked:
        if (need, text) not in one.references:
            found = client.engine.candidates_for(client.features.engine_terms(text), Filters(), False)
            best = found.documents[:10].tolist(), bm25s_of(one)(text)
            one.references[need, text] = tuple(one.ndcg(need, ids) for ids in best)
        of_engine, of_other = one.references[need, text]
        engine.append(of_engine)
        other.append(of_other)
        difference.append(one.ndcg(need, [result.id for result in client.search(text).results]) - of_engine)
    means = {"needs": [need for need, _ in asked], "engine": float(np.mean(engine)), "bm25s": float(np.mean(other))}
    return means | {"difference": np.round(difference, 5).tolist()}


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean and half the width of its interval; infinite for one value."""
    half = 1.96 * np.std(values, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.inf
    return float(np.mean(values)), float(half)


@dataclass(frozen=True)
class Cell:
    """Differences of a person after some searches, over all lives."""

    means: dict[str, float]  # of a collection: every one has equal weight
    mean: float
    margin: float

    @classmethod
    def of(cls, which: str, moments: Sequence[tuple[dict, dict]]) -> Cell:
        by_name: dict[str, dict[int, list[float]]] = {}
        for life, moment in moments:
            of_needs = by_name.setdefault(life["collection"], {})
            for need, value in zip(moment[which]["needs"], moment[which]["difference"], strict=True):
                of_needs.setdefault(need, []).append(value)
        found = {name: interval([float(np.mean(some)) for some in of.values()]) for name, of in by_name.items()}
        means = {name: mean for name, (mean, _) in found.items()}
        margin = sum(margin**2 for _, margin in found.values()) ** 0.5 / len(found)
        return cls(means, float(np.mean([*means.values()])), margin)

    @property
    def lowest(self) -> str:
        return min(self.means, key=self.means.__getitem__)

    def __str__(self) -> str:
        return f"{short(self.mean)} ± {short(self.margin)[1:]} ({self.lowest} {short(self.means[self.lowest])})"


def short(value: float) -> str:
    return f"{value:+.3f}".replace("0.", ".", 1)


def report(lives: Sequence[dict]) -> list[str]:
    """Print a table by person and moment, the mean over collections; return what the promise misses."""
    missed, given_up = [], 0
    print(
        "| person | searches | needs not searched | same words again | known need, all its words | mixed lists cost |"
    )
    print("|---|---|---|---|---|---|")
    for person, after in product(PEOPLE, MOMENTS):
        moments = [
            (life, moment)
            for life in lives
            for moment in life["moments"]
            if life["person"] == person and moment["after"] == after
        ]
        if not moments:
            continue
        unseen, repeated, reworded = (Cell.of(which, moments) for which in ASKED)
        cost = float(np.mean([moment["cost"] for _, moment in moments]))
        given_up += sum(moment["given up"] for _, moment in moments if after == MOMENTS[-1])
        print(f"| {person} | {after:,} | {unseen} | {repeated} | {reworded} | {short(cost)} |")
        where = f"{person} after {after:,}"
        if not unseen.mean > 0:
            missed.append(f"{where}: unseen {unseen}")
        if unseen.means[unseen.lowest] < LOWEST:
            missed.append(f"{where}: unseen {unseen.means[unseen.lowest]:+.4f} on {unseen.lowest}")
        if person in HONEST and after >= 100 and not repeated.mean > repeated.margin:
            missed.append(f"{where}: repeated {repeated}")
        if cost > COST and after >= 100:
            missed.append(f"{where}: lists cost {cost:.4f}")
    print("\n| collection | engine | bm25s | needs not searched, all people | same words again, honest people |")
    print("|---|---|---|---|---|")
    for name in (*COLLECTIONS, *DEBIAN):
        last = [(life, life["moments"][-1]) for life in lives if life["collection"] == name]
        if last:
            engine, other = (float(np.mean([moment["unseen"][of] for _, moment in last])) for of in ("engine", "bm25s"))
            honest = [moment for moment in last if moment[0]["person"] in HONEST]
            new, again = Cell.of("unseen", last), Cell.of("repeated", honest) if honest else None
            print(
                f"| {name} | {engine:.3f} | {other:.3f} | {short(new.mean)} ± {short(new.margin)[1:]} | "
                + (f"{short(again.mean)} ± {short(again.margin)[1:]} |" if again else "|")
            )
    single = [(np.mean(moment["unseen"]["difference"]), life, moment) for life in lives for moment in life["moments"]]
    mean, life, moment = min(single, key=lambda one: one[0])
    about = f"{life['person']}, {life['collection']}, {life['repeats']:.0%} repeats, {moment['after']:,} searches"
    print(f"\n{len(lives)} lives; lowest on needs not searched: {mean:+.4f} ({about}); opponents that won: {given_up}")
    return missed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--collections", nargs="+", default=list(COLLECTIONS))
    parser.add_argument("--people", nargs="+", default=list(PEOPLE))
    parser.add_argument("--repeats", type=float, nargs="+", default=[0.0, 0.35, 0.9])
    parser.add_argument("--searches", type=int, default=3_000, help="searches per person")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--out", type=Path, default=Path("live_quality.jsonl"), help="lives, one per line")
    parser.add_argument("--translations", type=Path, default=Path(), help="folder of Translation-de.bz2 and others")
    parser.add_argument("--check", action="store_true", help="exit 1 if the promise is missed")
    parser.add_argument("--report", action="store_true", help="print what the file has; run nothing")
    parser.add_argument("--engine", action="store_true", help="compare the engine with others, without clicks")
    asked = parser.parse_args()
    if asked.engine:
        with tempfile.TemporaryDirectory() as folder:
            compare_engines(asked.collections, Path(folder), asked.translations)
        return 0
    wanted = [
        Life(collection, person, repeats, asked.searches, seed)
        for seed in asked.seeds
        for repeats in asked.repeats
        for person in asked.people
        for collection in asked.collections
    ]
    lives = [json.loads(line) for line in asked.out.read_text().splitlines()] if asked.out.exists() else []
    known = [{name: life[name] for name in asdict(wanted[0])} for life in lives]
    with tempfile.TemporaryDirectory() as folder:
        for life in () if asked.report else wanted:
            if asdict(life) not in known:
                lives.append(live(life, Path(folder), asked.translations))
                with asked.out.open("a") as file:
                    file.write(json.dumps(lives[-1]) + "\n")
    missed = report(lives)
    for line in missed:
        print(f"MISSED: {line}")
    return int(asked.check and bool(missed))


if __name__ == "__main__":
    raise SystemExit(main())
