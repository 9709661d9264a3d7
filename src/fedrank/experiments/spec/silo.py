"""The spec of an experiment of kind "silo": organisations with raw documents that train one ranker through sketches."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from fedrank.data.collection import collection_files, find_collection
from fedrank.experiments.spec.experiment import Experiment
from fedrank.experiments.spec.families import SpecSection
from fedrank.experiments.spec.sections import ELSEWHERE, PrivacySpec
from fedrank.silo.training import SiloMethod
from fedrank.value_checks import Filled, Positive


@dataclass(frozen=True)
class SiloData(SpecSection):
    """Which documents, queries and judgements: a known collection, or a folder with files of the same layout."""

    name: str | None = None  # "synthetic-silos", or a folder below FEDRANK_DATA
    folder: str | None = None  # with corpus.jsonl, queries.jsonl and qrels.tsv; each may be .gz or .xz
    folds: Filled[Positive] = (1,)  # a collection is fold 1

    @property
    def source(self) -> str:
        return self.folder or self.name or ""

    def require(self) -> None:
        find_collection(self.source)

    def files(self) -> dict[str, Path]:
        """Every file that is read, by its name."""
        return {} if self.source == ELSEWHERE else collection_files(self.source)

    def problems(self) -> list[str]:
        found = [f"data.folds: no fold {fold}; a collection is fold 1" for fold in self.folds if fold != 1]
        if (self.name is None) == (self.folder is None):
            found.append("data: give either a name or a folder with corpus.jsonl, queries.jsonl and qrels.tsv")
        elif self.folder is not None and not Path(self.folder).is_dir():
            found.append(f"data.folder: no folder {self.folder}")
        return found


@dataclass(frozen=True)
class SilosSpec(SpecSection):
    """Who holds which documents and asks which queries."""

    count: Positive = 4  # that take part; 1 only with `of`
    split: Literal["random", "topics"] = "random"  # topics: each holds documents that are alike
    queries: Positive | None = None  # for each silo to train on; None: all; one in four is kept for the test
    labels: Literal["judgements", "ranks"] = "judgements"  # grades by people; or, as in the paper, by rank of an engine
    of: Positive | None = None  # documents are cut into so many parts; all have test queries, the first `count` train

    def problems(self) -> list[str]:
        if self.of is not None and self.of < self.count:
            return [f"silos.of: {self.of} parts for {self.count} silos that take part; give {self.count} or more"]
        if self.of is None and self.count < 2:
            return ["silos.count: 1 silo has nobody to ask; give 2 or more, or silos.of for others to be tested on"]
        return []


@dataclass(frozen=True, kw_only=True)
class SiloExperiment(Experiment):
    """A question to organisations that keep their documents."""

    rounds: Positive = field(metadata={"example": "rounds = 20"})  # passes of the model over all silos
    data: SiloData = field(metadata={"example": '[data] with name = "synthetic-silos"'})
    method: SiloMethod = field(metadata={"example": '[method] with name = "cross-silo"'})
    silos: SilosSpec = field(default_factory=SilosSpec)
    privacy: PrivacySpec = field(default_factory=PrivacySpec)
    kind: Literal["silo"] = "silo"
    evaluate_every: Positive = 1  # rounds
    measure_sketches: bool = False  # also how much of the best documents a question finds, its time and its space

    sections = ("data", "silos", "privacy")

    @property
    def extent(self) -> str:
        return f"{self.rounds:,} passes over {self.silos.count} silos"

    @property
    def rounds_asked(self) -> int:
        return self.rounds
