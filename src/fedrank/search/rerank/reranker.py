"""The reranker of one tenant: it orders passages, records what was used, and learns from it in batches.

Three parts add up: a fixed start from texts and the caller's order, a memory of passages that were used for the same or
similar queries, and weights that are refitted to feedback and tried on random requests before they are adopted. A share
of requests keeps the caller's order; if it turns out better, the reranker stops changing the order.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import secrets
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fedrank.files import locked
from fedrank.search.rerank import learning
from fedrank.search.rerank.memory import ReaderRecord, UseMemory
from fedrank.search.rerank.passages import OWN, START, Features, Hasher, Table, Words, describe
from fedrank.search.rerank.scorer import NAME, ModelScorer
from fedrank.search.rerank.store import DAY, Request, RerankError, RerankStore, StoredModel, folder_key
from fedrank.search.rerank.trial import (
    LEVEL,
    SETTLED,
    ArmOutcome,
    Difference,
    difference,
    evidence,
    flipped,
    judge,
    value_of,
)

USED = ("clicked", "copied", "cited", "accepted", "up")
UNUSED = ("ignored", "down")
KINDS = (*USED, *UNUSED)
MAX_DOCUMENTS = 1_000
MAX_TEXT = 100_000  # characters of a passage
MAX_QUERY = 10_000  # characters
MAX_SIGNALS = 16
OPPONENT = 0.05  # share of requests that keep the caller's order
INCLUDED = 0.02  # share of requests whose last passage is a random one from below the cut
PROTECTED, WITHIN = 3, 10  # the caller's first 3 passages stay within the first 10
MAX_SHARE = 0.1  # largest share of a person or of a source of passages in a refit; twice an equal one if that is more
MAX_DAILY = 1_000  # requests of a person with feedback in 24 hours
MAX_READERS = 1_000  # versions of readers
MAX_ANSWERS = 1_000  # the latest ones, whose copies get no credit
MAX_SAID = 5_000_000  # runs of words of answers that are held in memory
DERIVED = 0.5  # share of the runs of words of a new passage that earlier answers have
KEEP_DAYS = 180
MAX_REQUESTS = 100_000  # the latest ones are stored
EXPIRE_EVERY = 1_000  # requests
LOOK_EVERY = 10  # requests with feedback between two looks at a comparison
_SIGNAL = re.compile(r"[a-z][a-z0-9_.-]{0,39}")
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_READER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,63}")
# Probability that a passage is relevant as a function of its BM25 relative to the best possible one, fitted to judged
# collections (`benchmarks/rerank.py`).
CALIBRATION = (-3.5, 8.5)


@dataclass(frozen=True)
class Ranked:
    """A passage of an answer."""

    index: int  # in the caller's list
    relevance_score: float  # strictly between 0 and 1, falling


@dataclass(frozen=True)
class Ranking:
    """An answer: passages from the best to the worst, and the id that feedback names."""

    id: str
    results: tuple[Ranked, ...]
    missing: dict[str, int] = field(default_factory=dict)  # by signal: passages without it, which counted as average

    @property
    def indices(self) -> list[int]:
        return [one.index for one in self.results]


@dataclass(frozen=True)
class RerankStatus:
    """What a reranker knows and has learned."""

    requests: int
    with_feedback: int
    passages: int
    queries_remembered: int
    mode: str  # "learned", "start" or "caller"
    weights: dict[str, float]
    on_trial: dict[str, float] | None
    against_caller: Difference | None
    included: tuple[int, int]  # random passages from below the cut: shown, used
    readers: dict[str, ReaderRecord]  # by version; "" if feedback did not name it
    derived: int  # passages that get no credit
    history: tuple[StoredModel, ...]


class Reranker:
    """Reorders passages and learns from their use. All methods are thread-safe; data is on disk when they return."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        refits: bool = True,
        opponent: float = OPPONENT,
        keep_days: float = KEEP_DAYS,
        language: str = "english",
        scorer: ModelScorer | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Open the folder of a tenant; it is created, readable by its owner only, if it does not exist.

        With `refits`, weights are fitted to feedback and tried on half of the requests. `opponent` is the share of
        requests that keep the caller's order. Requests and feedback older than `keep_days` are deleted. The scores of
        a `scorer` are one more signal, called model, which counts after feedback has shown what it is worth.
        """
        if not 0.01 <= opponent <= 0.5:
            raise ValueError(f"opponent must be from 0.01 to 0.5 (got {opponent})")
        if not keep_days > 0:
            raise ValueError(f"keep_days must be above 0 (got {keep_days})")
        self.folder = Path(folder).expanduser()
        self._clock, self._refits, self._opponent, self._keep_days = clock, refits, opponent, keep_days
        self._scorer = scorer
        with contextlib.ExitStack() as closing:
            self._hasher = Hasher(folder_key(self.folder), language)
            closing.enter_context(locked(self.folder / "rerank.lock", f"the reranker in {self.folder}"))
            self._store = RerankStore(self.folder)
            closing.callback(self._store.close)
            self._closing = closing.pop_all()
        self._turn = threading.RLock()
        with self._turn:
            self._expire()
            if self._store.get("opponent") != opponent:  # shares of one comparison must be equal
                with self._store.writing():
                    self._store.put(opponent=opponent, compared_since=clock())
            self._number = self._store.next_number()
            self._load()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        self.close()

    def close(self) -> None:
        with self._turn:
            self._closing.close()

    def _load(self) -> None:
        """Rebuild from the store what is held in memory."""
        self._memory, self._readers = UseMemory(), defaultdict[str | None, ReaderRecord](ReaderRecord)
        derived = self._store.db.execute("SELECT digest FROM passages WHERE derived")
        self._derived = {row[0] for row in derived}
        self._load_answers()
        given = "WHERE id IN (SELECT request FROM feedback) ORDER BY number"
        for one in self._store.requests(given):
            self._remember(one, {}, self._labels(one))
        self._with_feedback = self._store.count("SELECT count(DISTINCT request) FROM feedback")
        self._model = next(iter(self._store.models("in use")), None)
        self._trial = next(iter(self._store.models("on trial")), None)
        self._off = bool(self._store.get("off", 0))

    def _load_answers(self) -> None:
        """The runs of words of the latest answers."""
        answers = [np.frombuffer(row[0], np.uint64) for row in self._store.db.execute("SELECT runs FROM answers")]
        self._said = np.unique(np.concatenate([np.empty(0, np.uint64), *answers]))

    # rerank

    def rerank(
        self,
        query: str,
        documents: Sequence[str],
        top_n: int | None = None,
        *,
        signals: Mapping[str, Sequence[float | None]] | None = None,
        user: str | None = None,
        sources: Sequence[str | None] | None = None,
        derived: Collection[int] = (),
    ) -> Ranking:
        """Order passages for a query. The order of `documents` is the caller's ranking and counts as a signal.

        `signals` are the caller's own numbers by name, one per document, None where one is missing: a vector
        similarity, a date, a source's reliability. They count after feedback has shown what they are worth.
        `sources` names where each document comes from, so one of them cannot dominate what is learned. `derived` are
        the indices of documents that were made from earlier answers; their use teaches nothing.
        """
        top = self._check(query, documents, top_n)
        origins = self._origins(sources, documents)
        if not {*derived} <= {*range(len(documents))}:
            raise RerankError(f"derived must list indices of documents, 0 to {len(documents) - 1}")
        if not documents:
            return Ranking(secrets.token_urlsafe(12), ())
        if self._scorer is not None:
            if NAME in (signals or {}):
                raise RerankError(f"the signal {NAME} is that of the server's own model; use another name")
            signals = {**(signals or {}), NAME: self._scorer(query, documents)}  # before the turn: it may take long
        columns = _signals(signals, len(documents))
        with self._turn:
            now = self._clock()
            number, arm, extra = self._number, *self._draw()
            stems, digests, words, found, memory = self._describe(query, documents, columns)
            order = self._order(found, memory, arm)
            shown = order[:top].copy()
            if extra is not None and top < len(order):
                shown[-1] = order[top + int(extra * (len(order) - top))]
                arm = "included"
            request = Request(
                secrets.token_urlsafe(12), number, now, stems, digests, found.names,
                found.table.astype(np.float32), memory.astype(np.float32), shown.astype(np.int16), arm,
                None if user is None else self._hasher.digest("user", user),
            )  # fmt: skip
            texts = self._hasher.digest(query, *documents)
            trial = self._trial.id if self._trial is not None and arm in ("old", "new") else None
            unseen = self._store.new_passages(digests)
            new = {digest: one for digest, one in zip(digests, words, strict=True) if digest in unseen}
            copies = {digests[index] for index in derived}
            copies |= {
                one for one, text in zip(digests, documents, strict=True) if one in unseen and self._is_copy(text)
            }
            with self._store.writing():
                self._store.add_request(request, texts, trial)
                self._store.count_passages(new, now)
                self._store.mark_passages(copies - self._derived, dict(zip(digests, origins, strict=True)))
            self._derived |= copies
            self._number += 1
            if self._number % EXPIRE_EVERY == 0:
                self._expire()
        scores = _scores(found.absolute)
        results = tuple(Ranked(int(index), float(scores[place])) for place, index in enumerate(shown))
        return Ranking(request.id, results, found.missing)

    def _describe(
        self, query: str, documents: Sequence[str], columns: Mapping[str, Table]
    ) -> tuple[NDArray[np.int32], tuple[bytes, ...], list[Words], Features, Table]:
        """Stems of the query, digests and words of the passages, their features, and what memory adds to each."""
        digests = tuple(self._hasher.digest(text) for text in documents)
        words = self._hasher.passages(documents, digests)
        stems = self._hasher.query(query)
        found = describe(stems, words, self._store.background, columns)
        trust = {reader: record.trust for reader, record in self._readers.items()}
        lift = self._memory.lift(stems, digests, self._store.background, trust)
        return stems, digests, words, found, np.where([one in self._derived for one in digests], 0.0, lift)

    def _is_copy(self, text: str) -> bool:
        """Whether a passage repeats earlier answers; ask it only about passages that were not seen before them."""
        if not len(self._said) or not len(runs := self._hasher.runs(text)):
            return False
        place = np.minimum(np.searchsorted(self._said, runs), len(self._said) - 1)
        return float(np.mean(self._said[place] == runs)) >= DERIVED

    def _origins(self, sources: Sequence[str | None] | None, documents: Sequence[str]) -> list[bytes | None]:
        if sources is None:
            return [None] * len(documents)
        if len(sources) != len(documents):
            raise RerankError(f"sources has {len(sources)} values for {len(documents)} documents")
        if not all(one is None or (isinstance(one, str) and len(one) <= 1_000) for one in sources):
            raise RerankError("sources must be texts of at most 1,000 characters, or null")
        return [None if one is None else self._hasher.digest("source", one) for one in sources]

    @staticmethod
    def _check(query: str, documents: Sequence[str], top_n: int | None) -> int:
        if not isinstance(query, str) or len(query) > MAX_QUERY:
            raise RerankError(f"query must be a text of at most {MAX_QUERY:,} characters")
        if isinstance(documents, str) or len(documents) > MAX_DOCUMENTS:
            raise RerankError(f"documents must be a list of at most {MAX_DOCUMENTS:,} texts")
        for index, text in enumerate(documents):
            if not isinstance(text, str) or len(text) > MAX_TEXT:
                raise RerankError(f"documents[{index}] must be a text of at most {MAX_TEXT:,} characters")
        if top_n is None:
            return len(documents)
        if isinstance(top_n, bool) or not isinstance(top_n, int) or top_n < 1:
            raise RerankError(f"top_n must be an integer of at least 1 (got {top_n!r})")
        return min(top_n, len(documents))

    def _draw(self) -> tuple[str, float | None]:
        """The arm of the next request, and a number from 0 to 1 if it includes a passage from below the cut.

        Keyed by the secret of the folder and the number of the request, so callers cannot predict it.
        """
        digest = self._hasher.digest("arm", str(self._number))
        chance, extra = (int.from_bytes(half, "little") / 2**32 for half in (digest[:4], digest[4:]))
        if self._off or chance < self._opponent:
            return "caller", None
        chance = (chance - self._opponent) / (1 - self._opponent)
        if self._trial is not None:
            return ("new" if chance < 0.5 else "old"), None
        return "model", extra if chance < INCLUDED else None

    def _order(self, found: Features, memory: Table, arm: str) -> NDArray[np.int64]:
        """Indices from the best to the worst."""
        if arm == "caller":
            return np.arange(len(memory))
        model = self._trial if arm == "new" else self._model
        order: NDArray[np.int64] = np.argsort(-(found.table @ _weights(model, found.names) + memory), kind="stable")
        return _protected(order)

    # feedback

    def feedback(
        self,
        id: str | None = None,
        events: Mapping[int, str] | None = None,
        *,
        query: str | None = None,
        documents: Sequence[str] | None = None,
        order: Sequence[int] | None = None,
        answer: str | None = None,
        reader: str | None = None,
    ) -> str:
        """Record what was used: `events` gives a kind by index of a document in the request.

        Kinds are clicked, copied, cited, accepted, up (used) and ignored, down (not used). Documents that were shown
        and not mentioned count as not used. Name the request by the id of its answer, or by the same query and
        documents: the latest request with them is meant. `order` are the indices that the reader saw, if other than
        answered. Feedback may come late and in parts; the same event counts once. Passages that repeat the text of an
        `answer` later get no credit. `reader` is the version of what reads the passages, such as a language model with
        its prompt: uses by a version that chooses at random count less. Returns the id of the request.
        """
        if (id is None) == (query is None or documents is None):
            raise RerankError("give either the id of a request, or its query and documents")
        if reader is not None and not (isinstance(reader, str) and _READER.fullmatch(reader)):
            raise RerankError(
                "reader must have 1 to 64 letters, digits and . _ : / @ + -, and start with one of the first"
            )
        if answer is not None and not (isinstance(answer, str) and len(answer) <= MAX_TEXT):
            raise RerankError(f"answer must be a text of at most {MAX_TEXT:,} characters")
        with self._turn:
            if reader is not None and reader not in self._readers and len(self._readers) >= MAX_READERS:
                raise RerankError(f"{MAX_READERS:,} versions of readers are known, which is the limit; use one of them")
            now = self._clock()
            one = self._find(id, query, documents)
            for index, kind in (events or {}).items():
                if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < len(one.documents):
                    raise RerankError(f"document {index!r} is not in the request, which had {len(one.documents)}")
                if kind not in KINDS:
                    raise RerankError(f"unknown kind {kind!r}; use one of {', '.join(KINDS)}")
            seen = None if order is None else _seen(order, len(one.documents))
            before = self._labels(one)
            if not before and one.person is not None and self._store.given_by(one.person, now - DAY) >= MAX_DAILY:
                raise RerankError(
                    f"this user has sent feedback on {MAX_DAILY:,} requests in 24 hours, which is the limit"
                )
            with self._store.writing():
                if reader is not None and not before:
                    self._store.db.execute("UPDATE requests SET reader = ? WHERE id = ?", (reader, one.id))
                if len(runs := self._hasher.runs(answer or "")):
                    self._store.add_answer(one.id, runs, now, MAX_ANSWERS)
                if seen is not None:
                    self._store.db.execute("UPDATE requests SET shown = ? WHERE id = ?", (seen.tobytes(), one.id))
                for index, kind in (events or {}).items():
                    self._store.db.execute(
                        "INSERT OR IGNORE INTO feedback VALUES (?, ?, ?, ?)", (one.id, index, kind, now)
                    )
                one = self._find(one.id, None, None)
                after = self._labels(one)
                if now - one.time < SETTLED:  # later feedback must not change what a trial has counted
                    used = [index for index, label in after.items() if label]
                    self._store.db.execute(
                        "UPDATE requests SET outcome = ? WHERE id = ?", (value_of(one.shown.tolist(), used), one.id)
                    )
            self._remember(one, before, after)
            self._with_feedback += bool(after) and not before
            self._said = np.insert(self._said, np.searchsorted(self._said, runs), runs)
            if len(self._said) > MAX_SAID:  # those of old answers and repetitions
                self._load_answers()
            self._learn(now)
            return one.id

    def places(self, id: str, documents: Sequence[str]) -> list[int]:
        """The indices in a request of documents that are sent in another order, or only in part."""
        with self._turn:
            place = {digest: index for index, digest in enumerate(self._find(id, None, None).documents)}
            found = [place.get(self._hasher.digest(text), -1) for text in documents]
        if -1 in found:
            raise RerankError(f"documents[{found.index(-1)}] is not in the request; nothing was recorded")
        return found

    def _find(self, id: str | None, query: str | None, documents: Sequence[str] | None) -> Request:
        if id is not None:
            found = self._store.request(id) if isinstance(id, str) and _ID.fullmatch(id) else None
        else:
            assert query is not None
            assert documents is not None
            self._check(query, documents, None)
            found = self._store.latest_with(self._hasher.digest(query, *documents))
        if found is None:
            raise RerankError(
                "no such request is recorded; it has expired or was forgotten, or its texts differ from those sent"
            )
        return found

    def _labels(self, one: Request) -> dict[int, bool]:
        """Whether each shown or mentioned document was used, without derived ones; empty without feedback."""
        given = self._store.feedback_of(one.id)
        if not given:
            return {}
        indices = {*one.shown.tolist(), *given}
        return {
            index: _is_used(given.get(index, set()))
            for index in sorted(indices)
            if one.documents[index] not in self._derived
        }

    def _remember(self, one: Request, before: Mapping[int, bool], after: Mapping[int, bool]) -> None:
        """Update memory and the record of the reader from the labels of a request before and after feedback."""
        record = self._readers[one.reader]
        for index in {*before, *after}:
            used = int(after.get(index, False)) - int(before.get(index, False))
            shown = int(index in after) - int(index in before)
            if used or shown:
                self._memory.add(one.query, one.documents[index], used, shown - used, one.reader, one.person)
                counts = record.again if one.memory[index] > 0 else record.other
                counts[0], counts[1] = counts[0] + used, counts[1] + shown

    # learning

    def _learn(self, now: float) -> None:
        """Roll back what does harm, decide on the model on trial, and refit when enough feedback has come."""
        if self._with_feedback % LOOK_EVERY == 0:
            self._check_harm(now)
        if self._trial is not None:
            if self._with_feedback % LOOK_EVERY:
                return
            outcomes = self._outcomes("trial = ? AND arm IN ('old', 'new')", "new", now, self._trial.id)
            ruling = judge(outcomes)
            if ruling != "continue":
                self._end_trial(ruling == "adopt", len(outcomes))
        elif self._refits and not self._off:
            fitted = int(self._store.get("fitted", 0))
            if learning.is_due(self._with_feedback, fitted):
                self._refit(now)

    def _check_harm(self, now: float) -> None:
        """Keep the caller's order from now on if there is evidence that it is better."""
        if self._off:
            return
        since = float(self._store.get("compared_since", 0.0))
        outcomes = self._outcomes("time >= ?", "caller", now, since)
        if evidence(outcomes, share=self._opponent) >= -math.log(LEVEL):
            with self._store.writing():
                if self._model is not None:  # the learned weights first, then everything
                    self._store.move_model(self._model.id, "rolled back", "the caller's order was better")
                    self._store.put(compared_since=now)
                else:
                    self._store.put(off=1)
            self._model, self._off = None, self._model is None

    def _outcomes(self, which: str, first: str, now: float, *values: Any) -> list[ArmOutcome]:
        """Values of requests that can no longer change, in their order."""
        rows = self._store.db.execute(
            f"SELECT coalesce(outcome, 0.0), arm FROM requests WHERE {which} AND time <= ? ORDER BY number",
            (*values, now - SETTLED),
        )
        return [ArmOutcome(value, arm == first) for value, arm in rows]

    def _refit(self, now: float) -> None:
        names, examples = self._examples()
        weights = learning.refit(names, examples)
        used = self._model
        outdated = (
            weights is None and used is not None and learning.gain_of(used.weights, names, examples) < learning.OUTDATED
        )
        with self._store.writing():
            self._store.put(fitted=self._with_feedback)
            if weights is not None:
                note = f"fitted to {len(examples):,} requests with feedback"
                self._store.add_model(weights, self._with_feedback, "on trial", note, now)
            if outdated and used is not None:
                note = f"it predicts {len(examples):,} requests with feedback worse than the start does"
                self._store.move_model(used.id, "rolled back", note)
                self._model = None
        self._trial = next(iter(self._store.models("on trial")), None)

    def _examples(self) -> tuple[list[str], list[learning.Example]]:
        given = "WHERE id IN (SELECT request FROM feedback) ORDER BY number DESC LIMIT ?"
        latest = list(self._store.requests(given, learning.MAX_FITTED))[::-1]
        names = list(dict.fromkeys([*OWN, *(name for one in latest for name in one.names)]))
        labelled = [self._labels(one) for one in latest]
        source_of = dict(self._store.db.execute("SELECT digest, source FROM passages WHERE source IS NOT NULL"))
        shares = np.minimum(
            _shares([[one.person] for one in latest]),
            _shares(
                [
                    {source_of.get(one.documents[index]) for index, label in labels.items() if label}
                    for one, labels in zip(latest, labelled, strict=True)
                ]
            ),
        )
        repeats: Counter[bytes] = Counter()
        queries: dict[int | bytes, int] = {}
        examples = []
        for one, labels, share in zip(latest, labelled, shares, strict=True):
            repeats[one.query.tobytes()] += 1
            table = np.zeros((len(one.documents), len(names)))
            table[:, [names.index(name) for name in one.names]] = one.features
            used = np.array([index for index, label in labels.items() if label], np.int64)
            unused = np.array([index for index, label in labels.items() if not label], np.int64)
            weight = float(share) * self._readers[one.reader].trust / repeats[one.query.tobytes()]
            need = self._store.background.rarest(one.query) or one.query.tobytes()
            query = queries.setdefault(need, len(queries))  # other wordings of a need are not independent evidence
            examples.append(learning.Example(table, one.memory.astype(np.float64), used, unused, weight, query))
        return names, examples

    def lists_with_feedback(self) -> list[tuple[Request, set[int]]]:
        """Requests with feedback, in their order, and the documents used."""
        with self._turn:
            given = list(self._store.requests("WHERE id IN (SELECT request FROM feedback) ORDER BY number"))
            return [(one, {index for index, label in self._labels(one).items() if label}) for one in given]

    def try_weights(self, weights: Mapping[str, float], note: str) -> float:
        """Try weights from elsewhere on random requests if they predict the feedback here better than the start does.

        Returns by how many standard errors they do; NaN if that is unknown. They replace weights that are on trial.
        With little feedback, better weights are rarely significantly better (`benchmarks/rerank_join.py`).
        """
        with self._turn:
            names, examples = self._examples()
            gain = learning.gain_of(weights, names, examples)
            if gain > 0:
                with self._store.writing():
                    if self._trial is not None:
                        self._store.move_model(self._trial.id, "replaced", self._trial.note)
                    self._store.add_model(dict(weights), self._with_feedback, "on trial", note, self._clock())
                self._trial = next(iter(self._store.models("on trial")), None)
            return gain

    def _end_trial(self, adopt: bool, requests: int) -> None:
        assert self._trial is not None
        verdict = "did not do worse" if adopt else "did worse"
        with self._store.writing():
            if adopt and self._model is not None:
                self._store.move_model(self._model.id, "replaced", self._model.note)
            self._store.move_model(
                self._trial.id, "in use" if adopt else "refused", f"{verdict} in {requests:,} random requests"
            )
        self._model = next(iter(self._store.models("in use")), None)
        self._trial = None

    # status and control

    def status(self) -> RerankStatus:
        """What is stored and learned, and the comparison with the caller's order."""
        with self._turn:
            now, store = self._clock(), self._store
            since = float(store.get("compared_since", 0.0))
            outcomes = self._outcomes("time >= ?", "caller", now, since)
            included = list(store.requests("WHERE arm = 'included' AND id IN (SELECT request FROM feedback)"))
            used = sum(self._labels(one).get(int(one.shown[-1]), False) for one in included)
            return RerankStatus(
                requests=store.count("SELECT count(*) FROM requests"),
                with_feedback=self._with_feedback,
                passages=store.background.passages,
                queries_remembered=len(self._memory),
                mode="caller" if self._off else "start" if self._model is None else "learned",
                weights=dict(zip(OWN, START.tolist(), strict=True)) if self._model is None else self._model.weights,
                on_trial=None if self._trial is None else self._trial.weights,
                against_caller=difference(flipped(outcomes)),
                included=(len(included), used),
                readers={reader or "": record for reader, record in self._readers.items()},
                derived=len(self._derived),
                history=tuple(store.models()),
            )

    def rollback(self) -> None:
        """Return to the start and end a trial; memory stays. Also turns the reranker on again if it had stopped."""
        with self._turn:
            with self._store.writing():
                for one in (self._model, self._trial):
                    if one is not None:
                        self._store.move_model(one.id, "rolled back", "by the owner")
                self._store.put(off=0, compared_since=self._clock())
            self._model, self._trial, self._off = None, None, False

    def forget(
        self,
        *,
        query: str | None = None,
        document: str | None = None,
        user: str | None = None,
        everything: bool = False,
    ) -> int:
        """Delete requests with this query, all that is known of a document or of a user, or everything.

        Give exactly one. Returns the number of requests deleted or changed. A fitted model keeps what it learned until
        the next refit; `rollback` removes it.
        """
        if sum((query is not None, document is not None, user is not None, everything)) != 1:
            raise RerankError("give exactly one of query, document, user and everything; nothing was deleted")
        with self._turn:
            with self._store.writing():
                if document is not None:
                    changed = self._forget_document(self._hasher.digest(document))
                else:
                    which, values = "1", list[bytes]()
                    if query is not None:
                        which, values = "query = ?", [self._hasher.query(query).tobytes()]
                    elif user is not None:
                        which, values = "person = ?", [self._hasher.digest("user", user)]
                    changed = self._delete(which, values)
                    if everything:
                        for table in ("answers", "models", "passages", "settings"):
                            self._store.db.execute(f"DELETE FROM {table}")
            if everything:
                self._store.forget_background()
            self._load()
            return changed

    def _forget_document(self, digest: bytes) -> int:
        changed = 0
        for one in list(self._store.requests("WHERE instr(documents, ?) > 0", digest)):
            for index in [index for index, other in enumerate(one.documents) if other == digest]:
                self._store.db.execute("DELETE FROM feedback WHERE request = ? AND document = ?", (one.id, index))
            rest = b"".join(b"\0" * 8 if other == digest else other for other in one.documents)
            # Without the digest of its texts, feedback can no longer name the request by them.
            self._store.db.execute("UPDATE requests SET documents = ?, texts = ? WHERE id = ?", (rest, b"", one.id))
            self._store.db.execute("DELETE FROM answers WHERE request = ?", (one.id,))
            changed += 1
        self._store.db.execute("DELETE FROM passages WHERE digest = ?", (digest,))
        return changed

    def _delete(self, which: str, values: Sequence[Any]) -> int:
        for table in ("feedback", "answers"):
            self._store.db.execute(
                f"DELETE FROM {table} WHERE request IN (SELECT id FROM requests WHERE {which})", values
            )
        return self._store.db.execute(f"DELETE FROM requests WHERE {which}", values).rowcount

    def _expire(self) -> None:
        """Delete requests that are too old or too many, and digests of passages that were not sent for as long."""
        oldest = self._clock() - self._keep_days * DAY
        with self._store.writing():
            self._delete("time < ? OR number <= ?", (oldest, self._store.next_number() - 1 - MAX_REQUESTS))
            for table in ("answers", "passages"):
                self._store.db.execute(f"DELETE FROM {table} WHERE time < ?", (oldest,))


