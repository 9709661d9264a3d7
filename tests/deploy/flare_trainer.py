"""A small job of somebody else: a trainer, and an aggregator that writes what arrives."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.executor import Executor
from nvflare.app_common.aggregators.intime_accumulate_model_aggregator import InTimeAccumulateWeightedAggregator

from fedrank.privacy.updates import person_sum

TRAINER, TORCH_TRAINER, RECORDER = f"{__name__}.Trainer", f"{__name__}.TorchTrainer", f"{__name__}.Recorder"
PEOPLE, CLIP, TRUE = 2000, 1.0, 0.1


def train(weights, person):
    return {name: value + TRUE for name, value in weights.items()}


class Trainer(Executor):
    """Every parameter grows by TRUE; with `people`, as a sum of clipped contributions."""

    def __init__(self, people: int = 0) -> None:
        super().__init__()
        self.people = people

    def train(self):
        return train

    def execute(self, task_name, shareable, fl_ctx, abort_signal):
        weights = from_shareable(shareable).data
        if self.people:
            total = person_sum(weights, range(self.people), self.train(), CLIP, PEOPLE)
            update, meta = total.update(), {"fedrank-person": total.mark}
        else:
            update, meta = {name: np.full_like(value, TRUE) for name, value in weights.items()}, {}
        meta |= {MetaKey.NUM_STEPS_CURRENT_ROUND: 4711, MetaKey.INITIAL_METRICS: {"patients": 17}}
        return DXO(DataKind.WEIGHT_DIFF, update, meta).to_shareable()


class TorchTrainer(Trainer):
    """The same with PyTorch: a step of gradient descent for each person."""

    def train(self):
        import torch

        model = torch.nn.Linear(3, 2, bias=False)

        def train(weights, person):
            model.load_state_dict({"weight": torch.tensor(weights["numpy_key"])})
            optimizer = torch.optim.SGD(model.parameters(), lr=TRUE)
            optimizer.zero_grad()
            model.weight.sum().neg().backward()
            optimizer.step()
            return {"numpy_key": model.state_dict()["weight"]}

        return train


class Recorder(InTimeAccumulateWeightedAggregator):
    def __init__(self, file: str) -> None:
        super().__init__(expected_data_kind=DataKind.WEIGHT_DIFF)
        self.file = file

    def accept(self, shareable, fl_ctx):
        found = from_shareable(shareable)
        row = {"meta": found.meta, "update": {name: value.tolist() for name, value in found.data.items()}}
        with Path(self.file).open("a") as file:
            file.write(json.dumps(row, default=str) + "\n")
        return super().accept(shareable, fl_ctx)
