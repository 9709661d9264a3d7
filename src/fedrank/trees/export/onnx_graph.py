"""Rankers as ONNX graphs: features [documents, n] in, scores [documents] out."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedrank.extras import missing_extra
from fedrank.ranking.rankers import Linear, Mlp
from fedrank.trees.export.engine_files import Parts, layers
from fedrank.trees.export.lightgbm_text import Leaf, Tree

OPSET, TREES_OPSET, FORMAT = 13, 1, 8  # old enough for any runtime since 2021


def onnx_model(parts: Parts) -> bytes:
    """The ONNX graph of a ranker as bytes, validated."""
    try:
        import onnx
        from onnx import TensorProto, checker, helper, numpy_helper
    except ImportError:
        raise missing_extra("exports to ONNX need the package onnx", "onnx") from None

    nodes: list[Any] = []
    constants: list[Any] = []

    def add(kind: str, *inputs: str, out: str, **settings: Any) -> str:
        nodes.append(helper.make_node(kind, list(inputs), [out], **settings))
        return out

    def constant(name: str, value: Any, dtype: Any = np.float32) -> str:
        constants.append(numpy_helper.from_array(np.ascontiguousarray(value, dtype), name))
        return name

    at = "features"
    if parts.trees:
        at = add("TreeEnsembleRegressor", at, out="sums", domain="ai.onnx.ml", **_ensemble(parts.trees))
    else:
        if parts.ranges is not None:  # in double precision, as in training
            low, high = parts.ranges.astype(np.float64)
            wide = add("Cast", at, out="wide", to=TensorProto.DOUBLE)
            moved = add("Sub", wide, constant("low", low, np.float64), out="moved")
            width = constant("width", np.where(high > low, high - low, 1.0), np.float64)
            at = add("Cast", add("Div", moved, width, out="scaled"), out="normalised", to=TensorProto.FLOAT)
        if isinstance(parts.ranker, Linear):
            at = add("MatMul", at, constant("weights", parts.weights[:, None]), out="sums")
        else:
            inner, biases, outputs = layers(parts)
            at = add("MatMul", at, constant("hidden_weights", inner), out="products")
            at = add("Add", at, constant("hidden_biases", biases), out="hidden_sums")
            at = add("Sigmoid" if isinstance(parts.ranker, Mlp) else "Relu", at, out="units")
            at = add("MatMul", at, constant("output_weights", outputs[:, None]), out="sums")
    add("Reshape", at, constant("flat", [-1], np.int64), out="scores")
    graph = helper.make_graph(
        nodes,
        "ranker",
        [helper.make_tensor_value_info("features", TensorProto.FLOAT, ["documents", len(parts.names)])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["documents"])],
        constants,
    )
    versions = [helper.make_opsetid("", OPSET), helper.make_opsetid("ai.onnx.ml", TREES_OPSET)]
    model = helper.make_model(graph, opset_imports=versions, producer_name="fedrank", ir_version=FORMAT)
    entry = onnx.StringStringEntryProto(key="feature_names", value="\n".join(parts.names))
    model.metadata_props.append(entry)
    checker.check_model(model)
    return bytes(model.SerializeToString())


def _ensemble(trees: tuple[Tree, ...]) -> dict[str, Any]:
    """Attributes of a TreeEnsembleRegressor: one row per node, and one per output of a leaf."""
    rows: list[tuple[int, int, str, int, float, int, int, int]] = []
    targets: list[tuple[int, int, float]] = []

    def visit(tree: int, node: Tree, number: int) -> int:
        """Write a node and its descendants; returns the next free number."""
        if isinstance(node, Leaf):
            rows.append((tree, number, "LEAF", 0, 0.0, 0, 0, 0))
            targets.append((tree, number, node.value))
            return number + 1
        right = visit(tree, node.left, number + 1)
        end = visit(tree, node.right, right)
        threshold, missing = float(node.threshold), int(node.missing_left)
        rows.append((tree, number, "BRANCH_LEQ", node.feature, threshold, number + 1, right, missing))
        return end

    for tree, root in enumerate(trees):
        visit(tree, root, 0)
    rows.sort(key=lambda row: row[:2])
    names = ["treeids", "nodeids", "modes", "featureids", "values", "truenodeids", "falsenodeids"]
    names.append("missing_value_tracks_true")
    return {f"nodes_{name}": list(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)} | {
        "target_treeids": [tree for tree, _, _ in targets],
        "target_nodeids": [number for _, number, _ in targets],
        "target_ids": [0] * len(targets),
        "target_weights": [value for _, _, value in targets],
        "n_targets": 1,
        "post_transform": "NONE",
        "aggregate_function": "SUM",
    }
