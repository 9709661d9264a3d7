"""The spec of an experiment of kind "trees": forests of one organisation, or of several that merge theirs."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Literal

from pydantic import Field

from fedrank.experiment.families import build, describe
from fedrank.experiment.sections import DataSpec, Positive, Table, data_problems, require_data
from fedrank.experiment.spec import COMMON_READERS, Question, read_method, read_section
from fedrank.federate.forests import Merger
from fedrank.federate.splits import Splitter
from fedrank.rank.trees import Booster


@dataclass(frozen=True, kw_only=True)
class TreesExperiment(Question):
    """A question to tree models, as it stands in its TOML file."""

    data: DataSpec = field(metadata={"example": '[data] with name = "synthetic-istella-x"'})
    booster: str | Table = field(metadata={"example": '[booster] with name = "lambdamart"'})
    split: str | Table | None = None  # who holds which queries; None: one organisation holds them all
    merge: str | Table | None = None  # how those who hold them come to one model
    tune: Annotated[int, Field(ge=0)] = (
        0  # settings of the booster that are tried on the validation queries, for every client's forest; 0: none
    )
    kind: Literal["trees"] = "trees"
    evaluate_every: Positive = 10  # trees

    unit = "tree"
    sections = ("data",)
    readers = COMMON_READERS | {
        "data": read_section(DataSpec),
        "booster": read_method(Booster),
        "split": read_method(Splitter),
        "merge": read_method(Merger),
    }

    @property
    def extent(self) -> str:
        return f"at most {self.built.trees:,} trees"

    @property
    def rounds_asked(self) -> int:
        return int(self.built.trees)

    @cached_property
    def built(self) -> Booster:
        found: Booster = build(Booster, self.booster, "booster")
        return found

    @cached_property
    def splitting(self) -> Splitter | None:
        return None if self.split is None else build(Splitter, self.split, "split")

    @cached_property
    def merging(self) -> Merger | None:
        return None if self.merge is None else build(Merger, self.merge, "merge")

    def require_data(self) -> None:
        require_data(self.data)

    def written_out(self) -> Table:
        return {
            "booster": describe(self.built),
            "split": None if self.splitting is None else describe(self.splitting),
            "merge": None if self.merging is None else describe(self.merging),
        }

    @classmethod
    def problems(cls, values: Table) -> list[str]:
        data = values.get("data")
        found = [] if data is None else data_problems(data)
        if data is not None and data.log is not None:
            found.append("data.log: trees learn from grades, and a log has clicks only; give a name or files")
        if (values.get("split") is None) != (values.get("merge") is None):
            found.append("split: who holds which queries and merge, what becomes of their models, go together")
        merge = values.get("merge")
        if values.get("tune") and (merge["name"] if isinstance(merge, dict) else merge) in ("bagged", "cyclic"):
            found.append("tune: clients that grow one forest together share its settings; use 0, or another merge")
        if values.get("split") is not None and data is not None and data.evaluate_on == "validation":
            found.append("data.evaluate_on: merge sets may come from the validation queries; use test with a split")
        return found
