"""The catalog of data sets: where each is found, and how a fold is loaded.

Nothing is downloaded: most sets are licensed to individuals, for research. fedrank searches the folder in the
environment variable FEDRANK_DATA; synthetic sets are built in.
"""

from __future__ import annotations

import itertools
import os
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedrank.data.feature_names import FEATURE_NAMES
from fedrank.data.judged_files import read_judged
from fedrank.data.lines import bounded_lines
from fedrank.data.ranking import RankingData
from fedrank.display import DisplayMixin
from fedrank.names import did_you_mean

Normalisation = Literal["none", "query", "global"]
Layout = Literal["parts", "files", "single", "intents", "built-in"]

PARTS = 5
INTENTS = (0, 1, 2, 3, 4)  # 0: judged over all intents
SHARED_QUERIES = "test queries have the id of a training query"  # reports recognise the note by these words
_SAME_QUERIES = "the test queries are the training queries"

_DEPTH = 4  # folders below FEDRANK_DATA
_MAX_FOLDERS = 5_000  # limit in case FEDRANK_DATA is set to, say, a home folder
_MAX_ENTRIES = 20_000  # per folder
_INNER = ("sample", "querylevelnorm", "set1")  # names that publishers use for a folder inside that of the set
_STEMS = {
    "train": ("train", "trainingset"),
    "vali": ("vali", "valid", "validation", "validationset"),
    "test": ("test", "testset"),
}


@dataclass(frozen=True)
class DataSet:
    """An entry of the catalog: what is known about a data set before it is read."""

    name: str
    title: str
    about: str
    features: int
    grades: int  # number of relevance levels: 3 means labels 0, 1 and 2
    folds: int
    layout: Layout
    queries: int = 0  # in all parts; 0: unknown
    documents: int = 0
    normalise: Normalisation = "none"  # for linear and neural rankers
    normalise_trees: Normalisation = "none"
    publisher: str = ""
    licence: str = ""
    folders: tuple[str, ...] = ()  # alternative folder names, case-insensitive
    files: tuple[str, ...] = ()  # names without .txt, .txt.gz or .txt.xz, if the layout does not determine them
    missing: float | None = None  # value that marks a missing feature; read as 0
    feature_names: tuple[str, ...] = ()
    given: str = ""  # the baseline ranking, as in `RankingData`
    intents: int = 0  # intents per query, each with separate judgements; 0: none
    shape: str = ""  # of generated data, if the name does not imply it


@dataclass(frozen=True, repr=False)
class Fold(DisplayMixin):
    """Training, validation and test queries of a data set.

    `load` and `load_files` return folds. `validation` is None if the data set has no validation queries.

    >>> import fedrank as fr
    >>> fold = fr.load("synthetic-mq2007", fold=2)
    >>> fold.train.queries, fold.validation.queries, fold.test.queries
    (1015, 338, 339)
    >>> small = fr.Fold(fold.train.select(range(30)), None, fold.test.select(range(10)), name="small", fold=1)
    >>> small.train
    <RankingData synthetic-mq2007; queries: 30; documents: 1,236; features: 46; labels: 0 to 2; normalised: none>
    """

    train: RankingData
    validation: RankingData | None
    test: RankingData
    name: str
    fold: int  # from 1
    notes: tuple[str, ...] = ()  # notes on the data for readers of results

    def _display(self) -> tuple[str, dict[str, str]]:
        return f"{self.name}, fold {self.fold}", {
            "training": self.train.extent,
            "validation": "none" if self.validation is None else self.validation.extent,
            "test": self.test.extent,
            "features": f"{self.train.features.shape[1]:,}",
            "labels": f"0 to {self.train.top_grade}",
            "normalised": self.train.normalised,
            "notes": " · ".join(self.notes),
        }


def _read_catalog() -> dict[str, DataSet]:
    tables = tomllib.loads(files("fedrank.data").joinpath("catalog.toml").read_text(encoding="utf-8"))
    entries: dict[str, DataSet] = {}
    for name, table in tables.items():
        values: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in table.items()
        }
        if "feature_names" in values:
            values["feature_names"] = FEATURE_NAMES[values["feature_names"]]
        like = values.pop("like", None)
        entries[name] = replace(entries[like], name=name, **values) if like else DataSet(name, **values)
    return entries


