"""What server and clients have in common: the experiment, by which both compute what they expect of each other."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from fedrank import Federation, read_experiment
from fedrank.experiments.spec.federated import FederatedExperiment
from fedrank.privacy.mechanisms import OnClient

SPEC = Path(__file__).parent / "spec.toml"
RECORD, CALL, MESSAGE, CLIENT = "fedrank", "call", "message", "client"  # keys of Flower records


@dataclass(frozen=True)
class Task:
    """One run of one experiment: its first variant, fold and seed."""

    experiment: FederatedExperiment
    run: bytes  # 16 bytes that identify the spec: a server with another spec is refused

    @classmethod
    def read(cls, path: str | Path = "") -> Task:
        path = Path(path or SPEC)
        experiment = read_experiment(path).variants[0].experiment
        if not isinstance(experiment, FederatedExperiment) or experiment.kind != "federated":
            raise ValueError(f"{path}: the app trains experiments of kind federated")
        if experiment.local is not None or experiment.clients.people > 1:
            raise ValueError(f"{path}: local methods with a memory and people per client are not supported on Flower")
        placement = getattr(experiment.mechanism, "placement", None)
        if experiment.mechanism is not None and not isinstance(placement, OnClient):
            raise ValueError(f'{path}: only noise on each client (placement = "client") is possible on Flower')
        return cls(experiment, hashlib.sha256(path.read_bytes()).digest()[:16])

    @property
    def fold(self) -> int:
        return self.experiment.data.folds[0]

    @property
    def seed(self) -> int:
        return self.experiment.seeds[0]

    @property
    def federation(self) -> Federation:
        return self.experiment.federation(attacked=False)
