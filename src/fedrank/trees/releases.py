"""What clients release of a tree: votes, histograms, or noised sums, each as bytes and as integers that add up.

A `Release` has a client and a server side. Without secure aggregation a client encodes its result, and the server
decodes and checks it for each client. With secure aggregation a client masks integers, and the server checks their sum.

A histogram is sent without its empty bins:

    widths, one bit per bin, then for every bin with rows: gradient, hessian, rows

All are integers in the fewest sufficient bytes, so NaN cannot occur. A receiver knows the bins and the maximum number
of rows. It verifies that every feature of one client has the same total rows, gradients and hessians; it cannot verify
that they are true.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedrank.trees.binning import Edges
from fedrank.trees.row_store import Ballots, Votes
from fedrank.trees.split_finder import Packed
from fedrank.wire import Part, Refused, Value

NUMBER = Part("<i8", 1)
Integers = NDArray[np.int64]
Own = TypeVar("Own", contravariant=True)
Total = TypeVar("Total")
WIDTHS = ("<i1", "<i2", "<i4", "<i8")
MAX_ROWS = 2**40  # maximum that clients may announce
GRADIENT, HESSIAN, ROWS = range(3)
NAMES = ("gradients", "hessians", "rows")


class Release(Protocol[Own, Total]):
    """One kind of answer about a tree, on the client and on the server."""

    @property
    def kind(self) -> str:
        """The kind of the message."""

    @property
    def number(self) -> int:
        """The number of the message within a tree."""

    @property
    def size(self) -> int:
        """Number of integers under secure aggregation."""

    @property
    def parts(self) -> Mapping[str, Part]:
        """The parts of the message without secure aggregation."""

    def numbers(self, found: Own) -> Integers:
        """[size]: the integers that a client masks."""

    def encode(self, found: Own) -> dict[str, Value]:
        """The message of a client without masks."""

    def decode(self, parts: Mapping[str, Any]) -> Total:
        """The content of one client's message; `Refused` where it is invalid."""

    def total(self, numbers: Integers) -> Total:
        """The content of the sum that secure aggregation opens; `Refused` where it is invalid."""

    def add(self, found: Sequence[Total]) -> Total:
        """The sum of the contents of all clients."""