CATALOG = _read_catalog()


def describe(name: str) -> DataSet:
    """Return the entry of a data set in the catalog."""
    if name in CATALOG:
        return CATALOG[name]
    raise ValueError(f"unknown data set {name!r}{did_you_mean(name, CATALOG)}")


def require(name: str) -> None:
    """Raise an error with instructions if a data set of the catalog was not found."""
    _found(describe(name))


def files_read(name: str, fold: int) -> dict[str, Path]:
    """Return the files that a fold is read from, by name; built-in sets have none."""
    own, files = f"Fold{fold}/", _found(describe(name))
    wanted = {what: path for what, path in files.items() if what.startswith(own) or not what.startswith("Fold")}
    return {f"{name}/{(Path(what).parent / path.name).as_posix()}": path for what, path in wanted.items()}


def load(name: str, fold: int = 1, normalise: str | None = None, cache: bool = True) -> Fold:
    """Load a fold of a data set from the catalog.

    `name` is a built-in set such as "synthetic-mq2007", or a set in the folder FEDRANK_DATA. `normalise` is "none",
    "query" or "global"; the default is the catalog's setting for linear and neural models. With `cache`, parsed files
    are stored and not parsed again.

    >>> import fedrank as fr
    >>> fold = fr.load("synthetic-mq2007", fold=1)
    >>> fold.test
    <RankingData synthetic-mq2007; queries: 338; documents: 13,169; features: 46; labels: 0 to 2; normalised: none>
    """
    from fedrank.data.normalise import known_normalisation

    entry = describe(name)
    if not 1 <= fold <= entry.folds:
        folds = "only fold 1" if entry.folds == 1 else f"folds 1 to {entry.folds}"
        raise ValueError(f"{name} has no fold {fold}; it has {folds}")
    how = entry.normalise if normalise is None else normalise
    known_normalisation(how)

    train: RankingData
    validation: RankingData | None
    notes: list[str] = []
    match entry.layout:
        case "built-in":
            train, validation, test = _in_turn(_five_parts(_generated(entry, how)), fold)
        case "single":
            train, validation, test = _in_turn(_five_parts(_read(entry, _found(entry)["all"], how, cache)), fold)
        case "intents":
            judged = intent_grades(name, cache)
            train = test = replace(_read(entry, _found(entry)["all"], how, cache), grades=judged[0], intents=judged[1:])
            validation = None
            notes += [_SAME_QUERIES, *_disagreements(judged)]
        case "parts" | "files":
            train, validation, test = _from_files(entry, fold, how, cache)
    if how == "global":
        train, validation, test = _by_training_ranges(train, validation, test)
    parts = [train] if entry.layout == "intents" else [part for part in (train, validation, test) if part is not None]
    notes += _other_counts(entry, parts)
    return Fold(train, validation, test, name, fold, tuple(notes))


def load_files(
    train: str | Path,
    test: str | Path,
    validation: str | Path | None = None,
    normalise: str = "none",
    cache: bool = True,
    features: int | None = None,
) -> Fold:
    r"""Read a fold from files of judged queries, such as LETOR files.

    `features` is the number of features; the default is the highest index in any of the files. With
    normalise="global", the ranges of the training file apply to all files.

    >>> from pathlib import Path
    >>> import fedrank as fr
    >>> _ = Path("train.txt").write_text("2 qid:1 1:0.9 2:4\n0 qid:1 1:0.1 2:2\n")
    >>> _ = Path("test.txt").write_text("1 qid:2 1:0.5 2:3\n0 qid:2 1:0.1 2:6\n")
    >>> fold = fr.load_files("train.txt", "test.txt", normalise="global")
    >>> fold.test.features.tolist()
    [[0.5, 0.5], [0.0, 2.0]]
    """
    read = "none" if normalise == "global" else normalise
    paths = [Path(path) for path in (train, test, validation) if path is not None]
    parts = [read_judged(path, features=features, normalise=read, cache=cache) for path in paths]
    # Sparse files may omit trailing features, and each file may omit different ones.
    width = max(part.features.shape[1] for part in parts)
    top = max(part.top_grade for part in parts)
    for place, path in enumerate(paths):
        if parts[place].features.shape[1] < width:
            parts[place] = read_judged(path, features=width, normalise=read, cache=cache)
    learn, check, *rest = (replace(part, top_grade=top) for part in parts)
    tune = rest[0] if rest else None
    if normalise == "global":
        learn, tune, check = _by_training_ranges(learn, tune, check)
    shared = int(np.isin(check.query_ids, learn.query_ids).sum())
    note = (
        f"{shared:,} of {check.queries:,} {SHARED_QUERIES}; if they are the same queries, the model was tested on what "
        "it was trained on, and its quality is overestimated"
    )
    return Fold(learn, tune, check, learn.name, 1, notes=(note,) if shared else ())


