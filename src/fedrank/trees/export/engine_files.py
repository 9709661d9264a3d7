"""Files for engines: nested nodes and weights as JSON, with every number as the engine will compare it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank.ranking.rankers import Linear, Mlp, Relu
from fedrank.trees.arrays import ZERO
from fedrank.trees.export.engine_rules import SLACK
from fedrank.trees.export.lightgbm_text import LARGEST, Leaf, Tree

DEEPEST = 300  # depth of a tree: JSON parsers of Java and Python fail on deeper nesting
TINY = np.float32(2 * ZERO)  # the smallest nonzero value that an engine measures

_SOLR = "org.apache.solr.ltr"


@dataclass(frozen=True)
class Parts:
    """The parts of a ranker: a vector of weights, or trees."""

    names: tuple[str, ...]  # [features]
    ranker: Linear | Mlp | Relu | None  # None: trees
    weights: NDArray[np.float64]  # of a ranker; 0 where a feature has no range
    trees: tuple[Tree, ...]  # for features before normalisation
    ranges: NDArray[np.float32] | None  # [2, features] of fixed normalisation

    @property
    def ranged(self) -> list[tuple[int, float, float]]:
        """Feature, smallest and largest value where features are normalised and have a range."""
        if self.ranges is None:
            return []
        return [(i, float(low), float(high)) for i, (low, high) in enumerate(self.ranges.T) if high > low]


def engine_file(parts: Parts, to: str, name: str, store: str | None = None) -> tuple[bytes, str]:
    """The file for an engine, and its description."""
    by_feature(parts.trees)  # raises for trees that are too deep
    if to == "onnx":
        from fedrank.trees.export.onnx_graph import onnx_model

        return onnx_model(parts), "ONNX model"
    if to == "solr":
        content = ({} if store is None else {"store": store}) | _solr(parts, name)
        return _json(content), content["class"].rpartition(".")[2] + " for Solr"
    content = _opensearch(parts, name)
    title = "OpenSearch" if to == "opensearch" else "Elasticsearch"
    return _json(content), f"{content['model']['model']['type']} for {title}"


def by_feature(trees: tuple[Tree, ...]) -> dict[int, list[np.float32]]:
    """The distinct thresholds of every feature in the trees."""
    found: dict[int, set[np.float32]] = {}
    ways: list[tuple[Tree, int]] = [(tree, 0) for tree in trees]
    while ways:
        node, depth = ways.pop()
        if isinstance(node, Leaf):
            continue
        if depth >= DEEPEST:
            raise ValueError(f"a tree is more than {DEEPEST} splits deep, too deep for engines; train with max_depth")
        found.setdefault(node.feature, set()).add(node.threshold)
        ways += [(node.left, depth + 1), (node.right, depth + 1)]
    return {feature: sorted(found[feature]) for feature in sorted(found)}


def _opensearch(parts: Parts, name: str) -> dict[str, Any]:
    model: dict[str, Any]
    if parts.trees:
        trees = [_xgboost(tree, parts.names) for tree in parts.trees]
        model = {"type": "model/xgboost+json", "definition": json.dumps(trees, ensure_ascii=False)}
    elif isinstance(parts.ranker, Linear):
        weights = dict(zip(parts.names, parts.weights.tolist(), strict=True))
        model = {"type": "model/linear", "definition": json.dumps(weights, ensure_ascii=False)}
        if parts.ranged:
            model["feature_normalizers"] = {parts.names[i]: _normalizer(low, high) for i, low, high in parts.ranged}
    else:
        raise ValueError(
            "the engine's plugin supports linear models and trees, but this model is neural; export it to solr or "
            "onnx, or train a linear ranker"
        )
    return {"model": {"name": name, "model": model}}


def _normalizer(low: float, high: float) -> dict[str, Any]:
    """A feature normalizer; the plugin refuses min_max below 0, where standard computes the same in float32."""
    if low < 0:
        return {"standard": {"mean": low, "standard_deviation": float(np.float32(high) - np.float32(low))}}
    return {"min_max": {"minimum": low, "maximum": high}}


def _xgboost(tree: Tree, names: tuple[str, ...]) -> dict[str, Any]:
    """A tree as nested nodes: left where value < split_condition, so each threshold is moved to the next float32."""
    numbers = iter(range(2**31))

    def node(one: Tree, depth: int) -> dict[str, Any]:
        number = next(numbers)
        if isinstance(one, Leaf):
            return {"nodeid": number, "leaf": _float(one.value)}
        left, right = node(one.left, depth + 1), node(one.right, depth + 1)
        return {
            "nodeid": number,
            "depth": depth,
            "split": names[one.feature],
            "split_condition": float(np.nextafter(one.threshold, np.float32(LARGEST))),
            "yes": left["nodeid"],
            "no": right["nodeid"],
            "missing": (left if one.missing_left else right)["nodeid"],
            "children": [left, right],
        }

    return node(tree, 0)


def _solr(parts: Parts, name: str) -> dict[str, Any]:
    features: list[dict[str, Any]] = [{"name": one} for one in parts.names]
    if parts.trees:
        lowered: dict[tuple[int, np.float32], np.float32] = {}
        for feature, thresholds in by_feature(parts.trees).items():
            finite = [at for at in thresholds if abs(at) < LARGEST]
            if not finite:
                continue
            unit, written = solr_thresholds(np.array(finite))
            if written is None:
                raise ValueError(
                    f"thresholds of the feature {parts.names[feature]!r} range from {min(finite, key=abs):g} to "
                    f"{max(finite, key=abs):g}, too wide for Solr, which adds 1e-6 to each; export to opensearch or "
                    "onnx, or train without this feature"
                )
            lowered |= {(feature, at): one for at, one in zip(finite, written, strict=True)}
            if unit != 1:
                features[feature]["norm"] = _norm("StandardNormalizer", avg=0.0, std=float(unit))
        trees = [{"weight": "1", "root": _regression(tree, parts.names, lowered)} for tree in parts.trees]
        return _solr_model("MultipleAdditiveTreesModel", name, features, {"trees": trees})
    for i, low, high in parts.ranged:
        features[i]["norm"] = _norm("MinMaxNormalizer", min=low, max=high)
    if isinstance(parts.ranker, Linear):
        weights = dict(zip(parts.names, parts.weights.tolist(), strict=True))
        return _solr_model("LinearModel", name, features, {"weights": weights})
    assert parts.ranker is not None
    inner, biases, outputs = layers(parts)
    hidden = {
        "matrix": inner.T.tolist(),
        "bias": biases.tolist(),
        "activation": "sigmoid" if isinstance(parts.ranker, Mlp) else "relu",
    }
    output = {"matrix": [outputs.tolist()], "bias": [0.0], "activation": "identity"}
    return _solr_model("NeuralNetworkModel", name, features, {"layers": [hidden, output]})


def solr_thresholds(thresholds: NDArray[np.float32]) -> tuple[np.float32, NDArray[np.float32] | None]:
    """The unit to divide a feature by, and thresholds that equal the given ones in that unit after Solr adds 1e-6.

    A small or negative threshold may not be the sum of any float32 and 1e-6. Divided by a small power of two, which is
    exact, values are so large that 1e-6 has no effect; None where even that does not help. Thresholds around
    1e-35, by which LightGBM separates zero from other values, need not be exact.
    """
    largest = float(np.abs(thresholds).max())
    for unit in (np.float32(1), np.float32(2.0 ** np.clip(np.frexp(largest)[1] - 126, -126, 0))):
        lowered = _without_slack(thresholds / unit)
        reached = (lowered + SLACK) * unit
        tiny = np.maximum(np.abs(reached), np.abs(thresholds)) <= TINY
        if np.all((reached == thresholds) | tiny):
            return unit, lowered
    return np.float32(1), None


def _without_slack(thresholds: NDArray[np.float32]) -> NDArray[np.float32]:
    """[n]: float32 values that give the thresholds when 1e-6 is added in float32, or the closest from below."""
    best = np.full(len(thresholds), np.float32(-LARGEST))
    guess = thresholds - SLACK
    for one in (np.nextafter(guess, -LARGEST), guess, np.nextafter(guess, LARGEST)):
        best = np.where(one + SLACK <= thresholds, one, best)
    return best


def _regression(
    tree: Tree, names: tuple[str, ...], lowered: dict[tuple[int, np.float32], np.float32]
) -> dict[str, Any]:
    if isinstance(tree, Leaf):
        return {"value": repr(_float(tree.value))}
    if abs(tree.threshold) >= LARGEST:  # it separates missing values from others, and Solr has none
        return _regression(tree.left if tree.threshold > 0 else tree.right, names, lowered)
    return {
        "feature": names[tree.feature],
        "threshold": repr(float(lowered[tree.feature, tree.threshold])),
        "left": _regression(tree.left, names, lowered),
        "right": _regression(tree.right, names, lowered),
    }


def _solr_model(kind: str, name: str, features: list[dict[str, Any]], params: dict[str, Any]) -> dict[str, Any]:
    return {"class": f"{_SOLR}.model.{kind}", "name": name, "features": features, "params": params}


def _norm(kind: str, **params: float) -> dict[str, Any]:
    return {"class": f"{_SOLR}.norm.{kind}", "params": {key: repr(value) for key, value in params.items()}}


def layers(parts: Parts) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Of a neural ranker: hidden weights [features, units], hidden biases and output weights [units]."""
    assert parts.ranker is not None
    units = abs(parts.ranker.hidden)
    split = units * len(parts.names)
    inner, biases, outputs = np.split(parts.weights, [split, split + units])
    return inner.reshape(len(parts.names), units), biases, outputs


def _float(value: float) -> float:
    """Rounded to float32 once, so readers in double and in single precision see the same number."""
    return float(np.float32(value))


def _json(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, ensure_ascii=False, allow_nan=False) + "\n").encode()
