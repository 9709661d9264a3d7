"""What clients release of a tree: votes, histograms, or noised sums, each as bytes and as numbers that add up.

A `Release` has both ends. Without secure aggregation a client encodes what it found, and the server decodes and checks
it for each client. Under secure aggregation a client masks whole numbers, and the server checks their sum.

A histogram travels without its empty bins:

    widths, a bit for every bin, then of every bin that holds rows: gradient, hessian, rows

All are whole numbers in the fewest bytes that hold them, so NaN cannot occur. A receiver knows the bins and how many
rows there can be. It sees that every feature of one client has the same rows, gradients and hessians in sum; whether
they are true it cannot see.
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
MAX_ROWS = 2**40  # that clients may announce
GRADIENT, HESSIAN, ROWS = range(3)
NAMES = ("gradients", "hessians", "rows")


class Release(Protocol[Own, Total]):
    """One kind of answer about a tree, at the client and at the server."""

    @property
    def kind(self) -> str:
        """What the message is called."""

    @property
    def number(self) -> int:
        """Of the message within a tree."""

    @property
    def size(self) -> int:
        """How many numbers it is under secure aggregation."""

    @property
    def parts(self) -> Mapping[str, Part]:
        """What the message has without secure aggregation."""

    def numbers(self, found: Own) -> Integers:
        """[size]: what a client masks."""

    def encode(self, found: Own) -> dict[str, Value]:
        """What a client sends without masks."""

    def decode(self, parts: Mapping[str, Any]) -> Total:
        """What one client sent; `Refused` where it does not fit."""

    def total(self, numbers: Integers) -> Total:
        """The sum that secure aggregation opens; `Refused` where it cannot be one."""

    def add(self, found: Sequence[Total]) -> Total:
        """The sum of what clients sent."""


@dataclass(frozen=True)
class Layout:
    """Which bins a histogram has, one after the other."""

    edges: Edges
    features: NDArray[np.int64]  # those by which a tree may split
    shift: int  # bits of the number of rows, in a histogram as it is counted

    @cached_property
    def places(self) -> Integers:
        """[bins]: where each stands in a histogram as it is counted."""
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
        """Bins of the feature with the most."""
        return int(self.edges.counts[self.features].max(initial=0)) + 1

    @property
    def most_bytes(self) -> int:
        """Of an encoded histogram."""
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
        """What `spread` takes apart."""
        from fedrank.kernels.grow import BINS

        words = -(-self.edges.features // 8)
        packed = np.zeros((words * 8 * BINS, 2), np.int64)
        packed[self.places, 0] = values[GRADIENT]
        packed[self.places, 1] = (values[HESSIAN] << self.shift) + values[ROWS]
        return packed.reshape(words, 8 * BINS, 2)


def encode(packed: Packed, layout: Layout) -> bytes:
    """A histogram in few bytes."""
    values = layout.spread(packed)
    filled = values[ROWS] > 0
    columns = [_narrow(column[filled]) for column in values]
    widths = sum(WIDTHS.index(column.dtype.str.replace("|", "<")) << 2 * i for i, column in enumerate(columns))
    return bytes([widths]) + np.packbits(filled).tobytes() + b"".join(column.tobytes() for column in columns)


def decode(content: bytes, layout: Layout, rows: int) -> Packed:
    """The histogram of a leaf in which one client has so many rows; refused where it cannot be one."""
    start = 1 + -(-layout.bins // 8)
    if len(content) < start or content[0] >> 6:
        raise Refused(f"a histogram of {layout.bins} bins takes more than {len(content)} bytes; it was cut short")
    filled = np.unpackbits(np.frombuffer(content[1:start], np.uint8)).astype(np.bool_)
    if filled[layout.bins :].any():
        raise Refused(f"a histogram has more than the {layout.bins} bins that were agreed on")
    filled = filled[: layout.bins]
    values, at = np.zeros((3, layout.bins), np.int64), start
    for i in range(3):
        kind = np.dtype(WIDTHS[content[0] >> 2 * i & 3])
        size = int(filled.sum()) * kind.itemsize
        if len(content) < at + size:
            raise Refused(f"a histogram ends within its {NAMES[i]}; it was cut short")
        values[i, filled] = np.frombuffer(content[at : at + size], kind)
        at += size
    if at != len(content):
        raise Refused(f"{len(content) - at} bytes follow a histogram of {layout.bins} bins")
    check_histogram(values, layout, rows, filled)
    return layout.pack(values)


def check_histogram(values: Integers, layout: Layout, rows: int, filled: NDArray[np.bool_] | None = None) -> None:
    """Refuse what cannot be the histogram of so many rows."""
    if np.any(values[ROWS] < 0) or (filled is not None and np.any(values[ROWS, filled] < 1)):
        raise Refused("a histogram has bins with a negative number of rows, or bins without rows among those with some")
    if np.any(values[HESSIAN] < 0):
        raise Refused("a histogram has negative hessians, which no row has")
    # Each feature counts the same rows once. Sums of 64 clients, over all bins of a feature, stay below 2^63.
    limit = 2**57 // layout.widest
    # The least number of 64 bits is its own size, and below every limit.
    wild = (values[GRADIENT] >= limit) | (values[GRADIENT] <= -limit)
    if np.any(wild) or np.any(values[HESSIAN] >= limit >> layout.shift):
        raise Refused("a histogram has gradients or hessians that no rows add up to")
    sums = np.add.reduceat(values, layout.starts, axis=1)
    if np.any(sums[ROWS] != rows):
        found = int(sums[ROWS][np.argmax(sums[ROWS] != rows)])
        raise Refused(f"a histogram has {found:,} rows where {rows:,} were announced")
    if np.any(sums != sums[:, :1]):
        raise Refused("a histogram has other sums in one feature than in another; all count the same rows")


def _narrow(values: Integers) -> NDArray[np.signedinteger]:
    """The same in the fewest bytes that hold each."""
    largest = max(int(values.max(initial=0)), -int(values.min(initial=0)))
    return values.astype(next(kind for kind in WIDTHS if largest <= np.iinfo(kind).max))


@dataclass(frozen=True)
class HistogramRelease:
    """Histograms of leaves; a client adds how many of its rows are in each."""

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
                raise Refused(f"the sum has {rows:,} rows, and {self.rows:,} were announced")
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
    features: int  # by which the tree may split
    vote: int  # for how many features of a leaf a client votes
    clients: int = 1  # that vote

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
    clients: int  # that add up

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
            raise Refused("it sent sums that no rows and no noise add up to")
        return self.total(values)

    def total(self, numbers: Integers) -> Integers:
        return numbers.reshape(self.shape)

    def add(self, found: Sequence[Integers]) -> Integers:
        return np.asarray(np.sum(found, axis=0))


def check_number(parts: Mapping[str, Any], number: int) -> None:
    """Refuse an answer to another message."""
    if parts["number"][0] != number:
        raise Refused(f"message {parts['number'][0]} of a tree came, expected was {number}: replayed, or too early")


def encode_named(named: Ballots) -> bytes:
    """A bit for every feature, leaf after leaf."""
    return np.packbits(named, axis=1).tobytes()


def decode_named(content: bytes, leaves: int, features: int, most: int) -> Ballots:
    """What was named for each leaf, at most so many features in all; refused where it does not fit."""
    wide = -(-features // 8)
    if len(content) != leaves * wide:
        raise Refused(f"{leaves} leaves of {features} features take {leaves * wide} bytes, and {len(content)} came")
    named = np.unpackbits(np.frombuffer(content, np.uint8).reshape(leaves, wide), axis=1).astype(np.bool_)
    if named[:, features:].any():
        raise Refused(f"a feature is named beyond the {features} by which the tree may split")
    if named.sum() > most:
        raise Refused(f"{int(named.sum())} features are named, and {most} may be")
    return named[:, :features]


def check_votes(votes: Votes, vote: int, clients: int) -> None:
    """Refuse what so many clients cannot have voted together."""
    if np.any(votes < 0) or np.any(votes > clients) or np.any(votes.sum(axis=1) > vote * clients):
        raise Refused(f"{clients} clients with {vote} votes each for a leaf cannot have voted like that")
