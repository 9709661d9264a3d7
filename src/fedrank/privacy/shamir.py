"""A secret in pieces: any `threshold` pieces give it back, fewer say nothing about it (Shamir, CACM 1979).

The secret is the value at 0 of a polynomial of degree threshold - 1 whose other coefficients are random; a piece is the
value at another point. Arithmetic is in the field of the whole numbers modulo 2^255 - 19: its elements fit 32 bytes, as
the private keys of X25519 and the seeds of masks do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

PRIME = 2**255 - 19
ELEMENT_BYTES = 32

Entropy = Callable[[int], bytes]  # so many random bytes; os.urandom, except in tests


def random_element(entropy: Entropy) -> int:
    """A uniform element of the field."""
    while True:
        # Drawing again, instead of reducing, keeps every element equally likely.
        value = int.from_bytes(entropy(ELEMENT_BYTES), "little") & (2**255 - 1)
        if value < PRIME:
            return value


def to_bytes(element: int) -> bytes:
    return element.to_bytes(ELEMENT_BYTES, "little")


def from_bytes(data: bytes) -> int:
    """The element that 32 bytes stand for; every element has only one spelling."""
    if not is_element(data):
        raise ValueError(f"{len(data)} bytes that are no element of the field: the share is damaged; ask for it again")
    return int.from_bytes(data, "little")


def is_element(data: bytes) -> bool:
    return len(data) == ELEMENT_BYTES and int.from_bytes(data, "little") < PRIME


def split(secret: int, threshold: int, points: Sequence[int], entropy: Entropy) -> list[int]:
    """One share of the secret for every point, in the order of the points."""
    if not 0 <= secret < PRIME:
        raise ValueError("the secret is no element of the field and could not be given back; use 0 to 2^255 - 20")
    if not 1 <= threshold <= len(points):
        raise ValueError(
            f"threshold = {threshold} with {len(points)} shares: the secret could never be given back; "
            "use at least 1 and at most as many as there are shares"
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
            # Points are small numbers: the value grows by few bits a step, and one reduction at the end is cheaper.
            value = value * x + coefficient
        shares.append(value % PRIME)
    return shares


def weights_at_zero(points: Sequence[int]) -> list[int]:
    """What to multiply the shares at these points with, so that they add up to the secret (Lagrange)."""
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
    """The secret, from its shares by point; with fewer than the threshold, an element that means nothing.

    >>> join({1: 12, 2: 21, 3: 34})  # 7 + 3 x + 2 x^2
    7
    """
    return weighted(list(shares.values()), weights_at_zero(list(shares)))


def weighted(shares: Sequence[int], weights: Sequence[int]) -> int:
    """The secret, from shares and the weights of their points: for many secrets with shares at the same points."""
    return sum(share * weight for share, weight in zip(shares, weights, strict=True)) % PRIME


def _check_points(points: Sequence[int]) -> None:
    if len(set(points)) != len(points):
        raise ValueError(f"points = {list(points)} repeat: two shares would be one; give every share its own point")
    if not all(0 < x < PRIME for x in points):
        raise ValueError(f"points = {list(points)}: the value at 0 is the secret itself; use points from 1 up")