def intent_grades(name: str = "clueweb09-intents", cache: bool = True) -> NDArray[np.int8]:
    """Return whether each document is relevant (1) or not (0) to each intent, [5, documents]; row n is intent n.

    Row 0 is the publisher's judgement over all intents, or the union of the others if there is none. Documents are in
    the order of `load(name).train`; a document without a judgement has label 0.
    """
    from fedrank.data.letor import read_comments

    entry = describe(name)
    if entry.layout != "intents":
        raise ValueError(f"{name} has no judgements by intent; use clueweb09-intents or intent-change")
    files = _found(entry)
    data = _read(entry, files["all"], "none", cache)
    topics = np.repeat(data.query_ids, np.diff(data.offsets)).tolist()
    documents = [_document_id(comment, files["all"]) for comment in read_comments(files["all"])]
    rows = [_judged(files[f"intent {intent}"], topics, documents) for intent in INTENTS[1:]]
    union = files.get("intent 0")
    rows.insert(0, np.max(rows, axis=0) if union is None else _judged(union, topics, documents))
    return np.stack(rows)


def available() -> list[tuple[DataSet, Path | None]]:
    """Return every entry of the catalog with its folder, or None if it is built in or was not found."""
    index = _index()
    return [(entry, place[0] if (place := _locate(entry, index)) else None) for entry in CATALOG.values()]


def _in_turn(parts: Sequence[RankingData], fold: int) -> tuple[RankingData, RankingData, RankingData]:
    """Fold n trains on parts n, n + 1 and n + 2, validates on the next and tests on the last, cyclically."""
    turned = [parts[(fold - 1 + step) % PARTS] for step in range(PARTS)]
    return RankingData.join(turned[:3]), turned[3], turned[4]


def _five_parts(data: RankingData) -> list[RankingData]:
    if data.queries < PARTS:
        raise ValueError(
            f"{data.name} has {data.queries} queries, but {PARTS} parts are needed; use the complete data set"
        )
    return [data.select(np.arange(part, data.queries, PARTS)) for part in range(PARTS)]


def _generated(entry: DataSet, how: str) -> RankingData:
    from fedrank.data.normalise import normalise
    from fedrank.data.synthetic import synthetic
    from fedrank.data.synthetic_categories import synthetic_categories
    from fedrank.data.synthetic_intents import synthetic_intents

    if entry.name == "synthetic-categories":
        data = synthetic_categories(entry.queries)
    elif entry.name == "synthetic-intents":
        data = synthetic_intents(entry.queries)
    else:
        data = synthetic(entry.shape or entry.name.removeprefix("synthetic-"), entry.queries)
    return normalise(data, how) if how == "query" else data


def _from_files(
    entry: DataSet, fold: int, how: str, cache: bool
) -> tuple[RankingData, RankingData | None, RankingData]:
    files = _found(entry)
    if "S1" in files:
        parts = [_read(entry, files[f"S{part + 1}"], how, cache) for part in range(PARTS)]
        return _in_turn(parts, fold)
    folder = f"Fold{fold}/" if entry.layout == "parts" else ""
    if f"{folder}train" not in files:
        raise FileNotFoundError(
            f"fold {fold} of {entry.name} was not found; the files {folder}train.txt and test.txt are needed"
        )
    validation = files.get(f"{folder}vali")
    return (
        _read(entry, files[f"{folder}train"], how, cache),
        None if validation is None else _read(entry, validation, how, cache),
        _read(entry, files[f"{folder}test"], how, cache),
    )


