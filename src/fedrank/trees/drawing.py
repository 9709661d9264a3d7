"""Which queries and features a tree is grown on where it sees a share of them: drawn alike by everybody."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from fedrank.seeds import key_for, rng_for


def drawn_queries(ids: NDArray[np.uint64], share: float, seed: int, tree: int) -> NDArray[np.bool_]:
    """Which queries a tree is grown on: each by a number of its own, so that it does not matter who holds it."""
    with np.errstate(over="ignore"):
        mixed = ids ^ key_for(seed, "queries of a tree", tree)
        # The finaliser of SplitMix64: every bit of the result depends on every bit of the number.
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
    return np.asarray(mixed.astype(np.float64) < share * 2.0**64)


def drawn_features(features: int, share: float, seed: int, tree: int) -> NDArray[np.int64]:
    """Those by which a tree may split, in order: at least one."""
    if share == 1.0:
        return np.arange(features)
    count = max(1, round(share * features))
    return np.sort(rng_for(seed, "features of a tree", tree).choice(features, count, replace=False, shuffle=False))


def numbers_of(queries: Iterable[str]) -> NDArray[np.uint64]:
    """A number for every query that depends on nothing but its id."""
    digests = [hashlib.blake2b(str(query).encode(), digest_size=8).digest() for query in queries]
    return np.frombuffer(b"".join(digests), dtype="<u8").astype(np.uint64)
