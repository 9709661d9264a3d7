"""Measure the size of a sketch relative to its texts, and its recall: with noise, by rows and columns.

    python -m benchmarks.sketch_size [--check] [cranfield nfcorpus ...]

One row per size of the table: bytes of the owner's file, relative to those of the texts, and bytes without compression;
the share of the best 150 documents that words of queries find (ties count), and the error of their counts. --check
fails if the default size gives a file that is larger than `MOST` times its texts.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from fedrank.data.collection import load_collection
from fedrank.silo.files import sketch_collection
from fedrank.silo.rtk import cover_rate
from fedrank.silo.sketch import Sketcher

SIZES = ((30, 200), (15, 200), (10, 200), (10, 100), (10, 50), (5, 100))  # rows and columns
USUAL, MOST = (10, 100), 3.0
WORDS, K = 150, 150
KEY = bytes(range(32))


def measure(name: str, depth: int, width: int, noise: float) -> float:
    """Print a row; return the size of the file relative to its texts."""
    collection = load_collection(name)
    documents = collection.documents
    text = sum(len(part.encode()) for part in (*documents.title, *documents.text))
    sketcher = Sketcher(noise=noise, width=width, depth=depth)
    counts = sketcher.term_counts(documents.text)
    asked = {word for query in collection.queries for word in sketcher.tokeniser(query)}
    words = sorted(asked & set(counts.vocabulary))[:WORDS]
    held = counts.count_matrix(words)
    with TemporaryDirectory() as folder:
        file = sketch_collection(documents, KEY, sketcher, Path(folder) / "a.sketch")
        size = file.path.stat().st_size
        top = file.fields["body"]
        plain = sum(each.documents.nbytes + each.values.nbytes for each in file.fields.values())
        cells, signs = sketcher.locate(words, file.hashing(KEY))
        cover, errors = [], []
        for place, _ in enumerate(words):
            rows, found = top.query(cells[place], signs[place])
            cover.append(cover_rate(rows, held[:, place], K))
            errors += ((found - held[rows, place]) ** 2).tolist()
    print(
        f"{name:12} {depth:4} x {width:<4} {size / 1e6:8.1f} MB {size / text:6.1f} x text {plain / 1e6:8.1f} MB plain"
        f"   cover {np.mean(cover):.3f}   error {np.sqrt(np.mean(errors)):.1f}",
        flush=True,
    )
    return size / text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("collections", nargs="*", default=["cranfield", "nfcorpus"])
    parser.add_argument("--noise", type=float, default=1.0)
    parser.add_argument("--check", action="store_true")
    asked = parser.parse_args()
    wrong = False
    for name in asked.collections:
        for depth, width in (USUAL,) if asked.check else SIZES:
            times = measure(name, depth, width, asked.noise)
            wrong |= asked.check and times > MOST
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
