"""Scale features to the range 0 .. 1."""

import numpy as np

from fedrank.kernels.compile import compiled


@compiled()
def find_ranges(features, start, stop, low, high) -> None:
    """Write the minimum and maximum of every feature over rows start .. stop - 1 to `low` and `high`."""
    for i in range(features.shape[1]):
        low[i] = high[i] = features[start, i]
    for row in range(start + 1, stop):
        for i in range(features.shape[1]):
            value = features[row, i]
            if value < low[i]:
                low[i] = value
            if value > high[i]:
                high[i] = value


@compiled()
def rescale(features, start, stop, low, high, out) -> None:
    """Scale rows so `low` becomes 0 and `high` becomes 1; a constant feature becomes 0.

    In double precision, since the width of a range may exceed float32.
    """
    for row in range(start, stop):
        for i in range(features.shape[1]):
            width = np.float64(high[i]) - np.float64(low[i])
            if width > 0:
                out[row, i] = (np.float64(features[row, i]) - np.float64(low[i])) / width
            else:
                out[row, i] = 0


@compiled()
def rescale_queries(features, offsets, out) -> None:
    """Rescale every query by its own ranges; `out` may be `features` itself."""
    low = np.empty(features.shape[1], np.float32)
    high = np.empty(features.shape[1], np.float32)
    for query in range(len(offsets) - 1):
        find_ranges(features, offsets[query], offsets[query + 1], low, high)
        rescale(features, offsets[query], offsets[query + 1], low, high, out)
