"""Clipping: bound the norm of each client's contribution, which is the sensitivity the noise is calibrated to."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank.types import Updates

FINEST = 24  # bits: contributions of up to 2^24 grid steps are exact in four bytes


def finest_step(clip: float) -> float:
    """The finest grid, a power of two, on which a contribution of norm `clip` is still exact in float32.

    >>> finest_step(1.0) == 2.0**-24
    True
    """
    return 2.0 ** (math.ceil(math.log2(clip)) - FINEST)


def contributions(
    updates: Updates, weights: NDArray[np.float64], clip: float, norm: int, step: float
) -> NDArray[np.int64]:
    """[clients, parameters]: weight x the update, clipped to the norm `clip`, in grid steps.

    An update that is not finite counts as zero: an error would reveal that it was sent.
    """
    from fedrank.kernels.clip import clip_to_grid

    steps = np.empty(updates.shape, dtype=np.int64)
    clip_to_grid(updates, weights, float(clip), norm, step, steps)
    return steps


def total_steps(updates: Updates, step: float) -> NDArray[np.int64]:
    """[parameters]: the exact sum of contributions on the grid."""
    from fedrank.kernels.clip import add_steps

    total = np.zeros(updates.shape[1], dtype=np.int64)
    add_steps(updates, step, total)
    return total


def weights_of(sizes: NDArray[Any], cap: int) -> NDArray[np.float64]:
    """[clients]: the weight of each client, from 0 to 1; the raw number of interactions never leaves a client."""
    return np.minimum(sizes / cap, 1.0)
