"""Clip updates and add them up on a grid."""

from __future__ import annotations

import math

import numpy as np

from fedrank.kernels.compile import compiled


@compiled()
def clip_to_grid(updates, weights, clip, norm, step, out):
    """out[c] = weight x update, clipped to the norm `clip`, in integer grid steps; 0 if it is not finite."""
    clients, parameters = updates.shape
    for c in range(clients):
        length = 0.0
        for p in range(parameters):
            value = np.float64(updates[c, p])
            length += abs(value) if norm == 1 else value * value
        if norm == 2:
            length = math.sqrt(length)
        if not math.isfinite(length):
            for p in range(parameters):
                out[c, p] = 0
            continue
        factor = clip / max(length, clip) * weights[c] / step
        for p in range(parameters):
            out[c, p] = np.int64(np.rint(np.float64(updates[c, p]) * factor))


@compiled()
def add_steps(updates, step, out):
    """out[p] += the integer grid steps of all rows of float32 `updates`."""
    clients, parameters = updates.shape
    for c in range(clients):
        for p in range(parameters):
            out[p] += np.int64(np.rint(np.float64(updates[c, p]) / step))
