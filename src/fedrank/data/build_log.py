"""Build a data set from a click log and its documents: result lists, features, users and times."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank.data.click_log import Clicks, rank_users, read_clicks
from fedrank.data.documents import Documents
from fedrank.data.engine_features import ENGINE_1, is_engine_set
from fedrank.data.feature_sets import Extractor, MakeExtractor, built_in_features
from fedrank.data.from_ir_datasets import documents_from
from fedrank.data.lists import K1, NOT_FOUND, TOO_SHORT, B, ListRules, bm25, lists_for_query
from fedrank.data.live_features import LIVE_1, LOG_103
from fedrank.data.log_folder import Marks, build_folder, fingerprint, finish, log_facts, save_arrays, table, write_texts
from fedrank.data.logs import ARRAYS, FORMAT, SearchLog, read_names
from fedrank.data.mapped import save_array
from fedrank.data.rows import list_reasons
from fedrank.files import sync
from fedrank.progress import Progress, quiet

QUERIES = 500  # queries whose lists are made between two checkpoints
PAIRS = 20_000  # query-document pairs whose features are computed between two checkpoints
PAIR_QUERY = "askers.unfinished.npy"  # [pairs]: a query, or an entry for published features
_DROPPED = (NOT_FOUND, TOO_SHORT)  # reason codes in the file of reasons, starting at 1
_LISTS_FILE, _REASONS_FILE = "lists.unfinished.npy", "reasons.unfinished.npy"


@dataclass(frozen=True, kw_only=True)
class BuildSettings:
    """Settings for building a data set from any log."""

    features: str = LOG_103  # or "live-1", which uses English stems in lists and features, or "engine-1"
    stem: str = "none"  # "english": use stems instead of words, in lists and features
    users: int | None = None  # number of most active users to include; None: all
    min_interactions: int = 1  # minimum number of entries per user
    exclude: tuple[str, ...] = ()  # users to leave out, with all their clicks
    columns: dict[str, str] = field(default_factory=dict)  # names of the log's columns, if not standard

    def __post_init__(self) -> None:
        if self.users is not None and self.users < 1:
            raise ValueError(f"users must be at least 1, or None for all (got {self.users})")
        if self.min_interactions < 1:
            raise ValueError(f"min_interactions must be at least 1 (got {self.min_interactions})")
        if self.stem not in ("none", "english"):
            raise ValueError(f"stem must be 'none' or 'english' (got {self.stem!r})")
        if self.features not in (LOG_103, LIVE_1.version) and not is_engine_set(self.features):
            known = ", ".join(map(repr, (LOG_103, LIVE_1.version, ENGINE_1.version)))
            raise ValueError(f"features must be one of {known} (got {self.features!r})")


@dataclass(frozen=True)
class LogBuild(BuildSettings):
    """Settings for building a data set from a search log."""

    lists: ListRules = field(default_factory=ListRules)
    match: str = "auto"  # whether clicks name documents by "id" or "url"; see read_clicks
    published: bool = False  # compute features as the published code did
    seed: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.published and self.features != LOG_103:
            raise ValueError(f"published = True is not available for {self.features}; remove one of the two settings")


def build_log(
    log: str | os.PathLike[str],
    documents: str | os.PathLike[str],
    out: str | os.PathLike[str],
    settings: LogBuild | None = None,
    *,
    threads: int = 1,
    progress: Progress = quiet,
    extractor: MakeExtractor | None = None,
) -> SearchLog:
    r"""Build a data set from a search log and its documents in the folder `out`, and return it.

    `log` has the columns user, time, query and clicked document; `documents` has an id, a title and a text for each
    document. Each click becomes a list of 20 documents with features. `settings` defaults to `LogBuild()`; `extractor`
    replaces the built-in features. A build that was interrupted continues if files and settings are the same.

    The candidates of a query include the documents that any user clicked for it, except excluded users. Users are
    selected afterwards by their number of entries with a list, as in AOL4FOLTR (CIKM 2025).

    >>> from pathlib import Path
    >>> import fedrank as fr
    >>> clicks = ["user\ttime\tquery\tclicked", "ann\t2024-05-01\troof repair\td3", "bob\t2024-05-02\troof\td7"]
    >>> _ = Path("log.tsv").write_text("\n".join(clicks))
    >>> documents = ["id\ttitle\ttext", *(f"d{n}\troof\trepair {n}" for n in range(20))]
    >>> _ = Path("documents.tsv").write_text("\n".join(documents))
    >>> log = fr.build_log("log.tsv", "documents.tsv", out="log-data")
    >>> log.users, log.lists.shape, len(log.feature_names)
    (('ann', 'bob'), (2, 20), 103)
    """
    log, documents, out = Path(log), Path(documents), Path(out)
    settings = settings or LogBuild()
    request = {
        "format": FORMAT,
        "log": fingerprint(log),
        "documents": fingerprint(documents),
        "settings": _stored(settings),
    }

    def build(marks: Marks) -> None:
        progress("read", 0, 1)
        collection = documents_from(documents)
        clicks = read_clicks(log, collection, settings.columns, settings.match)
        _check(log, clicks, settings.exclude)
        chosen_extractor = (
            extractor
            or built_in_features(settings.features, settings.stem, settings.published, settings.lists.depth, threads)
        )(collection)
        progress("read", 1, 1)
        marks.begin()
        steps = _Steps(out, marks, clicks, collection, settings, chosen_extractor, progress)
        if "gathered" not in marks.done:
            steps.make_lists()
            steps.gather()
        size = PAIRS // settings.lists.length * settings.lists.length  # keep each list in one block
        compute_features(out, marks, chosen_extractor, steps.stored_queries(), size, progress)
        finish(out, steps.facts({"log": log.name, "documents": documents.name}))

    return build_folder(out, request, build)


def _check(log: Path, clicks: Clicks, exclude: Sequence[str]) -> None:
    if not len(clicks):
        raise ValueError(f"{log} contains no usable entries ({list_reasons(clicks.left_out)})")
    for name in exclude:
        if name not in clicks.users:
            raise ValueError(f"exclude = {name!r}: no user of {log} with a valid entry has this name")
    if len(set(exclude)) == len(clicks.users):
        raise ValueError(f"exclude = {list(exclude)} excludes every user of {log}; exclude fewer users")


@dataclass
class _Steps:
    """The steps of a build; each continues at its last checkpoint."""

    out: Path
    marks: Marks
    clicks: Clicks
    documents: Documents
    settings: LogBuild
    extractor: Extractor
    report: Progress

    def __post_init__(self) -> None:
        excluded = [self.clicks.users.index(name) for name in self.settings.exclude]
        self.wanted = ~np.isin(self.clicks.user, excluded)  # [entries]

    def make_lists(self) -> None:
        """Write the documents of every entry's list in blocks of queries."""
        clicks, settings = self.clicks, self.settings
        order, starts = _by_query(clicks, self.wanted)
        queries = len(starts) - 1
        done = self.marks.done.get("lists", 0)
        found = table(self.out / _LISTS_FILE, (len(clicks), settings.lists.length), "<i4", new=not done)
        why = table(self.out / _REASONS_FILE, (len(clicks),), "|i1", new=not done)
        score = bm25(self.documents, self.extractor.tokens)
        for first in range(done, queries, QUERIES):
            self.report("lists", first, queries)
            last = min(first + QUERIES, queries)
            for query in range(first, last):
                entries = order[starts[query] : starts[query + 1]]
                scores = score(clicks.queries[clicks.query[entries[0]]])
                lists = lists_for_query(settings.lists, entries, clicks.document[entries], scores, settings.seed)
                for entry, one in zip(entries, lists, strict=True):
                    if isinstance(one, str):
                        why[entry] = 1 + _DROPPED.index(one)
                    else:
                        found[entry], why[entry] = one, 0
            found.flush()
            why.flush()
            self.marks.set("lists", last)
        self.report("lists", queries, queries)

    def gather(self) -> None:
        """Choose users, number the distinct pairs of query and document, and write everything except the features."""
        clicks, out = self.clicks, self.out
        why: NDArray[np.int8] = np.load(out / _REASONS_FILE)
        with_list = self.wanted & (why == 0)
        ranking, rank = self._choose_users(with_list, why)
        chosen = with_list & (rank[clicks.user] >= 0)
        order, starts = _by_query(clicks, chosen)
        self._write_pairs(chosen, order, starts)
        group = np.empty(len(clicks), dtype=np.int32)
        group[order] = np.repeat(np.arange(len(starts) - 1, dtype=np.int32), np.diff(starts))
        save_arrays(out, user=rank[clicks.user[chosen]], time=clicks.time[chosen], query=group[chosen])
        queries = [clicks.queries[clicks.query[order[start]]] for start in starts[:-1]]
        write_texts(out, [clicks.users[user] for user in ranking], queries, self.documents.ids)
        other_users = int((with_list & ~chosen).sum())
        self.marks.set("gathered", {"dropped": _dropped(why[self.wanted]), "other_users": other_users})

    def _choose_users(
        self, with_list: NDArray[np.bool_], why: NDArray[np.int8]
    ) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        if not with_list.any():
            reasons = ", ".join(f"{reason}: {n:,}" for reason, n in _dropped(why[self.wanted]).items())
            raise ValueError(f"no entry has a result list ({reasons}); check that the documents are those of the log")
        counts = np.bincount(self.clicks.user[with_list], minlength=len(self.clicks.users))
        ranking, rank = rank_users(counts, self.settings.min_interactions, self.settings.users)
        if not len(ranking):
            raise ValueError(
                f"no user has min_interactions = {self.settings.min_interactions:,} entries; the most active user has "
                f"{counts.max():,}; use that number or fewer"
            )
        return ranking, rank

    def _write_pairs(self, chosen: NDArray[np.bool_], order: NDArray[np.int64], starts: NDArray[np.int64]) -> None:
        """Write lists as rows of distinct pairs, the clicked positions, and the query and document of each pair."""
        out, published, size = self.out, self.settings.published, len(self.documents)
        row = np.cumsum(chosen) - 1  # index of an entry among the chosen ones
        shown = np.load(out / _LISTS_FILE, mmap_mode="r")
        lists = table(out / "lists.npy", (int(chosen.sum()), self.settings.lists.length), ARRAYS["lists"], new=True)
        target = np.empty(len(lists), dtype=np.int8)
        pair_query, pair_document = [np.empty(0, dtype=np.int32)], [np.empty(0, dtype=np.int32)]
        pairs = 0
        # Published features depend on the whole list, so entries do not share pairs. Otherwise entries are ordered by
        # query: the pairs of a query are then adjacent, and blocks can be numbered one after the other.
        groups = np.arange(len(lists) + 1) if published else starts
        entries_of = np.flatnonzero(chosen) if published else order
        for first in range(0, len(groups) - 1, QUERIES):
            last = min(first + QUERIES, len(groups) - 1)
            entries = entries_of[groups[first] : groups[last]]
            documents = shown[entries].astype(np.int64)
            number = np.repeat(np.arange(first, last), np.diff(groups[first : last + 1]))
            codes, rows = np.unique(number[:, None] * size + documents, return_inverse=True)
            lists[row[entries]] = pairs + rows.reshape(documents.shape)
            target[row[entries]] = np.argmax(documents == self.clicks.document[entries][:, None], axis=1)
            pair_query.append((codes // size).astype(np.int32))
            pair_document.append((codes % size).astype(np.int32))
            pairs += len(codes)
        lists.flush()
        sync(out / "lists.npy")
        save_arrays(out, target=target, document=np.concatenate(pair_document))
        save_array(out / PAIR_QUERY, np.concatenate(pair_query))

    def stored_queries(self) -> Sequence[str]:
        """Texts of the queries that pairs refer to; one per entry for published features."""
        queries = read_names(self.out / "queries.txt")
        if self.settings.published:
            return tuple(queries[query] for query in np.load(self.out / "query.npy"))
        return queries

    def facts(self, files: dict[str, str]) -> dict[str, Any]:
        """Return the facts of the data set."""
        counted, clicks = self.marks.done["gathered"], self.clicks
        broken = len(self.documents.broken)
        return {
            **log_facts(self.marks, clicks, len(clicks), files, self.extractor.names, broken, self.settings.exclude),
            "bm25": f"bm25s, Lucene's formula, k1 = {K1}, b = {B}, over title, text and url joined",
            "dropped": {
                "of excluded users": int(np.count_nonzero(~self.wanted)),
                **counted["dropped"],
                "of users that were not chosen": counted["other_users"],
            },
        }


def _by_query(clicks: Clicks, wanted: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Entries grouped by query and ordered by time, and the group offsets."""
    entries = np.flatnonzero(wanted)
    order = entries[np.argsort(clicks.query[entries], kind="stable")]
    changes = np.flatnonzero(np.diff(clicks.query[order])) + 1
    return order, np.concatenate([[0], changes, [len(order)]])


def _dropped(why: NDArray[np.int8]) -> dict[str, int]:
    return {reason: int((why == code).sum()) for code, reason in enumerate(_DROPPED, start=1)}


def _stored(settings: LogBuild) -> dict[str, Any]:
    """Settings as they are read back from a file."""
    stored: dict[str, Any] = json.loads(json.dumps(asdict(settings)))
    if settings.features == LOG_103:
        del stored["features"]  # older data sets do not record the default
    return stored


def compute_features(
    out: Path,
    marks: Marks,
    extractor: Extractor,
    queries: Sequence[str],
    size: int,
    report: Progress,
    time: NDArray[np.int64] | None = None,
) -> None:
    """Write the features of all pairs with a mark every `size` pairs; `time` [pairs] is the time of the search."""
    width = len(extractor.names)
    pair_query: NDArray[np.int32] = np.load(out / PAIR_QUERY, mmap_mode="r")
    document: NDArray[np.int32] = np.load(out / "document.npy", mmap_mode="r")
    done = marks.done.get("features", 0)
    rows_on_disk = table(out / "features.npy", (len(pair_query), width), ARRAYS["features"], new=not done)
    for start in range(done, len(pair_query), size):
        report("features", start, len(pair_query))
        rows = slice(start, min(start + size, len(pair_query)))
        query = np.asarray(pair_query[rows], dtype=np.int64)
        first, last = int(query[0]), int(query[-1]) + 1  # pairs are sorted by query
        pairs = queries[first:last], query - first, np.asarray(document[rows], dtype=np.int64)
        timed = None if time is None else extractor.timed
        values = extractor.features(*pairs) if timed is None or time is None else timed(*pairs, time[rows])
        if values.shape != (rows.stop - rows.start, width) or not np.isfinite(values).all():
            raise ValueError(
                f"features {values.shape} of pairs {rows.start:,} .. {rows.stop - 1:,} have the wrong shape or are not "
                "finite; check the extractor"
            )
        rows_on_disk[rows] = values
        rows_on_disk.flush()
        marks.set("features", rows.stop)
    report("features", len(pair_query), len(pair_query))
