"""Sections of a spec that several kinds of experiments share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from fedrank.data.catalog import describe, files_read, require
from fedrank.data.collection import collection_files, find_collection
from fedrank.data.feature_sets import fixed_ranges, known_features
from fedrank.data.live_features import LIVE_1
from fedrank.data.logs import load_log, log_files
from fedrank.data.normalise import NORMALISATIONS
from fedrank.experiments.spec.families import SpecSection
from fedrank.names import did_you_mean
from fedrank.ranking.propensity import OWN, SHARED
from fedrank.value_checks import Filled, Positive, less_than, more_than

ELSEWHERE = "coordinator"  # data of a plan between sites: the coordinator's own, to which no site has a path


@dataclass(frozen=True)
class DataSpec(SpecSection):
    """Which data: a name of the catalog, files, a search log, or a text collection."""

    name: str | None = None
    train: str | None = None  # LETOR file
    test: str | None = None
    validation: str | None = None
    # Of files: how many there are; None: the highest index counts, up to 10,000. Of a collection or a log: which.
    features: Positive | str | None = None
    folds: Filled[Positive] = (1,)
    log: str | None = None  # a folder that `fedrank logs build` made
    users: Positive | None = None  # of a log: only so many, those with most entries; None: all
    test_share: Annotated[float, more_than(0), less_than(1)] | None = None  # of a log: the latest entries; None: 0.2
    # Of a log of shown lists: what corrects clicks for their places: propensities of all clients ("shared"), of
    # each by itself ("own"), or a file of them; None: nothing does.
    propensities: str | None = None
    bias: Literal["position", "trust"] = "position"  # what is corrected; trust: also that what stands high is believed
    collection: str | None = None  # a folder with documents, queries and judgements, or its name below FEDRANK_DATA
    parts: Positive | None = None  # of a collection: searchers, each with the documents of one topic; None: 1
    normalise: str | None = None  # "query", "global" or "none"; None: as the catalog says, "none" for files, or "query"
    evaluate_on: Literal["test", "validation"] = "test"  # validation: for choosing settings
    given: str | None = None  # what users have now: "file", "random", "feature 7" or a feature's name; None: as known

    def require(self) -> None:
        """Refuse data that are not here; files were looked for when the spec was read."""
        if self.name is not None:
            require(self.name)
        if self.log is not None:
            load_log(self.log)
        if self.collection is not None:
            find_collection(self.collection)

    def files(self) -> dict[str, Path]:
        """Every file that is read, by the name that the spec or the catalog has for it."""
        named = [self.train, self.test, self.validation]
        if self.propensities not in (None, SHARED, OWN):
            named.append(self.propensities)
        found = {file: Path(file) for file in named if file is not None}
        if self.name is not None and self.name != ELSEWHERE:
            found |= files_read(self.name, self.folds[0])
        if self.log is not None:
            found |= log_files(self.log)
        if self.collection is not None:
            found |= collection_files(self.collection)
        return found

    @property
    def described_by(self) -> str:
        """Of a collection or a log: its set of features; "" where a log may have any."""
        if isinstance(self.features, str):
            return self.features
        return LIVE_1.version if self.collection is not None else ""

    def problems(self) -> list[str]:
        found = []
        if isinstance(self.features, str) and (self.collection is not None or self.log is not None):
            try:
                known_features(self.features)
            except ValueError as problem:
                found.append(f"data.features: {problem}")
        if self.normalise is not None and self.normalise not in NORMALISATIONS:
            found.append(f"data.normalise: no {self.normalise!r}{did_you_mean(self.normalise, NORMALISATIONS)}")
        if self.log is not None:
            return found + self._problems_of_log()
        if self.collection is not None:
            return found + self._problems_of_collection()
        if self.parts is not None:
            found.append("data.parts: is a setting of a text collection, and there is none; set data.collection")
        if isinstance(self.features, str):
            found.append(
                f"data.features: {self.features!r} names features of texts; set data.collection or data.log, or write "
                "how many features files have"
            )
        for name in ("users", "test_share", "propensities"):
            if getattr(self, name) is not None and not (name == "propensities" and self.name == ELSEWHERE):
                found.append(
                    f"data.{name}: is a setting of a search log, and there is none; set data.log, or leave it out"
                )
        if self.features is not None and self.train is None:
            found.append("data.features: is a setting of files, and a set of the catalog knows its own; leave it out")
        named = {"train": self.train, "test": self.test, "validation": self.validation}
        files = {key: file for key, file in named.items() if file is not None}
        if self.name is not None and files:
            found.append(f"data: has both a name and files; leave out name, or {' and '.join(files)}")
        elif self.name is not None:
            try:
                folds = describe(self.name).folds
            except ValueError as problem:
                return [*found, f"data.name: {problem}"]
            has = "only fold 1" if folds == 1 else f"folds 1 to {folds}"
            found += [f"data.folds: no fold {fold}; {self.name} has {has}" for fold in self.folds if fold > folds]
        elif self.train is None or self.test is None:
            found.append(
                "data: give a name of the catalog (`fedrank data list`), files: train and test, a log, or a collection"
            )
        else:
            found += [f"data.{key}: no file {file}" for key, file in files.items() if not Path(file).is_file()]
            found += [f"data.folds: no fold {fold}; files are fold 1" for fold in self.folds if fold != 1]
        return found

    def _problems_of_log(self) -> list[str]:
        found = []
        if any(value is not None for value in (self.name, self.train, self.test, self.validation)):
            found.append("data: has a log and something else; leave out log, or name and files")
        if self.collection is not None:
            found.append("data: has both a log and a collection; leave out one of them")
        if self.parts is not None:
            found.append("data.parts: is a setting of a text collection, and a log has users; leave it out")
        if isinstance(self.features, int):
            found.append("data.features: is a number for files only; a log knows its own; leave it out, or name a set")
        if self.evaluate_on == "validation":
            found.append("data.evaluate_on: a log has no validation queries; use test")
        named = self.propensities
        if named is not None and named not in (SHARED, OWN) and not Path(named).is_file():
            found.append(
                f'data.propensities: {named!r} is no file; use "{SHARED}", "{OWN}", or a file of `fedrank logs '
                "propensities`"
            )
        if self.propensities is None and self.bias != "position":
            found.append(f"data.bias: {self.bias!r} corrects nothing by itself; set data.propensities, or leave it out")
        return found + [f"data.folds: no fold {fold}; a log is fold 1" for fold in self.folds if fold != 1]

    def _problems_of_collection(self) -> list[str]:
        found = []
        if any(value is not None for value in (self.name, self.train, self.test, self.validation)):
            found.append("data: has a collection and something else; leave out collection, or name and files")
        if isinstance(self.features, int):
            found.append('data.features: is a number for files only; name a set, such as "live-1", or leave it out')
        if self.evaluate_on == "validation":
            found.append("data.evaluate_on: a collection has no validation queries; use test")
        if self.normalise == "global" and fixed_ranges(self.described_by) is None:
            found.append('data.normalise: searchers do not know the ranges of others; use "none" or "query"')
        found += [
            f"data.{name}: is a setting of a search log, and this is a collection; leave it out"
            for name in ("users", "test_share", "propensities")
            if getattr(self, name) is not None
        ]
        return found


@dataclass(frozen=True)
class PrivacySpec(SpecSection):
    """How privacy is counted, and where it ends."""

    delta: Annotated[float, more_than(0), less_than(1)] = 1e-5  # δ: probability with which ε may fail; << 1 / clients
    budget: Annotated[float, more_than(0)] | None = None  # ε at which a run stops by itself
