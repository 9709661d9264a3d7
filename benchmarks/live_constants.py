"""Compute the constants of the features live-1: their means, and their variation within a list.

    python -m benchmarks.live_constants > src/fedrank/data/live_constants.json

Needs the collections in FEDRANK_DATA. Every collection has equal weight: the best 100 of BM25 for each of its queries
(at most 200, evenly spaced), averaged over lists. A collection in which a feature never varies within a list, such as
titles if there are none, does not contribute to it. The variance within a list is averaged, so a feature that is 1 in
few lists does not become huge there, and no spread is less than a twentieth of the scale. Features that no collection
determines have fixed constants: a mean of 0, and a spread of 0.1 for cosines of vectors, of 0.5 for history and kind.
"""

from __future__ import annotations

import argparse
import json

import numpy as np

from fedrank.data.collection import load_collection
from fedrank.data.feature_sets import forward_rows, live_describer
from fedrank.data.live_features import LIVE_1, NAMES
from fedrank.data.live_ranking import live_ranking

COLLECTIONS = ("cisi", "cranfield", "msmarco-mini", "nfcorpus", "vaswani")
QUERIES = 200
DECIDED = {"latent": 0.1, "latent feedback": 0.1}
OTHERWISE = 0.5
LEAST = 0.05
DIGITS = 4


def of_lists(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Mean, and variance within a list, of every feature: [34] each."""
    collection = load_collection(name)
    judged = np.flatnonzero(np.diff(collection.offsets))
    some = judged[np.unique(np.linspace(0, len(judged) - 1, QUERIES).astype(int))]
    data = live_ranking(collection, some, describe=lambda own, _: live_describer(forward_rows(own), scaled=False))
    lists = [data.features[a:b].astype(np.float64) for a, b in zip(data.offsets[:-1], data.offsets[1:], strict=True)]
    return np.mean([one.mean(axis=0) for one in lists], axis=0), np.mean([one.var(axis=0) for one in lists], axis=0)


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    means, variances = (np.array(rows) for rows in zip(*map(of_lists, COLLECTIONS), strict=True))
    tells = variances > 1e-12
    features = {}
    for column, name in enumerate(NAMES):
        where = tells[:, column]
        mean = float(means[where, column].mean()) if where.any() else 0.0
        measured = max(float(np.sqrt(variances[where, column].mean())), LEAST) if where.any() else 0.0
        spread = measured or DECIDED.get(name, OTHERWISE)
        features[name] = {"mean": round(mean, DIGITS), "spread": round(spread, DIGITS)}
    about = "made by benchmarks/live_constants.py; changing a number needs a new version of the features"
    print(
        json.dumps(
            {"version": LIVE_1.version, "about": about, "collections": COLLECTIONS, "features": features}, indent=1
        )
    )


if __name__ == "__main__":
    main()
