"""From a search log and its documents to a data set: result lists, features, users and times."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedrank.data import from_ir_datasets
from fedrank.data.documents import Documents, read_documents
from fedrank.data.engine_features import ENGINE_1, EngineFeatures, is_engine_set
from fedrank.data.lists import K1, NOT_FOUND, TOO_SHORT, B, ListRules, bm25, lists_for_query
from fedrank.data.live_features import LIVE_1, LOG_103, NAMES
from fedrank.data.live_ranking import ENGINE_WORDS, pair_features
from fedrank.data.log_folder import Marks, begin, finish, is_complete, table, working_on
from fedrank.data.logs import (
    ARRAYS,
    FORMAT,
    TEXTS,
    Clicks,
    SearchLog,
    load_log,
    read_clicks,
    read_names,
    write_names,
)
from fedrank.data.mapped import save_array
from fedrank.files import opened, sync
from fedrank.progress import Progress, quiet
from fedrank.types import Features

if TYPE_CHECKING:
    from fedrank.data.shown import ShownRows
    from fedrank.data.text import Tokeniser

QUERIES = 500  # whose lists are made between two marks
PAIRS = 20_000  # whose features are computed between two marks

STEMS = ("none", "english")
HEAVY_SHARE, HEAVY_TIMES = 0.5, 5.0  # of all entries; as many as the next user
_DROPPED = (NOT_FOUND, TOO_SHORT)  # what the numbers in the file of reasons mean, from 1 on
_FOUND, _WHY = "lists.unfinished.npy", "reasons.unfinished.npy"
PAIR_ASKER = "askers.unfinished.npy"  # [pairs]: a query; or an entry, where features are the published ones


Rows = NDArray[np.int64]


class Extractor(NamedTuple):
    """What turns pairs of a query and a document into features."""

    names: tuple[str, ...]
    features: Callable[[Sequence[str], NDArray[np.int64], NDArray[np.int64]], Features]  # queries, query, document
    tokens: Callable[[str], list[str]]  # how texts are cut into words, for BM25 as well
    # The same with [pairs] seconds since 1970, where features depend on when was asked.
    timed: Callable[[Sequence[str], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]], Features] | None = None


@dataclass(frozen=True)
class LogBuild:
    """How a search log becomes a data set."""

    lists: ListRules = field(default_factory=ListRules)
    users: int | None = None  # only so many, the most active; None: all
    least: int = 1  # entries that a user must have
    exclude: tuple[str, ...] = ()  # users that are left out, with all their clicks
    columns: dict[str, str] = field(default_factory=dict)  # what the log's columns are called, if it is not obvious
    match: str = "auto"  # whether clicks name documents by "id" or "url"; see read_clicks
    published: bool = False  # the features as the published code computed them
    seed: int = 1
    stem: str = "none"  # "english": stems instead of words, for lists and features alike
    features: str = LOG_103  # or "live-1", which takes English stems for lists and features

    def __post_init__(self) -> None:
        if self.users is not None and self.users < 1:
            raise ValueError(f"users = {self.users} leaves nobody; use 1 or more, or None for all")
        if self.least < 1:
            raise ValueError(f"least = {self.least}: a user without an entry is no user; use 1 or more")
        if self.stem not in STEMS:
            raise ValueError(f"stem = {self.stem!r}; choose {' or '.join(map(repr, STEMS))}")
        if self.features not in (LOG_103, LIVE_1.version) and not is_engine_set(self.features):
            known = ", ".join(map(repr, (LOG_103, LIVE_1.version, ENGINE_1.version)))
            raise ValueError(f"features = {self.features!r}; choose one of {known}")
        if self.published and self.features != LOG_103:
            raise ValueError(f"published = True: {self.features} were never published so; leave one of them out")


def build_log(
    log: str | os.PathLike[str],
    documents: str | os.PathLike[str],
    out: str | os.PathLike[str],
    how: LogBuild | None = None,
    *,
    threads: int = 1,
    progress: Progress = quiet,
    extractor: Callable[[Documents], Extractor] | None = None,
) -> SearchLog:
    """Build a data set in the folder `out`, or continue one that was begun there with the same files and settings.

    Natural candidates are clicks of all users but the excluded ones; which users are kept is decided afterwards, by
    how many of their entries have a list, as in the paper. `extractor` replaces fedrank's own features.
    """
    log, documents, out = Path(log), Path(documents), Path(out)
    how = how or LogBuild()
    asked = {
        "format": FORMAT,
        "log": fingerprint(log),
        "documents": fingerprint(documents),
        "settings": _plain(how),
    }
    if not is_complete(out, asked):
        with working_on(out):
            if not is_complete(out, asked):  # by another process in between
                _build(log, documents, out, how, asked, threads, progress, extractor)
    return load_log(out)


def _build(
    log: Path,
    documents: Path,
    out: Path,
    how: LogBuild,
    asked: dict[str, Any],
    threads: int,
    report: Progress,
    extractor: Callable[[Documents], Extractor] | None,
) -> None:
    marks = begin(out, asked)
    report("read", 0, 1)
    from_package = from_ir_datasets.is_there(documents)
    collection = from_ir_datasets.documents_of(documents) if from_package else read_documents(documents)
    clicks = read_clicks(log, collection, how.columns, how.match)
    _check(log, clicks, how.exclude)
    tools = (extractor or own_features(how, threads))(collection)
    report("read", 1, 1)
    if not marks.done:  # only now, so that files or settings that make no sense leave no folder behind
        marks.set("begun", 1)
    kept = _make_lists(out, marks, clicks, collection, how, tools.tokens, report)
    _gather(out, marks, clicks, collection, kept, how)
    queries = read_names(out / "queries.txt")
    if how.published:
        queries = tuple(queries[query] for query in np.load(out / "query.npy"))
    size = PAIRS // how.lists.length * how.lists.length  # no list is divided
    compute_features(out, marks, tools, queries, size, report)
    finish(out, _facts(out, marks, asked, log.name, documents.name, clicks, collection, how, tools.names))


def own_features(how: LogBuild, threads: int) -> Callable[[Documents], Extractor]:
    """What computes the features that are asked for."""
    if how.features == LIVE_1.version:
        return _live_features(how)
    return _engine_features(how) if is_engine_set(how.features) else _log_features(how, threads)


def _engine_features(how: LogBuild) -> Callable[[Documents], Extractor]:
    def extractor(documents: Documents) -> Extractor:
        version = EngineFeatures.named(how.features)
        index = _once(lambda: version.index(documents))

        def timed(queries: Sequence[str], query: Rows, rows: Rows, time: Rows | None) -> Features:
            found = np.empty((len(rows), len(version.names)), np.float32)
            ends = np.searchsorted(query, np.arange(len(queries) + 1))  # pairs are sorted by query
            for one, text in enumerate(queries):
                own = np.arange(ends[one], ends[one + 1])
                moments = np.zeros(len(own), np.int64) if time is None else time[own]
                for moment in np.unique(moments):
                    some = own[moments == moment]
                    found[some] = index().describe(text, rows[some], None if time is None else float(moment))
            return found

        def features(queries: Sequence[str], query: Rows, rows: Rows) -> Features:
            return timed(queries, query, rows, None)

        return Extractor(version.names, features, version.words, timed)

    return extractor


def _log_features(how: LogBuild, threads: int) -> Callable[[Documents], Extractor]:
    def extractor(documents: Documents) -> Extractor:
        from fedrank.data.log_features import FEATURE_NAMES, Statistics, features_for
        from fedrank.data.text import Tokeniser

        cut = Tokeniser("english" if how.stem == "english" else "none")
        statistics = _once(lambda: Statistics.of(_stemmed(documents, cut)))

        def features(queries: Sequence[str], query: NDArray[np.int64], rows: NDArray[np.int64]) -> Features:
            asked = [_as_stems(text, cut) for text in queries]
            return features_for(asked, query, rows, statistics(), threads=threads, published=how.published)

        return Extractor(tuple(FEATURE_NAMES), features, cut)

    return extractor


def _live_features(how: LogBuild) -> Callable[[Documents], Extractor]:
    def extractor(documents: Documents) -> Extractor:
        describe = _once(lambda: pair_features(documents, how.lists.depth))

        def features(queries: Sequence[str], query: NDArray[np.int64], rows: NDArray[np.int64]) -> Features:
            found: Features = describe()(queries, query, rows)
            return found

        return Extractor(NAMES, features, ENGINE_WORDS)

    return extractor


def _stemmed(documents: Documents, cut: Tokeniser) -> Documents:
    """With stems in place of words, so that features count them; lengths in characters are then those of stems."""
    if cut.stem == "none":
        return documents
    title, text, url = (
        [_as_stems(one, cut) for one in stream] for stream in (documents.title, documents.text, documents.url)
    )
    return replace(documents, title=title, text=text, url=url)


def _as_stems(text: str, cut: Tokeniser) -> str:
    """Every word replaced where it stands, so that the slashes of a url stay."""
    return text if cut.stem == "none" else re.sub(r"\w+", lambda word: " ".join(cut(word[0])), text)


def _check(log: Path, clicks: Clicks, exclude: Sequence[str]) -> None:
    if not len(clicks):
        reasons = "; ".join(f"{reason}: {rows}" for reason, rows in clicks.left_out.items()) or "it is empty"
        raise ValueError(f"{log} holds no entry that can be used ({reasons})")
    for name in exclude:
        if name not in clicks.users:
            raise ValueError(f"exclude = {name!r}: nobody in {log} with a sound entry has that name")
    if len(set(exclude)) == len(clicks.users):
        raise ValueError(f"exclude = {list(exclude)} leaves nobody of {log}; keep some user")


def _make_lists(
    out: Path,
    marks: Marks,
    clicks: Clicks,
    documents: Documents,
    how: LogBuild,
    tokens: Callable[[str], list[str]],
    report: Progress,
) -> NDArray[np.bool_]:
    """Write the documents of every entry's list, a block of queries at a time; returns which entries were asked for."""
    wanted = ~np.isin(clicks.user, [clicks.users.index(name) for name in how.exclude])
    order, starts = _by_query(clicks, wanted)
    queries = len(starts) - 1
    if "gathered" in marks.done:
        return wanted
    done = marks.done.get("lists", 0)
    found = table(out / _FOUND, (len(clicks), how.lists.length), "<i4", new=not done)
    why = table(out / _WHY, (len(clicks),), "|i1", new=not done)
    score = bm25(documents, tokens)
    for first in range(done, queries, QUERIES):
        report("lists", first, queries)
        last = min(first + QUERIES, queries)
        for place in range(first, last):
            entries = order[starts[place] : starts[place + 1]]
            scores = score(clicks.queries[clicks.query[entries[0]]])
            lists = lists_for_query(how.lists, entries, clicks.document[entries], scores, how.seed)
            for entry, one in zip(entries, lists, strict=True):
                if isinstance(one, str):
                    why[entry] = 1 + _DROPPED.index(one)
                else:
                    found[entry], why[entry] = one, 0
        found.flush()
        why.flush()
        marks.set("lists", last)
    report("lists", queries, queries)
    return wanted


