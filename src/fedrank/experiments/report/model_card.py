"""The model card of a finished run: Markdown with a YAML header, as Hugging Face and other registries read it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from fedrank.experiments.report.impact import TO_FILL_IN
from fedrank.experiments.report.markdown import markdown
from fedrank.experiments.report.sections import Pairs, Points, Section, paragraph
from fedrank.experiments.runner.runs import Run, load_runs


def model_card(folder: str | Path) -> str:
    """Return the card of the run in a folder. It states no guarantee that the privacy card does not state."""
    runs = load_runs(folder).finished
    if len(runs) != 1 or runs[0].model is None:
        raise ValueError(
            f"{folder} must be the folder of one finished run with a model.json, which a model card describes"
        )
    run = runs[0]
    last = {name: run.rounds[name][run.evaluated][-1:] for name in run.measures}  # of the model, not of its last rounds
    values = {name: float(value[0]) for name, value in last.items() if np.isfinite(value).all() and len(value)}
    header = "".join(f"{key}: {json.dumps(value, ensure_ascii=False)}\n" for key, value in _header(run, values).items())
    return f"---\n{header}---\n\n{markdown(_sections(run, values))}"


def _header(run: Run, values: dict[str, float]) -> dict[str, Any]:
    # JSON is YAML, so names from outside cannot end the header or add keys.
    data = str(run.data.get("name", "unknown"))
    measured = [{"type": name, "value": round(value, 4)} for name, value in values.items()]
    results = {
        "task": {"type": "text-ranking"},
        "dataset": {"type": data, "name": data},
        "metrics": measured,
    }
    header: dict[str, Any] = {
        "library_name": "fedrank",
        "pipeline_tag": "text-ranking",
        "tags": ["learning-to-rank", "federated-learning"],
    }
    return header | ({"model-index": [{"name": run.experiment, "results": [results]}]} if measured else {})


def _sections(run: Run, values: dict[str, float]) -> list[Section]:
    assert run.model is not None
    ranker, card = run.model["ranker"]["name"], run.card
    facts = (
        ("Ranker", f"{ranker}, {run.model['features']} features, normalised: {run.model['normalised']}"),
        ("Training", f"{run.label}, {run.round:,} rounds of {run.experiment}, fedrank {run.version}"),
        ("Data", str(run.data.get("name", "unknown"))),
        ("Intended use, licence, contact", TO_FILL_IN.rstrip(": ")),
    )
    quality = tuple((name, f"{value:.4f}") for name, value in values.items())
    privacy = [paragraph("This run has no privacy card, so there is no privacy guarantee.")]
    if card is not None:
        privacy = [paragraph(card.summary.partition(" Not covered: ")[0]), paragraph(f"Seen: {card.who_sees_what}.")]
    limits = Points(card.not_covered) if card is not None and card.not_covered else paragraph("None are recorded.")
    below = (
        Section("Quality on the test queries", (Pairs(quality),)),
        Section("Privacy", tuple(privacy)),
        Section("Not covered by the privacy guarantee", (limits,)),
    )
    return [Section(run.experiment, (Pairs(facts), *below))]
