"""From a log of lists as they were shown, and its documents, to a data set.

Nothing that is to be forgotten reaches the disk: rows that are too old and queries that are redacted are sorted out in
memory, and features are computed there from what was typed. A build that was interrupted reads the log again and
continues with the features.
"""

from __future__ import annotations

import hashlib
import json
import os
import time as clock
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedrank.data import from_ir_datasets
from fedrank.data.build_log import (
    PAIR_ASKER,
    PAIRS,
    Extractor,
    LogBuild,
    compute_features,
    fingerprint,
    heavy_user,
    own_features,
)
from fedrank.data.click_caps import ClickCaps, Cut, apply_caps
from fedrank.data.documents import Documents, read_documents
from fedrank.data.live_features import LOG_103
from fedrank.data.log_folder import begin, finish, is_complete, table, working_on
from fedrank.data.logs import BAD_ROW, FORMAT, SHOWN_ARRAYS, SHOWN_MORE, TEXTS, SearchLog, load_log, write_names
from fedrank.data.mapped import save_array
from fedrank.data.redaction import Redaction, replaced
from fedrank.data.shown import UNKNOWN_FIRST, ShownRows, read_shown
from fedrank.data.ubi import ANONYMOUS, IS_EVENT, OTHER_APPLICATION, UbiRules, read_ubi
from fedrank.files import sync
from fedrank.progress import Progress, quiet

DAY = 86_400
TOO_OLD = "older than is kept"
FUTURE = "in the future, and would be kept for longer than others"
EXCLUDED = "of excluded users"
REDACTED = "of redacted queries"
NOT_CHOSEN = "of users that were not chosen"
_SOME = 100_000  # lists that are written at a time
REMEDIES = {  # by what is wrong with a log of which nothing can be used
    BAD_ROW: "; if an object has several lines there, `jq -c . FILE` puts each on one",
    IS_EVENT: "; give these as --ubi-events, and the searches as --ubi-queries",
    ANONYMOUS: "; --person must name a field that rows of searches or of events have",
    OTHER_APPLICATION: "; --application must name one that wrote some of it",
    UNKNOWN_FIRST: "; --docs must hold what was shown, or --object-field name the column of its ids",
    "": "; mend these, or export the log again",
}


class UbiSource(NamedTuple):
    """Both files of User Behavior Insights."""

    queries: Path
    events: Path


@dataclass(frozen=True)
class ShownBuild:
    """How a log of shown lists becomes a data set."""

    features: str = LOG_103  # or "live-1", "engine-1"
    stem: str = "none"  # "english": stems instead of words
    users: int | None = None  # only so many, the most active; None: all
    least: int = 1  # lists that a user must have
    exclude: tuple[str, ...] = ()  # users that are left out
    columns: dict[str, str] = field(default_factory=dict)  # of a table, if it is not obvious
    drawn: tuple[float, float] | None = None  # temperature and keep of a table's scores
    ubi: UbiRules = field(default_factory=UbiRules)
    caps: ClickCaps = field(default_factory=ClickCaps)
    redaction: Redaction = field(default_factory=Redaction)
    keep_days: int | None = None  # older lists are not stored; None: all are

    def __post_init__(self) -> None:
        if self.keep_days is not None and self.keep_days < 1:
            raise ValueError(f"keep_days = {self.keep_days} would keep nothing; use 1 or more")
        self.log_build()

    def log_build(self) -> LogBuild:
        """What features need to know, checked."""
        return LogBuild(
            users=self.users, least=self.least, exclude=self.exclude, stem=self.stem, features=self.features
        )


