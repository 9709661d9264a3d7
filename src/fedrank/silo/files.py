"""Sketch files: what a silo stores of its documents.

`array_file` defines the bytes. The header contains the settings and a fingerprint of the key. For every field ("body",
and "title" where there is one) the parts are the arrays of `ReverseTopK`, `lengths` with a row for each document, and
`frequencies`, the sketch that counts documents: all that training needs. Other parts are secret: `ids`, `squares` (of
counts, from which errors are predicted) and `pseudonym-key`.

A querier learns what `copy_for` contains: other pseudonyms for every querier, and rows in their order, so neither the
name nor the position of a document identifies it. Two queriers who combine their answers still find equal numbers in
both, so ε holds towards all queriers together. A file without noise is as secret as the documents.

Cells with noise are packed (`compact`, `array_file`). The size of the packed cells depends on noised numbers only,
which ε covers. Lengths, ids and squares are never packed, nor is anything of a file without noise: its size reveals
only the number of documents and the lengths of ids.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank.data.documents import Documents
from fedrank.data.text import Tokeniser
from fedrank.data.values import is_name
from fedrank.files import locked
from fedrank.silo.array_file import GROWTH, UNREADABLE, Part, SketchFileError, pack, read_arrays, write_arrays
from fedrank.silo.compact import PARTS, compact, expand
from fedrank.silo.hashing import Hashing
from fedrank.silo.partners import Progress, SiloSketch, sketch_fields
from fedrank.silo.rtk import COUNT_MIN, ReverseTopK, TopKRule
from fedrank.silo.sketch import Sketcher
from fedrank.silo.spending import SUFFIX, Limits, SiloLedger, is_ledger
from fedrank.silo.terms import TermCounts
from fedrank.types import Source

LOCK = ".lock"  # suffix of the file that is locked while a sketch is changed
TYPES = {
    "documents": "<i4",
    "values": "<i4",
    "sizes": "<i4",
    "lost": "<i4",
    "frequencies": "<i4",
    "lengths": "<i8",  # words
    "squares": "<i8",
    "ids": "|u1",  # UTF-8, one per line
    "pseudonym-key": "|u1",
    "pseudonyms": "<u8",
    "held": "<i4",  # instead of documents and values, in a packed file: `compact`
    "gaps": "<i4",
    "counts": "<i4",
    "ties": "|u1",
}
NOISED_PARTS = ("sizes", "lost", "frequencies", *PARTS)  # what may be packed
TOP_PARTS = ("documents", "values", "sizes", "lost")  # arrays of `ReverseTopK`


@dataclass(frozen=True, eq=False)
class QuerierCopy(SiloSketch):
    """What one querier may see of a sketch: documents under pseudonyms, in the order of these."""

    pseudonyms: NDArray[np.uint64]  # [rows]


@dataclass(frozen=True, eq=False)
class SketchFile(SiloSketch):
    """A sketch of a silo's documents, read from its file."""

    path: Path
    fingerprint: bytes  # of key, width and depth
    ids: Sequence[str]  # [rows]
    squares: Mapping[str, NDArray[np.int64]]  # by field, [rows]: sum of squared counts, secret
    pseudonym_key: bytes
    removed: int = 0  # documents that were removed, but are still counted in the frequencies

    @property
    def noised(self) -> bool:
        return self.sketcher.noise > 0

    @property
    def rows(self) -> dict[str, int]:
        """The row of every document, by its id."""
        return {name: row for row, name in enumerate(self.ids)}

    def hashing(self, key: bytes) -> Hashing:
        """The hashes of this sketch; a different key raises an error."""
        made = self.sketcher.hashing(key)
        if made.fingerprint != self.fingerprint:
            raise ValueError(
                f"{self.path} was made with another key (fingerprint {self.fingerprint.hex()}, yours gives "
                f"{made.fingerprint.hex()}), so words would be looked up in wrong cells; give that key"
            )
        return made

    def copy_for(self, querier: str) -> QuerierCopy:
        """What one querier may see: no ids, pseudonyms for this querier alone, rows in their order.

        Pseudonyms for different queriers cannot be matched. Documents can: queriers who combine their copies find the
        same cells and lengths in both.
        """
        if not self.noised:
            raise ValueError(
                f"{self.path} has no noise: it is as secret as the documents and must not be sent; sketch with "
                "noise, such as --noise 1"
            )
        names = self.pseudonyms_for(querier)
        order = np.argsort(names)
        fields, lengths = _reordered(self, order)
        return QuerierCopy(self.sketcher, fields, lengths, self.frequencies, names[order])

    def pseudonyms_for(self, querier: str) -> NDArray[np.uint64]:
        """[rows]: pseudonyms of documents for one querier."""
        start = hashlib.blake2b(querier.encode(), key=self.pseudonym_key, digest_size=8, person=b"fedrank alias")
        made = np.empty(len(self), dtype=np.uint64)
        for row, name in enumerate(self.ids):
            one = start.copy()
            one.update(b"\0" + name.encode())
            made[row] = int.from_bytes(one.digest(), "little")
        return made


