"""Applies a trained model to new data: scores, TREC run files, measures, an estimate of its clicks."""

from __future__ import annotations

import hashlib
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank.data.catalog import CATALOG, load
from fedrank.data.held_out import purpose_of, use_window
from fedrank.data.judged_files import comments_of
from fedrank.data.log_fold import TEST_SHARE, log_part
from fedrank.data.logs import SearchLog, load_log, pairs_of
from fedrank.data.normalise import normalise
from fedrank.data.ranking import RankingData
from fedrank.experiments.runner.folder import table
from fedrank.experiments.runner.position_bias import read_propensities, shown_results
from fedrank.files import opened, read_bytes
from fedrank.names import did_you_mean, missing_file
from fedrank.ranking.estimate import CannotTell, ClickEstimate, engine_order, estimate_clicks
from fedrank.ranking.measures import measure, per_query, ranking
from fedrank.ranking.model import Model, Scorer, Tell, check_features, model_file, read_for, unheard
from fedrank.trees.model_files import load_model
from fedrank.types import Scores

TREC_FILES = (".run", ".trec")


@dataclass(frozen=True)
class Quality:
    """The quality of a model on a set of queries."""

    measures: tuple[str, ...]
    query_ids: NDArray[np.str_]  # [queries]
    values: NDArray[np.float64]  # [measures, queries]; NaN if a measure skips a query

    def csv(self) -> str:
        """One row per query; empty cells where a measure skips a query."""
        return table(["query", *self.measures], zip(self.query_ids, *self.values, strict=True))


def score_lines(
    model_path: str | Path, data: str, trec: str | None = None, client: int | None = None, tell: Tell = unheard
) -> Iterator[str]:
    """Lines of a score file (one number per document), or of a TREC run file with the given tag."""
    if trec is not None and trec.split() != [trec]:
        raise ValueError(f"the tag {trec!r} of a TREC run must be one word")
    read, scores = _scored(model_path, data, client, tell)
    if trec is None:
        return (f"{float(one):.9g}\n" for one in scores)
    return _trec_lines(read, scores, _document_ids(data, read), trec)


def evaluate_model(
    model_path: str | Path, data: str, measures: Sequence[str], client: int | None = None, tell: Tell = unheard
) -> Quality:
    """Measures of a model, or of the ranking in a TREC run file (.run or .trec), on judged data."""
    parsed = [measure(text) for text in measures]
    read, scores = _scored(model_path, data, client, tell)
    return Quality(tuple(map(str, parsed)), read.query_ids, per_query(parsed, scores, read))


def _scored(model_path: str | Path, data: str, client: int | None, tell: Tell) -> tuple[RankingData, Scores]:
    if Path(model_path).suffix in TREC_FILES:
        if client is not None:
            raise ValueError(f"{model_path} is a TREC run, which has no clients; remove client = {client}")
        read = _read_plainly(data, 0, {}, "none", tell)
        return read, _trec_scores(Path(model_path), read, _document_ids(data, read), tell)
    model = _load(model_path, client, tell)
    read = _read(data, model, tell)
    return read, model.score(read, client)


