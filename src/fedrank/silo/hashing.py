"""The cells of a term in a sketch: keyed hashes that only silos with the shared key can compute."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

PRIME = (1 << 61) - 1  # hashes are lines modulo this
KEY_BYTES = 32

Cells = NDArray[np.int32]  # [terms, z]: the column of every row of a sketch in which a term is counted
Signs = NDArray[np.int8]  # [terms, z]: with which sign, -1 or 1


@dataclass(frozen=True)
class Hashing:
    """z pairwise independent hashes of terms to w columns and to signs, all drawn from one secret key.

    A term becomes a number of 61 bits by keyed BLAKE2b, and every hash is a line (a x + b) mod 2^61 - 1. Two different
    terms have the same number with a probability of 2^-61.
    """

    key: bytes = field(repr=False)  # 32 bytes; with it, any word of a dictionary can be looked up
    width: int = 200  # w, columns
    depth: int = 30  # z, rows

    def __post_init__(self) -> None:
        if len(self.key) != KEY_BYTES:
            raise ValueError(f"the key must have {KEY_BYTES} bytes (got {len(self.key)})")
        if not 1 <= self.width <= 1 << 24:
            raise ValueError(f"width must be between 1 and 2^24 (got {self.width}); the paper uses 200")
        if not 1 <= self.depth <= 1000:
            raise ValueError(f"depth must be between 1 and 1000 (got {self.depth}); the paper uses 30")

    @property
    def fingerprint(self) -> bytes:
        """16 bytes that are equal where key, width and depth are, and that do not reveal the key."""
        settings = f"{self.width} x {self.depth}".encode()
        return hashlib.blake2b(settings, digest_size=16, key=self.key, person=b"fedrank check").digest()

    def locate(self, terms: Sequence[str]) -> tuple[Cells, Signs]:
        """Cells and signs of several terms; faster than one at a time."""
        from fedrank.kernels.sketch import hash_terms

        prints = np.array([self._print(term) for term in terms], dtype=np.uint64)
        cells = np.empty((len(prints), self.depth), dtype=np.int32)
        signs = np.empty((len(prints), self.depth), dtype=np.int8)
        hash_terms(prints, self._lines, np.uint64(self.width), cells, signs)
        return cells, signs

    def _print(self, term: str) -> int:
        # A damaged file may contain a lone surrogate, which is not valid text.
        data = term.encode("utf-8", "surrogatepass")
        digest = hashlib.blake2b(data, digest_size=16, key=self.key, person=b"fedrank term")
        return int.from_bytes(digest.digest(), "little") % PRIME

    @cached_property
    def _lines(self) -> NDArray[np.uint64]:
        """[z, 4]: slope and intercept of the line for the cell, and of that for the sign; slopes are not 0."""
        lines = np.empty((self.depth, 4), dtype=np.uint64)
        for row in range(self.depth):
            for i in range(4):
                name = f"{row} {i}".encode()
                digest = hashlib.blake2b(name, digest_size=16, key=self.key, person=b"fedrank lines").digest()
                drawn = int.from_bytes(digest, "little")
                lines[row, i] = drawn % (PRIME - 1) + 1 if i % 2 == 0 else drawn % PRIME
        return lines
