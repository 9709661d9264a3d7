"""Sketch files: what a silo keeps of its documents, and the copy that it may give to another.

`array_file` says how bytes lie. The header holds the settings and a fingerprint of the key. For every field ("body",
and "title" where there is one) the parts are the arrays of `ReverseTopK` and `lengths`, with a row for each document.

The owner's file has secret parts besides: `ids`, `squares` (of counts, from which errors are foretold) and
`pseudonym-key`. A copy for sending has `pseudonyms` in their place, other ones for every querier, and its rows stand in
their order, so that neither name nor place of a document tells what it was. Two queriers who put their copies together
still find the same numbers in both, and ε is towards all together. A file without noise is as secret as the documents:
no copy is made of it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank.data.documents import Documents, is_name
from fedrank.data.text import Tokeniser
from fedrank.silo.array_file import UNREADABLE, Part, SketchFileError, read_arrays, write_arrays
from fedrank.silo.hashing import Hashing
from fedrank.silo.rtk import COUNT_MIN, ReverseTopK, TopKRule, build
from fedrank.silo.sketch import Sketcher, TermCounts
from fedrank.silo.spending import SUFFIX, Limits, Spending
from fedrank.types import Source

LENGTH_NOISE = 15  # lengths that are not exact get so many times the noise of a count: a long document hardly minds
TYPES = {
    "documents": "<i4",
    "values": "<i4",
    "sizes": "<i4",
    "lost": "<i4",
    "lengths": "<i8",  # words
    "squares": "<f8",
    "ids": "|u1",  # UTF-8, one a line
    "pseudonym-key": "|u1",
    "pseudonyms": "<u8",
}
TOP_PARTS = ("documents", "values", "sizes", "lost")  # arrays of `ReverseTopK`

Progress = Callable[[str, int, int], None]  # field, documents that are done, documents


@dataclass(frozen=True, eq=False)
class SketchFile:
    """A sketch of a silo's documents, mapped from its file."""

    path: Path
    sketcher: Sketcher
    fingerprint: bytes  # of key, width and depth
    fields: Mapping[str, ReverseTopK]  # "body", and "title" where there is one; rows are the same in all
    lengths: Mapping[str, NDArray[np.int64]]  # by field, [rows]: words; noised unless the sketcher says exact
    ids: Sequence[str] | None = None  # [rows]; None: a copy that was made for a querier
    squares: Mapping[str, NDArray[np.float64]] | None = None  # by field, [rows]: sum of squared counts, secret
    pseudonym_key: bytes | None = None
    pseudonyms: NDArray[np.uint64] | None = None  # [rows], in a copy

    def __len__(self) -> int:
        return len(self.lengths["body"])

    @property
    def noised(self) -> bool:
        return self.sketcher.noise > 0

    @property
    def rows(self) -> dict[str, int]:
        """The row of every document, by its id."""
        if self.ids is None:
            raise ValueError(f"{self.path} is a copy for a querier and knows no ids; ask its owner")
        return {name: row for row, name in enumerate(self.ids)}

    def hashing(self, key: bytes) -> Hashing:
        """The hashes of this sketch; another key than the one that it was made with is refused."""
        made = self.sketcher.hashing(key)
        if made.fingerprint != self.fingerprint:
            raise ValueError(
                f"{self.path} was made with another key (fingerprint {self.fingerprint.hex()}, yours gives "
                f"{made.fingerprint.hex()}), so that every word would be looked up in wrong cells; give that key"
            )
        return made

    def pseudonyms_for(self, querier: str, rows: NDArray[Any]) -> NDArray[np.uint64]:
        """[rows]: what documents are called towards one querier; no name for another can be matched with one of these.

        Documents can: queriers who put their copies together find the same cells and lengths in both.
        """
        if self.ids is None or self.pseudonym_key is None:
            raise ValueError(f"{self.path} is a copy for a querier; only the owner's file can name documents")
        start = hashlib.blake2b(querier.encode(), key=self.pseudonym_key, digest_size=8, person=b"fedrank alias")
        made = np.empty(len(rows), dtype=np.uint64)
        for place, row in enumerate(rows):
            one = start.copy()
            one.update(b"\0" + self.ids[row].encode())
            made[place] = int.from_bytes(one.digest(), "little")
        return made


