"""Keyed randomness for simulations: every draw has a name.

A generator is keyed by (seed, purpose, round, client ...), not by earlier use. Results therefore do not depend on the
order of clients, the number of threads, or where a run was resumed. Privacy noise does not come from here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Name = str | int


def key_for(seed: int, *name: Name) -> np.uint64:
    """Return a 64-bit key for a named purpose; compiled loops derive their streams from it.

    >>> key_for(1, "learn", 7) == key_for(1, "learn", 7)
    True
    >>> key_for(1, "learn", 7) == key_for(1, "learn", 8)
    False
    """
    return np.uint64(int.from_bytes(_digest(seed, name)[:8], "little"))


def keys_for(seed: int, purpose: str, rounds: Iterable[int]) -> NDArray[np.uint64]:
    """Return the keys of `key_for` for one purpose in many rounds."""
    return np.frombuffer(b"".join(_digest(seed, (purpose, round))[:8] for round in rounds), "<u8").astype(np.uint64)


def rng_for(seed: int, *name: Name) -> np.random.Generator:
    """Return a NumPy generator for a named purpose.

    >>> a, b = rng_for(1, "split", 3), rng_for(1, "split", 3)
    >>> a.integers(1000) == b.integers(1000)
    True
    """
    return np.random.Generator(np.random.Philox(key=np.frombuffer(_digest(seed, name), dtype=np.uint64)))


class Chance(NamedTuple):
    """The randomness of one round: a key per purpose."""

    seed: int
    round: int

    def key(self, purpose: str) -> np.uint64:
        return key_for(self.seed, purpose, self.round)

    def rng(self, purpose: str) -> np.random.Generator:
        return rng_for(self.seed, purpose, self.round)


def _digest(seed: int, name: tuple[Name, ...]) -> bytes:
    return hashlib.blake2b("\x1f".join(map(str, (seed, *name))).encode(), digest_size=16).digest()
