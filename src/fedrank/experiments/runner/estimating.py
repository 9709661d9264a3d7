"""Reads the files for an offline estimate of the clicks that a model would receive."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from fedrank.data.log_fold import TEST_SHARE, log_part
from fedrank.data.logs import SearchLog, load_log
from fedrank.experiments.runner.position_bias import read_propensities, shown_results
from fedrank.ranking.estimate import CannotTell, ClickEstimate, estimate_clicks
from fedrank.ranking.model import Model, Scorer, Tell, unheard
from fedrank.ranking.propensity import Bias
from fedrank.trees.model_files import load_model


def estimate_model(
    model_path: str | Path,
    folder: str | Path,
    *,
    latest: float | None = None,
    bias: Bias = "position",
    propensities: str | Path | None = None,
    client: int | None = None,
    tell: Tell = unheard,
) -> ClickEstimate:
    """Estimate the clicks on the lists of a log if this model had ranked each list; `CannotTell` if that is impossible.

    If the model was trained on this log, only the last fifth of the entries is used, which it has not seen, unless
    `latest` gives another fraction.
    """
    log, model = load_log(folder), load_model(model_path, tell)
    if client is not None and not (isinstance(model, Model) and model.weights.ndim == 2):
        raise ValueError(f"{model_path} holds one model for all clients; remove client = {client}")
    shown = shown_results(log)
    _check_features(model, log)
    learned = model.notes.get("data") == log.folder.name
    share = (TEST_SHARE if learned else 1.0) if latest is None else latest
    if not 0 < share <= 1:
        raise ValueError(f"latest must be greater than 0 and at most 1 (got {share:g})")
    if learned and share > TEST_SHARE:
        tell("the model was trained on some of these entries, so the estimate is too optimistic; use --latest 0.2")
    elif learned and latest is None:
        tell(f"the model was trained on this log; only the last {TEST_SHARE:.0%} of its entries are used")
    first_counted = len(log) - math.floor(len(log) * share)
    ranges: Any = getattr(model, "ranges", None)
    data = log_part(log, np.arange(len(log)), model.normalised, ranges)
    return estimate_clicks(
        shown,
        np.asarray(model.score(data, client), np.float64),
        log.features,
        bias,
        None if propensities is None else read_propensities(propensities),
        shown.search >= first_counted,
    )


def _check_features(model: Scorer, log: SearchLog) -> None:
    names = log.feature_names
    if len(names) != model.features:
        raise CannotTell(f"features differ: the model uses {model.features} features, the log has {len(names)}")
    if model.feature_names and model.feature_names != names:
        position = next(
            i for i, (one, other) in enumerate(zip(model.feature_names, names, strict=True)) if one != other
        )
        raise CannotTell(
            f"features differ: feature {position + 1} is {model.feature_names[position]!r} in the model, but "
            f"{names[position]!r} in the log"
        )
    if model.normalised == "global" and getattr(model, "ranges", None) is None:
        raise CannotTell('features differ: the model has normalise = "global" but no feature ranges')
