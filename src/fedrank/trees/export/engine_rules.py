"""How a search engine scores an exported model: its number rules, by which an export is checked.

Engines store values, weights and sums in single precision. OpenSearch and Elasticsearch go left where `value <
split_condition`; Solr adds 1e-6 to every threshold and goes left where `value <= threshold`. The rules are taken from
the sources of the plugins (NaiveAdditiveDecisionTree, MultipleAdditiveTreesModel and related classes).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank.types import Features

SLACK = np.float32(1e-6)  # added to thresholds by Solr

Total = type[np.float32] | type[np.float64]
Numbers = NDArray[np.floating]
Goes = Callable[[dict[str, Any]], NDArray[np.bool_]]


def engine_scores(
    to: str, content: bytes, features: Features, names: Sequence[str], total: Total = np.float32
) -> Numbers:
    """[documents]: the scores that the engine computes from an exported file.

    Engines sum in float32; `total = np.float64` shows which leaves are reached, without rounding errors of sums.
    """
    with np.errstate(over="ignore"):  # as in Java, values that are too large become infinite
        if to == "onnx":
            return _onnx(content, features)
        if to == "solr":
            return _solr(json.loads(content), features, total)
        return _opensearch(json.loads(content), features, names, total)


def _opensearch(content: dict[str, Any], features: Features, names: Sequence[str], total: Total) -> Numbers:
    model = content["model"]["model"]
    values = {name: features[:, i] for i, name in enumerate(names)}
    for name, norm in model.get("feature_normalizers", {}).items():
        if "standard" in norm:
            values[name] = _standard(values[name], norm["standard"]["mean"], norm["standard"]["standard_deviation"])
        else:
            values[name] = _min_max(values[name], norm["min_max"]["minimum"], norm["min_max"]["maximum"])
    definition = json.loads(model["definition"])
    if model["type"] == "model/linear":
        return _dot([(values[name], weight) for name, weight in definition.items()], total)

    def yes(node: dict[str, Any]) -> NDArray[np.bool_]:
        value = values[node["split"]]
        below: NDArray[np.bool_] = np.float32(node["split_condition"]) > value
        return np.where(np.isnan(value), node["missing"] == node["yes"], below)

    return _sum([_leaves(tree, "leaf", yes, _xgboost_children, len(features)) for tree in definition], total)


def _solr(content: dict[str, Any], features: Features, total: Total) -> Numbers:
    values = {}
    for i, feature in enumerate(content["features"]):
        params = feature.get("norm", {}).get("params", {})
        column = features[:, i]
        if "max" in params:
            column = _min_max(column, params["min"], params["max"])
        elif "std" in params:
            column = _standard(column, params["avg"], params["std"])
        values[feature["name"]] = column
    params, kind = content["params"], content["class"].rpartition(".")[2]
    if kind == "LinearModel":
        return _dot([(values[name], weight) for name, weight in params["weights"].items()], total)
    if kind == "NeuralNetworkModel":
        return _network(params["layers"], list(values.values()))

    def yes(node: dict[str, Any]) -> NDArray[np.bool_]:
        reached: NDArray[np.bool_] = values[node["feature"]] <= np.float32(node["threshold"]) + SLACK
        return reached

    trees = [
        _leaves(tree["root"], "value", yes, itemgetter("left", "right"), len(features)) for tree in params["trees"]
    ]
    return _sum([np.float32(tree["weight"]) * one for tree, one in zip(params["trees"], trees, strict=True)], total)


def _onnx(content: bytes, features: Features) -> Numbers:
    from onnx.reference import ReferenceEvaluator

    scores: Numbers = ReferenceEvaluator(content).run(None, {"features": features})[0]  # type: ignore[no-untyped-call,index,assignment]
    return scores


def _xgboost_children(node: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    left, right = node["children"]
    if (left["nodeid"], right["nodeid"]) != (node["yes"], node["no"]):
        raise ValueError(f"node {node['nodeid']} does not name its children; the engine would reject the model")
    return left, right


def _leaves(tree: dict[str, Any], leaf: str, yes: Goes, children: Callable[..., Any], documents: int) -> Numbers:
    """[documents]: the value of the leaf that each document reaches."""
    out = np.empty(documents, np.float32)
    ways = [(tree, np.arange(documents))]
    while ways:
        node, rows = ways.pop()
        if leaf in node:
            out[rows] = np.float32(node[leaf])
        elif len(rows):
            goes = yes(node)[rows]
            left, right = children(node)
            ways += [(left, rows[goes]), (right, rows[~goes])]
    return out


def _min_max(values: Numbers, low: float | str, high: float | str) -> Numbers:
    return (values - np.float32(low)) / (np.float32(high) - np.float32(low))


def _standard(values: Numbers, mean: float | str, deviation: float | str) -> Numbers:
    return (values - np.float32(mean)) / np.float32(deviation)


def _dot(terms: list[tuple[Numbers, float]], total: Total) -> Numbers:
    return _sum([np.float32(weight) * value for value, weight in terms], total)


def _sum(terms: list[Numbers], total: Total) -> Numbers:
    """Sum in sequence, as the engines do."""
    out = np.zeros(len(terms[0]), total)
    for one in terms:
        out += one
    return out


def _network(layers: list[dict[str, Any]], values: list[Numbers]) -> Numbers:
    for layer in layers:
        sums = []
        for row, bias in zip(layer["matrix"], layer["bias"], strict=True):
            reached = np.full(len(values[0]), np.float32(bias))
            for weight, value in zip(row, values, strict=True):
                reached += np.float32(weight) * value
            sums.append(reached)
        if layer["activation"] == "relu":
            sums = [np.maximum(one, 0) for one in sums]
        elif layer["activation"] == "sigmoid":
            sums = [(1 / (1 + np.exp(-one.astype(np.float64)))).astype(np.float32) for one in sums]
        values = list(sums)
    return values[0]
