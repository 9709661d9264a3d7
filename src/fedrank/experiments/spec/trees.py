"""The spec of an experiment of kind "trees": forests of one organisation, or of several that merge theirs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from fedrank.experiments.spec.experiment import Experiment, of_sizes
from fedrank.experiments.spec.sections import DataSpec
from fedrank.trees.boosters import Booster
from fedrank.trees.histograms import Histograms
from fedrank.trees.mergers import Bagged, Cyclic, Merger
from fedrank.trees.splits import Splitter
from fedrank.value_checks import Positive, at_least, twice


@dataclass(frozen=True, kw_only=True)
class TreesExperiment(Experiment):
    """A question to tree models."""

    data: DataSpec = field(metadata={"example": '[data] with name = "synthetic-istella-x"'})
    booster: Booster = field(metadata={"example": '[booster] with name = "lambdamart"'})
    split: Splitter | None = None  # who holds which queries; None: one organisation holds them all
    merge: Merger | None = None  # how those who hold them come to one model
    tune: Annotated[int, at_least(0)] = 0  # settings tried on validation queries, for every forest; 0: none
    kind: Literal["trees"] = "trees"
    evaluate_every: Positive = 10  # trees
    sizes: tuple[Positive, ...] = ()  # trees: forests that are cut to so many are judged, too, in columns of their own

    sections = ("data",)

    @property
    def extent(self) -> str:
        return f"at most {self.booster.trees:,} trees"

    @property
    def unscaled(self) -> DataSpec:
        """The data with raw features unless the specification says otherwise: trees need no scaling."""
        return replace(self.data, normalise=self.data.normalise or "none")

    @property
    def columns(self) -> tuple[str, ...]:
        return (*self.measures, *of_sizes(self.measures, self.sizes))

    @property
    def rounds_asked(self) -> int:
        return int(self.booster.trees) if self.split is None else 1

    @classmethod
    def problems(cls, spec: Any) -> list[str]:
        found = super().problems(spec)
        if spec.data is not None and spec.data.log is not None:
            if spec.data.propensities is not None:
                found.append("data.propensities: trees take clicks of a log for grades and weigh none; leave it out")
            if spec.tune:
                found.append("tune: a log has no validation queries to tune on; use 0")
        if (spec.split is None) != (spec.merge is None):
            found.append("split: who holds which queries and merge, what becomes of their models, go together")
        if spec.tune and isinstance(spec.merge, (Bagged, Cyclic, Histograms)):
            found.append("tune: clients that grow one forest together share its settings; use 0, or another merge")
        if spec.sizes and spec.split is not None:
            found.append("sizes: merged models have no order of trees in which they could be cut; leave it out")
        elif spec.sizes and spec.booster is not None and max(spec.sizes) > spec.booster.trees:
            found.append(
                f"sizes: a forest of at most {spec.booster.trees:,} trees cannot be cut to {max(spec.sizes):,}; raise "
                "booster.trees, or ask for fewer"
            )
        if again := twice(spec.sizes):
            found.append(f"sizes: {again[0]} stands there twice; list each once")
        if spec.split is not None and spec.data is not None and spec.data.evaluate_on == "validation":
            found.append("data.evaluate_on: merge sets may come from the validation queries; use test with a split")
        return found
