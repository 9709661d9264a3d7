"""Model files: a trained ranker as `model.json`, which any language can read.

The file has a checksum of its contents, which detects damage, not forgery. Files may come from untrusted sources:
invalid content raises an error.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from fedrank.data.judged_files import JudgedFileError, read_judged
from fedrank.data.normalise import NORMALISATIONS
from fedrank.data.ranking import RankingData
from fedrank.display import DisplayMixin
from fedrank.files import parse_json, read_text, write_atomic
from fedrank.ranking.rankers import RANKERS
from fedrank.types import Ranker, Scores, Weights

FORMAT, VERSION = "fedrank-model", 1
FOREST = "forest"  # the ranker of a model.json that contains trees instead of weights
CHECKSUM = "checksum"  # of all other content
COMBINED = "combined at"  # in the notes: the site that combined a received model with its own one
_KEYS = ("format", "version", "ranker", "features", "normalised", "feature_names", "notes", "ranges", "weights")
Tell = Callable[[str], None]  # receives warnings about a file

S = TypeVar("S")


class Scorer(Protocol):
    """The contents of a model file: a function that scores documents, and what it expects of the data."""

    @property
    def features(self) -> int: ...
    @property
    def normalised(self) -> str: ...
    @property
    def feature_names(self) -> tuple[str, ...]: ...
    @property
    def notes(self) -> dict[str, Any]: ...
    def score(self, data: RankingData, client: int | None = None) -> NDArray[Any]: ...


def check_features(data: RankingData, features: int) -> None:
    """Raise an error if the data do not have the model's number of features."""
    if data.features.shape[1] != features:
        raise ValueError(
            f"the model has {features} features, but the data have {data.features.shape[1]}; use data with the "
            "features that it was trained on; read a sparse file that only omits its last features with features = "
            f"{features}"
        )


def read_for(file: str | Path, features: int, how: str) -> RankingData:
    """Read a judged file for a model with this number of features; a sparse file may omit its last ones."""
    read = read_judged(file, normalise=how)
    if read.features.shape[1] >= features:
        return read
    try:
        return read_judged(file, normalise=how, features=features)
    except JudgedFileError:  # every line has fewer
        check_features(read, features)
        raise


@dataclass(frozen=True, repr=False)
class Model(DisplayMixin):
    """A ranker with its weights and a description of the data that it expects.

    `score(data)` returns a score for each document. `weights` is one vector, or a row per client for personalised
    models; `score` then needs the number of a client.

    >>> import numpy as np
    >>> import fedrank as fr
    >>> data = fr.synthetic("mq2007", queries=20)
    >>> data.feature_names[24]
    'BM25 of whole document'
    >>> bm25 = fr.Model(fr.rankers.Linear(), weights=np.eye(46)[24], features=46)
    >>> fr.evaluate(["ndcg@10"], bm25.score(data), data).round(3).tolist()
    [0.422]
    """

    ranker: Ranker
    weights: Weights  # [parameters], or [clients, parameters] for personalised models
    features: int
    normalised: str = "none"  # normalisation of the training features
    feature_names: tuple[str, ...] = ()
    notes: dict[str, Any] = field(default_factory=dict)  # its origin
    ranges: NDArray[np.float32] | None = None  # [2, features] of "global" normalisation; None: another, or unknown

    def _display(self) -> tuple[str, dict[str, str]]:
        models = "" if self.weights.ndim == 1 else f"{len(self.weights):,}, one per client"
        return type(self.ranker).__name__, {
            "features": f"{self.features:,}",
            "weights": f"{self.weights.shape[-1]:,}",
            "models": models,
            "normalised": self.normalised,
            "origin": origin(self.notes),
        }

    def score(self, data: RankingData, client: int | None = None) -> Scores:
        """Return scores [documents]; higher is better."""
        check_features(data, self.features)
        return self.ranker.score(self.chosen(client), np.asarray(data.features, dtype=np.float32))

    def chosen(self, client: int | None = None) -> Weights:
        """Return the weights [parameters], or those of one client of a personalised model."""
        if self.weights.ndim == 1:
            return self.weights
        if client is None or not 0 <= client < len(self.weights):
            raise ValueError(
                f"this file contains {len(self.weights)} models, one per client; choose a client from 0 to "
                f"{len(self.weights) - 1} (on the command line with --client)"
            )
        own: Weights = self.weights[client]
        return own


