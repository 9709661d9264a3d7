"""Sections of a spec that several kinds of experiments share."""

from __future__ import annotations

from collections.abc import Sequence
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
from fedrank.ranking.propensity import OWN, SHARED, SWAPS
from fedrank.value_checks import Filled, Positive, less_than, more_than, noting

ELSEWHERE = "coordinator"  # data of a deployed plan: only the coordinator can read them


def missing_folds(folds: Sequence[int], what_has: str, last: int = 1) -> list[str]:
    """A problem for each of these folds that does not exist."""
    known = "only fold 1" if last == 1 else f"folds 1 to {last}"
    return [f"data.folds: fold {fold} does not exist; {what_has} {known}" for fold in folds if fold > last]


@dataclass(frozen=True)
class DataSpec(SpecSection):
    """The data set: a name of the catalog, files, a click log, or a text collection."""

    name: str | None = None
    train: str | None = None  # file of judged queries, such as LETOR
    test: str | None = None
    validation: str | None = None
    # For files: the number of features; None: the highest index in them, up to 10,000. For a log or a collection: the
    # name of a feature set. With a name and no data, only the sites of a federation have data.
    features: Positive | str | None = None
    folds: Filled[Positive] = (1,)
    log: str | None = None  # folder of a click log, created by `fedrank data build`
    users: Positive | None = None  # for a log: use only this many users, those with most entries; None: all
    test_share: Annotated[float, more_than(0), less_than(1)] | None = (
        None  # for a log: share of its last entries; None: 0.2
    )
    # For a log: propensities that correct clicks for position bias: estimated from all clients ("shared"), from each
    # client alone ("own"), or a file; between sites also from noised counts of logged swaps ("swaps"); None: no
    # correction.
    propensities: str | None = None
    bias: Literal["position", "trust"] = "position"  # bias to correct; trust: position bias and trust bias
    collection: str | None = None  # folder with documents, queries and judgements, or its name in FEDRANK_DATA
    parts: Positive | None = None  # for a collection: number of users, each with documents of one topic; None: 1
    normalise: str | None = None  # "query", "global" or "none"; None: of the catalog, "none" for files, else "query"
    evaluate_on: Literal["test", "validation"] = "test"  # validation: for tuning
    given: str | None = None  # baseline ranking: "file", "random", "feature 7" or a feature's name; None: the default

    def require(self) -> None:
        """Raise an error if the data are missing; files were checked when the spec was read."""
        if self.name is not None:
            require(self.name)
        if self.log is not None:
            load_log(self.log)
        if self.collection is not None:
            find_collection(self.collection)

    @property
    def at_sites(self) -> bool:
        """Whether only the sites of a federation have data, and the spec names their features."""
        here = (self.name, self.train, self.test, self.validation, self.log, self.collection)
        return isinstance(self.features, str) and all(one is None for one in here)

    @property
    def from_swaps(self) -> bool:
        """Whether propensities are estimated from noised sums of logged swaps, which sites release."""
        return self.propensities == SWAPS

    @property
    def from_own_clicks(self) -> bool:
        """Whether each client estimates propensities from its own clicks."""
        return self.propensities == OWN

    def files(self) -> dict[str, Path]:
        """Every file that is read, by its name in the spec or the catalog."""
        named = [self.train, self.test, self.validation]
        if self.propensities not in (None, SHARED, OWN, SWAPS):
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
        """The feature set of a collection or log; "" for a log with any features."""
        if isinstance(self.features, str):
            return self.features
        return LIVE_1.version if self.collection is not None else ""

    def problems(self) -> list[str]:
        found: list[str] = []
        if isinstance(self.features, str) and (self.collection is not None or self.log is not None or self.at_sites):
            with noting(found, "data.features"):
                known_features(self.features)
        if self.normalise is not None and self.normalise not in NORMALISATIONS:
            found.append(
                "data.normalise: unknown normalisation "
                f"{self.normalise!r}{did_you_mean(self.normalise, NORMALISATIONS)}"
            )
        if self.at_sites:
            return found + self._problems_at_sites()
        if self.log is not None:
            return found + self._problems_of_log()
        if self.collection is not None:
            return found + self._problems_of_collection()
        if self.parts is not None:
            found.append("data.parts: applies only to a text collection; set data.collection, or remove it")
        if isinstance(self.features, str):
            found.append(
                f"data.features: {self.features!r} is the name of a feature set; set data.collection or data.log, or "
                "write the number of features in the files; if only the sites of a federation have data, remove name, "
                "train and test"
            )
        for name in ("users", "test_share", "propensities"):
            if getattr(self, name) is not None and not (name == "propensities" and self.name == ELSEWHERE):
                found.append(f"data.{name}: applies only to a click log; set data.log, or remove it")
        if self.features is not None and self.train is None:
            found.append("data.features: applies only to files; remove it")
        named = {"train": self.train, "test": self.test, "validation": self.validation}
        files = {key: file for key, file in named.items() if file is not None}
        if self.name is not None and files:
            found.append(f"data: has both a name and files; remove name, or {' and '.join(files)}")
        elif self.name is not None:
            try:
                folds = describe(self.name).folds
            except ValueError as problem:
                return [*found, f"data.name: {problem}"]
            found += missing_folds(self.folds, f"{self.name} has", folds)
        elif self.train is None or self.test is None:
            found.append(
                "data: give a name of the catalog (`fedrank data list`), files (train and test), a log, or a collection"
            )
        else:
            found += [
                f"data.{key}: file {file} does not exist" for key, file in files.items() if not Path(file).is_file()
            ]
            found += missing_folds(self.folds, "files have")
        return found

    def _problems_at_sites(self) -> list[str]:
        found = [
            f"data.{name}: applies only to data of the coordinator, who has none here; remove it"
            for name in ("users", "test_share", "parts", "given")
            if getattr(self, name) is not None
        ]
        if self.propensities not in (None, OWN, SWAPS):
            found.append(
                f'data.propensities: {self.propensities!r} needs the clicks of all sites in one place; use "{SWAPS}", '
                f'noised counts of logged random swaps, or "{OWN}"'
            )
        return found + missing_folds(self.folds, "sites have")

    def _problems_of_log(self) -> list[str]:
        found = []
        if any(value is not None for value in (self.name, self.train, self.test, self.validation)):
            found.append("data: has both a log and a name or files; remove log, or name and files")
        if self.collection is not None:
            found.append("data: has both a log and a collection; remove one of them")
        if self.parts is not None:
            found.append("data.parts: applies only to a text collection; remove it")
        if isinstance(self.features, int):
            found.append(
                "data.features: a number applies only to files; remove it, or give the name of the log's feature set"
            )
        if self.evaluate_on == "validation":
            found.append('data.evaluate_on: a click log has no validation queries; use "test"')
        named = self.propensities
        if named == SWAPS:
            found.append(
                f'data.propensities: "{SWAPS}" are released by the sites of a federation; use `fedrank deploy run` '
                f'without data.log, or "{OWN}" or "{SHARED}" in a simulation'
            )
        elif named is not None and named not in (SHARED, OWN) and not Path(named).is_file():
            found.append(
                f'data.propensities: file {named!r} does not exist; use "{SHARED}", "{OWN}", or a file of '
                "`fedrank data propensities`"
            )
        if self.propensities is None and self.bias != "position":
            found.append(
                f"data.bias: {self.bias!r} has no effect without propensities; set data.propensities, or remove it"
            )
        return found + missing_folds(self.folds, "a log has")

    def _problems_of_collection(self) -> list[str]:
        found = []
        if any(value is not None for value in (self.name, self.train, self.test, self.validation)):
            found.append("data: has both a collection and a name or files; remove collection, or name and files")
        if isinstance(self.features, int):
            found.append(
                'data.features: a number applies only to files; give a feature set such as "live-1", or remove it'
            )
        if self.evaluate_on == "validation":
            found.append('data.evaluate_on: a collection has no validation queries; use "test"')
        if self.normalise == "global" and fixed_ranges(self.described_by) is None:
            found.append('data.normalise: users do not know the feature ranges of others; use "none" or "query"')
        found += [
            f"data.{name}: applies only to a click log; remove it"
            for name in ("users", "test_share", "propensities")
            if getattr(self, name) is not None
        ]
        return found


@dataclass(frozen=True)
class PrivacySpec(SpecSection):
    """How privacy loss is computed, and when a run stops."""

    delta: Annotated[float, more_than(0), less_than(1)] = 1e-5  # δ: probability that ε fails; choose << 1 / clients
    budget: Annotated[float, more_than(0)] | None = None  # maximum ε; the run stops before it is exceeded
    # Between sites with unit = "person": noise of each sum that is released once (propensities, quality, gate), in
    # multiples of what one person can add to it; None: 4.
    release_noise: Annotated[float, more_than(0)] | None = None