def _by_query(clicks: Clicks, wanted: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Entries grouped by query, in order of time within each; and where every group begins, with the end."""
    entries = np.flatnonzero(wanted)
    order = entries[np.argsort(clicks.query[entries], kind="stable")]
    changes = np.flatnonzero(np.diff(clicks.query[order])) + 1
    return order, np.concatenate([[0], changes, [len(order)]])


def _gather(
    out: Path, marks: Marks, clicks: Clicks, documents: Documents, wanted: NDArray[np.bool_], how: LogBuild
) -> None:
    """Choose users, number the distinct pairs of query and document, and write all but the features."""
    if "gathered" in marks.done:
        return
    why: NDArray[np.int8] = np.load(out / _WHY)
    with_list = wanted & (why == 0)
    if not with_list.any():
        reasons = ", ".join(f"{reason}: {n:,}" for reason, n in _dropped(why[wanted]).items())
        raise ValueError(f"no entry has a result list ({reasons}); check that clicks and documents belong together")
    counts = np.bincount(clicks.user[with_list], minlength=len(clicks.users))
    ranking = np.argsort(-counts, kind="stable")
    ranking = ranking[counts[ranking] >= how.least][: how.users]
    if not len(ranking):
        raise ValueError(f"least = {how.least:,} leaves nobody: the most active user has {counts.max():,} entries")
    number = np.full(len(clicks.users), -1, dtype=np.int32)
    number[ranking] = np.arange(len(ranking), dtype=np.int32)
    kept = with_list & (number[clicks.user] >= 0)
    order, starts = _by_query(clicks, kept)
    place = np.cumsum(kept) - 1  # of an entry among those that are kept

    shown = np.load(out / _FOUND, mmap_mode="r")
    lists = table(out / "lists.npy", (int(kept.sum()), how.lists.length), ARRAYS["lists"], new=True)
    target = np.empty(len(lists), dtype=np.int8)
    pair_asker, pair_document = [np.empty(0, dtype=np.int32)], [np.empty(0, dtype=np.int32)]
    pairs = 0
    # Published features depend on the whole list, so that no two entries share a pair. Otherwise entries go by query:
    # pairs of a query are neighbours then, and blocks can be numbered one after the other.
    groups = np.arange(len(lists) + 1) if how.published else starts
    entries_of = np.flatnonzero(kept) if how.published else order
    for first in range(0, len(groups) - 1, QUERIES):
        last = min(first + QUERIES, len(groups) - 1)
        entries = entries_of[groups[first] : groups[last]]
        documents_of = shown[entries].astype(np.int64)
        asker = np.repeat(np.arange(first, last), np.diff(groups[first : last + 1]))
        codes, rows = np.unique(asker[:, None] * len(documents) + documents_of, return_inverse=True)
        lists[place[entries]] = pairs + rows.reshape(documents_of.shape)
        target[place[entries]] = np.argmax(documents_of == clicks.document[entries][:, None], axis=1)
        pair_asker.append((codes // len(documents)).astype(np.int32))
        pair_document.append((codes % len(documents)).astype(np.int32))
        pairs += len(codes)
    lists.flush()
    save_array(out / "target.npy", target)
    save_array(out / "user.npy", number[clicks.user[kept]])
    save_array(out / "time.npy", clicks.time[kept])
    group = np.empty(len(clicks), dtype=np.int32)
    group[order] = np.repeat(np.arange(len(starts) - 1, dtype=np.int32), np.diff(starts))
    save_array(out / "query.npy", group[kept])
    save_array(out / "document.npy", np.concatenate(pair_document))
    save_array(out / PAIR_ASKER, np.concatenate(pair_asker))
    write_names(out / "users.txt", [clicks.users[user] for user in ranking])
    write_names(out / "queries.txt", [clicks.queries[clicks.query[order[start]]] for start in starts[:-1]])
    write_names(out / "documents.txt", documents.ids)
    for name in (*(f"{name}.npy" for name in ARRAYS if name != "features"), *(f"{name}.txt" for name in TEXTS)):
        sync(out / name)
    marks.set("gathered", {"dropped": _dropped(why[wanted]), "other_users": int((with_list & ~kept).sum())})


def compute_features(
    out: Path,
    marks: Marks,
    tools: Extractor,
    queries: Sequence[str],
    size: int,
    report: Progress,
    time: NDArray[np.int64] | None = None,
) -> None:
    """Write the features of all pairs, `size` between two marks; `time` [pairs] is when they were asked for."""
    width = len(tools.names)
    asker: NDArray[np.int32] = np.load(out / PAIR_ASKER, mmap_mode="r")
    document: NDArray[np.int32] = np.load(out / "document.npy", mmap_mode="r")
    done = marks.done.get("features", 0)
    rows_on_disk = table(out / "features.npy", (len(asker), width), ARRAYS["features"], new=not done)
    for start in range(done, len(asker), size):
        report("features", start, len(asker))
        rows = slice(start, min(start + size, len(asker)))
        asked = np.asarray(asker[rows], dtype=np.int64)
        first, last = int(asked[0]), int(asked[-1]) + 1  # pairs are sorted by asker
        pairs = queries[first:last], asked - first, np.asarray(document[rows], dtype=np.int64)
        timed = None if time is None else tools.timed
        values = tools.features(*pairs) if timed is None or time is None else timed(*pairs, time[rows])
        if values.shape != (rows.stop - rows.start, width) or not np.isfinite(values).all():
            raise ValueError(f"features {values.shape} of pairs {rows.start:,} .. {rows.stop - 1:,} are not sound")
        rows_on_disk[rows] = values
        rows_on_disk.flush()
        marks.set("features", rows.stop)
    report("features", len(asker), len(asker))


def _facts(
    out: Path,
    marks: Marks,
    asked: dict[str, Any],
    log: str,
    documents: str,
    clicks: Clicks,
    collection: Documents,
    how: LogBuild,
    names: tuple[str, ...],
) -> dict[str, Any]:
    """What a reader of the data set should know."""
    shapes = {name: list(np.load(out / f"{name}.npy", mmap_mode="r").shape) for name in ARRAYS}
    texts = {name: (out / f"{name}.txt").read_bytes().count(b"\n") for name in TEXTS}
    counted = marks.done["gathered"]
    excluded = int(np.isin(clicks.user, [clicks.users.index(name) for name in how.exclude]).sum())
    return {
        "format": FORMAT,
        "files": {"log": log, "documents": documents},
        "made_from": {"log": asked["log"], "documents": asked["documents"]},
        "settings": asked["settings"],
        "bm25": f"bm25s, Lucene's formula, k1 = {K1}, b = {B}, over title, text and url joined",
        "counts": {
            "rows": clicks.rows,  # of the log
            "sound": len(clicks),  # of them
            "entries": shapes["lists"][0],  # in the data set
            "pairs": shapes["features"][0],
            **texts,
        },
        "left_out": {reason: {"rows": one.count, "lines": list(one.lines)} for reason, one in clicks.left_out.items()},
        "dropped": {
            "of excluded users": excluded,
            **counted["dropped"],
            "of users that were not chosen": counted["other_users"],
        },
        "out_of_order": clicks.out_of_order,
        "broken_documents": len(collection.broken),
        "heavy_user": heavy_user(clicks, how.exclude),
        "shapes": shapes,
        "feature_names": list(names),
    }


def heavy_user(clicks: Clicks | ShownRows, exclude: Sequence[str] = ()) -> dict[str, Any] | None:
    """The user who has most of the log, or five times as much as anybody else, if there is one; perhaps a robot."""
    counts = np.bincount(clicks.user, minlength=len(clicks.users))
    counts[[clicks.users.index(name) for name in exclude]] = 0
    first = int(np.argmax(counts))
    entries = int(counts[first])
    counts[first] = 0
    second, total = int(counts.max()), entries + int(counts.sum())
    if second == 0 or not (entries > HEAVY_SHARE * total or entries > HEAVY_TIMES * second):
        return None
    return {"user": clicks.users[first], "entries": entries, "share": round(entries / total, 4), "next": second}


def notes(facts: dict[str, Any]) -> list[str]:
    """What became of the rows of a log, as sentences."""
    counts, said = facts["counts"], []
    said.append(
        f"{counts['rows']:,} rows, {counts['sound']:,} of them sound; {counts['entries']:,} entries of "
        f"{counts['users']:,} users with {counts['queries']:,} queries are in the data set"
    )
    for reason, one in facts["left_out"].items():
        more = ", ..." if one["rows"] > len(one["lines"]) else ""
        said.append(f"left out, {reason}: {one['rows']:,} (lines {', '.join(map(str, one['lines']))}{more})")
    said += [f"dropped, {reason}: {n:,}" for reason, n in facts["dropped"].items() if n]
    said += _more_notes(facts)
    if facts["out_of_order"]:
        said.append(f"{facts['out_of_order']:,} entries stood behind a later one; the log was sorted by time")
    if facts["broken_documents"]:
        said.append(f"{facts['broken_documents']:,} documents hold bytes that are not UTF-8; they count as �")
    if heavy := facts["heavy_user"]:
        said.append(
            f"user {heavy['user']} has {heavy['entries']:,} of the entries ({heavy['share']:.0%}), the next one "
            f"{heavy['next']:,}: perhaps not a person; --exclude {heavy['user']} leaves it out"
        )
    return said


def _more_notes(facts: dict[str, Any]) -> list[str]:
    """What is only said of lists as they were shown."""
    said = []
    for reason, one in facts.get("noticed", {}).items():
        more = ", ..." if one["rows"] > len(one["lines"]) else ""
        said.append(f"noticed, {reason}: {one['rows']:,} (lines {', '.join(map(str, one['lines']))}{more})")
    said += [f"also, {what}: {n:,}" for what, n in facts.get("also", {}).items()]
    for reason, n in facts.get("redacted", {}).items():
        said.append(f"redacted, {reason}: {n:,} queries, whose text is not stored")
    if facts["counts"].get("clicks") == 0:
        said.append("no list has a click, so that nothing can be learned from them; --action names what counts as one")
    if facts.get("unit") == "browser":
        said.append("users are browsers, not persons: one person may have several, and several may share one")
    return said


def _dropped(why: NDArray[np.int8]) -> dict[str, int]:
    return {reason: int((why == code).sum()) for code, reason in enumerate(_DROPPED, start=1)}


def fingerprint(path: Path) -> str:
    """Of a file's contents, or of a set of ir_datasets."""
    if from_ir_datasets.is_there(path):
        return from_ir_datasets.size_of(path)
    with opened(path) as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def _plain(how: LogBuild) -> dict[str, Any]:
    settings: dict[str, Any] = json.loads(json.dumps(asdict(how)))  # as it will come back from a file
    if how.features == LOG_103:
        del settings["features"]  # which data sets from before there was a choice do not name
    return settings


def _once(make: Callable[[], Any]) -> Callable[[], Any]:
    """The same thing at every call, made at the first."""
    made: list[Any] = []

    def get() -> Any:
        if not made:
            made.append(make())
        return made[0]

    return get
