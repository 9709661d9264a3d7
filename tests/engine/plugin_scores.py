"""Exported models scored by an engine's own classes: `python -m tests.engine.plugin_scores`.

fedrank contains no code of an engine and does not build any. `FEDRANK_LTR_SCORER` names a program of the developer that
calls the ranker classes and the JSON parsers of the OpenSearch LTR plugin. It is started as `PROGRAM NAMES MODEL
FEATURES`: a file with one feature name per line, an exported model, and a file with one document per line, whose values
are separated by tabs (an empty value is not set in the feature vector). It prints one score per line.

`FEDRANK_LUCENE` is a class path of Lucene 9 or newer with its common analysers. `LuceneFeatures.java` computes the
text features of engine-1 with it, by the queries that the feature templates stand for.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank.data.documents import Documents
from fedrank.data.engine_features import ENGINE_1, MAX_SHARE, TEXT_FIELDS, EngineFeatures
from fedrank.experiments.runner.scoring import score_lines
from fedrank.ranking.model import Model, save_model
from fedrank.ranking.rankers import Linear
from fedrank.trees.export import export
from fedrank.trees.forest import Forest, save_forest
from tests.trees.test_export import documents as edge_documents
from tests.trees.test_export import random_forest

SCORER, LUCENE = "FEDRANK_LTR_SCORER", "FEDRANK_LUCENE"
LIST = 20  # documents of a list
HARNESS = Path(__file__).with_name("LuceneFeatures.java")
NOT_SET = "LightGBM's missing values"
Values = NDArray[np.float64]


@dataclass(frozen=True)
class Agreement:
    """Values of an engine compared with fedrank's; differences are relative to values above 1."""

    what: str
    values: int
    worst: float
    lists: int = 0
    reordered: int = 0  # lists that the engine's scores order differently

    def __str__(self) -> str:
        order = f", {self.reordered} of {self.lists} lists of {LIST} in another order" if self.lists else ""
        return f"{self.what}: {self.values:,} values, largest difference {self.worst:.1e}{order}"


def kinds(seed: int = 1) -> Iterator[tuple[str, Model | Forest, NDArray[np.float32]]]:
    """Every kind of model that the plugin reads, with documents; NaN is a value that is not set in the engine."""
    rng = np.random.default_rng(seed)
    width = 12
    rows = (rng.gamma(1.0, 8.0, (100 * LIST, width)) * (rng.random((100 * LIST, width)) < 0.7)).astype(np.float32)
    gaps = np.where(rng.random(rows.shape) < 0.2, np.float32(np.nan), rows)
    weights = rng.standard_normal(width)
    ranges = np.stack([rows.min(axis=0) - 3, rows.max(axis=0)]).astype(np.float32)
    ranges[1, 3] = ranges[0, 3]  # a feature without a range
    yield "linear", Model(Linear(), weights, width), gaps
    positive = np.maximum(ranges, 0)
    yield "linear, min_max", Model(Linear(), weights, width, "global", ranges=positive), gaps
    yield "linear, standard", Model(Linear(), weights, width, "global", ranges=ranges), gaps  # minima are negative
    for name, settings in {"": {}, ", zero as missing": {"zero_as_missing": True}}.items():
        yield f"60 trees{name}", Forest(_grown(rows, rng, settings)), gaps
    scaled = ((rows - ranges[0]) / np.where(ranges[1] > ranges[0], ranges[1] - ranges[0], np.inf)).astype(np.float32)
    yield "60 trees on normalised features", Forest(_grown(scaled, rng, {}), normalised="global", ranges=ranges), gaps
    for number in range(5):
        edges = edge_documents(rng, count=5 * LIST)
        edges[np.abs(edges) > 1e30] = 0
        forest = random_forest(rng)
        yield f"values at thresholds, {number + 1}", forest, edges
        yield f"{NOT_SET}, {number + 1}", forest, np.where(rng.random(edges.shape) < 0.2, np.float32(np.nan), edges)


def compare_models(program: list[str], folder: Path) -> list[Agreement]:
    """Export every kind of model, and compare the program's scores with those of `fedrank model score`."""
    found = []
    for what, model, rows in kinds():
        path = folder / "model.json"
        if isinstance(model, Forest):
            save_forest(model, path)
        else:
            save_model(model, path)
        exported = export(path, "opensearch", folder / "exported.json").path
        names = [f"f{i + 1}" for i in range(model.features)]
        (folder / "names.txt").write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
        cells = ["\t".join("" if np.isnan(v) else repr(float(v)) for v in row) for row in rows]
        (folder / "features.tsv").write_text("".join(f"{line}\n" for line in cells), encoding="utf-8")
        (folder / "rows.txt").write_text("".join(_letor(rows)), encoding="utf-8")
        theirs = _numbers([*program, folder / "names.txt", exported, folder / "features.tsv"])
        if isinstance(model, Forest) and what.startswith(NOT_SET):  # LETOR files have no NaN: what is missing is 0
            ours = model.raw(rows)
        else:
            ours = np.array([float(line) for line in score_lines(path, str(folder / "rows.txt"))])
        found.append(agreement(what, theirs, ours))
    return found