def sketch_collection(
    documents: Documents,
    key: bytes,
    sketcher: Sketcher,
    out: str | os.PathLike[str],
    *,
    rule: TopKRule | None = None,  # None: the usual one of the sketcher's kind
    owner: str = "",
    limits: Limits | None = None,  # kept in the ledger beside the file
    progress: Progress | None = None,
    source: Source | None = None,  # of noise; another than the system's is for tests
) -> SketchFile:
    """Sketch a collection into a file, and note in the ledger beside it what its noise costs."""
    out = Path(out)
    if out.suffix == SUFFIX:
        raise ValueError(f"{out}: the ledger of the sketch would get this name; call the sketch otherwise")
    if out.exists():
        raise FileExistsError(
            f"{out} exists; a second sketch of the same documents draws new noise and costs as much again: add to it, "
            "or remove it first"
        )
    if rule is None:
        rule = COUNT_MIN if sketcher.kind == "count-min" else TopKRule()
    hashing = sketcher.hashing(key)
    _check_ids(documents.ids, {}, out)
    _spending(out, sketcher, documents.ids, owner, limits)
    fields, lengths, squares = {}, {}, {}
    for name, texts in _texts(documents).items():
        counts = sketcher.term_counts(texts)
        blocks = _told(sketcher.blocks(counts, hashing, source), name, len(counts), progress)
        fields[name] = build(blocks, rule, sketcher.kind, sketcher.depth, sketcher.width)
        lengths[name], squares[name] = _lengths(counts, sketcher, source), _squares(counts)
    names = list(documents.ids), squares, os.urandom(32)
    write_sketch(SketchFile(out, sketcher, hashing.fingerprint, fields, lengths, *names))
    return open_sketch(out)


def add_documents(
    path: str | os.PathLike[str], documents: Documents, key: bytes, source: Source | None = None
) -> SketchFile:
    """Put more documents into a sketch, as if they had been there from the beginning."""
    file = _owned(path)
    hashing, sketcher = file.hashing(key), file.sketcher
    _check_ids(documents.ids, file.rows, file.path)
    texts = _texts(documents)
    if set(texts) - set(file.fields):
        raise ValueError(
            f"{file.path} was made without titles and cannot take some now; leave them out, or make it anew"
        )
    if file.noised and not file.path.with_suffix(SUFFIX).exists():
        raise FileNotFoundError(
            f"{file.path.with_suffix(SUFFIX)}, the ledger of this sketch, is not there, so that nobody knows what was "
            "spent; restore it from a copy, or make the sketch anew"
        )
    _spending(file.path, sketcher, documents.ids)
    fields, lengths, squares = {}, {}, {}
    for name, top in file.fields.items():
        counts = sketcher.term_counts(texts.get(name, [""] * len(documents)))
        for block in sketcher.blocks(counts, hashing, source):
            top = top.insert(block)
        fields[name] = top
        lengths[name] = np.concatenate([file.lengths[name], _lengths(counts, sketcher, source)])
        squares[name] = np.concatenate([file.squares[name] if file.squares else [], _squares(counts)])
    ids = [*(file.ids or []), *documents.ids]
    write_sketch(replace(file, fields=fields, lengths=lengths, squares=squares, ids=ids))
    return open_sketch(file.path)


def remove_documents(path: str | os.PathLike[str], ids: Sequence[str]) -> SketchFile:
    """Take documents out of a sketch; what was answered about them, and copies that were sent, stay known."""
    file = _owned(path)
    known = file.rows
    absent = [name for name in ids if name not in known]
    if absent:
        raise ValueError(
            f"{file.path} has no document {absent[0]!r} ({len(absent)} of {len(ids)} are not there); nothing was "
            "removed: check the ids"
        )
    gone = np.array([known[name] for name in ids], dtype=np.int64)
    fields = {name: top.delete(gone) for name, top in file.fields.items()}
    write_sketch(_reordered(replace(file, fields=fields), np.delete(np.arange(len(file)), gone)))
    return open_sketch(file.path)


def export_sketch(path: str | os.PathLike[str], querier: str, out: str | os.PathLike[str]) -> SketchFile:
    """Write the copy for one querier: without ids, with pseudonyms that nobody else gets, in their order."""
    file = _owned(path)
    if not file.noised:
        raise ValueError(f"{file.path} {_SECRET}")
    out = Path(out)
    if out.exists():
        raise FileExistsError(f"{out} exists; choose another name for the copy")
    if not querier:
        raise ValueError("a copy for nobody; name who gets it, so that pseudonyms are for them alone")
    names = file.pseudonyms_for(querier, np.arange(len(file)))
    order = np.argsort(names)
    copy = replace(_reordered(file, order), path=out, ids=None, squares=None, pseudonym_key=None)
    write_sketch(replace(copy, pseudonyms=names[order]))
    return open_sketch(out)