def sketch_collection(
    documents: Documents,
    key: bytes,
    sketcher: Sketcher,
    out: str | os.PathLike[str],
    *,
    rule: TopKRule | None = None,  # None: the default of the sketcher's kind
    limits: Limits | None = None,  # stored in the ledger beside the file
    progress: Progress | None = None,
    source: Source | None = None,  # of noise; for tests only
) -> SketchFile:
    """Sketch a collection into a file, and charge its privacy cost to the ledger beside it."""
    out = Path(out)
    if out.suffix == SUFFIX:
        raise ValueError(f"{out}: the ledger of the sketch would have this name; choose another name")
    if rule is None:
        rule = COUNT_MIN if sketcher.kind == "count-min" else TopKRule()
    with _held(out):
        if out.exists():
            raise FileExistsError(
                f"{out} exists; a second sketch of the same documents draws new noise and costs as much again; "
                "update it, or remove it first"
            )
        _check_ids(documents.ids, {}, out)
        SiloLedger(out.with_suffix(SUFFIX), limits).charge_sketches(documents.ids, sketcher.multiplier)
        counted = _counted(documents, sketcher)
        made = sketch_fields(counted, sketcher, rule, key, source, progress)
        squares = {name: counts.squares for name, counts in counted.items()}
        found = sketcher.hashing(key).fingerprint
        own: dict[str, Any] = {"path": out, "fingerprint": found, "ids": documents.ids, "squares": squares}
        write_sketch(SketchFile(**vars(made), **own, pseudonym_key=os.urandom(32)))
    return open_sketch(out)


def add_documents(
    path: str | os.PathLike[str], documents: Documents, key: bytes, source: Source | None = None
) -> SketchFile:
    """Add documents to a sketch, as if they had been there from the beginning."""
    with _held(path):
        file = open_sketch(path)
        file.hashing(key)
        _check_ids(documents.ids, file.rows, file.path)
        counted = _counted(documents, file.sketcher)
        if set(counted) - set(file.fields):
            raise ValueError(
                f"{file.path} has no titles, and titles cannot be added; leave them out, or sketch all documents again"
            )
        ledger_of(file).charge_sketches(documents.ids, file.sketcher.multiplier)
        nothing = TermCounts.of([""] * len(documents), file.sketcher.tokeniser)
        counted = {name: counted.get(name, nothing) for name in file.fields}
        grown = sketch_fields(counted, file.sketcher, file.fields["body"].rule, key, source, onto=file)
        squares = {name: np.concatenate([file.squares[name], counts.squares]) for name, counts in counted.items()}
        write_sketch(replace(file, **vars(grown), ids=[*file.rows, *documents.ids], squares=squares))
    return open_sketch(path)


def remove_documents(path: str | os.PathLike[str], ids: Sequence[str]) -> SketchFile:
    """Remove documents from a sketch; earlier answers about them remain known.

    The frequencies still count them: otherwise the difference before and after would reveal a document without noise.
    """
    with _held(path):
        file = open_sketch(path)
        known = file.rows
        absent = [name for name in ids if name not in known]
        if absent:
            raise ValueError(
                f"{file.path} has no document {absent[0]!r} ({len(absent)} of {len(ids)} are unknown); nothing was "
                "removed; check the ids"
            )
        gone = np.unique([known[name] for name in ids])
        removed = replace(file, fields={name: top.delete(gone) for name, top in file.fields.items()})
        left = np.delete(np.arange(len(file)), gone)
        fields, lengths = _reordered(removed, left)
        squares = {name: each[left] for name, each in file.squares.items()}
        ids, count = [file.ids[row] for row in left.tolist()], file.removed + len(gone)
        write_sketch(replace(file, fields=fields, lengths=lengths, squares=squares, ids=ids, removed=count))
    return open_sketch(path)


