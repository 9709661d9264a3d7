"""Build a data set from a log of shown result lists and its documents.

Data that must not be stored never reaches the disk: rows past the retention period and redacted queries are removed in
memory, and features are computed there from the original query. An interrupted build reads the log again and
continues with the features.
"""

from __future__ import annotations

import hashlib
import json
import os
import time as clock
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedrank.data.build_log import PAIR_QUERY, PAIRS, BuildSettings, compute_features
from fedrank.data.click_caps import ClickCaps, Cut, apply_caps
from fedrank.data.click_log import rank_users
from fedrank.data.documents import Documents
from fedrank.data.feature_sets import MakeExtractor, built_in_features
from fedrank.data.from_ir_datasets import documents_from
from fedrank.data.held_out import HoldOut, begin_window, held_out_facts, new_key
from fedrank.data.lists import ListRules
from fedrank.data.log_folder import (
    Marks,
    ShownLists,
    build_folder,
    fingerprint,
    finish,
    log_facts,
    save_arrays,
    table,
    write_shown,
    write_texts,
)
from fedrank.data.logs import ARRAYS, FORMAT, SearchLog
from fedrank.data.mapped import save_array
from fedrank.data.redaction import Redaction, replaced
from fedrank.data.rows import BAD_ROW, list_reasons, stored_reasons
from fedrank.data.shown import UNKNOWN_FIRST, ShownRows, read_shown
from fedrank.data.ubi import ANONYMOUS, IS_EVENT, OTHER_APPLICATION, UbiRules, files_of, read_ubi
from fedrank.files import sync
from fedrank.progress import Progress, quiet
from fedrank.types import Features

DAY = 86_400
TOO_OLD = "older than the retention period"
FUTURE = "dated in the future"
EXCLUDED = "of excluded users"
COUNTED = "of held-out users, from before the end of a window that was used"
REDACTED = "of redacted queries"
NOT_CHOSEN = "of users that were not chosen"
_SOME = 100_000  # lists per write
REMEDIES = {  # by the most frequent problem of an unusable log
    BAD_ROW: "; if objects span several lines, write one per line with `jq -c . FILE`",
    IS_EVENT: "; pass events with --ubi-events and searches with --ubi-queries",
    ANONYMOUS: "; --person must name a field of the search rows or the event rows",
    OTHER_APPLICATION: "; --application must name an application that occurs in the log",
    UNKNOWN_FIRST: "; --docs must contain the shown documents, or --object-field must name their id column",
    "": "; fix these rows, or export the log again",
}


class UbiSource(NamedTuple):
    """Queries and events of User Behavior Insights (UBI): two files, or two folders of files."""

    queries: Path
    events: Path


@dataclass(frozen=True)
class ShownBuild(BuildSettings):
    """Settings for building a data set from a log of shown lists."""

    drawn: tuple[float, float] | None = None  # temperature and keep probability of a table's scores
    ubi: UbiRules = field(default_factory=UbiRules)
    caps: ClickCaps = field(default_factory=ClickCaps)
    redaction: Redaction = field(default_factory=Redaction)
    keep_days: int | None = None  # retention period; older lists are not stored. None: no limit
    hold_out: HoldOut | None = None  # entries that are not used for training; None: all may be used

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.keep_days is not None and self.keep_days < 1:
            raise ValueError(f"keep_days must be at least 1, or None for no limit (got {self.keep_days})")


