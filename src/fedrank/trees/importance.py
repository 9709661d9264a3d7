"""Which features a forest decides by: how much its splits gain, feature by feature."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedrank.trees.forest import Forest


def importance(forest: Forest) -> NDArray[np.float64]:
    """[features]: the gains of all splits at each feature together, as LightGBM's importance by gain."""
    total = np.zeros(forest.features)
    for tree in forest.trees:
        lines = dict(line.split("=", 1) for line in tree.splitlines() if "=" in line)
        features = [int(feature) for feature in lines["split_feature"].split()]
        gains = [float(gain) for gain in lines["split_gain"].split()]
        np.add.at(total, features, gains)
    return total