def _read(entry: DataSet, path: Path, how: str, cache: bool) -> RankingData:
    # The ranges of the training set are known only after all of it was read.
    early = "none" if how == "global" else how
    data = read_judged(path, features=entry.features, normalise=early, missing=entry.missing, cache=cache)
    # Intents have separate judgement files, so the scale of the feature file does not matter.
    if entry.layout != "intents" and data.top_grade >= entry.grades:
        raise ValueError(
            f"{path} contains relevance label {data.top_grade}, but {entry.name} has labels 0 to "
            f"{entry.grades - 1}; "  # prose: ok
            "check that it is the right file, or load your own files by their paths"
        )
    return replace(
        data, name=entry.name, top_grade=entry.grades - 1, feature_names=entry.feature_names, given=entry.given
    )


def _document_id(comment: str, path: Path) -> str:
    name, _, value = comment.partition("=")
    words = value.split()
    if name.strip() != "docid" or not words:
        raise ValueError(f"{path}: a line ends with {comment!r}, which does not name a document; write '# docid = ID'")
    return words[0]


def _judged(path: Path, topics: Sequence[str], documents: Sequence[str]) -> NDArray[np.int8]:
    known: dict[tuple[str, str], int] = {}
    for number, raw in bounded_lines(path):
        line = (raw or b"").decode("utf-8")
        try:
            topic, _, document, grade = line.split()
            known[topic, document] = int(grade)
        except ValueError as error:
            raise ValueError(
                f"{path}, line {number}: {line!r} is not a judgement; write 'topic intent document label'"
            ) from error
    pairs = list(zip(topics, documents, strict=True))
    if known.keys().isdisjoint(pairs):
        raise ValueError(f"{path} judges none of the documents; check that it belongs to this collection")
    # Assessors assign negative labels to spam.
    return np.array([known.get(pair, 0) > 0 for pair in pairs], dtype=np.int8)


def _by_training_ranges(
    train: RankingData, validation: RankingData | None, test: RankingData
) -> tuple[RankingData, RankingData | None, RankingData]:
    from fedrank.data.normalise import feature_ranges, normalise

    ranges = feature_ranges(train)
    others = None if validation is None else normalise(validation, "global", ranges)
    return normalise(train, "global", ranges), others, normalise(test, "global", ranges)


def _other_counts(entry: DataSet, parts: Sequence[RankingData]) -> list[str]:
    counted = {
        "queries": (sum(part.queries for part in parts), entry.queries),
        "documents": (sum(part.documents for part in parts), entry.documents),
    }
    return [
        f"{entry.name} has {count:,} {what}, but {expected:,} were published; results may not be comparable"
        for what, (count, expected) in counted.items()
        if expected and count != expected
    ]


def _disagreements(judged: NDArray[np.int8]) -> list[str]:
    overall, union = judged[0] > 0, judged[1:].max(axis=0) > 0
    lost, alone = int(np.sum(union & ~overall)), int(np.sum(overall & ~union))
    if not lost and not alone:
        return []
    return [
        f"relevance labels are those of intent 0, which differs from the union of the others: {lost:,} documents are "
        f"relevant to an intent but not to intent 0, {alone:,} only to intent 0"
    ]


def _found(entry: DataSet) -> dict[str, Path]:
    """The files of a set by their role; built-in sets have none."""
    if entry.layout == "built-in":
        return {}
    place = _locate(entry, _index())
    if place is not None:
        return place[1]
    root = os.environ.get("FEDRANK_DATA")
    if not root:
        where = "FEDRANK_DATA is not set; set it to the folder of your data sets"
    elif not Path(root).is_dir():
        where = f"FEDRANK_DATA = {root} is not a folder; set it to the folder of your data sets"
    else:
        where = f"it is not in FEDRANK_DATA = {root}"
    raise FileNotFoundError(
        f"{entry.name} ({entry.title}) was not found: {where}. Get it from {entry.publisher} ({entry.licence}), and "
        f"put it into the folder FEDRANK_DATA/{entry.name} as {_expected(entry)} (or .txt.gz, .txt.xz)"
    )


