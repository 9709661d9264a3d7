"""Text collections: documents, queries and relevance judgements, from a folder in the BEIR layout."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedrank.data.documents import Documents, read_documents
from fedrank.data.lines import bounded_lines
from fedrank.types import Grades, Offsets

SYNTHETIC = "synthetic-silos"  # the built-in collection
_PACKED = ("", ".xz", ".gz")
_TOP_GRADE = 127
_MAX_FOLDERS = 5_000  # limit in case FEDRANK_DATA is set to the wrong folder
_WHOLE_NUMBER = re.compile(rb"[+-]?[0-9]+")


@dataclass(frozen=True)
class Collection:
    """Documents, queries and relevance judgements; query q was judged on the documents
    judged[offsets[q] : offsets[q + 1]]."""

    name: str
    documents: Documents
    query_ids: list[str]
    queries: list[str]  # their texts
    offsets: Offsets  # [queries + 1]
    judged: NDArray[np.int64]  # indices of documents
    grades: Grades  # relevance labels of these pairs; all other pairs count as 0
    unknown: int = 0  # judgements left out because their query or document is not in the collection

    @staticmethod
    def of(
        name: str,
        documents: Documents,
        query_ids: Sequence[str],
        queries: Sequence[str],
        grades: Sequence[Mapping[int, int]],  # per query: index of a document -> relevance label
        unknown: int = 0,
    ) -> Collection:
        """Build a collection from one table of relevance labels per query."""
        if not len(query_ids) == len(queries) == len(grades):
            raise ValueError(
                f"{len(query_ids)} ids, {len(queries)} texts and "
                f"{len(grades)} tables of relevance labels were given, "  # prose: ok
                "but each query needs all three; use an empty table for a query without judgements"
            )
        rows = [sorted(table) for table in grades]
        return Collection(
            name,
            documents,
            list(query_ids),
            list(queries),
            np.cumsum([0, *map(len, rows)], dtype=np.int64),
            np.array([row for one in rows for row in one], dtype=np.int64),
            np.array([table[row] for table, one in zip(grades, rows, strict=True) for row in one], dtype=np.int8),
            unknown,
        )

    @property
    def top_grade(self) -> int:
        return int(self.grades.max(initial=0))

    def judgements(self, query: int) -> tuple[NDArray[np.int64], Grades]:
        """Return the judged documents of a query and their relevance labels."""
        here = slice(int(self.offsets[query]), int(self.offsets[query + 1]))
        return self.judged[here], self.grades[here]


def load_collection(name: str) -> Collection:
    """Load a text collection: documents, queries and relevance judgements.

    `name` is a folder in the BEIR layout, a folder below FEDRANK_DATA, or "synthetic-silos", which is built in.

    >>> import fedrank as fr
    >>> collection = fr.load_collection("synthetic-silos")
    >>> len(collection.documents), len(collection.queries)
    (1200, 240)
    >>> documents, grades = collection.judgements(0)
    >>> print(collection.queries[0], documents[:3], grades[:3])
    bosi tapopi zareba [18 38 58] [2 2 2]
    """
    folder = find_collection(name)
    if folder is None:
        from fedrank.data.synthetic_text import synthetic_collection

        return synthetic_collection()
    return read_collection(folder)


def read_collection(folder: str | os.PathLike[str]) -> Collection:
    """Read `corpus.jsonl`, `queries.jsonl` and every `qrels*.tsv` of a folder; any of them may be `.gz` or `.xz`.

    A line of qrels is query, document, label; a first line without a numeric label is a header. A pair that is judged
    twice gets the higher label, and labels below 0 (spam, in some sets) count as 0.
    """
    folder = Path(folder)
    documents = read_documents(_file(folder, "corpus.jsonl"))
    asked = read_documents(_file(folder, "queries.jsonl"))  # same layout: an id and a text
    row_of = {key: row for row, key in enumerate(documents.ids)}
    query_of = {key: row for row, key in enumerate(asked.ids)}
    grades: list[dict[int, int]] = [{} for _ in asked.ids]
    unknown = 0
    for path in _judgements(folder):
        for index, (number, line) in enumerate(bounded_lines(path)):
            if index == 0 and not _WHOLE_NUMBER.fullmatch((line or b"").rpartition(b"\t")[2].strip()):
                continue  # header
            query, document, grade = _judgement(line or b"", path, number)
            if query not in query_of or document not in row_of:
                unknown += 1
                continue
            table, row = grades[query_of[query]], row_of[document]
            table[row] = max(table.get(row, 0), grade)
    return Collection.of(folder.name, documents, asked.ids, asked.text, grades, unknown)


def collection_files(name: str) -> dict[str, Path]:
    """Return the files that a collection is read from, by name; the built-in collection has none."""
    folder = find_collection(name)
    if folder is None:
        return {}
    paths = [_file(folder, "corpus.jsonl"), _file(folder, "queries.jsonl"), *_judgements(folder)]
    return {f"{name}/{path.name}": path for path in paths}


def _judgement(line: bytes, path: Path, number: int) -> tuple[str, str, int]:
    cells = line.decode("utf-8", errors="replace").split("\t")
    try:
        if len(cells) != 3:
            raise ValueError
        grade = int(cells[2])
        if grade > _TOP_GRADE:
            raise ValueError
    except ValueError:
        raise ValueError(
            f"{path}, line {number}: {cells!r} is not a judgement; write query, document and a relevance label from 0 "
            f"to {_TOP_GRADE}, separated by tabs"
        ) from None
    return cells[0].strip(), cells[1].strip(), max(grade, 0)


def _file(folder: Path, name: str) -> Path:
    for ending in _PACKED:
        if (folder / (name + ending)).is_file():
            return folder / (name + ending)
    raise FileNotFoundError(f"{folder} contains no {name} (.xz, .gz); a text collection needs this file")


def _judgements(folder: Path) -> list[Path]:
    found = sorted(path for ending in _PACKED for path in folder.glob(f"qrels*.tsv{ending}"))
    if not found:
        raise FileNotFoundError(f"{folder} contains no qrels*.tsv (.xz, .gz); add a file of relevance judgements")
    return found


def collections() -> list[tuple[str, Path | None]]:
    """Return the names of available text collections with their folders; the built-in collection has none."""
    found: list[tuple[str, Path | None]] = [(SYNTHETIC, None)]
    root = os.environ.get("FEDRANK_DATA")
    for pattern in ("*", "*/*") if root else ():  # the levels that `find_collection` searches
        folders = itertools.islice(Path(root or "").glob(pattern), _MAX_FOLDERS)
        found += [(folder.name, folder) for folder in sorted(folders) if _is_collection(folder)]
    return found


def _is_collection(folder: Path) -> bool:
    try:
        _file(folder, "corpus.jsonl"), _file(folder, "queries.jsonl"), _judgements(folder)
    except OSError:
        return False
    return True


def find_collection(name: str) -> Path | None:
    """Return the folder of a collection; None for the built-in collection."""
    if name == SYNTHETIC:
        return None
    if Path(name).is_dir():
        return Path(name)
    root = os.environ.get("FEDRANK_DATA")
    if root and not Path(name).is_absolute():
        for pattern in (name, f"*/{name}"):
            for path in sorted(Path(root).glob(pattern)):
                if path.is_dir():
                    return path
    where = f"below FEDRANK_DATA = {root}" if root else "and FEDRANK_DATA is not set"
    raise FileNotFoundError(
        f"no text collection {name!r} {where}; give a folder with corpus.jsonl, queries.jsonl and qrels.tsv, "
        f'or "{SYNTHETIC}"'
    )