def write_sketch(file: SketchFile) -> None:
    """Write a file completely or not at all."""
    settings: dict[str, Any] = {
        "secret": not file.noised,
        "sketcher": asdict(file.sketcher) | {"tokeniser": file.sketcher.tokeniser.name},
        "rule": asdict(file.fields["body"].rule),
        "fingerprint": file.fingerprint.hex(),
        "fields": list(file.fields),
        "removed": file.removed,
    }
    parts = _parts(file)
    planes = None
    if file.noised and (fewer := _compacted(file, parts)) is not None:
        made = {name: pack(name, part, TYPES) for name, part in fewer.items() if _kind(name) in NOISED_PARTS}
        grown = sum(part.nbytes for part in parts.values()) + sum(part.nbytes for part in fewer.values())
        if grown <= GROWTH * sum(len(plane) for each in made.values() for plane in each):
            parts, planes = fewer, made
    write_arrays(file.path, settings, parts, TYPES, planes)


def open_sketch(path: str | os.PathLike[str]) -> SketchFile:
    """Open a sketch; a damaged or truncated file, or another version, raises an error."""
    path = Path(path)
    header, parts = read_arrays(path, TYPES)
    try:
        return _from_parts(path, header, parts)
    except UNREADABLE as error:
        raise SketchFileError(f"{path}: {error}") from None


def ledger_of(file: SketchFile) -> SiloLedger:
    """The ledger beside a file; a file with noise must have one."""
    path = file.path.with_suffix(SUFFIX)
    if file.noised and not is_ledger(path):
        raise FileNotFoundError(
            f"{path}, the ledger of this sketch, is missing, so the spent budget is unknown; restore it from a copy, "
            "or sketch the documents again"
        )
    return SiloLedger(path)


def _held(path: str | os.PathLike[str]) -> AbstractContextManager[None]:
    """One process at a time changes a sketch and its ledger."""
    path = Path(path)
    return locked(path.with_name(path.name + LOCK), str(path), leave=False)


def _check_ids(ids: Sequence[str], known: Mapping[str, int], path: Path) -> None:
    seen = set(known)
    for name in ids:
        if not is_name(name):
            raise ValueError(f"the id {name!r} is not valid; ids must be one line of text")
        if name in seen:
            raise ValueError(
                f"{path}: the document {name!r} exists already or is given twice; nothing was added; remove the "
                "old one first"
            )
        seen.add(name)


def _counted(documents: Documents, sketcher: Sketcher) -> dict[str, TermCounts]:
    texts = {"body": documents.text} | ({"title": documents.title} if any(documents.title) else {})
    return {name: sketcher.term_counts(each) for name, each in texts.items()}


def _reordered(
    file: SketchFile, order: NDArray[np.int64]
) -> tuple[dict[str, ReverseTopK], dict[str, NDArray[np.int64]]]:
    """Fields and lengths of only these rows, in this order."""
    new = np.full(len(file), -1, dtype=np.int32)
    new[order] = np.arange(len(order), dtype=np.int32)
    fields = {name: _renumbered(top, new, len(order)) for name, top in file.fields.items()}
    return fields, {name: lengths[order] for name, lengths in file.lengths.items()}


def _renumbered(top: ReverseTopK, new: NDArray[np.int32], rows: int) -> ReverseTopK:
    """The same documents with other row numbers; equal values are in the order of the new ones."""
    present = top.documents >= 0
    documents = np.where(present, new[top.documents], np.int32(-1)) if len(new) else top.documents
    moved = replace(top, documents=documents, present=np.ones(rows, dtype=np.bool_))
    if np.all(np.diff(new[new >= 0]) > 0):  # the order does not change
        return moved
    best = np.array(top.values, dtype=np.int64)
    if top.rule.keep == "magnitude":
        best = np.abs(best)
    elif top.rule.ends == 2:
        best[1] *= -1
    order = np.argsort(np.where(present, (-best << 32) + documents, np.iinfo(np.int64).max), axis=-1, kind="stable")
    return replace(
        moved,
        documents=np.take_along_axis(documents, order, axis=-1),
        values=np.take_along_axis(top.values, order, axis=-1),
    )


