"""Sets of features for texts, by name: which there are, and how a model takes them."""

from __future__ import annotations

from fedrank.data.engine_features import ENGINE_1, EngineFeatures, is_engine_set
from fedrank.data.live_features import LOG_103, FeatureSet
from fedrank.data.logs import SearchLog
from fedrank.data.normalise import Ranges


def known_features(name: str) -> str:
    """The name of a set of features for texts, checked."""
    if is_engine_set(name):
        EngineFeatures.named(name)
    elif name != LOG_103:
        try:
            FeatureSet.named(name)
        except ValueError as problem:
            raise ValueError(f'{problem}, "{ENGINE_1.version}" and "{LOG_103}"') from None
    return name


def log_features(log: SearchLog) -> str:
    """Which features a search log was built with."""
    return str(log.facts.get("settings", {}).get("features", LOG_103))


def default_normalisation(features: str) -> str:
    """live-1 is scaled by its constants, engine-1 by fixed ranges; the 103 need those of their query."""
    if is_engine_set(features):
        return "global"
    return "query" if features == LOG_103 else "none"


def fixed_ranges(features: str) -> Ranges | None:
    """What counts as 0 and 1 where that is fixed, so that nobody exchanges ranges; None: it is found in the data.

    A model records them, and an engine does the same with its own values.
    """
    return ENGINE_1.ranges if is_engine_set(features) else None