def _trec_scores(file: Path, data: RankingData, documents: Sequence[str], tell: Tell) -> Scores:
    """Scores in the order of a TREC run; documents that are not in it come last."""
    queries = np.repeat(data.query_ids, np.diff(data.offsets))
    rows = {(str(query), document): row for row, (query, document) in enumerate(zip(queries, documents, strict=True))}
    found: dict[int, float] = {}
    unknown = 0
    with io.TextIOWrapper(opened(file), "utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, start=1):
            words = line.split()
            if len(words) != 6 or not _is_number(words[4]):
                raise ValueError(
                    f"{file}:{number}: must be query Q0 document rank score tag (got {line.strip()[:80]!r})"
                )
            row = rows.get((words[0], words[2]))
            if row is None:
                unknown += 1
            elif found.setdefault(row, score := float(words[4])) != score:
                raise ValueError(f"{file}:{number}: document {words[2]} of query {words[0]} has two scores; remove one")
    if not found:
        raise ValueError(
            f"{file}: no document of the data is in this run; their ids are in comments of the judged file"
        )
    if unknown or len(found) < len(rows):
        tell(
            f"{file}: {len(rows) - len(found):,} documents are not in it and rank last; {unknown:,} others are ignored"
        )
    scores = np.full(len(queries), -1.0)
    order = sorted(found, key=lambda row: (found[row], -row))  # ranks as scores: float32 could make scores equal
    scores[order] = np.arange(len(order))
    return scores.astype(np.float32)


def _is_number(word: str) -> bool:
    try:
        return math.isfinite(float(word))
    except ValueError:
        return False


def _load(model_path: str | Path, client: int | None, tell: Tell) -> Scorer:
    model = load_model(model_path, tell)
    if client is not None and not (isinstance(model, Model) and model.weights.ndim == 2):
        raise ValueError(f"{model_path} holds one model for all clients; remove client = {client}")
    return model


def _read(data: str, model: Scorer, tell: Tell) -> RankingData:
    """The data with features that are normalised as the model expects."""
    if model.normalised != "global":
        return _read_plainly(data, model.features, model.notes, model.normalised, tell)
    ranges = getattr(model, "ranges", None)
    if ranges is None:
        raise ValueError(
            'the model was trained on features with normalise = "global" but has no feature ranges; '
            'train it again with this version of fedrank, or with "query" or "none"'
        )
    read = _read_plainly(data, model.features, model.notes, "none", tell)
    check_features(read, model.features)
    return normalise(read, "global", ranges)


def _read_plainly(data: str, features: int, notes: Mapping[str, Any], how: str, tell: Tell) -> RankingData:
    """A file, the last entries of a search log, or the test part of a catalog data set (of the model's fold)."""
    if Path(data).is_file():
        return read_for(data, features, how)
    if Path(data).is_dir():
        log, rows = _latest(data)
        tell(
            f"{data} is a search log: its last {len(rows):,} entries are used, with relevance label 1 for clicked "
            "documents"
        )
        return log_part(log, rows, how)
    if data not in CATALOG:
        if Path(data).suffix or Path(data).name != data:
            raise FileNotFoundError(missing_file(data))
        raise FileNotFoundError(f"{data!r} is not a file or a data set{did_you_mean(data, CATALOG)}")
    # A model of fold 3 was trained on the test queries of fold 1.
    fold = notes.get("fold", 1) if notes.get("data") == data else 1
    return load(data, fold, normalise=how).test


def _latest(folder: str) -> tuple[SearchLog, NDArray[np.int64]]:
    """A log, and the entries on which a run tests by default."""
    log = load_log(folder)
    rows = log.training_rows()  # held-out entries are used once, by `fedrank model estimate`
    return log, rows[len(rows) - math.floor(len(rows) * TEST_SHARE) :]


def _document_ids(data: str, read: RankingData) -> list[str]:
    """Ids from the comments of the file if there are any, else query-position."""
    named: list[str] = []
    if Path(data).is_file():
        named = [_id_in(comment) for comment in comments_of(data, read.documents) or []]
    elif Path(data).is_dir():
        log, rows = _latest(data)
        known = log.document[pairs_of(log, rows)]
        named = [log.documents[one] if one >= 0 else "" for one in known]
    if named and all(named):
        return named
    position = np.arange(read.documents) - np.repeat(read.offsets[:-1], np.diff(read.offsets)) + 1
    queries = np.repeat(read.query_ids, np.diff(read.offsets))
    return [f"{query}-{rank}" for query, rank in zip(queries, position, strict=True)]


def _id_in(comment: str) -> str:
    """`docid = GX000-00 inc = 1` and `GX000-00` both name GX000-00."""
    words = comment.replace("=", " ").split()
    if words[:1] == ["docid"]:
        words = words[1:]
    return words[0] if words else ""


def _trec_lines(data: RankingData, scores: Scores, documents: Sequence[str], tag: str) -> Iterator[str]:
    order = ranking(scores, data.offsets)
    for query, (begin, end) in enumerate(zip(data.offsets[:-1], data.offsets[1:], strict=True)):
        for rank, row in enumerate(order[begin:end], start=1):
            yield f"{data.query_ids[query]} Q0 {documents[row]} {rank} {float(scores[row]):.9g} {tag}\n"


def estimate_model(
    model_path: str | Path,
    folder: str | Path,
    *,
    latest: float | None = None,
    propensities: str | Path | None = None,
    client: int | None = None,
    tell: Tell = unheard,
) -> ClickEstimate:
    """Estimate the clicks on the lists of a log if this model had ranked each list; `CannotTell` if that is impossible.

    Of a log that holds entries out, exactly these count, and they are used for this model alone. Otherwise, if the
    model was trained on this log, only the last fifth of the entries is used, which it has not seen, unless `latest`
    gives another fraction.
    """
    log, model = load_log(folder), _load(model_path, client, tell)
    shown = shown_results(log)
    _check_features_of_log(model, log)
    split = bool(log.held_out.any())
    if split and latest is not None:
        raise ValueError(f"latest = {latest:g}: {folder} holds entries out, and exactly these count; leave it out")
    learned = model.notes.get("data") == log.folder.name and not split
    share = (TEST_SHARE if learned else 1.0) if latest is None else latest
    if not 0 < share <= 1:
        raise ValueError(f"latest must be greater than 0 and at most 1 (got {share:g})")
    if learned and share > TEST_SHARE:
        tell("the model was trained on some of these entries, so the estimate is too optimistic; use --latest 0.2")
    elif learned and latest is None:
        tell(f"the model was trained on this log; only the last {TEST_SHARE:.0%} of its entries are used")
    first_counted = len(log) - math.floor(len(log) * share)
    data = log_part(log, np.arange(len(log)), model.normalised, getattr(model, "ranges", None))
    scores = np.asarray(model.score(data, client), np.float64)
    known = None if propensities is None else read_propensities(propensities)
    sampled = None if log.scores is None else np.asarray(log.scores)[log.lists >= 0]
    engine = engine_order(shown, sampled, getattr(log, "swap", None))
    counted = log.held_out[shown.search] if split else shown.search >= first_counted
    found = estimate_clicks(shown, scores, log.features, known, counted, engine)
    if split:  # before the result is known to the caller
        use_window(folder, purpose_of(hashlib.sha256(read_bytes(model_file(model_path))).hexdigest()))
    return found


def _check_features_of_log(model: Scorer, log: SearchLog) -> None:
    names = log.feature_names
    if len(names) != model.features:
        raise CannotTell(f"features differ: the model uses {model.features} features, the log has {len(names)}")
    if model.feature_names and model.feature_names != names:
        position = next(
            i for i, (one, other) in enumerate(zip(model.feature_names, names, strict=True)) if one != other
        )
        raise CannotTell(
            f"features differ: feature {position + 1} is {model.feature_names[position]!r} in the model, but "
            f"{names[position]!r} in the log"
        )
    if model.normalised == "global" and getattr(model, "ranges", None) is None:
        raise CannotTell('features differ: the model has normalise = "global" but no feature ranges')
