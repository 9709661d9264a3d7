"""Simulated organisations from one text collection, each with its own documents and queries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedrank import kernels
from fedrank.data.collection import Collection
from fedrank.data.text import Tokeniser
from fedrank.seeds import rng_for
from fedrank.silo.features import FIELDS, MU, Real
from fedrank.silo.terms import Rows, TermCounts
from fedrank.types import Grades

BEST, GOOD = 10, 100  # ranks up to which a document has relevance label 2, and 1
TEST_EVERY = 4  # one query in four of a silo is a test query, however many it trains on
OTHERS = 40  # candidates of a query beyond the first GOOD, drawn at random: what a query should not find
_DIMENSIONS, _STEPS = 16, 20  # of the topics that documents are grouped by


@dataclass(frozen=True)
class SilosRule:
    """How a collection is spread over organisations."""

    count: int = 4  # organisations that participate
    split: Literal["random", "topics"] = (
        "random"  # topics: similar documents, and the queries about them, are in the same silo
    )
    queries: int | None = None  # a silo trains on at most as many; None: all but the quarter that it is tested on
    labels: Literal["judgements", "ranks"] = "judgements"  # ranks: as the paper; a search engine's first 10 and 100
    of: int | None = None  # into how many parts documents are cut; all are tested on, and the first `count` participate

    def __post_init__(self) -> None:
        for name, value in (("count", self.count), ("queries", self.queries)):
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1 (got {value})")
        if self.of is not None and self.of < self.count:
            raise ValueError(f"of must be at least count = {self.count} (got {self.of})")

    @property
    def parts(self) -> int:
        return self.of or self.count


@dataclass(frozen=True)
class SiloQuery:
    """A query of a silo, with the candidates among its own documents."""

    id: str
    terms: tuple[str, ...]  # each once
    candidates: Rows  # of the silo's documents
    grades: Grades  # [candidates]


@dataclass(frozen=True)
class Silo:
    """One organisation."""

    number: int
    fields: dict[str, TermCounts]  # by name of the field
    train: tuple[SiloQuery, ...]
    test: tuple[SiloQuery, ...]

    @property
    def documents(self) -> int:
        return len(self.fields["body"])


def make_silos(collection: Collection, rule: SilosRule, tokeniser: Tokeniser, seed: int) -> list[Silo]:
    """Distribute a collection over organisations (silos), and return them.

    `rule` says how many silos there are and how documents are divided, and `tokeniser` splits texts into terms.

    The candidates of a query are the first 100 documents of its silo by query likelihood (on titles and bodies, with
    the statistics of the whole collection) and 40 other documents, drawn at random. With labels = "ranks", this order
    is the truth, as in the paper, which used the order of MS MARCO's engine. Queries without a relevant candidate are
    left out. Silos that do not participate have no training queries.

    >>> import fedrank as fr
    >>> from fedrank.data.text import Tokeniser
    >>> from fedrank.silo.silos import SilosRule
    >>> collection = fr.load_collection("synthetic-silos")
    >>> for silo in fr.make_silos(collection, SilosRule(count=2, queries=10), Tokeniser(), seed=1):
    ...     print(silo.documents, len(silo.train), len(silo.test))
    600 10 30
    600 10 30
    """
    texts = {"body": collection.documents.text, "title": collection.documents.title}
    whole = {field: TermCounts.of(texts[field], tokeniser) for field in FIELDS}
    both = TermCounts.of(
        [f"{title} {body}" for title, body in zip(texts["title"], texts["body"], strict=True)], tokeniser
    )
    chances = np.bincount(both.terms, both.counts, len(both.vocabulary)) / max(both.lengths.sum(), 1.0)
    home = _homes(whole["body"], rule, seed)
    terms = [tuple(dict.fromkeys(tokeniser(text))) for text in collection.queries]
    owners = _owners(collection, home, rule, seed)
    silos = []
    for number in range(rule.parts):
        outside = number >= rule.count
        rows = np.flatnonzero(home == number)
        engine = _Engine(both.rows(rows), chances)
        train: list[SiloQuery] = []
        test: list[SiloQuery] = []
        for position, query in enumerate(owners[number]):
            chosen, most = (test, None) if position % TEST_EVERY == 1 else (train, rule.queries)
            if len(chosen) == most or (outside and chosen is train):
                continue
            order = engine.ranked(terms[query])
            candidates = _candidates(order, len(rows), rng_for(seed, "candidates", query))
            grades = _grades(collection, query, rows, order, rule.labels)[candidates]
            if grades.any():
                chosen.append(SiloQuery(collection.query_ids[query], terms[query], candidates, grades))
        if not (train or outside) or not test:
            raise ValueError(
                f"silo {number} of {rule.parts} has {len(rows)} documents, which answer {len(train)} queries to train "
                f"on and {len(test)} to be tested on, and needs one of each; use fewer silos or more queries"
            )
        fields = {field: whole[field].rows(rows) for field in FIELDS}
        silos.append(Silo(number, fields, tuple(train), tuple(test)))
    return silos


@dataclass(frozen=True)
class _Engine:
    """Query likelihood with Dirichlet smoothing over some documents of a collection."""

    own: TermCounts  # titles and bodies together
    chances: Real  # [terms]: share of each among all words of the collection

    def ranked(self, terms: tuple[str, ...]) -> Rows:
        """The documents that contain a term, best first; equal ones in the order of the collection."""
        known = tuple(term for term in terms if term in self.own.columns)
        counts = self.own.count_matrix(known)
        expected = MU * self.chances[[self.own.columns[term] for term in known]]
        log1p = kernels.elementary.log1p_each
        scores = log1p(counts / expected).sum(axis=1) - len(known) * log1p(self.own.lengths / MU)
        matching = np.flatnonzero(counts.any(axis=1))
        return matching[np.argsort(-scores[matching], kind="stable")]


def _candidates(order: Rows, documents: int, rng: np.random.Generator) -> Rows:
    first = order[:GOOD]
    rest = np.setdiff1d(np.arange(documents), first)
    # Sorted, so the position in the list does not reveal the rank.
    return np.sort(np.concatenate([first, rng.choice(rest, min(OTHERS, len(rest)), replace=False)]))


def _grades(collection: Collection, query: int, rows: Rows, order: Rows, labels: str) -> Grades:
    """[documents of the silo]."""
    if labels == "ranks":
        grades = np.zeros(len(rows), np.int8)
        grades[order[:GOOD]] = 1
        grades[order[:BEST]] = 2
        return grades
    everywhere = np.zeros(len(collection.documents), np.int8)
    judged, given = collection.judgements(query)
    everywhere[judged] = given
    return everywhere[rows]


def _owners(collection: Collection, home: NDArray[np.int64], rule: SilosRule, seed: int) -> list[list[int]]:
    """Queries of every silo in random order: assigned at random, or to the silo with most of the relevant documents."""
    order = rng_for(seed, "queries of silos").permutation(len(collection.queries))
    owners: list[list[int]] = [[] for _ in range(rule.parts)]
    for position, query in enumerate(order.tolist()):
        number = position % rule.parts
        if rule.split == "topics":
            judged, grades = collection.judgements(query)
            found = np.bincount(home[judged], weights=grades, minlength=rule.parts)
            number = int(found.argmax()) if found.any() else number
        owners[number].append(query)
    return owners


def _homes(body: TermCounts, rule: SilosRule, seed: int) -> NDArray[np.int64]:
    """[documents]: the silo of each."""
    documents = len(body)
    if documents < rule.parts:
        raise ValueError(f"{documents} documents are too few for {rule.parts} silos; use fewer silos")
    rng = rng_for(seed, "documents of silos")
    if rule.split == "random" or rule.parts == 1:
        return rng.permutation(np.arange(documents) % rule.parts)
    return _grouped(_topics(body, rng), rule.parts, rng)


def _topics(body: TermCounts, rng: np.random.Generator) -> Real:
    """[documents, dimensions]: directions of the strongest topics (latent semantic analysis), each row of length 1."""
    from scipy.sparse import csr_matrix
    from scipy.sparse.linalg import svds

    documents, terms = len(body), max(len(body.vocabulary), 1)
    entries = body.counts.astype(np.float64), body.terms, body.offsets
    counts = csr_matrix(entries, shape=(documents, terms)).tocsc()
    holders = np.diff(counts.indptr)
    idf = kernels.elementary.log_each(documents / np.maximum(holders, 1))
    counts.data = kernels.elementary.log1p_each(counts.data) * np.repeat(idf, holders)
    size = min(_DIMENSIONS, min(documents, terms) - 1)
    left, strength, _ = svds(counts, k=size, v0=rng.standard_normal(min(documents, terms)))
    # The last bits of a decomposition depend on the processor; they must not decide between similar documents.
    return np.round(_unit(left * strength), 9)


def _unit(rows: Real) -> Real:
    """Each row with length 1; a row of zeros stays."""
    return np.asarray(rows / np.maximum(kernels.sums.lengths(np.ascontiguousarray(rows)), 1e-12)[:, None])


def _grouped(vectors: Real, groups: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Groups of similar rows by k-means; none is larger than twice its share."""
    most = -(-2 * len(vectors) // groups)
    middles = vectors[rng.choice(len(vectors), groups, replace=False)]
    found = np.zeros(len(vectors), np.int64)
    for _ in range(_STEPS):
        near = kernels.sums.products(vectors, middles)
        found = _placed(near, most)
        middles = _unit(np.stack([vectors[found == group].mean(axis=0) for group in range(groups)]))
    return found


def _placed(near: Real, most: int) -> NDArray[np.int64]:
    """The nearest group that is not full, for each row; the clearest choices go first, and no group stays empty."""
    groups = near.shape[1]
    found = np.full(len(near), -1)
    for group in range(groups):
        free = np.flatnonzero(found < 0)
        found[free[near[free, group].argmax()]] = group
    left = np.full(groups, most) - 1
    rest = np.flatnonzero(found < 0)
    for row in rest[np.argsort(-near[rest].max(axis=1), kind="stable")]:
        for group in np.argsort(-near[row], kind="stable"):
            if left[group]:
                found[row], left[group] = group, left[group] - 1
                break
    return found
