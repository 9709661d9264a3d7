"""A plug-in for fedrank: the aggregator "shrunk-median", and the command `fedrank weights`.

pip install ./examples/plugin
fedrank run quickstart --set 'aggregator="shrunk-median"' --trust
fedrank weights top runs/quickstart/only/fold-1-seed-1
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

import fedrank

app = typer.Typer(help="Look at the weights of linear models.", no_args_is_help=True)


@dataclass(frozen=True)
class ShrunkMedian:
    """Median of each parameter, multiplied by a factor."""

    shrink: float = 0.5  # 0 .. 1: the change is multiplied by it

    def __call__(self, messages: fedrank.Messages) -> np.ndarray:
        return self.shrink * np.median(messages.updates, axis=0)


@app.callback()
def _root() -> None:
    """Look at the weights of linear models."""


@app.command(epilog="Example:  fedrank weights top runs/quickstart/only/fold-1-seed-1 --count 5")
def top(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
    count: Annotated[int, typer.Option(help="Number of weights.")] = 10,
) -> None:
    """Print the largest weights of a model, by absolute value."""
    model = fedrank.load_model(run / "model.json")
    for feature in np.argsort(-np.abs(model.weights))[:count]:
        print(f"{model.feature_names[feature] if model.feature_names else feature}\t{model.weights[feature]:+.4f}")