def _shares(groups: Sequence[Iterable[bytes | None]]) -> Table:
    """[requests]: a weight that limits the share of each group; None is not a group."""
    counts = Counter(group for some in groups for group in some if group is not None)
    limit = max(MAX_SHARE, 2 / len(counts) if counts else 1.0) * len(groups)
    return np.array(
        [
            min((limit / max(counts[group], limit) for group in some if group is not None), default=1.0)
            for some in groups
        ]
    )


def _is_used(kinds: set[str]) -> bool:
    return bool(kinds & set(USED)) and "down" not in kinds


def _weights(model: StoredModel | None, names: Sequence[str]) -> Table:
    """Weights of features by name; those that a model does not know count nothing."""
    known = dict(zip(OWN, START.tolist(), strict=True)) if model is None else model.weights
    return np.array([known.get(name, 0.0) for name in names])


def _protected(order: NDArray[np.int64]) -> NDArray[np.int64]:
    """The order, with the caller's first passages moved up to place WITHIN if they were below it."""
    if len(order) <= WITHIN:
        return order
    head = order[:WITHIN].tolist()
    low = [index for index in range(PROTECTED) if index not in head]
    if not low:
        return order
    free = [place for place, index in enumerate(head) if index >= PROTECTED][-len(low) :]  # they make room
    head = [*(index for place, index in enumerate(head) if place not in free), *low]
    return np.array([*head, *(index for index in order.tolist() if index not in set(head))], np.int64)