def build_shown(
    log: str | os.PathLike[str] | UbiSource,
    documents: str | os.PathLike[str],
    out: str | os.PathLike[str],
    settings: ShownBuild | None = None,
    *,
    threads: int = 1,
    progress: Progress = quiet,
    extractor: MakeExtractor | None = None,
    now: float | None = None,
) -> SearchLog:
    """Build a data set in the folder `out`, or continue an interrupted build with the same files and settings.

    `now`, in seconds since 1970, is the time that `keep_days` counts back from; the default is the current time.
    """
    settings = settings or ShownBuild()
    source = log if isinstance(log, UbiSource) else Path(log)
    documents, out = Path(documents), Path(out)
    since = None
    if settings.keep_days is not None:
        # Full UTC days including today, so nothing stored is older than `keep_days` at any hour.
        since = int((clock.time() if now is None else now) // DAY - settings.keep_days + 1) * DAY
    request = {
        "format": FORMAT,
        "log": [_fingerprint(path) for path in source] if isinstance(source, UbiSource) else fingerprint(source),
        "documents": fingerprint(documents),
        "settings": _stored(settings, since),
    }

    def build(marks: Marks) -> None:
        progress("read", 0, 1)
        hold_out = settings.hold_out
        if hold_out is not None:
            hold_out = replace(hold_out, key=hold_out.key or marks.done.get("key") or new_key())
        collection = documents_from(documents)
        if isinstance(source, UbiSource):
            rows = read_ubi(source.queries, source.events, collection, documents, settings.ubi)
            files = {"queries": source.queries.name, "events": source.events.name}
        else:
            rows = read_shown(source, collection, settings.columns, settings.ubi.positions, settings.drawn)
            files = {"log": source.name}
        chosen = choose(rows, settings if hold_out is None else replace(settings, hold_out=hold_out), since)
        built_in = built_in_features(settings.features, settings.stem, False, ListRules().depth, threads)
        chosen_extractor = (extractor or built_in)(collection)
        progress("read", 1, 1)
        marks.begin()
        if hold_out is not None:
            marks.set("key", hold_out.key)  # a build that continues must hold out the same users
        texts = [chosen.rows.queries[query] for query in np.unique(chosen.rows.query)]
        if "gathered" not in marks.done:
            _gather(out, chosen, collection)
            marks.set("gathered", 1)
        times = _times_of_pairs(out) if chosen_extractor.timed is not None else None
        compute_features(out, marks, chosen_extractor, texts, PAIRS, progress, times)
        broken = len(collection.broken)
        files |= {"documents": documents.name}
        common = log_facts(marks, chosen.rows, chosen.read, files, chosen_extractor.names, broken)
        if hold_out is not None:
            begin_window(out, hold_out, int(chosen.rows.time.max()))
        finish(out, common | _facts(chosen, common["counts"]))

    return build_folder(out, request, build)


def _stored(settings: ShownBuild, since: int | None) -> dict[str, Any]:
    """Settings as they are stored, without redacted words and excluded users, which may be personal data."""
    stored: dict[str, Any] = json.loads(json.dumps(asdict(settings)))
    if settings.hold_out is None:
        del stored["hold_out"]  # older data sets do not have it
    else:
        stored["hold_out"]["key"] = _digest([settings.hold_out.key] if settings.hold_out.key else [])
        del stored["hold_out"]["previous"]
    stored["redaction"]["words"] = len(settings.redaction.words)
    stored["redaction"]["list"] = _digest(settings.redaction.words)
    if settings.exclude:
        stored["exclude"] = {"users": len(settings.exclude), "list": _digest(settings.exclude)}
    return stored | {"since": since}


def _fingerprint(path: Path) -> str:
    """Fingerprint of a file, or of the files in a folder."""
    return _digest([fingerprint(one) for one in files_of(path)]) if path.is_dir() else fingerprint(path)


def _digest(names: Sequence[str]) -> str:
    """A digest to detect changed names."""
    return hashlib.blake2b("\n".join(names).encode(), digest_size=16).hexdigest() if names else ""


class ChosenLists(NamedTuple):
    """The lists of a log that are stored, and counts of the others."""

    rows: ShownRows
    reasons: list[str]  # [queries]: why the text is not stored; "": it is stored
    ranking: NDArray[np.int64]  # users, most active first
    rank: NDArray[np.int32]  # [users]: -1 for users that are not chosen
    dropped: dict[str, int]  # lists, by reason
    cut: dict[str, Cut]  # lists removed by limits, by rule
    clicks: NDArray[np.int64]  # [users]: clicks before filtering, in descending order
    read: int  # usable lists in the log
    held: NDArray[np.bool_] | None = None  # [lists]: not for training; None: nothing is held out
    held_facts: dict[str, Any] | None = None

    @property
    def users(self) -> list[str]:
        """Chosen users, most active first."""
        return [self.rows.users[user] for user in self.ranking]

    def queries(self) -> tuple[list[str], NDArray[np.int64], list[str]]:
        """Texts of queries as they are stored, the query of each list, and why each text is redacted."""
        which, query = np.unique(self.rows.query, return_inverse=True)
        why = [self.reasons[one] for one in which]
        return replaced([self.rows.queries[one] for one in which], why), query, why

    def counted(self, why: list[str]) -> dict[str, Any]:
        """What `facts.json` records about lists and texts that are not stored."""
        return {
            "dropped": {**self.dropped, **{rule: cut.lists for rule, cut in self.cut.items()}},
            "capped": {rule: cut._asdict() for rule, cut in self.cut.items()},
            "redacted": {reason: why.count(reason) for reason in sorted(set(why)) if reason},
        }


def choose(rows: ShownRows, settings: ShownBuild, since: int | None = None) -> ChosenLists:
    """Select the lists to store: recent ones of wanted users, within the limits on what one client may contribute."""
    _check(rows, settings)
    read = len(rows)
    all_clicks = np.sort(np.bincount(rows.user, rows.clicks_of_lists(), len(rows.users)).astype(np.int64))[::-1]
    dropped: dict[str, int] = {}

    def restrict(chosen: NDArray[np.bool_], reason: str) -> None:
        nonlocal rows
        dropped[reason] = int(np.count_nonzero(~chosen))
        rows = rows if chosen.all() else rows.select(chosen)

    if since is not None:
        restrict(rows.time >= since, TOO_OLD)
        until = since + ((settings.keep_days or 0) + 1) * DAY  # tolerate clocks that are up to a day ahead
        restrict(rows.time < until, FUTURE)
    restrict(~np.isin(rows.user, [rows.users.index(name) for name in settings.exclude]), EXCLUDED)
    if (hold_out := settings.hold_out) is not None and hold_out.after is not None:
        restrict(~(hold_out.chosen(rows.users)[rows.user] & (rows.time <= hold_out.after)), COUNTED)
    rows, cut = _capped(rows, settings.caps)
    people = np.unique(np.stack([rows.query, rows.user]), axis=1)[0]
    reasons = settings.redaction.reasons(rows.queries, np.bincount(people, minlength=len(rows.queries)))
    if settings.redaction.what == "drop":
        restrict(~np.array([bool(reason) for reason in reasons])[rows.query], REDACTED)
    counts = np.bincount(rows.user, minlength=len(rows.users))
    ranking, rank = rank_users(counts, settings.min_interactions, settings.users)
    if not len(ranking):
        reasons_text = "; ".join(f"{n:,} {reason}" for reason, n in dropped.items() if n)
        reasons_text += "; ".join(f"{one.lists:,} {rule}" for rule, one in cut.items())
        raise ValueError(
            f"none of the {read:,} lists can be stored: the most active user has {counts.max(initial=0):,}, and "
            f"min_interactions is {settings.min_interactions:,} ({reasons_text or 'nothing was dropped'}); "
            "relax the filters"
        )
    restrict(rank[rows.user] >= 0, NOT_CHOSEN)
    chosen = ChosenLists(rows, reasons, ranking, rank, dropped, cut, all_clicks, read)
    if hold_out is None:
        return chosen
    held = hold_out.entries(rows.time, rows.user, rows.users)
    return chosen._replace(held=held, held_facts=held_out_facts(hold_out, held, int(rows.time.max())))


@dataclass(frozen=True, eq=False)
class DescribedRows:
    """Search results with features that were computed elsewhere."""

    features: Features  # [rows, features]
    names: tuple[str, ...]  # feature names
    document: Sequence[int]  # [rows]: index into `documents`
    documents: Sequence[str]  # ids


def write_described(
    out: str | os.PathLike[str],
    rows: ShownRows,  # lists refer to rows of `described`, not to documents
    described: DescribedRows,
    features: str,  # name of the feature set
    dropped: Mapping[str, int],  # numbers of omitted lists, by reason
) -> SearchLog:
    """Write a data set from lists with existing features, with the filters and redaction of `build_shown`."""
    chosen = choose(rows, ShownBuild())
    rows = chosen.rows
    pairs, row = np.unique(rows.document, return_inverse=True)
    queries, query, why = chosen.queries()
    lengths = np.diff(rows.offsets)
    shown = ShownLists(
        features=described.features[pairs],
        **{name: _padded(values, lengths, empty) for name, values, empty in _columns(rows, row.astype(np.int64))},
        user=chosen.rank[rows.user],
        time=rows.time,
        query=query,
        document=np.array([described.document[one] for one in pairs], np.int64),
        users=chosen.users,
        queries=queries,
        documents=described.documents,
        feature_names=described.names,
        first=rows.first,
        temperature=None if rows.drawn is None else rows.drawn[0],
        keep=None if rows.drawn is None else rows.drawn[1],
        unit=rows.unit,
        swap=rows.swap,
    )
    counted = chosen.counted(why)
    counted["dropped"] |= dropped
    return write_shown(out, shown, {"features": features}, counted | {"left_out": stored_reasons(rows.left_out)})


def _capped(rows: ShownRows, caps: ClickCaps) -> tuple[ShownRows, dict[str, Cut]]:
    """Apply the limits per client; a browser that submits many user names still counts as one client."""
    cut: dict[str, Cut] = {}
    for unit in ("client", "user"):
        if getattr(rows, unit) is not None:
            clicks, lengths = rows.clicks_of_lists(), np.diff(rows.offsets)
            chosen, more = apply_caps(caps, getattr(rows, unit), rows.time, clicks, lengths)
            rows = rows.select(chosen)
            for rule, one in more.items():
                cut[rule] = Cut(*(a + b for a, b in zip(cut.get(rule, (0, 0, 0)), one, strict=True)))
    return rows, cut


def _check(rows: ShownRows, settings: ShownBuild) -> None:
    if not len(rows):
        raise ValueError(f"the log contains no usable lists ({list_reasons(rows.left_out)}){_remedy(rows)}")
    for name in settings.exclude:
        if name not in rows.users:
            raise ValueError(f"exclude = {name!r}: no user with a valid list has this name")


def _remedy(rows: ShownRows) -> str:
    """Return the remedy for the most frequent problem that has one."""
    faults = {reason: found.count for reason, found in rows.left_out.items()} | rows.counts
    return REMEDIES[max(REMEDIES, key=lambda reason: faults.get(reason, 0.5 if reason == "" else 0))]


def _gather(out: Path, chosen: ChosenLists, documents: Documents) -> None:
    """Number users, queries and pairs, and write everything except the features."""
    rows = chosen.rows
    queries, query, _ = chosen.queries()
    lengths = np.diff(rows.offsets)
    codes, pair = np.unique(np.repeat(query, lengths) * len(documents) + rows.document, return_inverse=True)
    longest = int(lengths.max())
    for name, values, empty in _columns(rows, pair):
        grid = table(out / f"{name}.npy", (len(rows), longest), ARRAYS[name], new=True)
        for first in range(0, len(rows), _SOME):
            some = lengths[first : first + _SOME]
            own = values[rows.offsets[first] : rows.offsets[first + len(some)]]
            grid[first : first + len(some)] = _padded(own, some, empty, longest)
        grid.flush()
        sync(out / f"{name}.npy")
    save_arrays(out, first=rows.first, user=chosen.rank[rows.user], time=rows.time, query=query)
    if rows.swap is not None:
        save_arrays(out, swap=rows.swap)
    if chosen.held is not None:
        save_arrays(out, held_out=chosen.held)
    save_arrays(out, document=codes % len(documents))
    save_array(out / PAIR_QUERY, (codes // len(documents)).astype(np.int32))
    write_texts(out, chosen.users, queries, documents.ids)


def _columns(rows: ShownRows, pair: NDArray[np.int64]) -> list[tuple[str, NDArray[Any], float]]:
    """Arrays of shown documents, with the value that pads short lists."""
    columns = (
        ("lists", pair, -1),
        ("clicks", rows.clicks, 0),
        ("dwell", rows.dwell, np.nan),
        ("scores", rows.scores, 0),
    )
    return [(name, values, empty) for name, values, empty in columns if values is not None]


def _padded(values: NDArray[Any], lengths: NDArray[np.int64], empty: float, width: int | None = None) -> NDArray[Any]:
    """[lists, longest]: concatenated lists as rows."""
    longest = int(lengths.max()) if width is None else width
    whole = np.full((len(lengths), longest), empty, dtype=values.dtype)
    whole[np.arange(longest) < lengths[:, None]] = values
    return whole


def _times_of_pairs(out: Path) -> NDArray[np.int64]:
    """[pairs]: noon of a day on which the document was shown for the query; a day is the resolution of recency."""
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


def _facts(chosen: ChosenLists, counts: dict[str, int]) -> dict[str, Any]:
    """Facts that only logs of shown lists have."""
    rows = chosen.rows
    clicks = np.bincount(rows.user, rows.clicks_of_lists(), len(rows.users)).astype(np.int64)
    return {
        "unit": rows.unit,
        "counts": counts | {"clicks": int(rows.clicks.sum())},
        "noticed": stored_reasons(rows.noticed),
        "also": {what: n for what, n in rows.counts.items() if n},
        **chosen.counted(chosen.queries()[2]),
        **({} if chosen.held_facts is None else {"held_out": chosen.held_facts}),
        "largest": {"before": _largest(chosen.clicks), "after": _largest(np.sort(clicks)[::-1])},
        **({} if rows.drawn is None else {"temperature": rows.drawn[0], "keep": rows.drawn[1]}),
    }


def _largest(clicks: NDArray[np.int64]) -> list[float]:
    """Shares of all clicks of the ten users with the most clicks."""
    return [round(float(one), 4) for one in clicks[:10] / max(int(clicks.sum()), 1)]
