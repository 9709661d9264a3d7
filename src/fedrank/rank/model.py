"""A trained ranker as a file that any language can read: `model.json`."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedrank.data.ranking import RankingData
from fedrank.rank.rankers import RANKERS
from fedrank.types import Ranker, Scores, Weights

FORMAT, VERSION = "fedrank-model", 1


@dataclass(frozen=True)
class Model:
    """A ranker with its weights, and what it expects of the data."""

    ranker: Ranker
    weights: Weights  # [parameters], or [clients, parameters] where every client trained its own
    features: int
    normalised: str = "none"  # how the features were normalised that it was trained on
    feature_names: tuple[str, ...] = ()
    notes: dict[str, Any] = field(default_factory=dict)  # where it comes from

    def score(self, data: RankingData, client: int | None = None) -> Scores:
        """[documents]: higher is better."""
        if data.features.shape[1] > self.features:
            raise ValueError(
                f"the model reads {self.features} features, the data have {data.features.shape[1]}; "
                "use data with the features that it was trained on"
            )
        if self.weights.ndim == 1:
            weights = self.weights
        elif client is None or not 0 <= client < len(self.weights):
            raise ValueError(
                f"this file holds {len(self.weights)} models, one for each client; choose one from 0 to "
                f"{len(self.weights) - 1} (on the command line with --client)"
            )
        else:
            weights = self.weights[client]
        features = np.asarray(data.features, dtype=np.float32)
        if features.shape[1] < self.features:  # sparse files may leave out their last features
            features = np.pad(features, ((0, 0), (0, self.features - features.shape[1])))
        return self.ranker.score(weights, features)


def save_model(model: Model, path: str | Path) -> None:
    """Write atomically, so that a reader never sees half a model."""
    path = Path(path)
    name = next(name for name, kind in RANKERS.items() if kind is type(model.ranker))
    content = {
        "format": FORMAT,
        "version": VERSION,
        "ranker": {"name": name, **vars(model.ranker)},
        "features": model.features,
        "normalised": model.normalised,
        "feature_names": list(model.feature_names),
        "notes": model.notes,
        "weights": model.weights.tolist(),
    }
    part = path.with_name(path.name + ".part")
    with part.open("w", encoding="utf-8") as file:
        file.write(json.dumps(content) + "\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


def load_model(path: str | Path) -> Model:
    """Read `model.json`, or the model of a run folder."""
    path = Path(path)
    if path.is_dir():
        path = path / "model.json"
    if not path.exists():
        raise FileNotFoundError(f"no model at {path}; a finished run has one in its folder, as model.json")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content.get("format") != FORMAT:
            raise ValueError("it is not a model of fedrank")
        if content["version"] > VERSION:
            raise ValueError(f"it has version {content['version']}, newer than this fedrank; update fedrank")
        settings = dict(content["ranker"])
        kind = RANKERS[settings.pop("name")]
        model = Model(
            ranker=kind(**settings),
            weights=np.array(content["weights"], dtype=np.float64),
            features=int(content["features"]),
            normalised=content.get("normalised", "none"),
            feature_names=tuple(content.get("feature_names", ())),
            notes=content.get("notes", {}),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        raise ValueError(f"{path} cannot be read as a model: {problem}") from None
    if model.weights.shape[-1] != model.ranker.size(model.features) or not np.isfinite(model.weights).all():
        raise ValueError(
            f"{path} holds {model.weights.shape[-1]} weights where {type(model.ranker).__name__} on {model.features} "
            f"features has {model.ranker.size(model.features)}, or some that are not finite; the file is damaged"
        )
    return model
