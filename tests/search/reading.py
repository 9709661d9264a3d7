"""What is read from a folder, without a store."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

from fedrank.search.readers import ParsedDocument, Unreadable
from fedrank.search.sources import FoundFile, Left, walk


def read(folder: Path):
    """(documents by path, reasons by path) of a folder."""
    documents, reasons = {}, {}
    for found in walk(folder):
        name = os.fsdecode(found.key)
        if isinstance(found, Left):
            reasons[name] = found.reason
            continue
        assert isinstance(found, FoundFile)
        for piece in found.pieces():
            if isinstance(piece, Unreadable):
                reasons[name] = str(piece)
            else:
                documents.setdefault(name, []).append(piece)
    return documents, reasons


def only(folder: Path) -> list[ParsedDocument]:
    documents, reasons = read(folder)
    assert not reasons
    (pieces,) = documents.values()
    return pieces


def zipped(path: Path, members: dict[str, bytes | str]) -> None:
    """Write a zipped file with these members."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
