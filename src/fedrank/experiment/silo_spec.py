"""The spec of an experiment of kind "silo": organisations with raw documents that train one ranker through sketches."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from fedrank.data.collection import find_collection
from fedrank.experiment.families import build, describe
from fedrank.experiment.sections import AtLeastOne, Positive, PrivacySpec, Table
from fedrank.experiment.spec import COMMON_READERS, Question, read_method, read_section
from fedrank.silo.training import SiloMethod


@dataclass(frozen=True)
class SiloData:
    """Which documents, queries and judgements: a known collection, or a folder with files of the same layout."""

    name: str | None = None  # "synthetic-silos", or a folder below FEDRANK_DATA
    folder: str | None = None  # with corpus.jsonl, queries.jsonl and qrels.tsv; each may be .gz or .xz
    folds: Annotated[tuple[Positive, ...], AtLeastOne] = (1,)  # a collection is fold 1


@dataclass(frozen=True)
class SilosSpec:
    """Who holds which documents and asks which queries."""

    count: Annotated[int, Field(ge=2)] = 4
    split: Literal["random", "topics"] = "random"  # topics: each holds documents that are alike
    queries: Positive | None = None  # for each silo to train on; None: all; one in four is kept for the test
    labels: Literal["judgements", "ranks"] = "judgements"  # grades by people; or, as in the paper, by rank of BM25


@dataclass(frozen=True, kw_only=True)
class SiloExperiment(Question):
    """A question to organisations that keep their documents, as it stands in its TOML file."""

    rounds: Positive = field(metadata={"example": "rounds = 20"})  # passes of the model over all silos
    data: SiloData = field(metadata={"example": '[data] with name = "synthetic-silos"'})
    method: str | Table = field(metadata={"example": '[method] with name = "cross-silo"'})
    silos: SilosSpec = field(default_factory=SilosSpec)
    privacy: PrivacySpec = field(default_factory=PrivacySpec)
    kind: Literal["silo"] = "silo"
    evaluate_every: Positive = 1  # rounds

    unit = "pass"
    sections = ("data", "silos", "privacy")
    readers = COMMON_READERS | {
        "data": read_section(SiloData),
        "silos": read_section(SilosSpec),
        "privacy": read_section(PrivacySpec),
        "method": read_method(SiloMethod),
    }

    @property
    def extent(self) -> str:
        return f"{self.rounds:,} passes over {self.silos.count} silos"

    @property
    def rounds_asked(self) -> int:
        return self.rounds

    @cached_property
    def built(self) -> SiloMethod:
        found: SiloMethod = build(SiloMethod, self.method, "method")
        return found

    def require_data(self) -> None:
        find_collection(self.data.folder or self.data.name or "")

    def written_out(self) -> Table:
        return {"method": describe(self.built)}

    @classmethod
    def problems(cls, values: Table) -> list[str]:
        data = values.get("data")
        if data is None:
            return []
        found = [f"data.folds: no fold {fold}; a collection is fold 1" for fold in data.folds if fold != 1]
        if (data.name is None) == (data.folder is None):
            found.append("data: give either a name or a folder with corpus.jsonl, queries.jsonl and qrels.tsv")
        elif data.folder is not None and not Path(data.folder).is_dir():
            found.append(f"data.folder: no folder {data.folder}")
        return found