def agreement(what: str, theirs: Values, ours: Values) -> Agreement:
    """Compare scores of lists of twenty documents."""
    if theirs.shape != ours.shape:
        raise ValueError(f"{what}: the program printed {len(theirs)} scores for {len(ours)} documents")
    apart = np.abs(theirs - ours) / np.maximum(np.abs(ours), 1.0)
    # A list is in another order if a document overtakes one that has a higher score in the engine's own precision.
    exact = ours.astype(np.float32)
    reordered = sum(
        bool(np.any(np.diff(exact[at : at + LIST][np.argsort(-theirs[at : at + LIST], kind="stable")]) > 0))
        for at in range(0, len(ours), LIST)
    )
    return Agreement(what, len(ours), float(apart.max()), len(ours) // LIST, reordered)


def compare_features(class_path: str, folder: Path, features: EngineFeatures = ENGINE_1) -> list[Agreement]:
    """Index documents with Lucene, and compare the text features of engine-1 for every query and document."""
    rng = np.random.default_rng(2)
    words = np.array([f"w{i}" for i in range(300)] + ["o'clock", "3.5", "naïve", "Straße", "foo_bar", "Ärzte", "東京"])
    chances = 1 / np.arange(1, len(words) + 1)

    def text(count: int) -> str:
        return " ".join(rng.choice(words, count, p=chances / chances.sum()))

    titles = [text(int(rng.integers(0, 9))) for _ in range(400)]
    bodies = [text(int(rng.integers(0, 900) if i % 7 else 0)) for i in range(400)]
    asked = [text(int(rng.integers(1, 7))) for _ in range(60)]
    (folder / "documents.tsv").write_text(
        "".join(f"{a}\t{b}\n" for a, b in zip(titles, bodies, strict=True)), encoding="utf-8"
    )
    (folder / "queries.txt").write_text("".join(f"{one}\n" for one in asked), encoding="utf-8")
    subprocess.run(["javac", "-cp", class_path, "-d", folder, HARNESS], check=True, capture_output=True)
    run = ["java", "-cp", f"{folder}{os.pathsep}{class_path}", "LuceneFeatures"]
    theirs = _numbers([*run, folder / "documents.tsv", folder / "queries.txt", str(MAX_SHARE)])
    chosen = [i for i, one in enumerate(features.features) if one.field in TEXT_FIELDS]
    index = features.index(Documents([str(i) for i in range(400)], titles, bodies, [""] * 400))
    ours = np.stack([index.describe(one, range(400))[:, chosen] for one in asked]).astype(np.float64)
    theirs = theirs.reshape(ours.shape)
    apart = np.abs(theirs - ours) / np.maximum(np.abs(ours), 1.0)
    names = [features.names[i] for i in chosen]
    return [Agreement(name, apart[..., i].size, float(apart[..., i].max())) for i, name in enumerate(names)]


def _grown(rows: NDArray[np.float32], rng: np.random.Generator, settings: dict[str, Any]) -> str:
    import lightgbm

    labels = (rows[:, 0] + rows[:, 1] * rows[:, 2] / (rows[:, 2].max() or 1) > np.median(rows[:, 0])).astype(int)
    labels += rng.integers(0, 2, len(labels))
    told = {"objective": "lambdarank", "num_leaves": 15, "min_data_in_leaf": 5, "verbose": -1, "num_threads": 1}
    data = lightgbm.Dataset(rows, labels, group=[LIST] * (len(rows) // LIST))
    grown: str = lightgbm.train(told | settings, data, 60).model_to_string()
    return grown


def _letor(rows: NDArray[np.float32]) -> Iterator[str]:
    """LETOR lines; a value that is not set is not written."""
    for number, row in enumerate(rows):
        pairs = " ".join(f"{i + 1}:{float(value)!r}" for i, value in enumerate(row) if not np.isnan(value))
        yield f"0 qid:{number // LIST + 1} {pairs}\n"


def _numbers(command: list[Any]) -> Values:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(f"{shlex.join(map(str, command))} failed:\n{done.stderr}")
    return np.array([float(one) for one in done.stdout.split()])


def main() -> None:
    """Print every comparison that this machine allows, as lines and as JSON."""
    found: list[Agreement] = []
    with tempfile.TemporaryDirectory() as folder:
        if program := os.environ.get(SCORER):
            found += compare_models(shlex.split(program), Path(folder))
        if class_path := os.environ.get(LUCENE):
            found += compare_features(class_path, Path(folder))
    if not found:
        raise SystemExit(f"nothing to compare with: set {SCORER} or {LUCENE} (see the docstring of this module)")
    for one in found:
        print(one)
    print(json.dumps({"largest": max(one.worst for one in found), "reordered": sum(one.reordered for one in found)}))


if __name__ == "__main__":
    main()