def origin(notes: Mapping[str, Any]) -> str:
    """The run that a model comes from, as far as its notes state it."""
    return ", ".join(f"{key} {notes[key]}" for key in ("experiment", "variant", "fold", "seed", "data") if key in notes)


def save_model(model: Model, path: str | Path) -> None:
    """Write a ranker with its weights as a JSON file with a checksum.

    >>> import fedrank as fr
    >>> data = fr.synthetic("mq2007", queries=20)
    >>> *_, last = fr.simulate(fr.Federation(), fr.make_clients(data, count=4), rounds=5)
    >>> model = fr.Model(fr.rankers.Linear(), last.weights, features=46, notes={"data": data.name, "seed": 1})
    >>> fr.save_model(model, "model.json")
    >>> fr.load_model("model.json")
    <Model Linear; features: 46; weights: 46; normalised: none; origin: seed 1, data synthetic-mq2007>
    """
    name = next(name for name, kind in RANKERS.items() if kind is type(model.ranker))
    write_content(path, {"name": name, **vars(model.ranker)}, model, weights=model.weights.tolist())


def write_content(path: str | Path, ranker: Mapping[str, Any], model: Scorer, **more: Any) -> None:
    """Write `model.json`: the ranker, what the model expects of data, and a checksum."""
    ranges: NDArray[np.float32] | None = getattr(model, "ranges", None)
    content = {
        "format": FORMAT,
        "version": VERSION,
        "ranker": dict(ranker),
        "features": model.features,
        "normalised": model.normalised,
        "feature_names": list(model.feature_names),
        "notes": model.notes,
        "ranges": None if ranges is None else ranges.tolist(),
        **more,
    }
    text = json.dumps(content)
    write_atomic(path, json.dumps(content | {CHECKSUM: checksum_of(parse_json(text))}) + "\n")


def checksum_of(content: str | Mapping[str, Any]) -> str:
    """Checksum of a text, or of JSON content independent of its formatting."""
    text = content if isinstance(content, str) else json.dumps(content, sort_keys=True)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def check_sum(given: Any, content: str | Mapping[str, Any], name: str, tell: Tell) -> None:
    """Raise an error if the checksum is wrong; warn if there is none."""
    if given is None:
        tell(f"{name} has no checksum, so damage to the file may go unnoticed")
    elif given != checksum_of(content):
        raise ValueError(f"the checksum of {name} is wrong, so the file is damaged; copy it or train the model again")


def unheard(note: str) -> None:
    """Ignore a warning."""


def load_weights(path: str | Path) -> Model:
    """Read a model that is a vector of weights, which training, attacks and unlearning need."""
    return read_model(path, _only_weights)


def read_model(
    path: str | Path, otherwise: Callable[[Path, dict[str, Any] | None], S], tell: Tell = unheard
) -> Model | S:
    """Read `model.json`, or the model of a run folder; `otherwise` reads models that are not vectors of weights.

    It is called with the file and the contents of `model.json`, or None for a text model of LightGBM.
    """
    path = model_file(path)
    if not path.exists():
        raise FileNotFoundError(f"{path} contains no model; a finished run has a model.json in its folder")
    try:
        if path.suffix == ".txt":
            return otherwise(path, None)
        content = _read_content(path, tell)
        return _from_weights(content) if content["ranker"]["name"] in RANKERS else otherwise(path, content)
    except KeyError as missing:
        raise ValueError(f"{path} is not a valid model: {missing} is missing") from None
    except (ValueError, TypeError, AttributeError, OverflowError) as problem:
        raise ValueError(f"{path} is not a valid model: {problem}") from None


