"""Readers of zipped XML: Word, PowerPoint, Excel, OpenDocument and EPUB. A format is a row of the table `PACKED`.

Members are found by name and never unpacked to disk. The size of what they unpack to, their number and their depth are
limited, and entities that a file declares are refused.
"""

from __future__ import annotations

import html
import io
import re
import zipfile
from collections.abc import Iterator
from xml.parsers import expat

from fedrank.search.readers import (
    MAX_TEXT,
    ParsedDocument,
    Unreadable,
    clean,
    decoded,
    first_line,
    one_line,
    or_unreadable,
    text_of_markup,
    titled,
)

MAX_UNPACKED = 64 << 20  # bytes of all members that are read
MAX_MEMBERS = 10_000
DEEPEST = 1_000  # nested elements; each open element takes memory

# Patterns of the members with text, in the order in which they are read.
_ABOUT = r"docProps/core\.xml|meta\.xml"
_WORD = (r"word/document\.xml", r"word/(footnotes|endnotes|comments|(header|footer)\d{1,3})\.xml", _ABOUT)
_SLIDES = (r"ppt/slides/slide\d{1,4}\.xml", r"ppt/notesSlides/notesSlide\d{1,4}\.xml", _ABOUT)
_SHEETS = (
    r"xl/sharedStrings\.xml", r"xl/workbook\.xml", r"xl/worksheets/sheet\d{1,4}\.xml",
    r"xl/(comments|comments/comment|threadedComments/threadedComment)\d{1,4}\.xml", _ABOUT,
)  # fmt: skip
_OPEN = (r"content\.xml", _ABOUT)
_BOOK = (r".*\.opf", r".*\.x?html?")
PACKED = (
    dict.fromkeys(("docx", "docm", "dotx"), _WORD)
    | dict.fromkeys(("pptx", "pptm", "ppsx"), _SLIDES)
    | dict.fromkeys(("xlsx", "xlsm"), _SHEETS)
    | dict.fromkeys(("odt", "ott", "odp", "odg", "ods"), _OPEN)
    | {"epub": _BOOK}
)
_UNTITLED = {"xlsx", "xlsm", "ods", "epub"}  # the first line is not a title
_BREAKS = dict.fromkeys(("p", "h", "br", "line-break", "tr", "row", "table-row", "author", "comment"), "\n")
_BREAKS |= dict.fromkeys(("c", "s", "tab"), " ")
# Deleted text, text that is there a second time, instructions, formulas and names of ranges.
_SKIPPED = {"delText", "tracked-changes", "Fallback", "rPh", "instrText", "f", "definedName", "script", "tableStyleId"}
# What is read of the properties of a document, with what is written before it: lines with keywords are tags.
_PROPERTIES = dict.fromkeys(("title", "subject", "description", "creator", "initial-creator"), "\n")
_PROPERTIES |= dict.fromkeys(("keyword", "keywords"), "\nkeywords: ")
_PROPERTIES |= dict.fromkeys(("coreProperties", "document-meta", "meta"), "")  # around these


class _Enough(Exception):
    """More text than is kept."""


def read_packed(data: bytes, name: str) -> Iterator[ParsedDocument]:
    """The document in a zipped file; its ending decides which members are read."""
    ending = name.rpartition(".")[2].lower()
    with or_unreadable("broken book" if ending == "epub" else "broken office file"):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = _Members(archive)
            try:
                for pattern in PACKED[ending]:
                    members.read(pattern)
            except _Enough:
                pass
        text = clean("".join(members.pieces))
    yield titled(members.title or ("" if ending in _UNTITLED else first_line(text)), text, name)


class _Members:
    """Reads members of an archive, and collects their text."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self.archive = archive
        self.pieces: list[str] = []
        self.title = ""
        self._left, self._characters = MAX_UNPACKED, 0
        self._texts: list[str] = []  # that cells of a sheet refer to by number

    def read(self, pattern: str) -> None:
        """Add the text of all members with such a name; numbers in names count."""
        names = dict.fromkeys(self.archive.namelist()[:MAX_MEMBERS])
        found = [name for name in names if re.fullmatch(pattern, name, re.IGNORECASE)]
        for name in sorted(found, key=lambda name: [part.zfill(9) for part in re.split(r"(\d+)", name)]):
            if name.lower().endswith(".xml"):
                self._read_xml(name)
                continue
            source = decoded(b"".join(self._blocks(name)))
            if name.lower().endswith(".opf"):  # what a book is called, and by whom it is
                for tag in ("title", "creator"):
                    if said := re.search(rf"<dc:{tag}\b[^<>]{{0,999}}>([^<>]{{1,999}})<", source):
                        self._add(one_line(html.unescape(said[1])) + "\n")
                        self.title = self.title or self.pieces[-1].strip() * (tag == "title")
            else:
                self._add(text_of_markup(source)[1] + "\n\n")

    def _read_xml(self, name: str) -> None:
        begun, depth, skipped = len(self.pieces), 0, 0
        about = bool(re.fullmatch(_ABOUT, name, re.IGNORECASE))
        number: str | None = None  # of the text that a cell refers to
        before = ""  # what is written before a property, if it has a text
        parser = expat.ParserCreate()

        def refuse(*_: object) -> None:
            raise Unreadable("broken office file")

        def start(tag: str, attributes: dict[str, str]) -> None:
            nonlocal depth, skipped, number, before
            depth += 1
            if depth > DEEPEST:
                refuse()
            tag = tag.rpartition(":")[2]
            if tag in _SKIPPED or (about and tag not in _PROPERTIES):
                skipped = skipped or depth
            elif about:
                before = _PROPERTIES[tag]
            elif tag == "c":
                number = "" if attributes.get("t") == "s" else None
            elif tag == "sheet":
                self._add(attributes.get("name", "") + "\n")

        def text(piece: str) -> None:
            nonlocal number, before
            if skipped or (about and not piece.strip()):
                return
            if number is None:
                self._add(before + piece)
                before = ""
            else:  # it may come in pieces
                number = (number + piece.strip())[:9]

        def end(tag: str) -> None:
            nonlocal depth, skipped, number, begun
            if skipped == depth:
                skipped = 0
            depth -= 1
            tag = tag.rpartition(":")[2]
            if tag == "si":  # a text of a workbook, which is shown where a cell refers to it
                self._texts.append("".join(self.pieces[begun:]))
                self._characters -= len(self._texts[-1])
                del self.pieces[begun:]
            elif tag == "c" and number is not None:  # another number is a mistake of the file
                self._add(self._texts[int(number)] if number.isdecimal() and int(number) < len(self._texts) else "")
                number = None
            if tag in _BREAKS:
                self.pieces.append(_BREAKS[tag])

        parser.buffer_text = True
        parser.EntityDeclHandler = refuse  # a few entities can expand to any length
        parser.StartElementHandler, parser.CharacterDataHandler, parser.EndElementHandler = start, text, end
        for block in self._blocks(name):
            parser.Parse(block, False)
        parser.Parse(b"", True)
        self.pieces.append("\n")

    def _blocks(self, name: str) -> Iterator[bytes]:
        with self.archive.open(name) as file:
            while block := file.read(1 << 22):  # large blocks, since the parser rescans a long comment with every block
                self._left -= len(block)
                if self._left < 0:
                    raise Unreadable("unpacks to too much")
                yield block

    def _add(self, piece: str) -> None:
        self.pieces.append(piece)
        self._characters += len(piece)
        if self._characters > 4 * MAX_TEXT:
            raise _Enough
