"""A trained ranker as a file that any language can read: `model.json`."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedrank.data.ranking import RankingData
from fedrank.files import write_whole
from fedrank.rank.rankers import RANKERS
from fedrank.types import Ranker, Scores, Weights

FORMAT, VERSION = "fedrank-model", 1

# Models that are no vector of weights: the name of the ranker in model.json, and who reads the file.
READERS = {
    "forest": "fedrank.rank.forest:load_forest",
    "linear-mix": "fedrank.rank.merged:load_merged",
    "stacked": "fedrank.rank.merged:load_merged",
}


class Scorer(Protocol):
    """Whatever a model file holds: it scores documents, and says what it expects of the data."""

    @property
    def features(self) -> int: ...
    @property
    def normalised(self) -> str: ...
    @property
    def feature_names(self) -> tuple[str, ...]: ...
    @property
    def notes(self) -> dict[str, Any]: ...
    def score(self, data: RankingData, client: int | None = None) -> NDArray[Any]: ...


@dataclass(frozen=True)
class Model:
    """A ranker with its weights, and what it expects of the data."""

    ranker: Ranker
    weights: Weights  # [parameters], or [clients, parameters] where every client trained its own
    features: int
    normalised: str = "none"  # how the features were normalised that it was trained on
    feature_names: tuple[str, ...] = ()
    notes: dict[str, Any] = field(default_factory=dict)  # where it comes from
    ranges: NDArray[np.float32] | None = None  # [2, features] of "global" normalisation; None: other, or not known

    def score(self, data: RankingData, client: int | None = None) -> Scores:
        """[documents]: higher is better."""
        if data.features.shape[1] > self.features:
            raise ValueError(
                f"the model reads {self.features} features, the data have {data.features.shape[1]}; "
                "use data with the features that it was trained on"
            )
        weights = self.chosen(client)
        features = np.asarray(data.features, dtype=np.float32)
        if features.shape[1] < self.features:  # sparse files may leave out their last features
            features = np.pad(features, ((0, 0), (0, self.features - features.shape[1])))
        return self.ranker.score(weights, features)

    def chosen(self, client: int | None = None) -> Weights:
        """[parameters]: the weights, or those of one client where every client has its own."""
        if self.weights.ndim == 1:
            return self.weights
        if client is None or not 0 <= client < len(self.weights):
            raise ValueError(
                f"this file holds {len(self.weights)} models, one for each client; choose one from 0 to "
                f"{len(self.weights) - 1} (on the command line with --client)"
            )
        own: Weights = self.weights[client]
        return own


def save_model(model: Model, path: str | Path) -> None:
    """Write a ranker with its weights."""
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
        "ranges": None if model.ranges is None else model.ranges.tolist(),
        "weights": model.weights.tolist(),
    }
    write_whole(path, json.dumps(content) + "\n")


def load_model(path: str | Path) -> Scorer:
    """Read `model.json`, the model of a run folder, or a text model of LightGBM."""
    path = Path(path)
    if path.is_dir():
        path = _of_folder(path)
    if not path.exists():
        raise FileNotFoundError(f"no model at {path}; a finished run has one in its folder, as model.json")
    try:
        if path.suffix == ".txt":
            return _reader("forest")(path)
        content = json.loads(path.read_text(encoding="utf-8"))
        if content.get("format") != FORMAT:
            raise ValueError("it is not a model of fedrank")
        if content["version"] > VERSION:
            raise ValueError(f"it has version {content['version']}, newer than this fedrank; update fedrank")
        name = content["ranker"]["name"]
        return _reader(name)(path) if name in READERS else _from_weights(content)
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        raise ValueError(f"{path} cannot be read as a model: {problem}") from None


def _of_folder(folder: Path) -> Path:
    """The model of a run, or of an experiment that has only one."""
    own = folder / "model.json"
    runs = [] if own.exists() else sorted(folder.glob("*/*/run.json"))
    if len(runs) == 1:
        return runs[0].with_name("model.json")
    if runs:
        raise FileNotFoundError(
            f"{folder} holds {len(runs)} runs; name the folder of one of them, such as {runs[0].parent}"
        )
    return own


def load_weights(path: str | Path) -> Model:
    """Read a model that is a vector of weights, as only such a one can be trained on, attacked or forgotten."""
    model = load_model(path)
    if not isinstance(model, Model):
        raise ValueError(f"{path} holds no weights but a {type(model).__name__.lower()}; name a linear or neural model")
    return model


def _reader(name: str) -> Callable[[Path], Scorer]:
    module, function = READERS[name].split(":")
    reader: Callable[[Path], Scorer] = getattr(import_module(module), function)
    return reader


def _from_weights(content: dict[str, Any]) -> Model:
    settings = dict(content["ranker"])
    kind = RANKERS[settings.pop("name")]
    model = Model(
        ranker=kind(**settings),
        weights=np.array(content["weights"], dtype=np.float64),
        features=int(content["features"]),
        normalised=content.get("normalised", "none"),
        feature_names=tuple(content.get("feature_names", ())),
        notes=content.get("notes", {}),
        ranges=None if content.get("ranges") is None else np.array(content["ranges"], dtype=np.float32),
    )
    if model.ranges is not None and model.ranges.shape != (2, model.features):
        raise ValueError(f"its ranges are {model.ranges.shape} for {model.features} features; the file is damaged")
    if model.weights.shape[-1] != model.ranker.size(model.features) or not np.isfinite(model.weights).all():
        raise ValueError(
            f"it holds {model.weights.shape[-1]} weights where {type(model.ranker).__name__} on {model.features} "
            f"features has {model.ranker.size(model.features)}, or some that are not finite; the file is damaged"
        )
    return model
