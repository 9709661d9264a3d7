"""Recall and cost of queries to sketches: figure 4 of CS-F-LTR."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank.silo.rtk import TopKRule, build, cover_rate, naive
from fedrank.silo.sketch import Sketcher, Sketches
from fedrank.silo.terms import TermCounts

MAX_TERMS = 200  # that are asked
_BLOCK = 512  # documents


@dataclass(frozen=True)
class SketchCosts:
    """Of one field of one silo: by the few best documents of every cell, and by the sketches of all (NAIVE)."""

    documents: int
    terms: int  # that were asked
    k: int
    cover: float  # share of the true best k that is found, mean over terms
    naive_cover: float
    milliseconds: float  # of a question, median over terms
    naive_milliseconds: float
    megabytes: float
    naive_megabytes: float
    seconds: float  # of CPU to build it from sketches


def measure_sketches(
    counts: TermCounts, queried: Sequence[str], sketcher: Sketcher, rule: TopKRule, key: bytes
) -> SketchCosts:
    """Query terms that some document contains, at most `MAX_TERMS`."""
    terms = [term for term in dict.fromkeys(queried) if term in counts.columns and counts.holders[counts.columns[term]]]
    terms = terms[:MAX_TERMS]
    if not terms:
        raise ValueError("no document contains any of these terms; give others")
    hashing = sketcher.hashing(key)
    sketches = sketcher.sketch(counts, hashing)
    build(_blocks(sketches[:2]), rule, sketcher.kind, sketcher.depth, sketcher.width)  # compiled before it is timed
    began = time.process_time()
    built = build(_blocks(sketches), rule, sketcher.kind, sketcher.depth, sketcher.width)
    seconds = time.process_time() - began
    truth = counts.count_matrix(terms).T
    term_cells = list(zip(*sketcher.locate(terms, hashing), strict=True))

    def ask(question: Callable[..., tuple[NDArray[Any], Any]]) -> tuple[float, float]:
        question(*term_cells[0])
        times, covers = [], []
        for (cells, signs), true_counts in zip(term_cells, truth, strict=True):
            start = time.perf_counter()
            found, _ = question(cells, signs)
            times.append(time.perf_counter() - start)
            covers.append(cover_rate(found, true_counts, rule.k))
        return float(np.mean(covers)), 1e3 * float(np.median(times))

    cover, milliseconds = ask(built.query)
    naive_cover, slow = ask(lambda cells, signs: naive(sketches, cells, signs, rule.k, sketcher.kind))
    sizes = built.bytes / 1e6, sketches.nbytes / 1e6
    return SketchCosts(
        len(counts), len(terms), rule.k, cover, naive_cover, milliseconds, slow, sizes[0], sizes[1], seconds
    )


def _blocks(sketches: Sketches) -> Iterator[Sketches]:
    for first in range(0, len(sketches), _BLOCK):
        yield sketches[first : first + _BLOCK]
