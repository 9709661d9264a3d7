"""Export of a trained ranker as a file for a search engine: OpenSearch, Elasticsearch, Solr, or any ONNX runtime.

Every export is read back and scored by the engine's number rules before it is written.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedrank.data.normalise import normalise
from fedrank.data.ranking import RankingData
from fedrank.files import read_text, write_atomic
from fedrank.ranking.model import Model, Scorer, Tell, unheard
from fedrank.ranking.rankers import Linear, Mlp, Relu
from fedrank.silo.features import FEATURE_NAMES as SILO_FEATURES
from fedrank.trees.export.engine_files import TINY, Parts, by_feature, engine_file, layers
from fedrank.trees.export.engine_rules import engine_scores
from fedrank.trees.export.lightgbm_text import LARGEST, Leaf, Scale, Tree, read_trees
from fedrank.trees.model_files import load_model
from fedrank.types import Features

ENGINES = ("opensearch", "elasticsearch", "solr", "onnx")
PROBES = 200  # synthetic documents on which an export is compared with its model
_BY_ITSELF = (  # engines have another BM25, with other constants, and no LMIR, and lack the answers of partners
    "The engine must be given the features of fedrank.silo.features, which it does not compute; the "
    "documentation of training across organisations has their formulas."
)
EXACT = 2.0**-21  # allowed effect of rounding to float32, relative to the magnitude of the terms of a score


@dataclass(frozen=True)
class Exported:
    """A file for an engine, and how to load it."""

    path: Path
    what: str  # such as "model/linear for OpenSearch of 46 features"
    next: str  # the command that loads it into the engine, with placeholders in capitals
    needs: str = ""  # what the engine does not compute


def export(
    model_path: str | Path,
    to: str,
    out: str | Path,
    feature_names: str | Path | None = None,
    name: str | None = None,
    client: int | None = None,
    tell: Tell = unheard,
    store: str | None = None,
) -> Exported:
    """Write a model as a file for a search engine, and check that the engine will give the same scores.

    `to` is "opensearch", "elasticsearch", "solr" or "onnx". `feature_names` is a file with the engine's name of each
    feature, one per line, in the order of the model; without it, the names are those of the training data (for a text
    model, those that LightGBM wrote), or f1, f2 and so on. `name` is the name of the model in the engine, and `store`
    the feature store of Solr. The result names the file and the command that loads it. `client` selects one model if
    each client has a separate one.

    >>> import numpy as np
    >>> import fedrank as fr
    >>> fr.save_model(fr.Model(fr.rankers.Linear(), weights=np.array([0.7, 0.3]), features=2), "model.json")
    >>> fr.export("model.json", to="solr", out="solr.json").what
    'LinearModel for Solr of 2 features'
    """
    if to not in ENGINES:
        raise ValueError(f"unknown engine {to!r}; use one of {', '.join(ENGINES)}")
    if store is not None and to != "solr":
        raise ValueError(f"store = {store!r} applies only to Solr, which has feature stores; leave it out for {to}")
    out, model_path = Path(out), Path(model_path)
    if out.resolve() in (model_path.resolve(), (model_path / "model.json").resolve()):
        raise ValueError(f"{out} is the model itself; write to another file")
    model = load_model(model_path, tell)
    if client is not None and not (isinstance(model, Model) and model.weights.ndim == 2):
        raise ValueError(f"{model_path} has one model for all clients; leave out client = {client}")
    parts = take_apart(model, _names(model, feature_names), client)
    content, kind = engine_file(parts, to, name or out.stem, store)
    check(content, to, parts, model, client)
    write_atomic(out, content)
    needs = _BY_ITSELF if model.feature_names == SILO_FEATURES else ""
    return Exported(out, f"{kind} of {len(parts.names)} features", _next(to, out), needs)


def take_apart(model: Scorer, names: tuple[str, ...], client: int | None = None) -> Parts:
    """The parts of a model that engines need; raises ValueError for what no engine can express."""
    from fedrank.trees.forest import Forest
    from fedrank.trees.mixtures import LinearMix

    if isinstance(model, LinearMix):
        model = model.as_forest() or model
    if model.normalised == "query":
        remedy = 'data.normalise = "global" or "none"'
        if model.feature_names == SILO_FEATURES:
            remedy = 'method.normalise = "fixed"'
        raise ValueError(
            "the model expects features normalised by query, over all candidates of a query; an engine scores one "
            f"document at a time and cannot do that; train with {remedy} instead"
        )
    ranges = getattr(model, "ranges", None)
    if model.normalised == "global" and ranges is None:
        raise ValueError(
            "the model expects features normalised over its whole training set, but does not record their ranges; "
            'train it again with this version of fedrank, or with data.normalise = "none"'
        )
    if isinstance(model, Forest):
        trees = read_trees(model.trees, Scale.of(ranges, model.features))
        return Parts(names, None, np.empty(0), tuple(trees) or (Leaf(0.0),), ranges)
    if not isinstance(model, Model) or not isinstance(model.ranker, Linear | Mlp | Relu):
        kind = type(model.ranker if isinstance(model, Model) else model).__name__
        raise ValueError(
            f"engines cannot express a model of kind {kind}; export a linear, neural or tree model, or a sum of trees"
        )
    weights = model.chosen(client).astype(np.float32).astype(np.float64)
    if ranges is not None:  # a feature without a range is always 0, also in an engine
        units = max(abs(model.ranker.hidden), 1)
        of_features = weights[: model.features * units].reshape(model.features, units)
        of_features[ranges[1] <= ranges[0]] = 0.0
    return Parts(names, model.ranker, weights, (), ranges)


def check(content: bytes, to: str, parts: Parts, model: Scorer, client: int | None = None) -> None:
    """Compare the engine's scores with the model's on synthetic documents, most of them at the threshold of a split."""
    features = probes(parts, 20 if to == "onnx" else PROBES)
    theirs = engine_scores(to, content, features, parts.names, np.float64).astype(np.float64)
    ours = plain_scores(model, features, client)
    allowed = EXACT * _magnitude(parts, features)
    if to == "onnx" and parts.trees:
        allowed *= len(parts.trees)  # sums in float32
    worst = int(np.argmax(np.abs(theirs - ours) - allowed))
    if not abs(theirs[worst] - ours[worst]) <= allowed[worst]:
        raise ValueError(
            f"the exported model would score a document {theirs[worst]:.9g}, but the model scores it "
            f"{ours[worst]:.9g}; nothing was written. Please report this as an error of fedrank"
        )


def plain_scores(model: Scorer, features: Features, client: int | None = None) -> NDArray[np.float64]:
    """The model's scores of documents with features as an engine measures them."""
    count = len(features)
    data = RankingData(features, np.zeros(count, np.int8), np.array([0, count]), np.array(["1"]))
    ranges = getattr(model, "ranges", None)
    data = data if ranges is None else normalise(data, "global", ranges)
    return model.score(data, client).astype(np.float64)