def _parts(file: SketchFile) -> dict[str, Part]:
    parts: dict[str, Part] = {}
    for name, top in file.fields.items():
        parts |= {f"{name}.{each}": getattr(top, each) for each in TOP_PARTS}
        for each in ("lengths", "frequencies", "squares"):
            parts[f"{name}.{each}"] = getattr(file, each)[name]
    parts["ids"] = np.frombuffer("\n".join(file.ids).encode(), dtype=np.uint8)
    parts["pseudonym-key"] = np.frombuffer(file.pseudonym_key, dtype=np.uint8)
    return parts


def _compacted(file: SketchFile, parts: Mapping[str, Part]) -> dict[str, Part] | None:
    """The same parts with compacted cells; None where decoding would not be exact."""
    made = dict(parts)
    for name, top in file.fields.items():
        fewer = compact(top)
        if fewer is None:
            return None
        del made[f"{name}.documents"], made[f"{name}.values"]
        made |= {f"{name}.{each}": part for each, part in fewer.items()}
    return made


def _kind(name: str) -> str:
    """The name of a part without its field."""
    return name.rpartition(".")[2]


def _from_parts(path: Path, header: Mapping[str, Any], parts: Mapping[str, Part]) -> SketchFile:
    if "ids" not in parts:
        raise ValueError("it is a copy that version 0.1 exported for a querier; use the owner's file")
    settings = header["sketcher"]
    sketcher = Sketcher(**{**settings, "tokeniser": Tokeniser.named(settings["tokeniser"])})
    rule = TopKRule(**header["rule"])
    rows = len(parts["body.lengths"])
    fields, lengths, frequencies = {}, {}, {}
    if header["fields"] not in (["body"], ["body", "title"]):
        raise ValueError(f"its fields must be body, or body and title (got {header['fields']})")
    left = GROWTH * os.path.getsize(path) - sum(part.nbytes for part in parts.values())
    for name in header["fields"]:
        if f"{name}.gaps" in parts:
            sizes, lost = parts[f"{name}.sizes"], parts[f"{name}.lost"]
            fewer = {each: parts[f"{name}.{each}"] for each in PARTS}
            documents, values = expand(fewer, sizes, rule, left)
            left -= documents.nbytes + values.nbytes
        else:
            documents, values, sizes, lost = (parts[f"{name}.{each}"] for each in TOP_PARTS)
        lengths[name], frequencies[name] = parts[f"{name}.lengths"], parts[f"{name}.frequencies"]
        # Compiled loops do not check these numbers, and the file may be malicious.
        shapes = documents.shape[1:-1], lengths[name].shape, frequencies[name].shape
        if shapes != ((sketcher.depth, sketcher.width), (rows,), (sketcher.depth, sketcher.wide.width)):
            raise ValueError("its parts do not match its settings")
        if documents.size and not -1 <= documents.min() <= documents.max() < rows:
            raise ValueError("a cell names documents that do not exist")
        if not 0 <= sizes.min() <= sizes.max() <= documents.shape[3]:
            raise ValueError("a cell has more documents than it can hold")
        top = ReverseTopK(rule, sketcher.kind, documents, values, sizes, lost, np.ones(rows, dtype=np.bool_))
        if np.any((documents >= 0) != (np.arange(documents.shape[3]) < sizes[..., None])):
            raise ValueError("a cell does not hold the declared number of documents")
        fields[name] = top
    ids = parts["ids"].tobytes().decode().split("\n") if parts["ids"].size else []
    if len(ids) != rows:
        raise ValueError(f"it has {len(ids)} ids for {rows} documents")
    squares = {name: parts[f"{name}.squares"] for name in fields}
    secret, fingerprint = parts["pseudonym-key"].tobytes(), bytes.fromhex(header["fingerprint"])
    removed = int(header["removed"])
    return SketchFile(sketcher, fields, lengths, frequencies, path, fingerprint, ids, squares, secret, removed)