def check_sendable(path: str | os.PathLike[str]) -> None:
    """Refuse a file that must not leave its owner."""
    file = open_sketch(path)
    if not file.noised:
        raise ValueError(f"{file.path} {_SECRET}")
    if file.ids is not None:
        raise ValueError(f"{file.path} holds the ids of its documents; send a copy, as made by `export_sketch`")


def check_alike(one: SketchFile, other: SketchFile) -> None:
    """Refuse two sketches that cannot be asked the same question, and say in what they differ."""
    for what, mine, theirs in (
        ("kind", one.sketcher.kind, other.sketcher.kind),
        ("width", one.sketcher.width, other.sketcher.width),
        ("depth", one.sketcher.depth, other.sketcher.depth),
        ("tokeniser", one.sketcher.tokeniser.name, other.sketcher.tokeniser.name),
        ("fingerprint of the key", one.fingerprint.hex(), other.fingerprint.hex()),
    ):
        if mine != theirs:
            raise ValueError(
                f"{one.path} and {other.path} differ in their {what} ({mine} and {theirs}), so that counts cannot be "
                "compared; make one of them anew"
            )


def release_multiplier(sketcher: Sketcher) -> float | None:
    """Deviation / sensitivity of all that a file tells: cells and lengths; None: it has no noise."""
    if not sketcher.noise:
        return None
    return sketcher.noise if sketcher.exact_lengths else sketcher.noise / sqrt(1 + LENGTH_NOISE**-2)


def write_sketch(file: SketchFile) -> None:
    """Write a file whole or not at all."""
    settings = {
        "secret": not file.noised,
        "sketcher": asdict(file.sketcher) | {"tokeniser": file.sketcher.tokeniser.name},
        "rule": asdict(file.fields["body"].rule),
        "fingerprint": file.fingerprint.hex(),
        "fields": list(file.fields),
    }
    write_arrays(file.path, settings, _parts(file), TYPES, private=file.ids is not None)


def open_sketch(path: str | os.PathLike[str]) -> SketchFile:
    """Map a sketch; a file that is damaged, cut short or of another version is refused."""
    path = Path(path)
    header, parts = read_arrays(path, TYPES)
    try:
        return _from_parts(path, header, parts)
    except UNREADABLE as error:
        raise SketchFileError(f"{path}: {error}") from None


_SECRET = "has no noise: it is as secret as the documents and must not be sent; make it with noise, such as --noise 1"


def _owned(path: str | os.PathLike[str]) -> SketchFile:
    file = open_sketch(path)
    if file.ids is None:
        raise ValueError(
            f"{file.path} is a copy for a querier and cannot be changed or passed on; use the owner's file"
        )
    return file


def _check_ids(ids: Sequence[str], known: Mapping[str, int], path: Path) -> None:
    seen = set(known)
    for name in ids:
        if not is_name(name):
            raise ValueError(f"the id {name!r} cannot name a document; give it one of one line")
        if name in seen:
            raise ValueError(
                f"{path}: the document {name!r} is there already, or given twice, and nothing was added; remove the "
                "old one first"
            )
        seen.add(name)


def _texts(documents: Documents) -> dict[str, list[str]]:
    return {"body": documents.text} | ({"title": documents.title} if any(documents.title) else {})


def _spending(
    path: Path, sketcher: Sketcher, ids: Sequence[str], owner: str = "", limits: Limits | None = None
) -> None:
    Spending(path.with_suffix(SUFFIX), owner, limits).charge_sketches(ids, release_multiplier(sketcher))


def _told(
    blocks: Iterator[NDArray[np.int32]], field: str, documents: int, progress: Progress | None
) -> Iterator[NDArray[np.int32]]:
    done = 0
    for block in blocks:
        yield block
        done += len(block)
        if progress is not None:
            progress(field, done, documents)


def _lengths(counts: TermCounts, sketcher: Sketcher, source: Source | None) -> NDArray[np.int64]:
    if sketcher.exact_lengths or not sketcher.noise:
        return counts.lengths
    from fedrank.protect.noise import SecureSource, rounded_gaussian

    return counts.lengths + rounded_gaussian(LENGTH_NOISE * sketcher.noise).draw(len(counts), source or SecureSource())


def _squares(counts: TermCounts) -> NDArray[np.float64]:
    ends = np.concatenate([[0.0], np.cumsum(counts.counts.astype(np.float64) ** 2)])
    squares: NDArray[np.float64] = ends[counts.offsets[1:]] - ends[counts.offsets[:-1]]
    return squares


