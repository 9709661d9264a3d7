"""Memory of used passages: what was used for the same or a similar query is ranked higher, by a fixed rule."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedrank.search.rerank.passages import PassageStatistics, Table, likeness

WEIGHT = 10.0
SIMILAR = 0.5  # smallest likeness of two queries that counts
MAX_QUERIES = 20_000  # the most recent distinct queries
MAX_VOTES = 300_000  # of these queries
MAX_OF_PERSON = 3.0  # votes of a known person on a passage for a query; more are scaled down
CONSISTENT = 0.2  # a reader who uses passages again this much more often than others is trusted fully
PRIOR = 20  # passages, as if shown before the first ones
AGAIN, OTHER = 0.6, 0.2  # shares of these that were used: passages used before, and others


# By version of the reader and person: uses of a passage for a query, and times it was shown without being used.
_Votes = dict[tuple[str | None, bytes | None], list[float]]


@dataclass
class _Known:
    """A query, and the votes on each passage."""

    stems: NDArray[np.int32]
    passages: dict[bytes, _Votes] = field(default_factory=dict)


class UseMemory:
    """Uses of passages by query, in memory; the store has the feedback from which it is rebuilt."""

    def __init__(self) -> None:
        self._known: dict[bytes, _Known] = {}
        self._with: defaultdict[int, set[bytes]] = defaultdict(set)
        self._votes = 0

    def __len__(self) -> int:
        return len(self._known)

    def add(
        self,
        stems: NDArray[np.int32],
        passage: bytes,
        used: float,
        unused: float,
        reader: str | None = None,
        person: bytes | None = None,
    ) -> None:
        """Count a passage as used or unused for a query; negative numbers take a count back."""
        key = stems.tobytes()
        known = self._known.pop(key, None)
        if known is None:
            known = _Known(stems)
            for stem in stems.tolist():
                self._with[stem].add(key)
        self._known[key] = known  # the most recent is last
        votes = known.passages.setdefault(passage, {})
        self._votes += (reader, person) not in votes
        vote = votes.setdefault((reader, person), [0.0, 0.0])
        vote[:] = max(vote[0] + used, 0.0), max(vote[1] + unused, 0.0)
        while len(self._known) > MAX_QUERIES or (self._votes > MAX_VOTES and len(self._known) > 1):
            oldest = next(iter(self._known))
            dropped = self._known.pop(oldest)
            self._votes -= sum(map(len, dropped.passages.values()))
            for stem in dropped.stems.tolist():
                self._with[stem].discard(oldest)
                if not self._with[stem]:
                    del self._with[stem]

    def lift(
        self,
        stems: NDArray[np.int32],
        passages: Sequence[bytes],
        background: PassageStatistics,
        trust: Mapping[str | None, float] | None = None,
    ) -> Table:
        """[passages]: 10 · c / (c + u + 1), with c uses and u non-uses.

        Each counts times the likeness of its query to this one, and times the trust in its reader (1 if not given).
        """
        counts = np.zeros((len(passages), 2))
        place = {digest: index for index, digest in enumerate(passages)}
        idf = background.idf(stems)
        shared: defaultdict[bytes, float] = defaultdict(float)
        for stem, weight in zip(stems.tolist(), idf.tolist(), strict=True):
            for key in self._with.get(stem, ()):
                shared[key] += weight
        least = SIMILAR * float(idf.sum()) * (1 - 1e-9)  # with less in common, they cannot be similar enough
        keys = [key for key, weight in shared.items() if weight >= least]
        if not keys:
            return counts[:, 0]
        alike = likeness(stems, [self._known[key].stems for key in keys], background)
        for index in np.flatnonzero(alike >= SIMILAR).tolist():
            known = self._known[keys[index]].passages
            for digest in place.keys() & known.keys():
                counts[place[digest]] += alike[index] * _counted(known[digest], trust or {})
        lift: Table = WEIGHT * counts[:, 0] / (counts.sum(axis=1) + 1.0)
        return lift


def _counted(votes: _Votes, trust: Mapping[str | None, float]) -> Table:
    """Uses and non-uses, weighted by the trust in their reader and with at most MAX_OF_PERSON of each person."""
    counts = [0.0, 0.0]
    for (reader, person), (used, unused) in votes.items():  # of a popular query these are thousands
        weight = trust.get(reader, 1.0)
        if person is not None and used + unused > MAX_OF_PERSON:
            weight *= MAX_OF_PERSON / (used + unused)
        counts[0] += weight * used
        counts[1] += weight * unused
    return np.array(counts)


@dataclass
class ReaderRecord:
    """How often a version of the reader used passages that were used before for such a query, and other ones."""

    again: list[int] = field(default_factory=lambda: [0, 0])  # used, shown
    other: list[int] = field(default_factory=lambda: [0, 0])

    @property
    def trust(self) -> float:
        """From 0 to 1: how much its uses count in memory.

        A reader who uses passages at random does not use the same ones again, so remembering them would mislead.
        A new version is trusted until its own record says otherwise.
        """
        again, other = (
            (used + share * PRIOR) / (shown + PRIOR)
            for (used, shown), share in ((self.again, AGAIN), (self.other, OTHER))
        )
        return min(max((again - other) / CONSISTENT, 0.0), 1.0)