def _read_content(path: Path, tell: Tell) -> dict[str, Any]:
    """Read `model.json` and check the types of its values."""
    content = parse_json(read_text(path), _each_once)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError("it is not a model file of fedrank")
    if not _is_whole(content["version"]) or content["version"] > VERSION:
        raise ValueError(
            f"it has version {content['version']}, which is newer than this version of fedrank; update fedrank"
        )
    if unknown := [key for key in content if key not in (*_KEYS, CHECKSUM)]:
        raise ValueError(
            f"it has an unknown key {unknown[0]!r}; the file is damaged, or from a newer version of fedrank"
        )
    names = content.get("feature_names", [])
    kinds = (("ranker", dict), ("notes", dict), ("normalised", str), ("feature_names", list))
    wrong = [key for key, kind in kinds if not isinstance(content.get(key, kind()), kind)]
    if not _is_whole(content["features"]) or content["features"] < 1:
        wrong.append("features")
    if not wrong and content.get("normalised", "none") not in NORMALISATIONS:
        wrong.append("normalised")
    if not wrong and not all(isinstance(name, str) for name in names):
        wrong.append("feature_names")
    if not wrong and not isinstance(content["ranker"]["name"], str):
        wrong.append("ranker.name")
    if wrong:
        raise ValueError(f"its {wrong[0]} has the wrong type; the file is damaged")
    check_content(content, path.name, tell)
    return {"normalised": "none", "feature_names": [], "notes": {}} | content


def check_content(content: Mapping[str, Any], name: str, tell: Tell = unheard) -> None:
    """Check the contents of a `model.json` against its checksum."""
    rest = {key: value for key, value in content.items() if key != CHECKSUM}
    check_sum(content.get(CHECKSUM), rest, name, tell)


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Reject duplicate keys, since the second would hide the first."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("it has a duplicate key; the file is damaged")
    return found


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _only_weights(path: Path, content: dict[str, Any] | None) -> Model:
    name = FOREST if content is None else content["ranker"]["name"]
    raise ValueError(f"it contains a {name}, not weights; use a linear or neural model")


def model_file(path: str | Path) -> Path:
    """The file itself, or the model in the folder of a run, or of an experiment with only one run."""
    folder = Path(path)
    if not folder.is_dir():
        return folder
    own = folder / "model.json"
    runs = [] if own.exists() else sorted(folder.glob("*/*/run.json"))
    if len(runs) == 1:
        return runs[0].with_name("model.json")
    if runs:
        raise FileNotFoundError(
            f"{folder} contains {len(runs)} runs; name the folder of one of them, such as {runs[0].parent}"
        )
    return own


def ranges_of(content: Mapping[str, Any]) -> NDArray[np.float32] | None:
    """The ranges [2, features] of "global" normalisation, if they are known."""
    if content.get("ranges") is None:
        return None
    with np.errstate(over="ignore"):
        ranges = np.array(content["ranges"], dtype=np.float32)
    if ranges.shape != (2, content["features"]):
        raise ValueError(
            f"its ranges have shape {ranges.shape} for {content['features']} features; the file is damaged"
        )
    return ranges


def _from_weights(content: dict[str, Any]) -> Model:
    settings = dict(content["ranker"])
    kind = RANKERS[settings.pop("name")]
    for each in fields(cast(Any, kind)):
        value = settings.get(each.name, each.default)
        whole = isinstance(each.default, float) and _is_whole(value)
        if type(value) is not type(each.default) and not whole:
            raise ValueError(f"its ranker has an invalid {each.name} = {value!r}; the file is damaged")
    model = Model(
        ranker=kind(**settings),
        weights=np.array(content["weights"], dtype=np.float64),
        features=content["features"],
        normalised=content["normalised"],
        feature_names=tuple(content["feature_names"]),
        notes=content["notes"],
        ranges=ranges_of(content),
    )
    if model.weights.ndim not in (1, 2) or not len(model.weights):
        raise ValueError("its weights must be a list of numbers, or one list per client; the file is damaged")
    if model.weights.shape[-1] != model.ranker.size(model.features) or not np.isfinite(model.weights).all():
        raise ValueError(
            f"it has {model.weights.shape[-1]} weights, or some that are not finite, but {type(model.ranker).__name__} "
            f"on {model.features} features has {model.ranker.size(model.features)}; the file is damaged"
        )
    return model
