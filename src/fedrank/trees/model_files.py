"""Files of models of any kind: vectors of weights, forests, and mixtures of models.

A mixture is `model.json`, which lists its parts, with a file for each part in the same folder (`model-1.json`, ...);
copy them together. A sum of forests is also written as one forest, `model.txt`, for LightGBM.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedrank.files import is_plain, read_bytes
from fedrank.ranking.model import FOREST, Model, Scorer, Tell, read_model, save_model, unheard, write_content
from fedrank.trees.forest import Forest, load_forest, save_forest, write_text
from fedrank.trees.mixtures import LinearMix, Stacked

LINEAR_MIX, STACKED = "linear-mix", "stacked"  # names of the ranker in model.json
DEEPEST = 16  # nested mixtures; merging creates one or two


def load_model(path: str | Path, tell: Tell = unheard) -> Scorer:
    """Read a model from `model.json`, a run folder, or a text model of LightGBM.

    The result has `score(data)` for any kind of model. `tell` is called with remarks about the file,
    for example that it has no checksum.

    >>> import numpy as np
    >>> import fedrank as fr
    >>> fr.save_model(fr.Model(fr.rankers.Linear(), weights=np.ones(46), features=46), "model.json")
    >>> model = fr.load_model("model.json")
    >>> data = fr.synthetic("mq2007", queries=20)
    >>> fr.evaluate(["ndcg@10"], model.score(data), data).round(3).tolist()
    [0.377]
    """
    return _load(Path(path), tell, set(), 0)


def _load(path: Path, tell: Tell, seen: set[Path], depth: int) -> Scorer:
    """A part of a mixture at this depth; each file may be a part only once, so reading always ends."""

    def read_other(path: Path, content: dict[str, Any] | None) -> Scorer:
        name = FOREST if content is None else content["ranker"]["name"]
        if name == FOREST:
            return load_forest(path, content, tell)
        if content is not None and name in (LINEAR_MIX, STACKED):
            return _load_mixture(path, content, tell, seen, depth + 1)
        raise ValueError(f"unknown ranker {name!r}; update fedrank")

    return read_model(path, read_other, tell)


def with_notes(model: Scorer, notes: dict[str, Any]) -> Scorer:
    """The same model with more notes about its origin."""
    noted: Scorer = replace(model, notes=model.notes | notes)  # type: ignore[type-var]
    return noted


def save_any(model: Scorer, path: str | Path) -> None:
    """Write a model of any kind as `model.json`, with further files in the same folder."""
    path = Path(path)
    if isinstance(model, Forest):
        save_forest(model, path)
    elif isinstance(model, Model):
        save_model(model, path)
    elif isinstance(model, LinearMix | Stacked):
        _save_mixture(model, path)
    else:
        raise TypeError(f"cannot write a {type(model).__name__} as a model file; use a Model, Forest or mixture")


def _save_mixture(model: LinearMix | Stacked, path: Path) -> None:
    """Write the parts first: a `model.json` that names them must never lack them."""
    files = [path.with_name(f"{path.stem}-{number}.json") for number in range(1, len(model.parts) + 1)]
    for part, file in zip(model.parts, files, strict=True):
        save_any(part, file)
    ranker: dict[str, Any] = {"parts": [file.name for file in files]}
    if isinstance(model, LinearMix):
        ranker |= {"name": LINEAR_MIX, "weights": model.weights, "scale": model.scale, "units": model.units}
    else:
        final = path.with_name(f"{path.stem}-final.json")
        save_any(model.final, final)
        files.append(final)
        ranker |= {"name": STACKED, "final": final.name, "inputs": model.inputs}
    ranker["checksums"] = {file.name: _checksum(file) for file in files}
    forest = model.as_forest() if isinstance(model, LinearMix) else None
    if forest is not None:
        write_text(forest, path.with_suffix(".txt"))
    write_content(path, ranker, model)


def _load_mixture(path: Path, content: dict[str, Any], tell: Tell, seen: set[Path], depth: int) -> LinearMix | Stacked:
    """A mixture with its parts, which are in the same folder."""
    seen.add(path)
    if depth > DEEPEST:
        raise ValueError(f"it is nested in more than {DEEPEST} mixtures; merge their parts instead")
    ranker, notes = content["ranker"], content["notes"]
    stacks = ranker["name"] == STACKED
    names, sums = [*ranker["parts"], *([ranker["final"]] if stacks else [])], ranker.get("checksums", {})
    *parts, last = (_part(path, name, sums.get(name), tell, seen, depth) for name in names)
    mixture: LinearMix | Stacked
    if stacks:
        mixture = Stacked(tuple(parts), last, ranker["inputs"], notes)
    else:
        mixture = LinearMix((*parts, last), tuple(ranker["weights"]), ranker["scale"], tuple(ranker["units"]), notes)
    described = content["features"], content["normalised"], tuple(content["feature_names"])
    if described != (mixture.features, mixture.normalised, mixture.feature_names):
        raise ValueError("its parts use other features than it lists; copy all files of a merged model together")
    return mixture


def _part(path: Path, name: str, checksum: str | None, tell: Tell, seen: set[Path], depth: int) -> Scorer:
    if not is_plain(name):
        raise ValueError(f"its part {name!r} must be in the same folder; the file is damaged")
    beside = path.with_name(name)
    if not beside.exists():
        raise ValueError(f"its part {name} is missing in the same folder; copy all files of a merged model together")
    if beside in seen:
        raise ValueError(f"{name} is a part of it twice, or of itself; the file is damaged")
    seen.add(beside)
    part = _load(beside, tell, seen, depth)
    if checksum is not None and checksum != _checksum(beside):
        raise ValueError(
            f"the checksum of {name} is wrong: it is not the part that was merged; copy all files together"
        )
    return part


def _checksum(file: Path) -> str:
    return f"sha256:{hashlib.sha256(read_bytes(file)).hexdigest()}"
