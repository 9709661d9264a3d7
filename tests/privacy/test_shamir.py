"""Secrets in pieces."""

from __future__ import annotations

import hashlib
import itertools
import math
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrank.privacy import shamir
from fedrank.privacy.shamir import PRIME

elements = st.one_of(st.integers(0, PRIME - 1), st.sampled_from([0, 1, PRIME - 1, PRIME - 2]))


def scripted(*values: int):
    """A source that gives these 32-byte numbers, one at a time."""
    rest = iter(values)
    return lambda count: next(rest).to_bytes(count, "little")


def test_the_modulus_is_prime():
    # Pocklington: q, a prime factor of p - 1 above sqrt(p), and one base that passes both tests prove p prime.
    q = (PRIME - 1) // (4 * 3 * 65147)
    assert q * 4 * 3 * 65147 == PRIME - 1
    assert q * q > PRIME
    assert pow(2, PRIME - 1, PRIME) == 1
    assert math.gcd(pow(2, (PRIME - 1) // q, PRIME) - 1, PRIME) == 1
    # That q is prime is only tested, not proven.
    assert all(pow(base, q - 1, q) == 1 for base in (2, 3, 5, 7, 11, 13))


def test_small_polynomial_by_hand():
    # 1234 + 166 x + 94 x^2
    shares = shamir.split(1234, 3, [1, 2, 3, 4, 5, 6], scripted(166, 94))
    assert shares == [
        1234 + 166 + 94,
        1234 + 332 + 376,
        1234 + 498 + 846,
        1234 + 664 + 1504,
        1234 + 830 + 2350,
        1234 + 996 + 3384,
    ]
    # Lagrange at 0 for the points 2, 4, 5: (4*5)/(2*3), (2*5)/(-2*1), (2*4)/(-3*-1) = 10/3, -5, 8/3
    assert (10 * 1942 - 15 * 3402 + 8 * 4414) // 3 == 1234
    assert shamir.join({2: 1942, 4: 3402, 5: 4414}) == 1234


def test_arithmetic_wraps_at_the_prime():
    # -1 + 3 x + 2 x^2, and a line whose slope is -2: 5 - 2 x
    assert shamir.evaluate([PRIME - 1, 3, 2], [1, 2, 3]) == [4, 13, 26]
    assert shamir.evaluate([5, PRIME - 2], [1, 2, 3, 4]) == [3, 1, PRIME - 1, PRIME - 3]
    assert shamir.join({3: PRIME - 1, 4: PRIME - 3}) == 5


def test_weights_by_hand():
    # points 1, 2, 3: (2*3)/(1*2), (1*3)/(-1*1), (1*2)/(-2*-1)
    assert shamir.weights_at_zero([1, 2, 3]) == [3, PRIME - 3, 1]
    assert shamir.weights_at_zero([7]) == [1]


@settings(deadline=None, max_examples=40)
@given(secret=elements, count=st.integers(1, 12), data=st.data())
def test_any_threshold_of_shares_gives_the_secret_back(secret, count, data):
    threshold = data.draw(st.integers(1, count))
    points = data.draw(st.lists(st.integers(1, 2**32), min_size=count, max_size=count, unique=True))
    shares = dict(zip(points, shamir.split(secret, threshold, points, os.urandom), strict=True))
    chosen = data.draw(st.permutations(points))[: data.draw(st.integers(threshold, count))]
    assert shamir.join({x: shares[x] for x in chosen}) == secret


@settings(deadline=None, max_examples=30)
@given(coefficients=st.lists(elements, min_size=1, max_size=9), points=st.lists(st.integers(1, PRIME - 1), max_size=5))
def test_values_are_those_of_powers_added_up(coefficients, points):
    expected = [sum(c * pow(x, k, PRIME) for k, c in enumerate(coefficients)) % PRIME for x in points]
    assert shamir.evaluate(coefficients, points) == expected


@settings(deadline=None, max_examples=30)
@given(secret=elements, candidate=elements, threshold=st.integers(2, 6), data=st.data())
def test_too_few_shares_fit_every_secret(secret, candidate, threshold, data):
    points = list(range(1, 8))
    shares = shamir.split(secret, threshold, points, os.urandom)
    seen = data.draw(st.permutations(points))[: threshold - 1]
    # With the candidate as the value at 0 one polynomial goes through what was seen: nothing tells it apart.
    known = {0: candidate, **{x: shares[x - 1] for x in seen}}

    def through(at: int) -> int:
        total = 0
        for x, y in known.items():
            for other in known:
                if other != x:
                    y = y * (at - other) * pow(x - other, -1, PRIME) % PRIME
            total += y
        return total % PRIME

    assert all(through(x) == shares[x - 1] for x in seen)
    rest = [x for x in points if x not in seen][:1]
    assert shamir.join({x: through(x) for x in [*seen, *rest]}) == candidate


def test_in_a_small_field_a_share_is_uniform_for_every_secret(monkeypatch):
    # All 7 * 7 polynomials of degree 2 over the numbers modulo 7: two shares take every pair of values once.
    monkeypatch.setattr(shamir, "PRIME", 7)
    for secret in range(7):
        seen = [
            tuple(shamir.split(secret, 3, [1, 5, 6], scripted(a, b))[:2])
            for a, b in itertools.product(range(7), repeat=2)
        ]
        assert sorted(seen) == list(itertools.product(range(7), repeat=2))


def test_shares_are_fresh_each_time():
    assert shamir.split(5, 2, [1, 2], os.urandom) != shamir.split(5, 2, [1, 2], os.urandom)


def test_elements_outside_the_field_are_drawn_again():
    # The top bit is ignored; p and 2^255 - 1 are refused, p - 1 is the largest.
    assert shamir.random_element(scripted(PRIME, 2**255 - 1, 2**256 - 1, PRIME - 1)) == PRIME - 1
    assert shamir.random_element(scripted(2**255 + 3)) == 3


@given(value=elements)
def test_bytes_and_back(value):
    assert shamir.is_element(shamir.to_bytes(value))
    assert shamir.from_bytes(shamir.to_bytes(value)) == value


@pytest.mark.parametrize("data", [b"", bytes(31), bytes(33), b"\xff" * 32, PRIME.to_bytes(32, "little")])
def test_bytes_that_are_no_element_are_refused(data):
    assert not shamir.is_element(data)
    with pytest.raises(ValueError, match="damaged"):
        shamir.from_bytes(data)


def test_long_vector():
    # A secret and coefficients of full length, from SHA-256; checked with powers instead of Horner's rule.
    numbers = [int.from_bytes(hashlib.sha256(bytes([k])).digest(), "big") % PRIME for k in range(20)]
    shares = shamir.split(numbers[0], 20, list(range(1, 31)), scripted(*numbers[1:]))
    assert shares[28] == sum(c * 29**k for k, c in enumerate(numbers)) % PRIME
    assert shamir.join({x: shares[x - 1] for x in range(11, 31)}) == numbers[0]
    assert shamir.join({x: shares[x - 1] for x in range(12, 31)}) != numbers[0]


@pytest.mark.parametrize(
    ("secret", "threshold", "points", "message"),
    [
        (PRIME, 1, [1], "must be a field element"),
        (-1, 1, [1], "must be a field element"),
        (1, 3, [1, 2], "never be recovered"),
        (1, 0, [1, 2], "never be recovered"),
        (1, 2, [1, 1], "must be distinct"),
        (1, 2, [0, 1], "secret itself"),
        (1, 2, [PRIME, 1], "secret itself"),
    ],
)
def test_settings_that_make_no_sense_are_refused(secret, threshold, points, message):
    with pytest.raises(ValueError, match=message):
        shamir.split(secret, threshold, points, os.urandom)
