"""`RankingData`: queries with their candidate documents, as flat arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank.display import DisplayMixin, count_of
from fedrank.types import Features, Grades, Offsets


@dataclass(frozen=True, repr=False)
class RankingData(DisplayMixin):
    """Queries with their candidate documents, features and relevance labels.

    The documents of query q are rows offsets[q] to offsets[q + 1] - 1 of the features and labels. Arrays may
    be memory-mapped.

    >>> import numpy as np
    >>> import fedrank as fr
    >>> data = fr.RankingData(
    ...     features=np.array([[0.9, 0.1], [0.2, 0.8], [0.5, 0.5]], dtype=np.float32),
    ...     grades=np.array([2, 0, 1], dtype=np.int8),
    ...     offsets=np.array([0, 2, 3]),
    ...     query_ids=np.array(["cats", "dogs"]),
    ... )
    >>> data.select([0])
    <RankingData; queries: 1; documents: 2; features: 2; labels: 0 to 2; normalised: none>
    """

    features: Features  # [documents, features]
    grades: Grades  # [documents]: relevance labels
    offsets: Offsets  # [queries + 1]
    query_ids: NDArray[np.str_]  # [queries]
    name: str = ""
    top_grade: int = -1  # highest label of the scale, which a sample may not contain; -1: highest in the data
    feature_names: tuple[str, ...] = ()
    normalised: str = "none"  # normalisation of the features: "none", "query" or "global"
    given: str = ""  # baseline ranking: "file" (order of the file), "feature 7"; "": unknown
    # Of a search log, whose queries are ordered by time; otherwise empty.
    who: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))  # [queries]: user
    when: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))  # [queries]: seconds since 1970
    # Of shown lists; otherwise empty.
    # [documents]: from 0, over pages
    position: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    # Of lists with known sampling: scores, and temperature and keep probability; otherwise empty, and None.
    drawn: NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32))  # [documents]
    draw: tuple[float, float] | None = None
    # [documents]: clicks corrected for position bias, NaN where unknown; otherwise empty.
    relevance: NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32))
    # Labels by intent, for queries with several intents; otherwise empty. Their union may differ from the labels.
    intents: NDArray[np.int8] = field(default_factory=lambda: np.empty((0, 0), np.int8))  # [intents, documents]
    # [2, features]: the values that "global" normalisation mapped to 0 and 1; None: not normalised so, or unknown
    ranges: NDArray[np.float32] | None = None

    def __post_init__(self) -> None:
        documents = len(self.features)
        if self.features.ndim != 2 or self.features.dtype != np.float32:
            raise ValueError(
                f"features have type {self.features.dtype} and shape {self.features.shape}; use float32 [documents, "
                "features]"
            )
        if len(self.grades) != documents or self.offsets[0] != 0 or self.offsets[-1] != documents:
            raise ValueError(
                f"{documents} rows of features, "
                f"{len(self.grades)} relevance labels and offsets "  # prose: ok
                f"{self.offsets[0]} .. {self.offsets[-1]} must describe the same documents"
            )
        if len(self.query_ids) != self.queries or np.any(np.diff(self.offsets) < 1):
            raise ValueError("every query must have an id and at least one document")
        if len(self.who) != len(self.when) or len(self.who) not in (0, self.queries):
            raise ValueError(
                f"{len(self.who)} users and {len(self.when)} times for {self.queries} queries; give one per query, or "
                "none"
            )
        for name in ("position", "relevance", "drawn"):
            if (count := len(getattr(self, name))) not in (0, documents):
                raise ValueError(f"{count} values of {name} for {documents} documents; give one per document, or none")
        if (len(self.drawn) > 0) != (self.draw is not None):
            raise ValueError(f"{len(self.drawn)} values of drawn with draw = {self.draw}; give both, or neither")
        if len(self.intents) and self.intents.shape[1] != documents:
            raise ValueError(
                f"labels by intent of {self.intents.shape[1]} documents, but there are {documents}; give one per "
                "document"
            )
        if self.top_grade < 0:
            object.__setattr__(self, "top_grade", int(self.grades.max(initial=0)))

    @property
    def queries(self) -> int:
        return len(self.offsets) - 1

    @property
    def documents(self) -> int:
        return len(self.grades)

    def _display(self) -> tuple[str, dict[str, str]]:
        return self.name, {
            "queries": f"{self.queries:,}",
            "documents": f"{self.documents:,}",
            "features": f"{self.features.shape[1]:,}",
            "labels": f"0 to {self.top_grade}",
            "normalised": self.normalised,
            "users": f"{len(np.unique(self.who)):,}" if len(self.who) else "",
        }

    @property
    def extent(self) -> str:
        """The size of the data in words."""
        return f"{count_of(self.queries, 'query', 'queries')}, {count_of(self.documents, 'document')}"

    @cached_property
    def longest(self) -> int:
        """The number of documents of the longest query."""
        return int(np.diff(self.offsets).max())

    @cached_property
    def labels(self) -> NDArray[np.float32]:
        """[documents]: corrected clicks if available, otherwise relevance labels."""
        return self.relevance if len(self.relevance) else self.grades.astype(np.float32)

    def select(self, queries: NDArray[np.integer] | Sequence[int]) -> RankingData:
        """Return some of the queries, in the given order."""
        queries = np.asarray(queries, dtype=np.int64)
        lengths = np.diff(self.offsets)[queries]
        offsets = np.concatenate(([0], np.cumsum(lengths)))
        rows = np.repeat(self.offsets[queries] - offsets[:-1], lengths) + np.arange(offsets[-1])
        by_query, by_document = ("query_ids", "who", "when"), ("features", "grades", "position", "relevance", "drawn")
        chosen = dict.fromkeys(by_query, queries) | dict.fromkeys(by_document, rows)
        arrays = {name: getattr(self, name)[which] for name, which in chosen.items() if len(getattr(self, name))}
        intents = self.intents[:, rows] if len(self.intents) else self.intents
        return replace(self, offsets=offsets, intents=intents, **arrays)

    @staticmethod
    def join(parts: Sequence[RankingData]) -> RankingData:
        """Concatenate several sets, which must agree in features and normalisation."""
        if not parts:
            raise ValueError("parts is empty; give at least one data set")
        widths = {part.features.shape[1] for part in parts}
        if len(widths) > 1 or len({part.normalised for part in parts}) > 1:
            raise ValueError(
                f"parts differ in their number of features {sorted(widths)} or in normalisation; make them equal"
            )
        if len(parts) == 1:
            return parts[0]
        starts = np.cumsum([0] + [part.documents for part in parts[:-1]])
        ranges = parts[0].ranges
        if ranges is None or any(part.ranges is None or not np.array_equal(part.ranges, ranges) for part in parts):
            ranges = None
        intents = np.empty((0, 0), np.int8)
        if len({len(part.intents) for part in parts}) == 1 and len(parts[0].intents):
            intents = np.concatenate([part.intents for part in parts], axis=1)

        def joined(name: str) -> NDArray[Any]:
            """[documents]: values of all parts; none if a part has none."""
            values: list[NDArray[Any]] = [getattr(part, name) for part in parts]
            complete = all(len(own) == part.documents for own, part in zip(values, parts, strict=True))
            return np.concatenate(values) if complete else values[0][:0]

        return replace(
            parts[0],
            features=joined("features"),
            grades=joined("grades"),
            offsets=np.concatenate(
                [[0]] + [part.offsets[1:] + start for part, start in zip(parts, starts, strict=True)]
            ),
            query_ids=np.concatenate([part.query_ids for part in parts]),
            top_grade=max(part.top_grade for part in parts),
            ranges=ranges,
            who=np.empty(0, np.int32),  # parts of different logs share neither users nor an order
            when=np.empty(0, np.int64),
            position=joined("position"),
            relevance=joined("relevance"),
            drawn=np.empty(0, np.float32),  # parts may be sampled in different ways
            draw=None,
            intents=intents,
        )
