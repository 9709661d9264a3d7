"""The spec of an experiment of kind "silo": organisations train one ranker across documents through sketches."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from fedrank.data.collection import collection_files, find_collection
from fedrank.experiments.spec.experiment import Experiment
from fedrank.experiments.spec.families import SpecSection
from fedrank.experiments.spec.sections import ELSEWHERE, PrivacySpec, missing_folds
from fedrank.silo.training import SiloMethod
from fedrank.value_checks import Filled, Positive


@dataclass(frozen=True)
class SiloData(SpecSection):
    """The documents, queries and judgements: a known collection, or a folder with files of the same layout."""

    name: str | None = None  # "synthetic-silos", or a folder in FEDRANK_DATA
    folder: str | None = None  # with corpus.jsonl, queries.jsonl and qrels.tsv; each may be .gz or .xz
    folds: Filled[Positive] = (1,)  # a collection has only fold 1

    @property
    def source(self) -> str:
        return self.folder or self.name or ""

    def require(self) -> None:
        find_collection(self.source)

    def files(self) -> dict[str, Path]:
        """Every file that is read, by its name."""
        return {} if self.source == ELSEWHERE else collection_files(self.source)

    def problems(self) -> list[str]:
        found = missing_folds(self.folds, "a collection has")
        if (self.name is None) == (self.folder is None):
            found.append("data: give either a name, or a folder with corpus.jsonl, queries.jsonl and qrels.tsv")
        elif self.folder is not None and not Path(self.folder).is_dir():
            found.append(f"data.folder: folder {self.folder} does not exist")
        return found


@dataclass(frozen=True)
class SilosSpec(SpecSection):
    """How documents and queries are divided among silos."""

    count: Positive = 4  # number of participating silos; 1 only with `of`
    split: Literal["random", "topics"] = "random"  # topics: each silo holds similar documents
    queries: Positive | None = None  # training queries per silo; None: all; a quarter is held out for the test
    labels: Literal["judgements", "ranks"] = "judgements"  # human judgements; or, as in the paper, ranks of an engine
    of: Positive | None = None  # parts of the documents; all have test queries, the first `count` train; None: `count`

    def problems(self) -> list[str]:
        if self.of is not None and self.of < self.count:
            return [f"silos.of: must be at least silos.count = {self.count} (got {self.of})"]
        if self.of is None and self.count < 2:
            return ["silos.count: training needs at least 2 silos (got 1); use 2 or more, or set silos.of"]
        return []


@dataclass(frozen=True, kw_only=True)
class SiloExperiment(Experiment):
    """An experiment with organisations that do not share their documents."""

    rounds: Positive = field(metadata={"example": "rounds = 20"})  # passes of the model over all silos
    data: SiloData = field(metadata={"example": '[data] with name = "synthetic-silos"'})
    method: SiloMethod = field(metadata={"example": '[method] with name = "cross-silo"'})
    silos: SilosSpec = field(default_factory=SilosSpec)
    privacy: PrivacySpec = field(default_factory=PrivacySpec)
    kind: Literal["silo"] = "silo"
    evaluate_every: Positive = 1  # rounds
    measure_sketches: bool = False  # also measure recall, time and memory of sketches

    sections = ("data", "silos", "privacy")

    @property
    def extent(self) -> str:
        return f"{self.rounds:,} passes over {self.silos.count} silos"
