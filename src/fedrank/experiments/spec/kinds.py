"""The kinds of experiments."""

from __future__ import annotations

from dataclasses import dataclass

from fedrank.experiments.spec.experiment import Experiment
from fedrank.experiments.spec.federated import FederatedExperiment
from fedrank.experiments.spec.silo import SiloExperiment
from fedrank.experiments.spec.trees import TreesExperiment


@dataclass(frozen=True)
class Kind:
    """One kind of experiment."""

    spec: type[Experiment]
    performer: str  # module:function in fedrank.experiments.runner that executes one run
    unit: str = "round"  # the unit of a row in rounds.csv
    axis: str = "round"  # the label of the x axis of a learning curve


KINDS: dict[str, Kind] = {
    "federated": Kind(FederatedExperiment, "federated:perform_federated"),
    "async": Kind(FederatedExperiment, "federated:perform_federated"),
    "silo": Kind(SiloExperiment, "silo:perform_silo", "pass", "pass"),
    "trees": Kind(TreesExperiment, "trees:perform_trees", "tree", "number of trees"),
}