def _scores(absolute: Table) -> Table:
    """Scores by place: strictly between 0 and 1 and strictly falling.

    The k-th place gets the k-th largest probability that a passage of this list is relevant, judged by its text alone.
    So the distribution of scores does not depend on the model, and a threshold keeps its meaning after a refit.
    """
    bias, slope = CALIBRATION
    probability = 1 / (1 + np.exp(-(bias + slope * np.sort(absolute)[::-1])))
    steps = 1e-6 * np.arange(len(absolute))
    return np.clip(probability, 0.002, 0.998) - steps


def _signals(signals: Mapping[str, Sequence[float | None]] | None, documents: int) -> dict[str, Table]:
    columns: dict[str, Table] = {}
    if signals is not None and len(signals) > MAX_SIGNALS:
        raise RerankError(f"{len(signals)} signals were sent; send at most {MAX_SIGNALS}")
    for name, values in (signals or {}).items():
        if not isinstance(name, str) or not _SIGNAL.fullmatch(name) or name in OWN:
            raise RerankError(
                f"{str(name)[:50]!r} cannot be the name of a signal; use small letters, digits, '_', '-' and '.', but "
                f"not {', '.join(OWN)}"
            )
        if len(values) != documents:
            raise RerankError(f"signal {name!r} has {len(values)} values for {documents} documents")
        column = np.full(documents, np.nan)
        for index, value in enumerate(values):
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= 1e15:
                raise RerankError(f"signal {name!r} of documents[{index}] must be a finite number or null")
            column[index] = value
        columns[name] = column
    return columns


def _seen(order: Sequence[int], documents: int) -> NDArray[np.int16]:
    wrong = [
        index for index in order if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < documents
    ]
    if wrong or len(set(order)) != len(order) or not order:
        raise RerankError(f"order must name different documents of the request, 0 to {documents - 1}")
    return np.array(order, np.int16)
