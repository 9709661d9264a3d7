"""Read logs and documents of the package ir_datasets, with names such as `ir_datasets:aol-ia`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedrank.data.documents import Documents, read_documents
from fedrank.data.values import is_name
from fedrank.extras import missing_extra

PREFIX = "ir_datasets:"


def is_there(source: Path) -> bool:
    """Whether this names a set of ir_datasets instead of a file."""
    return str(source).startswith(PREFIX)


def documents_from(source: Path) -> Documents:
    """Read the documents of a file or of a set of ir_datasets."""
    return documents_of(source) if is_there(source) else read_documents(source)


def documents_of(source: Path) -> Documents:
    """Read all documents of a set in its order; missing titles, texts and urls are empty."""
    with _explained(source) as data:
        rows = [
            [str(getattr(doc, name, "") or "") for name in _FIELDS] for doc in _offered(source, data, "docs_iter")()
        ]
    ids, title, text, url = (list(column) for column in zip(*rows, strict=True)) if rows else ([], [], [], [])
    if len(set(ids)) < len(ids) or not all(map(is_name, ids)):
        raise ValueError(
            f"{source} contains duplicate or empty document ids, so clicks on them would be ambiguous; choose another "
            "set"
        )
    if not ids:
        raise ValueError(f"{source} contains no documents; choose another set")
    return Documents(ids, title, text, [one.strip() for one in url])


def clicks_of(source: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the number of each search from 1 with user, time, query and clicked document, once per click."""
    with _explained(source) as data:
        for number, search in enumerate(_offered(source, data, "qlogs_iter")(), start=1):
            clicked = [str(item.doc_id) for item in search.items if getattr(item, "clicked", True)]
            for document in clicked or [""]:
                row = {"user": str(search.user_id), "time": search.time.isoformat(), "query": search.query}
                yield number, row | {"document": document}


def size_of(source: Path) -> str:
    """The name and size of a set, which serve as its fingerprint."""
    with _explained(source) as data:
        counts = [getattr(data, f"{kind}_count")() for kind in ("docs", "qlogs") if hasattr(data, f"{kind}_iter")]
    return f"{source}, {counts}"


_FIELDS = ("doc_id", "title", "text", "url")


@contextlib.contextmanager
def _explained(source: Path) -> Iterator[Any]:
    """Open the set; a missing set becomes an error with instructions."""
    try:
        import ir_datasets  # type: ignore[import-untyped, import-not-found, unused-ignore]
    except ImportError:
        raise missing_extra(f"{source} needs the package ir_datasets", "ir-datasets") from None
    name = str(source).removeprefix(PREFIX)
    try:
        data = ir_datasets.load(name)
    except KeyError:
        raise ValueError(f"{source}: ir_datasets has no set {name!r}; see https://ir-datasets.com") from None
    try:
        yield data
    except RuntimeError as error:  # for example, documents that must be downloaded first
        raise ValueError(f"{source}: {error}") from error


def _offered(source: Path, data: Any, what: str) -> Any:
    if not hasattr(data, what):
        kind = {"docs_iter": "documents", "qlogs_iter": "log"}[what]
        raise ValueError(f"{source} has no {kind}; choose another set or a file")
    return getattr(data, what)