def _reordered(file: SketchFile, order: NDArray[np.int64]) -> SketchFile:
    """The same file with only these rows, in this order."""
    new = np.full(len(file), -1, dtype=np.int32)
    new[order] = np.arange(len(order), dtype=np.int32)
    return replace(
        file,
        fields={name: _renumbered(top, new, len(order)) for name, top in file.fields.items()},
        lengths={name: lengths[order] for name, lengths in file.lengths.items()},
        squares=file.squares and {name: squares[order] for name, squares in file.squares.items()},
        ids=file.ids and [file.ids[row] for row in order],
    )


def _renumbered(top: ReverseTopK, new: NDArray[np.int32], rows: int) -> ReverseTopK:
    """The same documents under other row numbers; equal values stand in the order of the new ones."""
    kept = top.documents >= 0
    documents = np.where(kept, new[top.documents], np.int32(-1)) if len(new) else top.documents
    moved = replace(top, documents=documents, present=np.ones(rows, dtype=np.bool_))
    if np.all(np.diff(new[new >= 0]) > 0):  # nobody overtakes anybody
        return moved
    best = np.array(top.values, dtype=np.int64)
    if top.rule.keep == "magnitude":
        best = np.abs(best)
    elif top.rule.ends == 2:
        best[1] *= -1
    place = np.argsort(np.where(kept, (-best << 32) + documents, np.iinfo(np.int64).max), axis=-1, kind="stable")
    return replace(
        moved,
        documents=np.take_along_axis(documents, place, axis=-1),
        values=np.take_along_axis(top.values, place, axis=-1),
    )


def _parts(file: SketchFile) -> dict[str, Part]:
    parts: dict[str, Part] = {}
    for name, top in file.fields.items():
        parts |= {f"{name}.{each}": getattr(top, each) for each in TOP_PARTS}
        parts[f"{name}.lengths"] = file.lengths[name]
        if file.squares is not None:
            parts[f"{name}.squares"] = file.squares[name]
    if file.ids is not None and file.pseudonym_key is not None:
        parts["ids"] = np.frombuffer("\n".join(file.ids).encode(), dtype=np.uint8)
        parts["pseudonym-key"] = np.frombuffer(file.pseudonym_key, dtype=np.uint8)
    if file.pseudonyms is not None:
        parts["pseudonyms"] = file.pseudonyms
    return parts


def _from_parts(path: Path, header: Mapping[str, Any], parts: Mapping[str, Part]) -> SketchFile:
    settings = header["sketcher"]
    sketcher = Sketcher(**{**settings, "tokeniser": Tokeniser.named(settings["tokeniser"])})
    rule = TopKRule(**header["rule"])
    rows = len(parts["body.lengths"])
    fields, lengths = {}, {}
    if header["fields"] not in (["body"], ["body", "title"]):
        raise ValueError(f"fields {header['fields']}; a sketch has a body, and may have a title")
    for name in header["fields"]:
        documents, values, sizes, lost = (parts[f"{name}.{each}"] for each in TOP_PARTS)
        lengths[name] = parts[f"{name}.lengths"]
        # Compiled loops trust these numbers, and a file may come from somebody else.
        if documents.shape[1:-1] != (sketcher.depth, sketcher.width) or lengths[name].shape != (rows,):
            raise ValueError("parts of other shapes than the settings say")
        if documents.size and not -1 <= documents.min() <= documents.max() < rows:
            raise ValueError("a cell that names documents which are not there")
        if not 0 <= sizes.min() <= sizes.max() <= documents.shape[3]:
            raise ValueError("a cell with more documents than it can hold")
        top = ReverseTopK(rule, sketcher.kind, documents, values, sizes, lost, np.ones(rows, dtype=np.bool_))
        if np.any((documents >= 0) != (np.arange(documents.shape[3]) < sizes[..., None])):
            raise ValueError("a cell that holds another number of documents than it says")
        fields[name] = top
    owned = "ids" in parts
    ids = _split(parts["ids"]) if owned else None
    if (parts["pseudonyms"].shape if ids is None else (len(ids),)) != (rows,):
        raise ValueError(f"names for other documents than the {rows} that are there")
    return SketchFile(
        path,
        sketcher,
        bytes.fromhex(header["fingerprint"]),
        fields,
        lengths,
        ids=ids,
        squares={name: parts[f"{name}.squares"] for name in fields} if owned else None,
        pseudonym_key=parts["pseudonym-key"].tobytes() if owned else None,
        pseudonyms=parts.get("pseudonyms"),
    )


def _split(ids: Part) -> list[str]:
    return ids.tobytes().decode().split("\n") if ids.size else []