def build_shown(
    log: str | os.PathLike[str] | UbiSource,
    documents: str | os.PathLike[str],
    out: str | os.PathLike[str],
    how: ShownBuild | None = None,
    *,
    threads: int = 1,
    progress: Progress = quiet,
    extractor: Callable[[Documents], Extractor] | None = None,
    now: float | None = None,
) -> SearchLog:
    """Build a data set in the folder `out`, or continue one that was begun there with the same files and settings.

    `now`, in seconds since 1970, decides what is too old; None: what the clock says.
    """
    how = how or ShownBuild()
    source = log if isinstance(log, UbiSource) else Path(log)
    documents, out = Path(documents), Path(out)
    since = None
    if how.keep_days is not None:
        # Whole days of UTC, today among them: whatever the hour, nothing is older than so many days.
        since = int((clock.time() if now is None else now) // DAY - how.keep_days + 1) * DAY
    asked = {
        "format": FORMAT,
        "log": [fingerprint(path) for path in source] if isinstance(source, UbiSource) else fingerprint(source),
        "documents": fingerprint(documents),
        "settings": _plain(how, since),
    }
    if not is_complete(out, asked):
        with working_on(out):
            if not is_complete(out, asked):  # by another process in between
                _build(source, documents, out, how, since, asked, threads, progress, extractor)
    return load_log(out)


def _plain(how: ShownBuild, since: int | None) -> dict[str, Any]:
    """Settings as they are stored: listed words are not named, since they may be names; nor are users left out."""
    settings: dict[str, Any] = json.loads(json.dumps(asdict(how)))
    settings["redaction"]["words"] = len(how.redaction.words)
    settings["redaction"]["list"] = _digest(how.redaction.words)
    if how.exclude:
        settings["exclude"] = {"users": len(how.exclude), "list": _digest(how.exclude)}
    return settings | {"since": since}


def _digest(names: Sequence[str]) -> str:
    """Tells whether names are still the same."""
    return hashlib.blake2b("\n".join(names).encode(), digest_size=16).hexdigest() if names else ""


def _build(
    source: Path | UbiSource,
    documents: Path,
    out: Path,
    how: ShownBuild,
    since: int | None,
    asked: dict[str, Any],
    threads: int,
    report: Progress,
    extractor: Callable[[Documents], Extractor] | None,
) -> None:
    marks = begin(out, asked)
    report("read", 0, 1)
    from_package = from_ir_datasets.is_there(documents)
    collection = from_ir_datasets.documents_of(documents) if from_package else read_documents(documents)
    if isinstance(source, UbiSource):
        rows = read_ubi(source.queries, source.events, collection, documents, how.ubi)
    else:
        rows = read_shown(source, collection, how.columns, how.ubi.places, how.drawn)
    chosen = choose(rows, how, since)
    tools = (extractor or own_features(how.log_build(), threads))(collection)
    report("read", 1, 1)
    if not marks.done:  # only now, so that files or settings that make no sense leave no folder behind
        marks.set("begun", 1)
    texts = [chosen.rows.queries[query] for query in np.unique(chosen.rows.query)]
    if "gathered" not in marks.done:
        _gather(out, chosen, collection)
        marks.set("gathered", 1)
    times = _times_of_pairs(out) if tools.timed is not None else None
    compute_features(out, marks, tools, texts, PAIRS, report, times)
    finish(out, _facts(out, asked, source, documents.name, chosen, collection, tools.names))


class ChosenLists(NamedTuple):
    """What is stored of a log, and what is not."""

    rows: ShownRows
    reasons: list[str]  # [queries]: why its text is not stored; "": it is
    ranking: NDArray[np.int64]  # users, most active first
    dropped: dict[str, int]  # lists, by reason
    cut: dict[str, Cut]  # by rule
    clicks: NDArray[np.int64]  # [users]: before anything was left out, most first
    read: int  # sound lists in the log


def choose(rows: ShownRows, how: ShownBuild, since: int | None = None) -> ChosenLists:
    """Which lists are stored: recent, of users that are wanted, and within the limits of what one client may add."""
    _check(rows, how)
    read = len(rows)
    everybody = np.sort(np.bincount(rows.user, rows.clicks_of_lists(), len(rows.users)).astype(np.int64))[::-1]
    dropped: dict[str, int] = {}

    def keep(kept: NDArray[np.bool_], reason: str) -> None:
        nonlocal rows
        dropped[reason] = int(np.count_nonzero(~kept))
        rows = rows if kept.all() else rows.select(kept)

    if since is not None:
        keep(rows.time >= since, TOO_OLD)
        until = since + ((how.keep_days or 0) + 1) * DAY  # a clock may be a day ahead
        keep(rows.time < until, FUTURE)
    keep(~np.isin(rows.user, [rows.users.index(name) for name in how.exclude]), EXCLUDED)
    rows, cut = _capped(rows, how.caps)
    people = np.unique(np.stack([rows.query, rows.user]), axis=1)[0]
    reasons = how.redaction.reasons(rows.queries, np.bincount(people, minlength=len(rows.queries)))
    if how.redaction.what == "drop":
        keep(~np.array([bool(reason) for reason in reasons])[rows.query], REDACTED)
    counts = np.bincount(rows.user, minlength=len(rows.users))
    ranking = np.argsort(-counts, kind="stable")
    ranking = ranking[counts[ranking] >= how.least][: how.users]
    if not len(ranking):
        told = "; ".join(f"{n:,} {reason}" for reason, n in dropped.items() if n)
        told += "; ".join(f"{one.lists:,} {rule}" for rule, one in cut.items())
        raise ValueError(
            f"nothing of {read:,} lists is left: the most active user has {counts.max(initial=0):,} and needs "
            f"{how.least:,} ({told or 'nothing was dropped'}); change what leaves them out"
        )
    keep(np.isin(rows.user, ranking), NOT_CHOSEN)
    return ChosenLists(rows, reasons, ranking, dropped, cut, everybody, read)


def _capped(rows: ShownRows, caps: ClickCaps) -> tuple[ShownRows, dict[str, Cut]]:
    """What limits leave; a browser that names other people all the time is still one browser."""
    cut: dict[str, Cut] = {}
    for whose in ("client", "user"):
        if getattr(rows, whose) is not None:
            clicks, lengths = rows.clicks_of_lists(), np.diff(rows.offsets)
            kept, more = apply_caps(caps, getattr(rows, whose), rows.time, clicks, lengths)
            rows = rows.select(kept)
            for rule, one in more.items():
                cut[rule] = Cut(*(a + b for a, b in zip(cut.get(rule, (0, 0, 0)), one, strict=True)))
    return rows, cut


def _check(rows: ShownRows, how: ShownBuild) -> None:
    if not len(rows):
        reasons = "; ".join(f"{reason}: {count}" for reason, count in rows.left_out.items()) or "it is empty"
        raise ValueError(f"the log holds no list that can be used ({reasons}){_remedy(rows)}")
    for name in how.exclude:
        if name not in rows.users:
            raise ValueError(f"exclude = {name!r}: nobody with a sound list has that name")


def _remedy(rows: ShownRows) -> str:
    """What helps against the fault that most rows have, among those that can be helped."""
    faults = {reason: found.count for reason, found in rows.left_out.items()} | rows.counts
    return REMEDIES[max(REMEDIES, key=lambda reason: faults.get(reason, 0.5 if reason == "" else 0))]


def _gather(out: Path, chosen: ChosenLists, documents: Documents) -> None:
    """Number users, queries and pairs, and write all but the features."""
    rows = chosen.rows
    number = np.full(len(rows.users), -1, np.int32)
    number[chosen.ranking] = np.arange(len(chosen.ranking))
    queries, query = np.unique(rows.query, return_inverse=True)
    lengths = np.diff(rows.offsets)
    codes, pair = np.unique(np.repeat(query, lengths) * len(documents) + rows.document, return_inverse=True)
    longest = int(lengths.max())
    for name, values, empty in (
        ("lists", pair, -1),
        ("clicks", rows.clicks, 0),
        ("dwell", rows.dwell, np.nan),
        ("scores", rows.scores, 0),
    ):
        if values is not None:
            kind = (SHOWN_ARRAYS | SHOWN_MORE)[name]
            grid = table(out / f"{name}.npy", (len(rows), longest), kind, new=True)
            for first in range(0, len(rows), _SOME):
                some = lengths[first : first + _SOME]
                block = np.full((len(some), longest), empty, dtype=grid.dtype)
                block[np.arange(longest) < some[:, None]] = values[
                    rows.offsets[first] : rows.offsets[first + len(some)]
                ]
                grid[first : first + len(some)] = block
            grid.flush()
            sync(out / f"{name}.npy")
    save_array(out / "first.npy", rows.first)
    save_array(out / "user.npy", number[rows.user])
    save_array(out / "time.npy", rows.time)
    save_array(out / "query.npy", query.astype(np.int32))
    save_array(out / "document.npy", (codes % len(documents)).astype(np.int32))
    save_array(out / PAIR_ASKER, (codes // len(documents)).astype(np.int32))
    stored = replaced([rows.queries[one] for one in queries], [chosen.reasons[one] for one in queries])
    texts = {"users": [rows.users[one] for one in chosen.ranking], "queries": stored, "documents": documents.ids}
    for name, names in texts.items():
        write_names(out / f"{name}.txt", names)
        sync(out / f"{name}.txt")


def _times_of_pairs(out: Path) -> NDArray[np.int64]:
    """[pairs]: noon of the day around which a document was shown for a query; nothing ages within a day."""
    lists = np.load(out / "lists.npy", mmap_mode="r")
    time = np.load(out / "time.npy")
    pairs = len(np.load(out / "document.npy", mmap_mode="r"))
    total, often = np.zeros(pairs), np.zeros(pairs)
    for first in range(0, len(time), _SOME):
        block = np.asarray(lists[first : first + _SOME])
        there = block >= 0
        whole = np.broadcast_to(time[first : first + _SOME, None] / DAY, block.shape)
        total += np.bincount(block[there], whole[there], pairs)
        often += np.bincount(block[there], minlength=pairs)
    return (np.floor(total / np.maximum(often, 1)).astype(np.int64)) * DAY + DAY // 2


def _facts(
    out: Path,
    asked: dict[str, Any],
    source: Path | UbiSource,
    documents: str,
    chosen: ChosenLists,
    collection: Documents,
    names: tuple[str, ...],
) -> dict[str, Any]:
    """What a reader of the data set should know."""
    rows = chosen.rows
    there = [name for name in (SHOWN_ARRAYS | SHOWN_MORE) if (out / f"{name}.npy").is_file()]
    shapes = {name: list(np.load(out / f"{name}.npy", mmap_mode="r").shape) for name in there}
    texts = {name: (out / f"{name}.txt").read_bytes().count(b"\n") for name in TEXTS}
    files = {"queries": source.queries.name, "events": source.events.name} if isinstance(source, UbiSource) else None
    clicks = np.bincount(rows.user, rows.clicks_of_lists(), len(rows.users)).astype(np.int64)
    kept = np.unique(rows.query)
    why = [chosen.reasons[one] for one in kept]
    redacted = {reason: why.count(reason) for reason in sorted(set(why)) if reason}
    return {
        "format": FORMAT,
        "files": (files or {"log": getattr(source, "name", "")}) | {"documents": documents},
        "made_from": {"log": asked["log"], "documents": asked["documents"]},
        "settings": asked["settings"],
        "unit": rows.unit,
        "counts": {
            "rows": rows.rows,  # of all files of the log
            "sound": chosen.read,  # lists
            "entries": len(rows),  # in the data set
            "clicks": int(rows.clicks.sum()),
            "pairs": shapes["features"][0],
            **texts,
        },
        "left_out": _told(rows.left_out),
        "noticed": _told(rows.noticed),
        "also": {what: n for what, n in rows.counts.items() if n},
        "dropped": {**chosen.dropped, **{rule: one.lists for rule, one in chosen.cut.items()}},
        "capped": {rule: one._asdict() for rule, one in chosen.cut.items()},
        "redacted": redacted,
        "largest": {"before": _largest(chosen.clicks), "after": _largest(np.sort(clicks)[::-1])},
        "out_of_order": rows.out_of_order,
        "broken_documents": len(collection.broken),
        "heavy_user": heavy_user(rows),
        "shapes": shapes,
        "feature_names": list(names),
        **({} if rows.drawn is None else {"temperature": rows.drawn[0], "keep": rows.drawn[1]}),
    }


def _told(found: dict[str, Any]) -> dict[str, Any]:
    return {reason: {"rows": one.count, "lines": list(one.lines)} for reason, one in found.items()}


def _largest(clicks: NDArray[np.int64]) -> list[float]:
    """Shares of all clicks of the ten users with most of them."""
    return [round(float(one), 4) for one in clicks[:10] / max(int(clicks.sum()), 1)]
