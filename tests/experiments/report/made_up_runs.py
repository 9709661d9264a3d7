"""Run folders with invented numbers, as the experiment runner would write them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedrank.seeds import rng_for

NAMES = ["BM25 body", "BM25 title", "PageRank", "inlinks", "URL length", "TF-IDF body", "LM title", "slashes"]


def write_run(
    out: Path,
    experiment: str = "robust",
    variant: str = "only",
    fold: int = 1,
    seed: int = 1,
    *,
    level: float = 0.45,  # where the curves end
    settings: dict[str, Any] | None = None,
    rounds: int = 40,
    every: int = 2,
    measures: Sequence[str] = ("ndcg@10", "mrr@10"),
    online: Sequence[float] | None = None,
    offline: Sequence[float | None] | None = None,  # cells of the first measure, one per round
    queries: int = 30,
    named: bool = True,
    nothing: float | None = None,  # how good the order is that users have without learning, where that was measured
    **facts: Any,
) -> Path:
    """One finished run; `facts` overwrite entries of run.json. Returns its folder."""
    folder = out / experiment / variant / f"fold-{fold}-seed-{seed}"
    folder.mkdir(parents=True)
    rng = rng_for(seed, "made up", fold, variant)
    luck = rng_for(seed, "luck", fold).normal(0, 0.01)  # shared by all variants of a repeat, so that pairing pays
    reached = level + luck + rng.normal(0, 0.004)
    rise = 1 - np.exp(-np.arange(1, rounds + 1) / (rounds / 6))
    if online is None:
        online = list(0.25 + (reached - 0.28) * rise + rng.normal(0, 0.03, rounds))
    lines = [",".join(["round", "online", "interactions", "bytes_up", "bytes_down", *measures])]
    for r in range(1, rounds + 1):
        cells = [
            "" if r % every else f"{0.2 + (reached - 0.2) * rise[r - 1] + 0.1 * m + rng.normal(0, 0.003):.6f}"
            for m in range(len(measures))
        ]
        if offline is not None:
            cells[0] = "" if offline[r - 1] is None else str(offline[r - 1])
        lines.append(",".join([str(r), f"{online[r - 1]:.6f}", str(50 * r), str(1840 * r), str(1840 * r), *cells]))
    (folder / "rounds.csv").write_text("\n".join(lines) + "\n")
    (folder / "timing.csv").write_text(
        f"round,seconds,cpu_seconds\n{rounds // 2},{rounds / 100},{rounds / 50}\n{rounds},{rounds / 50},{rounds / 25}\n"
    )
    hardness = rng_for(0, "queries", fold).uniform(-0.2, 0.2, queries)
    lines = [",".join(["query", *measures])]
    for q in range(queries):
        cells = [
            "" if q == 3 else f"{np.clip(reached + hardness[q] + rng.normal(0, 0.05), 0, 1):.6f}" for _ in measures
        ]
        lines.append(",".join([str(1000 + q), *cells]))
    (folder / "queries.csv").write_text("\n".join(lines) + "\n")
    if nothing is not None:
        lines = [",".join(["query", *measures])]
        for q in range(queries):
            lines.append(",".join([str(1000 + q), *["" if q == 3 else f"{nothing + hardness[q]:.6f}"] * len(measures)]))
        (folder / "nothing.csv").write_text("\n".join(lines) + "\n")
        facts = {"given": "BM25 of whole document"} | facts
    weights = rng_for(0, "weights").normal(0, 1, len(NAMES)) + rng.normal(0, 0.2, len(NAMES))
    (folder / "model.json").write_text(
        json.dumps(
            {
                "format": "fedrank-model",
                "version": 1,
                "ranker": {"name": "linear"},
                "features": len(NAMES),
                "feature_names": NAMES if named else [],
                "weights": weights.tolist(),
                "normalised": "query",
            }
        )
    )
    (folder / "spec.toml").write_text(
        f'kind = "federated"\nrounds = {rounds}\nlearner = "pdgd"\nclients = {{ count = 10 }}\n'
        'data = { name = "mq2008" }\n'
    )
    run = {
        "format": 1,
        "fedrank": "0.1.0",
        "status": "finished",
        "experiment": experiment,
        "title": "Do robust aggregators cost ranking quality?",
        "variant": variant,
        "settings": settings or {},
        "fold": fold,
        "seed": seed,
        "round": rounds,
        "rounds": rounds,
        "data": {
            "name": "mq2008",
            "train_queries": 471,
            "test_queries": queries,
            "features": len(NAMES),
            "normalised": "query",
            "top_grade": 2,
        },
        "conventions": {
            name: f"{name}: gain 2^grade - 1; queries without a relevant document are skipped; ties go to the document "
            "that comes first in the file."
            for name in measures
        },
        "pid": 1,
        "error": None,
        "notes": [],
    }
    (folder / "run.json").write_text(json.dumps(run | facts))
    return folder


def write_experiment(out: Path, text: str = "", experiment: str = "robust") -> Path:
    """The experiment as it was asked; `text` is appended. Returns its folder."""
    folder = out / experiment
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "experiment.toml").write_text(
        'kind = "federated"\ntitle = "Do robust aggregators cost ranking quality?"\nrounds = 40\nevaluate_every = 2\n'
        'measures = ["ndcg@10", "mrr@10"]\nseeds = [1, 2, 3]\n'
        + text
        + '\n[data]\nname = "mq2008"\nfolds = [1, 2]\n\n[clients]\ncount = 10\nclick_model = "informational"\n'
        'interactions = 5\n\n[learner]\nname = "pdgd"\nranker = { name = "linear" }\nrate = 0.1\n'
        '\n[aggregator]\nname = "mean"\n'
    )
    return folder


def write_grid(
    out: Path,
    vary: dict[str, list[Any]],
    levels: Sequence[float],
    folds: Sequence[int] = (1, 2),
    seeds: Sequence[int] = (1, 2, 3),
    top: str = "",
    tables: str = "",
    **rest: Any,
) -> Path:
    """Every combination of some settings with all repeats; `levels` are reached in turn. Returns the out folder."""
    from itertools import product

    folder = write_experiment(out, top)
    asked = "\n[vary]\n" + "".join(f'"{key}" = {json.dumps(values)}\n' for key, values in vary.items())
    with (folder / "experiment.toml").open("a") as file:
        file.write(asked + tables)
    for i, values in enumerate(product(*vary.values())):
        settings = dict(zip(vary, values, strict=True))
        variant = ",".join(f"{key}={value}" for key, value in settings.items())
        for fold in folds:
            for seed in seeds:
                write_run(
                    out, variant=variant, fold=fold, seed=seed, settings=settings, level=levels[i % len(levels)], **rest
                )
    return out
