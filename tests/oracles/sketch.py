"""Sketches and reverse top-K the slow, obvious way: whole numbers, dictionaries and sorting."""

from __future__ import annotations

import hashlib
import statistics

PRIME = 2**61 - 1


def line(slope: int, x: int, start: int) -> int:
    return (slope * x + start) % PRIME


def locate(key: bytes, term: str, depth: int, width: int) -> tuple[list[int], list[int]]:
    """Cells and signs of a term, from the definition: keyed BLAKE2b, then lines modulo a prime."""

    def number(text: str, purpose: bytes) -> int:
        made = hashlib.blake2b(text.encode(), digest_size=16, key=key, person=purpose)
        return int.from_bytes(made.digest(), "little")

    x = number(term, b"fedrank term") % PRIME
    cells, signs = [], []
    for row in range(depth):
        drawn = [number(f"{row} {i}", b"fedrank lines") for i in range(4)]
        cells.append(line(drawn[0] % (PRIME - 1) + 1, x, drawn[1] % PRIME) % width)
        signs.append(1 if line(drawn[2] % (PRIME - 1) + 1, x, drawn[3] % PRIME) % 2 else -1)
    return cells, signs


def sketch(words: list[str], locate: dict[str, tuple[list[int], list[int]]], depth: int, width: int) -> list[list[int]]:
    """One document: every word adds its sign to one cell of each row."""
    table = [[0] * width for _ in range(depth)]
    for word in words:
        for row, (cell, sign) in enumerate(zip(*locate[word], strict=True)):
            table[row][cell] += sign
    return table


def cell_ends(column: dict[int, int], keep: str, capacity: int) -> list[list[tuple[int, int]]]:
    """The best (document, value) of one cell {document: value}, for each of its ends; ties go to the smaller row."""
    rules = {"ends": [lambda v: v, lambda v: -v], "largest": [lambda v: v], "magnitude": [abs]}[keep]
    return [sorted(column.items(), key=lambda item: (-rule(item[1]), item[0]))[:capacity] for rule in rules]


def query(
    tables: dict[int, list[list[int]]],
    cells: list[int],
    signs: list[int],
    *,
    keep: str,
    missing: str,
    capacity: int,
    fewest: float,
    k: int,
    smallest: bool = False,
) -> list[tuple[int, float]]:
    """The best k (document, estimate) above 0, from sketches {document: table} whose cells are cut to their ends."""
    rows = []
    for row, (cell, sign) in enumerate(zip(cells, signs, strict=True)):
        column = {d: table[row][cell] for d, table in tables.items()}
        ends = cell_ends(column, keep, capacity)
        kept = dict(ends[-1] if sign < 0 else ends[0])
        left_out = [sign * value for d, value in column.items() if d not in kept]
        # The best of those that are missing, seen from the end that is read.
        reading = min if keep == "largest" and sign < 0 else max
        rows.append(({d: sign * v for d, v in kept.items()}, reading(left_out, default=0)))
    answers = []
    for d in tables:
        found = [kept[d] for kept, _ in rows if d in kept]
        if len(found) < max(fewest, 1):
            continue
        if missing == "zero":
            found += [0] * (len(rows) - len(found))
        elif missing == "threshold":
            found += [bound for kept, bound in rows if d not in kept]
        estimate = min(found) if smallest else statistics.median(found)
        if estimate > 0:
            answers.append((d, estimate))
    return sorted(answers, key=lambda item: (-item[1], item[0]))[:k]