@dataclass(frozen=True)
class Layout:
    """The bins of a histogram, in order."""

    edges: Edges
    features: NDArray[np.int64]  # features by which a tree may split
    shift: int  # bits of the number of rows in a packed histogram

    @cached_property
    def places(self) -> Integers:
        """[bins]: the index of each in a packed histogram."""
        from fedrank.kernels.grow import BINS

        places = [feature * BINS + np.arange(self.edges.counts[feature] + 1) for feature in self.features]
        return np.concatenate([np.empty(0, np.int64), *places])

    @cached_property
    def starts(self) -> Integers:
        """[features]: the first bin of each."""
        sizes = self.edges.counts[self.features] + 1
        return np.asarray(np.cumsum(sizes) - sizes)

    @property
    def bins(self) -> int:
        return len(self.places)

    @property
    def widest(self) -> int:
        """Maximum number of bins of any feature."""
        return int(self.edges.counts[self.features].max(initial=0)) + 1

    @property
    def most_bytes(self) -> int:
        """Maximum size of an encoded histogram."""
        return 1 + -(-self.bins // 8) + 24 * self.bins

    def of(self, features: NDArray[np.int64]) -> Layout:
        """The same with some of the features."""
        return replace(self, features=features)

    def spread(self, packed: Packed) -> Integers:
        """[3, bins]: gradients, hessians, rows."""
        pairs = packed.reshape(-1, 2)[self.places]
        below = (1 << self.shift) - 1
        return np.stack([pairs[:, 0], pairs[:, 1] >> self.shift, pairs[:, 1] & below])

    def pack(self, values: Integers) -> Packed:
        """The inverse of `spread`."""
        from fedrank.kernels.grow import BINS

        words = -(-self.edges.features // 8)
        packed = np.zeros((words * 8 * BINS, 2), np.int64)
        packed[self.places, 0] = values[GRADIENT]
        packed[self.places, 1] = (values[HESSIAN] << self.shift) + values[ROWS]
        return packed.reshape(words, 8 * BINS, 2)


def encode(packed: Packed, layout: Layout) -> bytes:
    """A histogram in compact form."""
    values = layout.spread(packed)
    filled = values[ROWS] > 0
    columns = [_narrow(column[filled]) for column in values]
    widths = sum(WIDTHS.index(column.dtype.str.replace("|", "<")) << 2 * i for i, column in enumerate(columns))
    return bytes([widths]) + np.packbits(filled).tobytes() + b"".join(column.tobytes() for column in columns)


def decode(content: bytes, layout: Layout, rows: int) -> Packed:
    """The histogram of a leaf in which one client has this many rows; refused where it is invalid."""
    start = 1 + -(-layout.bins // 8)
    if len(content) < start or content[0] >> 6:
        raise Refused(f"a histogram of {layout.bins} bins needs more than {len(content)} bytes; it is truncated")
    filled = np.unpackbits(np.frombuffer(content[1:start], np.uint8)).astype(np.bool_)
    if filled[layout.bins :].any():
        raise Refused(f"a histogram has more than the {layout.bins} agreed bins")
    filled = filled[: layout.bins]
    values, at = np.zeros((3, layout.bins), np.int64), start
    for i in range(3):
        kind = np.dtype(WIDTHS[content[0] >> 2 * i & 3])
        size = int(filled.sum()) * kind.itemsize
        if len(content) < at + size:
            raise Refused(f"a histogram ends within its {NAMES[i]}; it is truncated")
        values[i, filled] = np.frombuffer(content[at : at + size], kind)
        at += size
    if at != len(content):
        raise Refused(f"{len(content) - at} extra bytes follow a histogram of {layout.bins} bins")
    check_histogram(values, layout, rows, filled)
    return layout.pack(values)


def check_histogram(values: Integers, layout: Layout, rows: int, filled: NDArray[np.bool_] | None = None) -> None:
    """Raise Refused for values that cannot be the histogram of this many rows."""
    if np.any(values[ROWS] < 0) or (filled is not None and np.any(values[ROWS, filled] < 1)):
        raise Refused("a histogram has bins with a negative number of rows, or marks a bin without rows as filled")
    if np.any(values[HESSIAN] < 0):
        raise Refused("a histogram has negative hessians")
    # Each feature counts the same rows once. Sums of 64 clients, over all bins of a feature, stay below 2^63.
    limit = 2**57 // layout.widest
    # Compared on both sides, since the absolute value of the smallest 64-bit integer overflows.
    wild = (values[GRADIENT] >= limit) | (values[GRADIENT] <= -limit)
    if np.any(wild) or np.any(values[HESSIAN] >= limit >> layout.shift):
        raise Refused("a histogram has gradients or hessians that exceed any possible sum")
    sums = np.add.reduceat(values, layout.starts, axis=1)
    if np.any(sums[ROWS] != rows):
        found = int(sums[ROWS][np.argmax(sums[ROWS] != rows)])
        raise Refused(f"a histogram has {found:,} rows, but {rows:,} were announced")
    if np.any(sums != sums[:, :1]):
        raise Refused("a histogram has different sums in different features; all must count the same rows")


def _narrow(values: Integers) -> NDArray[np.signedinteger]:
    """The same in the narrowest sufficient integer type."""
    largest = max(int(values.max(initial=0)), -int(values.min(initial=0)))
    return values.astype(next(kind for kind in WIDTHS if largest <= np.iinfo(kind).max))


@dataclass(frozen=True)
class HistogramRelease:
    """Histograms of leaves, with the number of the client's rows in each."""

    kind: ClassVar[str] = "counts"

    number: int
    layouts: tuple[Layout, ...]  # of each leaf
    elected: bool = False  # whether features were voted for
    rows: int = MAX_ROWS  # of all clients together

    @property
    def size(self) -> int:
        return sum(3 * layout.bins for layout in self.layouts)

    @property
    def names(self) -> list[str]:
        return [f"counts {place}" for place in range(len(self.layouts))] if self.elected else ["counts"]

    @property
    def parts(self) -> Mapping[str, Part]:
        counts = {name: Part("|S", one.most_bytes) for name, one in zip(self.names, self.layouts, strict=True)}
        return {"number": NUMBER, "rows": Part("<i8", len(self.layouts)), **counts}

    def numbers(self, found: Sequence[tuple[int, Packed]]) -> Integers:
        spread = [layout.spread(packed) for (_, packed), layout in zip(found, self.layouts, strict=True)]
        return np.concatenate([one.reshape(-1) for one in spread])

    def encode(self, found: Sequence[tuple[int, Packed]]) -> dict[str, Value]:
        parts: dict[str, Value] = {"number": np.array([self.number]), "rows": np.array([rows for rows, _ in found])}
        for name, (_, packed), layout in zip(self.names, found, self.layouts, strict=True):
            parts[name] = encode(packed, layout) if layout.bins else b""
        return parts

    def decode(self, parts: Mapping[str, Any]) -> list[Packed]:
        check_number(parts, self.number)
        return [
            decode(parts[name], layout, rows) if layout.bins else layout.pack(np.zeros((3, 0), int))
            for name, rows, layout in zip(self.names, parts["rows"].tolist(), self.layouts, strict=True)
        ]

    def total(self, numbers: Integers) -> list[Packed]:
        sizes = [3 * layout.bins for layout in self.layouts]
        found = [part.reshape(3, -1) for part in np.split(numbers, np.cumsum(sizes)[:-1])]
        for one, layout in zip(found, self.layouts, strict=True):
            if not layout.bins:
                continue
            rows = int(one[ROWS, : layout.edges.counts[layout.features[0]] + 1].sum())
            if rows > self.rows:
                raise Refused(f"the sum has {rows:,} rows, but {self.rows:,} were announced")
            check_histogram(one, layout, rows)
        return [layout.pack(one) for one, layout in zip(found, self.layouts, strict=True)]

    def add(self, found: Sequence[list[Packed]]) -> list[Packed]:
        if len(found) == 1:
            return found[0]
        return [np.sum(each, axis=0) for each in zip(*found, strict=True)]


@dataclass(frozen=True)
class VoteRelease:
    """Votes for features of leaves."""

    kind: ClassVar[str] = "votes"

    number: int
    leaves: int
    features: int  # number of features by which the tree may split
    vote: int  # number of features per leaf for which a client votes
    clients: int = 1  # number of voting clients

    @property
    def size(self) -> int:
        return self.leaves * self.features

    @property
    def parts(self) -> Mapping[str, Part]:
        return {"number": NUMBER, "votes": Part("|S", self.leaves * -(-self.features // 8))}

    def numbers(self, found: Ballots) -> Integers:
        return found.astype(np.int64).reshape(-1)

    def encode(self, found: Ballots) -> dict[str, Value]:
        return {"number": np.array([self.number]), "votes": encode_named(found)}

    def decode(self, parts: Mapping[str, Any]) -> Votes:
        check_number(parts, self.number)
        votes = decode_named(parts["votes"], self.leaves, self.features, self.vote * self.leaves).astype(np.int64)
        check_votes(votes, self.vote, 1)
        return votes

    def total(self, numbers: Integers) -> Votes:
        votes = numbers.reshape(self.leaves, self.features)
        check_votes(votes, self.vote, self.clients)
        return votes

    def add(self, found: Sequence[Votes]) -> Votes:
        return np.asarray(np.sum(found, axis=0))


@dataclass(frozen=True)
class NoisedRelease:
    """Histograms of all leaves, or their sums, with the noise of the client."""

    kind: ClassVar[str] = "sums"

    number: int
    shape: tuple[int, ...]
    clients: int  # number of clients in the sum

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))

    @property
    def parts(self) -> Mapping[str, Part]:
        return {"sums": Part("<i8", self.size)}

    def numbers(self, found: Integers) -> Integers:
        return found.reshape(-1)

    def encode(self, found: Integers) -> dict[str, Value]:
        return {"sums": found.reshape(-1)}

    def decode(self, parts: Mapping[str, Any]) -> Integers:
        values, limit = parts["sums"], 2**62 // self.clients
        if int(values.max()) >= limit or int(values.min()) <= -limit:
            raise Refused("it sent sums that exceed any possible sum of rows and noise")
        return self.total(values)

    def total(self, numbers: Integers) -> Integers:
        return numbers.reshape(self.shape)

    def add(self, found: Sequence[Integers]) -> Integers:
        return np.asarray(np.sum(found, axis=0))


def check_number(parts: Mapping[str, Any], number: int) -> None:
    """Raise Refused for an answer to another message."""
    if parts["number"][0] != number:
        raise Refused(f"message {parts['number'][0]} of a tree was sent, expected {number}: replayed, or too early")


def encode_named(named: Ballots) -> bytes:
    """One bit per feature, leaf by leaf."""
    return np.packbits(named, axis=1).tobytes()


def decode_named(content: bytes, leaves: int, features: int, most: int) -> Ballots:
    """The features named for each leaf, at most `most` in total; refused where invalid."""
    wide = -(-features // 8)
    if len(content) != leaves * wide:
        raise Refused(f"{leaves} leaves of {features} features need {leaves * wide} bytes (got {len(content)})")
    named = np.unpackbits(np.frombuffer(content, np.uint8).reshape(leaves, wide), axis=1).astype(np.bool_)
    if named[:, features:].any():
        raise Refused(f"a feature beyond the {features} of the tree is named")
    if named.sum() > most:
        raise Refused(f"{int(named.sum())} features are named, at most {most} are allowed")
    return named[:, :features]


def check_votes(votes: Votes, vote: int, clients: int) -> None:
    """Raise Refused for votes that this many clients cannot have cast."""
    if np.any(votes < 0) or np.any(votes > clients) or np.any(votes.sum(axis=1) > vote * clients):
        raise Refused(f"the votes exceed what {clients} clients with {vote} votes per leaf can cast")