def probes(parts: Parts, count: int) -> Features:
    """[count, features]: synthetic documents, with values on thresholds and adjacent to them."""
    rng = np.random.default_rng(0)  # the same documents for every export
    shape = (count, len(parts.names))
    if parts.ranges is None:
        out = rng.standard_normal(shape).astype(np.float32)
    else:
        low, high = parts.ranges.astype(np.float64)
        out = (low + rng.uniform(-0.1, 1.1, shape) * (high - low)).astype(np.float32)
    for feature, thresholds in by_feature(parts.trees).items():
        at = np.array([*thresholds, 0.0, -0.0], np.float32)
        edges = np.concatenate([at, np.nextafter(at, np.float32(-LARGEST)), np.nextafter(at, np.float32(LARGEST))])
        edges = edges[(np.abs(edges) < LARGEST) & ((np.abs(edges) > TINY) | (edges == 0))]
        chosen = rng.random(count) < 0.9
        out[chosen, feature] = rng.choice(edges, chosen.sum())
    return out


def _lightgbm_names(model: Scorer) -> tuple[str, ...]:
    """The feature names in a text model of LightGBM; empty if these are LightGBM's numbers of columns."""
    from fedrank.trees.forest import Forest

    names = model.names_in_text if isinstance(model, Forest) else ()
    return () if names == tuple(f"Column_{i}" for i in range(len(names))) else names


def _names(model: Scorer, file: str | Path | None) -> tuple[str, ...]:
    if file is not None:
        lines = read_text(file).splitlines()
        names = tuple(line.strip() for line in lines if line.strip())
    else:
        names = model.feature_names or _lightgbm_names(model) or tuple(f"f{i + 1}" for i in range(model.features))
    twice = [one for one, count in Counter(names).items() if count > 1]
    if len(names) != model.features or twice:
        problem = f"{twice[0]!r} occurs twice" if twice else f"{len(names)} names for {model.features} features"
        raise ValueError(f"{problem}; give every feature a different name, one per line, in the order of the model")
    return names


def _magnitude(parts: Parts, features: Features) -> NDArray[np.float64]:
    """[documents]: the magnitude of the terms of a score, which bounds the rounding error."""
    if parts.trees:
        return np.full(len(features), sum(_largest_leaf(tree) for tree in parts.trees))
    scale = Scale.of(parts.ranges, len(parts.names))
    values = np.abs(features - scale.low) / np.where(scale.width > 0, scale.width, 1.0)
    if isinstance(parts.ranker, Linear):
        return len(parts.names) * (values @ np.abs(parts.weights))
    inner, biases, outputs = layers(parts)
    sums: NDArray[np.float64] = (values @ np.abs(inner) + np.abs(biases)) @ np.abs(outputs) + np.abs(outputs).sum()
    return (len(parts.names) + len(biases)) * sums


def _largest_leaf(tree: Tree) -> float:
    if isinstance(tree, Leaf):
        return abs(tree.value)
    return max(_largest_leaf(tree.left), _largest_leaf(tree.right))


def _next(to: str, out: Path) -> str:
    if to == "onnx":
        return f"onnxruntime.InferenceSession({str(out)!r}).run(None, {{'features': float32 [documents, features]}})"
    send = f"-H 'Content-Type: application/json' --data-binary @{out}"
    if to == "solr":
        return f"curl -X PUT http://localhost:8983/solr/COLLECTION/schema/model-store {send}"
    return f"curl -X POST http://localhost:9200/_ltr/_featureset/FEATURE_SET/_createmodel {send}"
