"""Clipping: no client's contribution may be longer than what the noise is made for."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fedrank.types import Updates

FINEST = 24  # bits: contributions of up to 2^24 grid steps are exact in four bytes


def finest_step(clip: float) -> float:
    """The finest grid, a power of two, on which a contribution as long as `clip` is still exact in float32.

    >>> finest_step(1.0) == 2.0**-24
    True
    """
    return 2.0 ** (math.ceil(math.log2(clip)) - FINEST)


def contributions(
    updates: Updates, weights: NDArray[np.float64], clip: float, norm: int, step: float
) -> NDArray[np.int64]:
    """[clients, parameters]: weight x the update, shortened to the length `clip`, in grid steps.

    An update that is not finite counts as zero: refusing it would tell that it was there.
    """
    wide = updates.astype(np.float64)
    lengths = np.abs(wide).sum(axis=1) if norm == 1 else np.sqrt(np.einsum("cp,cp->c", wide, wide))
    sound = np.isfinite(lengths)
    if not sound.all():
        wide[~sound] = 0.0
        lengths[~sound] = 0.0
    factors = clip / np.maximum(lengths, clip) * weights / step
    steps: NDArray[np.int64] = np.rint(wide * factors[:, None]).astype(np.int64)
    return steps


def weights_of(sizes: NDArray[np.int64], cap: int) -> NDArray[np.float64]:
    """[clients]: how much each counts, from 0 to 1; the raw number of interactions never leaves a client."""
    return np.minimum(sizes / cap, 1.0)