def _expected(entry: DataSet) -> str:
    match entry.layout:
        case "parts":
            return "S1.txt to S5.txt, or Fold1/train.txt, Fold1/vali.txt, Fold1/test.txt to Fold5"
        case "intents":
            return f"{entry.files[0]}.txt and intent0.qrel to intent4.qrel"
        case _:
            return ", ".join(f"{stem}.txt" for stem in entry.files or ("train", "vali", "test"))


def _index() -> dict[str, list[Path]]:
    """Folders below FEDRANK_DATA by name, shallowest first; the search is limited in depth and number."""
    root = os.environ.get("FEDRANK_DATA")
    index: dict[str, list[Path]] = {}
    if not root:
        return index
    level = [Path(root).resolve()]
    seen = 0
    for depth in range(_DEPTH + 1):
        below: list[Path] = []
        for folder in level:
            index.setdefault(_plain(folder.name), []).append(folder)
            seen += 1
            if depth < _DEPTH and seen + len(below) < _MAX_FOLDERS:
                below += _folders(folder)
        level = below
    return index


def _folders(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            found = [entry.name for entry in itertools.islice(entries, _MAX_ENTRIES) if entry.is_dir()]
    except OSError:
        return []
    return [folder / name for name in sorted(found) if not name.startswith(".")]


def _plain(name: str) -> str:
    return name.lower().replace("_", "-").replace(" ", "-")


def _locate(entry: DataSet, index: dict[str, list[Path]]) -> tuple[Path, dict[str, Path]] | None:
    """The folder of a set and its files; None if it is missing or incomplete."""
    for name in (entry.name, *entry.folders):
        for folder in index.get(_plain(name), ()):
            for inner in (folder, *(below for below in _folders(folder) if _plain(below.name) in _INNER)):
                if files := _files_of(entry, inner):
                    return inner, files
    return None


def _files_of(entry: DataSet, folder: Path) -> dict[str, Path]:
    """The files of a set by their role; empty if any is missing."""
    match entry.layout:
        case "parts":
            files = _present(folder, {f"S{part}": (f"s{part}",) for part in range(1, PARTS + 1)})
            if len(files) == PARTS:
                return files
            folds = {_plain(below.name): below for below in _folders(folder)}
            return {
                f"Fold{fold}/{what}": path
                for fold in range(1, PARTS + 1)
                if f"fold{fold}" in folds
                for what, path in _train_and_test(folds[f"fold{fold}"], _STEMS).items()
            }
        case "files":
            named = {what: (stem,) for what, stem in zip(_STEMS, entry.files, strict=False)}
            return _train_and_test(folder, {**_STEMS, **named})
        case "single":
            return _present(folder, {"all": entry.files})
        case "intents":
            files = _present(folder, {"all": entry.files})
            files |= _present(folder, {f"intent {n}": (f"intent{n}",) for n in INTENTS}, ".qrel")
            files |= _present(folder / "intents", {f"intent {n}": (f"{n}",) for n in INTENTS})
            return files if {"all", *(f"intent {n}" for n in INTENTS[1:])} <= files.keys() else {}
        case "built-in":
            return {}


def _train_and_test(folder: Path, stems: dict[str, tuple[str, ...]]) -> dict[str, Path]:
    files = _present(folder, stems)
    return files if {"train", "test"} <= files.keys() else {}


def _present(folder: Path, wanted: dict[str, tuple[str, ...]], ending: str = ".txt") -> dict[str, Path]:
    """The wanted files that exist in a folder, plain or compressed; case is ignored."""
    if not folder.is_dir():
        return {}
    names = {path.name.lower(): path for path in folder.iterdir()}
    packed = (ending, f"{ending}.gz", f"{ending}.xz")
    named = {what: [f"{stem}{end}" for stem in stems for end in packed] for what, stems in wanted.items()}
    return {
        what: names[fit[0]] for what, options in named.items() if (fit := [name for name in options if name in names])
    }
