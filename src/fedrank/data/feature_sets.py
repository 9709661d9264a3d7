"""Feature sets for texts: their names and default normalisation."""

from __future__ import annotations

from fedrank.data.engine_features import ENGINE_1, EngineFeatures, is_engine_set
from fedrank.data.live_features import LOG_103, FeatureSet
from fedrank.data.logs import SearchLog
from fedrank.data.normalise import Ranges


def known_features(name: str) -> str:
    """Validate the name of a feature set for texts."""
    if is_engine_set(name):
        EngineFeatures.named(name)
    elif name != LOG_103:
        try:
            FeatureSet.named(name)
        except ValueError as problem:
            raise ValueError(f'{problem}, or "{ENGINE_1.version}" or "{LOG_103}"') from None
    return name


def log_features(log: SearchLog) -> str:
    """Return the feature set that a search log was built with."""
    return str(log.facts.get("settings", {}).get("features", LOG_103))


def default_normalisation(features: str) -> str:
    """live-1 is scaled by its constants and engine-1 by fixed ranges; the 103 log features are normalised per query."""
    if is_engine_set(features):
        return "global"
    return "query" if features == LOG_103 else "none"


def fixed_ranges(features: str) -> Ranges | None:
    """Return the values that are scaled to 0 and 1 if they are fixed by the feature set; None: use those of the data.

    Clients need not exchange fixed ranges. A model records them, and an engine applies them to its values.
    """
    return ENGINE_1.ranges if is_engine_set(features) else None
