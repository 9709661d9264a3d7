"""Sections of a spec that several kinds of experiments share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field

from fedrank.data.catalog import describe, require
from fedrank.data.logs import load_log
from fedrank.data.normalise import NORMALISATIONS
from fedrank.names import nearest

Table = dict[str, Any]
T = TypeVar("T")
Positive = Annotated[int, Field(ge=1)]
AtLeastOne = Field(min_length=1)
Filled = Annotated[list[T], AtLeastOne]


@dataclass(frozen=True)
class DataSpec:
    """Which data: a name of the catalog, files, or a search log."""

    name: str | None = None
    train: str | None = None  # LETOR file
    test: str | None = None
    validation: str | None = None
    folds: Annotated[tuple[Positive, ...], AtLeastOne] = (1,)
    log: str | None = None  # a folder that `fedrank logs build` made
    users: Positive | None = None  # of a log: only so many, those with most entries; None: all
    test_share: Annotated[float, Field(gt=0, lt=1)] | None = None  # of a log: the latest entries; None: 0.2
    normalise: str | None = None  # "query", "global" or "none"; None: as the catalog says, "none" for files, or "query"
    evaluate_on: Literal["test", "validation"] = "test"  # validation: for choosing settings


@dataclass(frozen=True)
class PrivacySpec:
    """How privacy is counted, and where it ends."""

    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5  # δ: probability with which ε may fail; well below 1 / clients
    budget: Annotated[float, Field(gt=0)] | None = None  # ε at which a run stops by itself


def require_data(data: DataSpec) -> None:
    """Refuse data that are not here; files were looked for when the spec was read."""
    if data.name is not None:
        require(data.name)
    if data.log is not None:
        load_log(data.log)


def data_problems(data: DataSpec) -> list[str]:
    found = []
    if data.normalise is not None and data.normalise not in NORMALISATIONS:
        found.append(f"data.normalise: no {data.normalise!r}{nearest(data.normalise, NORMALISATIONS)}")
    if data.log is not None:
        return found + _log_problems(data)
    for name in ("users", "test_share"):
        if getattr(data, name) is not None:
            found.append(f"data.{name}: is a setting of a search log, and there is none; set data.log, or leave it out")
    named = {"train": data.train, "test": data.test, "validation": data.validation}
    files = {place: file for place, file in named.items() if file is not None}
    if data.name is not None and files:
        found.append(f"data: has both a name and files; leave out name, or {' and '.join(files)}")
    elif data.name is not None:
        try:
            folds = describe(data.name).folds
        except ValueError as problem:
            return [*found, f"data.name: {problem}"]
        has = "only fold 1" if folds == 1 else f"folds 1 to {folds}"
        found += [f"data.folds: no fold {fold}; {data.name} has {has}" for fold in data.folds if fold > folds]
    elif data.train is None or data.test is None:
        found.append("data: give a name of the catalog (`fedrank data list`), files: train and test, or a log")
    else:
        found += [f"data.{place}: no file {file}" for place, file in files.items() if not Path(file).is_file()]
        found += [f"data.folds: no fold {fold}; files are fold 1" for fold in data.folds if fold != 1]
    return found


def _log_problems(data: DataSpec) -> list[str]:
    found = []
    if any(value is not None for value in (data.name, data.train, data.test, data.validation)):
        found.append("data: has a log and something else; leave out log, or name and files")
    if data.evaluate_on == "validation":
        found.append("data.evaluate_on: a log has no validation queries; use test")
    return found + [f"data.folds: no fold {fold}; a log is fold 1" for fold in data.folds if fold != 1]
