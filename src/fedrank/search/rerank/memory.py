"""Memory of used passages: what was used for the same or a similar query is ranked higher, by a fixed rule."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedrank.search.rerank.passages import PassageStatistics, Table, likeness

WEIGHT = 10.0
SIMILAR = 0.5  # smallest likeness of two queries that counts
MAX_QUERIES = 20_000  # the most recent distinct queries


@dataclass
class _Known:
    """A query, and how often each passage was used and shown without being used."""

    stems: NDArray[np.int32]
    passages: dict[bytes, list[float]] = field(default_factory=dict)  # [used, unused]


class UseMemory:
    """Uses of passages by query, in memory; the store has the feedback from which it is rebuilt."""

    def __init__(self) -> None:
        self._known: dict[bytes, _Known] = {}
        self._with: defaultdict[int, set[bytes]] = defaultdict(set)

    def __len__(self) -> int:
        return len(self._known)

    def add(self, stems: NDArray[np.int32], passage: bytes, used: float, unused: float) -> None:
        """Count a passage as used or unused for a query; negative numbers take a count back."""
        key = stems.tobytes()
        known = self._known.pop(key, None)
        if known is None:
            known = _Known(stems)
            for stem in stems.tolist():
                self._with[stem].add(key)
        self._known[key] = known  # the most recent is last
        counts = known.passages.setdefault(passage, [0.0, 0.0])
        counts[0], counts[1] = max(counts[0] + used, 0.0), max(counts[1] + unused, 0.0)
        if len(self._known) > MAX_QUERIES:
            oldest = next(iter(self._known))
            for stem in self._known.pop(oldest).stems.tolist():
                self._with[stem].discard(oldest)

    def lift(self, stems: NDArray[np.int32], passages: Sequence[bytes], background: PassageStatistics) -> Table:
        """[passages]: 10 · c / (c + u + 1), with c uses and u non-uses, each times the likeness of its query."""
        counts = np.zeros((len(passages), 2))
        place = {digest: index for index, digest in enumerate(passages)}
        shared: defaultdict[bytes, int] = defaultdict(int)
        for stem in stems.tolist():
            for key in self._with.get(stem, ()):
                shared[key] += 1
        for key in shared:
            known = self._known[key]
            like = likeness(stems, known.stems, background.idf)
            if like < SIMILAR:
                continue
            for digest in place.keys() & known.passages.keys():
                counts[place[digest]] += like * np.array(known.passages[digest])
        lift: Table = WEIGHT * counts[:, 0] / (counts.sum(axis=1) + 1.0)
        return lift
