"""Shamir's secret sharing: any `threshold` shares recover a secret, fewer reveal nothing about it (CACM 1979).

The secret is the value at 0 of a polynomial of degree threshold - 1 whose other coefficients are random; a share is
the value at another point. The field is the integers modulo 2^255 - 19: its elements fit in 32 bytes, as do the
private keys of X25519 and the seeds of masks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

PRIME = 2**255 - 19
ELEMENT_BYTES = 32

Entropy = Callable[[int], bytes]  # returns the given number of random bytes; os.urandom, except in tests


def random_element(entropy: Entropy) -> int:
    """A uniformly random element of the field."""
    while True:
        # Rejection instead of reduction: every element stays equally likely.
        value = int.from_bytes(entropy(ELEMENT_BYTES), "little") & (2**255 - 1)
        if value < PRIME:
            return value


def to_bytes(element: int) -> bytes:
    return element.to_bytes(ELEMENT_BYTES, "little")


def from_bytes(data: bytes) -> int:
    """The element encoded by 32 bytes; the encoding is unique."""
    if not is_element(data):
        raise ValueError(f"the share ({len(data)} bytes) is not a field element: it is damaged; request it again")
    return int.from_bytes(data, "little")


def is_element(data: bytes) -> bool:
    return len(data) == ELEMENT_BYTES and int.from_bytes(data, "little") < PRIME


def split(secret: int, threshold: int, points: Sequence[int], entropy: Entropy) -> list[int]:
    """One share of the secret for every point, in the order of the points."""
    if not 0 <= secret < PRIME:
        raise ValueError("the secret must be a field element, from 0 to 2^255 - 20, or it could not be recovered")
    if not 1 <= threshold <= len(points):
        raise ValueError(
            f"threshold must be between 1 and the number of shares (got threshold = {threshold} with "
            f"{len(points)} shares): otherwise the secret could never be recovered"
        )
    _check_points(points)
    return evaluate([secret, *(random_element(entropy) for _ in range(threshold - 1))], points)


def evaluate(coefficients: Sequence[int], points: Sequence[int]) -> list[int]:
    """Values of the polynomial (constant term first) at the points.

    >>> evaluate([7, 3, 2], [1, 2])  # 7 + 3 x + 2 x^2
    [12, 21]
    """
    falling = list(reversed(coefficients))
    shares = []
    for x in points:
        value = 0
        for coefficient in falling:
            # Points are small integers: the value grows by few bits per step, so one reduction at the end is cheaper.
            value = value * x + coefficient
        shares.append(value % PRIME)
    return shares


def weights_at_zero(points: Sequence[int]) -> list[int]:
    """The Lagrange coefficients with which the shares at these points add up to the secret."""
    _check_points(points)
    weights = []
    for x in points:
        above, below = 1, 1
        for other in points:
            if other != x:
                above = above * other % PRIME
                below = below * (other - x) % PRIME
        weights.append(above * pow(below, -1, PRIME) % PRIME)
    return weights


def join(shares: Mapping[int, int]) -> int:
    """The secret, from its shares by point; with fewer than the threshold, a meaningless element.

    >>> join({1: 12, 2: 21, 3: 34})  # 7 + 3 x + 2 x^2
    7
    """
    return weighted(list(shares.values()), weights_at_zero(list(shares)))


def weighted(shares: Sequence[int], weights: Sequence[int]) -> int:
    """The secret, from shares and the Lagrange coefficients of their points: for many secrets with the same points."""
    return sum(share * weight for share, weight in zip(shares, weights, strict=True)) % PRIME


def _check_points(points: Sequence[int]) -> None:
    if len(set(points)) != len(points):
        raise ValueError(f"points must be distinct (got {list(points)}); give every share its own point")
    if not all(0 < x < PRIME for x in points):
        raise ValueError(f"points must be at least 1 (got {list(points)}): the value at 0 is the secret itself")
