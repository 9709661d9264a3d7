"""The spec of an experiment of kind "trees": forests of one organisation, or of several that merge their forests."""

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
    """An experiment with tree models."""

    data: DataSpec = field(metadata={"example": '[data] with name = "synthetic-istella-x"'})
    booster: Booster = field(metadata={"example": '[booster] with name = "lambdamart"'})
    split: Splitter | None = None  # how queries are divided among organisations; None: one organisation holds them all
    merge: Merger | None = None  # how the organisations obtain one model
    tune: Annotated[int, at_least(0)] = 0  # settings to try on validation queries, for every forest; 0: no tuning
    kind: Literal["trees"] = "trees"
    evaluate_every: Positive = 10  # trees
    sizes: tuple[Positive, ...] = ()  # also evaluate forests truncated to these numbers of trees

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
                found.append(
                    "data.propensities: trees use the clicks of a log as relevance labels without weights; remove it"
                )
            if spec.tune:
                found.append("tune: a click log has no validation queries to tune on; use 0")
        if (spec.split is None) != (spec.merge is None):
            found.append("split: split and merge must be set together; set both, or remove both")
        if spec.tune and isinstance(spec.merge, (Bagged, Cyclic, Histograms)):
            found.append("tune: clients that grow one forest together share its settings; use 0, or another merge")
        if spec.sizes and spec.split is not None:
            found.append("sizes: merged models cannot be truncated, because their trees have no order; remove it")
        elif spec.sizes and spec.booster is not None and max(spec.sizes) > spec.booster.trees:
            found.append(
                f"sizes: a forest of at most {spec.booster.trees:,} trees cannot be truncated to "
                f"{max(spec.sizes):,}; raise booster.trees, or use smaller sizes"
            )
        if again := twice(spec.sizes):
            found.append(f"sizes: {again[0]} is listed twice; list each value once")
        if spec.split is not None and spec.data is not None and spec.data.evaluate_on == "validation":
            found.append('data.evaluate_on: with a split, validation queries may be used for merging; use "test"')
        return found
