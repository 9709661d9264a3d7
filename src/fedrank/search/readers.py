"""Readers that turn the bytes of a file into documents: text, source code, HTML, mail, JSON lines, bookmarks, PDF.

Input is not trusted. Readers take linear time and limited memory, and raise `Unreadable` with a reason that is counted;
the process in which they run has limits, too. Nothing is fetched from a network, and nothing in a document is executed.
"""

from __future__ import annotations

import email
import email.header
import email.message
import email.policy
import email.utils
import hashlib
import html
import io
import json
import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlsplit

from fedrank.data.values import parse_time
from fedrank.extras import missing_extra
from fedrank.search.results import Kind

MAX_TEXT = 1_000_000  # characters stored per document
MAX_PART = 32 << 20  # bytes of one message, or of one line of JSON
MAX_PARTS = 500  # MIME parts read per message
MAX_BOUNDARIES = 200  # per message; the standard parser compares every line with all open boundaries
MAX_HEADER_LENGTH = 20_000  # characters read of a header
MAX_PARAMETERS_LENGTH = 2_000  # of a header with parameters; the standard parser takes quadratic time
LONGEST_TITLE = 100  # characters of a first line used as the title
MAX_PAGES = 2_000  # of a PDF
MAX_SECONDS = 10.0  # CPU time after which no other page of a PDF is read
_BLANKS = re.compile(r"[ \t\f\v\r\x00]{2,}|[\t\f\v\r\x00]")  # a single space, the common case, is not replaced
_LINES = re.compile(r"\n\s*\n+")
_BOUNDARY = re.compile(rb"boundary\s*=", re.IGNORECASE)
_PROSE = {"txt", "text", "md", "markdown", "rst", "org", "adoc"}  # may have a title line


class Unreadable(ValueError):
    """A file, or a part of a file, that cannot be indexed; its text is the reason, which is stored and counted."""


@dataclass(frozen=True)
class ParsedDocument:
    """A document as read from a file."""

    part: str  # stable key of the part of the file; "": the whole file
    kind: Kind
    title: str
    text: str
    where: str = ""  # a URL, or the author of a mail
    link: str = ""  # only http and https
    date: int = 0  # seconds since 1970; 0: the date of the file
    sender: str = ""  # mail address
    recipients: tuple[str, ...] = ()
    name: str = ""  # file name, which is searchable but not displayed; "" if it is the title


def has_bookmarks(path: Path) -> bool:
    """Whether this is a file with bookmarks as browsers export them."""
    if not path.is_file():
        return False
    with open(path, "rb") as file:
        return any(True for _ in read_bookmarks(file.read(MAX_PART), ""))


def clean(text: str) -> str:
    """Remove NUL and lone surrogates, collapse blanks and empty lines, and limit the length."""
    text = text.encode("utf-8", "replace").decode("utf-8") if not text.isascii() else text
    text = _LINES.sub("\n\n", _BLANKS.sub(" ", text.replace("\r\n", "\n"))).strip()
    return text[:MAX_TEXT]


def decoded(data: bytes) -> str:
    """Decode by byte order mark, as UTF-8, or else as Windows-1252, the most common encoding of old files."""
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return data.decode("utf-16", "replace")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("cp1252", "replace")


def _unescaped(text: str) -> str:
    try:
        return html.unescape(text)
    except ValueError:  # more digits than Python converts
        return text


@contextmanager
def or_unreadable(reason: str) -> Iterator[None]:
    """Turn every error of a parser into `Unreadable`, since parsers may fail in any way on untrusted files."""
    try:
        yield
    except (Unreadable, MemoryError):
        raise
    except Exception:
        raise Unreadable(reason) from None


def one_line(text: str, most: int = 300) -> str:
    return " ".join(clean(text[: 10 * most]).split())[:most]


def read_text(data: bytes, name: str) -> Iterator[ParsedDocument]:
    ending = name.rpartition(".")[2].lower()
    text = clean(decoded(data)[: 4 * MAX_TEXT])
    if ending in ("md", "markdown"):
        yield _markdown(text, name)
    else:
        yield titled(first_line(text) if ending in _PROSE else "", text, name)


_FRONT = re.compile(r"---\s*\n(.{0,20000}?)\n---(?=\n|$)", re.DOTALL)
_FACT = re.compile(r"^(title|date|created):[ ]?(.{1,300})", re.MULTILINE | re.IGNORECASE)
_WIKI_LINK = re.compile(r"!?\[\[([^\[\]|\n]{1,300})(?:\|([^\[\]|\n]{1,300}))?\]\]")


def _markdown(text: str, name: str) -> ParsedDocument:
    """Markdown with the extensions of Obsidian: front matter in YAML, and links in double brackets."""
    facts: dict[str, str] = {}
    if front := _FRONT.match(text):
        facts = {key.lower(): value.strip(" \"'") for key, value in _FACT.findall(front[1])}
        text = f"{text[front.end() :].strip()}\n\n{front[1].strip()}".strip()
    text = _WIKI_LINK.sub(lambda link: f"{link[2]} ({link[1]})" if link[2] else link[1], text)
    heading = re.search(r"^#{1,3}[ \t]+(.{1,300})", text, re.MULTILINE)
    title = first_line(text) if heading is None else one_line(heading[1].strip("# "))
    date = read_date(facts.get("date") or facts.get("created") or "")
    return replace(titled(one_line(facts.get("title", "")) or title, text, name), date=date)


_IDENTIFIER = re.compile(r"[^\W\d]\w{3,79}")
_IDENTIFIER_PART = re.compile(r"[A-Z]+(?![^\W\dA-Z_])|[A-Z]?[^\W\dA-Z_]+|\d+")
MAX_IDENTIFIERS = 2_000  # of a file of source code


def read_code(data: bytes, name: str) -> Iterator[ParsedDocument]:
    """Source code, followed by the words of its identifiers: `readFile` is found by "read file", too."""
    text = clean(decoded(data)[: 4 * MAX_TEXT])
    distinct = [*dict.fromkeys(_IDENTIFIER.findall(text))]
    parts = filter(lambda parts: len(parts) > 1, map(_IDENTIFIER_PART.findall, distinct[: 10 * MAX_IDENTIFIERS]))
    words = ", ".join([*dict.fromkeys(" ".join(parts).lower() for parts in parts)][:MAX_IDENTIFIERS])
    yield titled("", f"{text[: MAX_TEXT - len(words)]}\n\nidentifiers: {words}" if words else text, name)


def name_in_words(name: str) -> str:
    """A file name with its words apart; "" if they already are.

    >>> name_in_words("RoofInvoice_2026.pdf"), name_in_words("roof-invoice.pdf")
    ('Roof Invoice 2026 pdf', '')
    """
    words = _IDENTIFIER_PART.findall(name)
    return "" if [*map(str.lower, words)] == re.findall(r"\w+", name.lower()) else " ".join(words)


def first_line(text: str) -> str:
    """The first line if it can be a title: short, with a letter, and followed by more text; else ""."""
    line, _, rest = text.partition("\n")
    line = one_line(line.strip("#=*-_ \t"))
    return line if 3 <= len(line) <= LONGEST_TITLE and any(map(str.isalpha, line)) and rest.strip() else ""


def titled(title: str, text: str, name: str) -> ParsedDocument:
    """A file as a document, with a title from its content or else its name."""
    if not title and not text:
        raise Unreadable("empty")
    own = bool(title) and title != name
    return ParsedDocument("", "file", title if own else name, text, name=name if own else "")


_SKIPPED = {"script", "style", "template", "noscript", "svg", "math", "iframe", "object"}
_INLINE = frozenset(
    "a abbr b bdi bdo cite code data em font i kbd mark q s samp small span strong sub sup u var wbr".split()  # noqa: SIM905
)


def text_of_markup(source: str) -> tuple[str, str]:
    """(title, text) of HTML, in one pass; a missing end tag or bracket ends the text, so time stays linear."""
    pieces: list[str] = []
    title, at, length = "", 0, 0
    while at < len(source) and length < 4 * MAX_TEXT:  # more than MAX_TEXT, since blanks are collapsed later
        tag = source.find("<", at)
        if tag < 0:
            pieces.append(source[at:])
            break
        pieces.append(source[at:tag])
        length += tag - at + 1
        if source.startswith("<!--", tag):
            end = source.find("-->", tag + 4)
            if end < 0:
                break
            at = end + 3
            continue
        if not (source[tag + 1 : tag + 2].isalpha() or source[tag + 1 : tag + 2] in ("/", "!", "?")):
            pieces.append("<")
            at = tag + 1
            continue
        end = source.find(">", tag)
        if end < 0:
            break
        found = re.match(r"/?[A-Za-z][A-Za-z0-9]{0,20}", source[tag + 1 : tag + 24])
        name = found[0].lower() if found else ""
        at = end + 1
        if name in _SKIPPED or (name == "title" and not title):
            last = re.compile(f"</{name}", re.IGNORECASE).search(source, at)
            if last is None:
                break
            if name == "title":
                title = _unescaped(source[at : last.start()])
            after = source.find(">", last.end())
            if after < 0:
                break
            at = after + 1
        elif name.lstrip("/") not in _INLINE:
            pieces.append("\n")
    return one_line(title), clean(_unescaped("".join(pieces)))


_RTF = re.compile(
    rb"\\(?:([a-z]{1,32})(-?\d{1,9})? ?|'([0-9a-fA-F]{2})|([^a-z]))|([{}])|([^\\{}\r\n]{1,4096})|[\r\n]", re.DOTALL
)
_RTF_SIGNS = {
    "par": "\n", "line": "\n", "sect": "\n", "page": "\n", "row": "\n", "tab": "\t", "cell": "\t", "emdash": "—",
    "endash": "–", "bullet": "•", "lquote": "‘", "rquote": "’", "ldblquote": "“", "rdblquote": "”", "emspace": " ",
}  # fmt: skip
_RTF_SKIPPED = {
    *("fonttbl", "colortbl", "stylesheet", "listtable", "listoverridetable", "info", "pict", "object", "fldinst"),
    *("themedata", "datastore", "xmlnstbl", "rsidtbl", "generator", "latentstyles", "filetbl", "revtbl"),
}


def read_rtf(data: bytes, name: str) -> Iterator[ParsedDocument]:
    """The text of an RTF file, without fonts, styles, pictures and instructions of fields."""
    found = re.search(rb"\\ansicpg(\d{3,5})", data[:4096])
    charset = f"cp{int(found[1])}" if found else "cp1252"
    pieces: list[str] = []
    depth, skipped, length, unicode, behind = 0, 0, 0, 1, 0  # behind: signs to leave out after one in Unicode
    for token in _RTF.finditer(data):
        word, number, code, sign, brace, plain = token.groups()
        if brace:
            depth += 1 if brace == b"{" else -1
            skipped = 0 if depth < skipped else skipped
            behind = 0
        elif sign == b"*" or (word and word.decode() in _RTF_SKIPPED):  # from here to the end of the group
            skipped = skipped or max(depth, 1)
        elif skipped:
            continue
        elif word == b"uc":
            unicode = min(int(number or 1), 9)
        elif word == b"u" and number:
            pieces.append(chr(int(number) % 65_536))
            behind = unicode
        elif word:
            pieces.append(_RTF_SIGNS.get(word.decode(), ""))
        else:
            text = bytes.fromhex(code.decode()) if code else plain or {b"~": b" ", b"_": b"-"}.get(sign, b"")
            text = sign if sign in (b"\\", b"{", b"}") else text
            text, behind = text[behind:], max(behind - len(text), 0)
            pieces.append(_in_charset(text, charset))
            length += len(text)
        if length > 4 * MAX_TEXT:
            break
    text = "".join(pieces).encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # pairs of surrogates
    text = clean(text)
    yield titled(first_line(text), text, name)


def read_markup(data: bytes, name: str) -> Iterator[ParsedDocument]:
    yield titled(*text_of_markup(decoded(data)), name)


_BOOKMARK = re.compile(
    r"<H3[^<>]{0,4000}>([^<]{0,1000})</H3>|(</DL>)"
    r"|<A\s([^<>]{0,100000})>([^<]{0,4000})</A>(?:\s{0,40}<DD>([^<]{0,4000}))?",
    re.IGNORECASE,
)
_HREF = re.compile(r'HREF="([^"]*)"', re.IGNORECASE)
_ADDED = re.compile(r'ADD_DATE="(\d{1,18})"', re.IGNORECASE)


def read_bookmarks(data: bytes, name: str) -> Iterator[ParsedDocument]:
    folders: list[str] = []
    key = part_keys()
    for found in _BOOKMARK.finditer(decoded(data)):
        if found[1] is not None:
            folders = [*folders[-20:], one_line(_unescaped(found[1]))]
        elif found[2]:
            folders = folders[:-1]
        else:
            address = _HREF.search(found[3])
            added = _ADDED.search(found[3])
            text = "\n".join(filter(None, [" / ".join(folders), one_line(_unescaped(found[5] or ""), 2_000)]))
            where = one_line(_unescaped(address[1]) if address else "", 2_000)
            if one := page(_unescaped(found[4]), text, where, moment(float(added[1])) if added else 0, key):
                yield one


def page(title: str, text: str, address: str, date: int, key: Callable[[bytes], str]) -> ParsedDocument | None:
    """A web page by its address; None without a name."""
    title = one_line(title) or address
    words = " ".join(re.findall(r"[^\W_]+", address.partition("://")[2])[:50])
    if not title:
        return None
    return ParsedDocument(
        key(address.encode()), "page", title, f"{text}\n{words}".strip(), address, link_of(address), date
    )


def link_of(address: str) -> str:
    """The address if it is a safe link (http or https, with a host), else ""."""
    try:
        parts = urlsplit(address)
        safe = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        return ""
    return address if safe and not re.search(r"[\x00-\x20\x7f]", address) else ""


def read_json_lines(file: BinaryIO, size: int) -> Iterator[ParsedDocument | Unreadable]:
    key = part_keys()
    for line in _lines(file, size):
        if line is None:
            yield Unreadable("too large")
            continue
        if not line.strip():
            continue
        try:
            one = json.loads(line)
            if not isinstance(one, dict):
                raise ValueError
        except (ValueError, RecursionError):
            yield Unreadable("not a line of JSON")
            continue
        text = _field(one, "text", "body", "contents", "content", "abstract")
        title = one_line(_field(one, "title", "name", "subject"))
        if not text and not title:
            yield Unreadable("empty")
            continue
        name = _field(one, "_id", "id", "doc_id", "docid", "url").encode("utf-8", "replace") or line
        address = one_line(_field(one, "url", "link", "where"), 2_000)
        when = _field(one, "date", "time", "timestamp")
        yield ParsedDocument(
            key(name), "note", title or one_line(text, 80), clean(text), address, link_of(address), read_date(when),
        )  # fmt: skip


def _field(one: dict[str, object], *names: str) -> str:
    for name in names:
        value = one.get(name)
        if isinstance(value, str) and value.strip():
            return value
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return str(value)
    return ""


def read_date(text: str) -> int:
    try:
        return moment(float(text))
    except ValueError:
        return moment(parse_time(text) or 0)


def moment(seconds: float) -> int:
    """Seconds since 1970, from seconds, milliseconds or microseconds; 0 if out of range."""
    for _ in range(2):
        if abs(seconds) > 1e11:
            seconds /= 1000.0
    return int(seconds) if 0 < seconds < 1e11 else 0


def _lines(file: BinaryIO, size: int) -> Iterator[bytes | None]:
    """Lines of the first `size` bytes; None for a line that is too long."""
    left = size
    while left > 0:
        line = file.readline(min(left, MAX_PART + 1))
        if not line:
            return
        left -= len(line)
        if len(line) <= MAX_PART:
            yield line
            continue
        while left > 0 and not line.endswith(b"\n"):
            line = file.readline(min(left, MAX_PART))
            if not line:
                break
            left -= len(line)
        yield None


def read_mbox(file: BinaryIO, size: int) -> Iterator[ParsedDocument | Unreadable]:
    key = part_keys()
    for message in _messages(file, size):
        if message is None:
            yield Unreadable("too large")
            continue
        try:
            yield _message(message, key(_without_flags(message)))
        except Unreadable as problem:
            yield problem


_FLAG = re.compile(rb"^(?:X-Mozilla-(?:Status2?|Keys)|(?:X-)?Status):[^\n]*\n", re.MULTILINE | re.IGNORECASE)


def _without_flags(message: bytes) -> bytes:
    """A message without the headers that a mail program changes, since its key must not change with them."""
    head, end, body = message.partition(b"\r\n\r\n" if b"\r\n\r\n" in message[:MAX_HEADER_LENGTH] else b"\n\n")
    return _FLAG.sub(b"", head + b"\n") + end + body if _FLAG.search(head + b"\n") else message


def _messages(file: BinaryIO, size: int) -> Iterator[bytes | None]:
    """Messages of an mbox file, separated by "From " after an empty line; None for a message that is too large."""
    lines: list[bytes] = []
    length, empty, begun = 0, True, False
    for line in _lines(file, size):
        if line is not None and empty and line.startswith(b"From "):
            if begun:
                yield b"".join(lines) if length <= MAX_PART else None
            lines, length, begun = [], 0, True
            continue
        length += MAX_PART + 1 if line is None else len(line)
        if length <= MAX_PART and line is not None:
            lines.append(line[1:] if line.startswith(b">From ") else line)
        elif length > MAX_PART:
            lines = []
        empty = line is not None and not line.strip()
    if begun:
        yield b"".join(lines) if length <= MAX_PART else None


def read_eml(data: bytes, name: str) -> Iterator[ParsedDocument]:
    yield _message(data, "")


class _ShortHeaders(email.policy.Compat32):
    """Truncates headers: the standard parser takes a minute for one megabyte of semicolons."""

    def header_source_parse(self, sourcelines: list[str]) -> tuple[str, str]:
        name, value = super().header_source_parse(sourcelines)
        return name, value[: MAX_PARAMETERS_LENGTH if name.lower().startswith("content-") else MAX_HEADER_LENGTH]


def _message(data: bytes, part: str) -> ParsedDocument:
    """A mail: subject, sender, recipients, and the text of its parts."""
    if len(_BOUNDARY.findall(data)) > MAX_BOUNDARIES:
        raise Unreadable("broken mail")
    with or_unreadable("broken mail"):
        message = email.message_from_bytes(data, policy=_ShortHeaders())
        if re.fullmatch(r"\s*[0-9a-f]{3}[89a-f]\s*", str(message.get("X-Mozilla-Status", "")), re.IGNORECASE):
            raise Unreadable("deleted in the mail program")  # it stays in the file until that is compacted
        subject, sender = one_line(_header(message, "Subject")), _header(message, "From")
        to = [_header(message, name) for name in ("To", "Cc")]
        texts, files = _parts_of(message)
        people = [address.lower() for _, address in email.utils.getaddresses([line[:10_000] for line in to])]
        author, address = email.utils.parseaddr(sender[:2_000])
    text = clean("\n\n".join([*texts, *files]))
    if not subject and not text and not sender:
        raise Unreadable("broken mail")
    try:
        date = moment(email.utils.parsedate_to_datetime(_header(message, "Date")).timestamp())
    except (ValueError, TypeError, IndexError, OverflowError, OSError):
        date = 0
    return ParsedDocument(
        part, "mail", subject or "(no subject)", text, one_line(author or address), "", date,
        one_line(address.lower()), tuple(filter(None, map(one_line, people[:100]))),
    )  # fmt: skip


def _header(message: email.message.Message, name: str) -> str:
    value = message.get(name)
    if value is None:
        return ""
    raw = str(value)
    try:
        return clean(str(email.header.make_header(email.header.decode_header(raw))))
    except (ValueError, LookupError):  # unknown encoding, or bytes that are invalid in it
        return clean(raw)


def _parts_of(message: email.message.Message) -> tuple[list[str], list[str]]:
    """(texts, names of attachments); plain text is preferred to HTML."""
    texts: list[str] = []
    files: list[str] = []
    plain = False
    for number, part in enumerate(message.walk()):
        if number >= MAX_PARTS or sum(map(len, texts)) > MAX_TEXT:
            break
        kind = part.get_content_type()
        if name := part.get_filename():
            files.append(one_line(str(name)))
        if part.is_multipart() or part.get_content_disposition() == "attachment" or not kind.startswith("text/"):
            continue
        if kind == "text/html" and plain:
            continue
        payload = part.get_payload(decode=True)
        if not isinstance(payload, bytes):
            continue
        text = _in_charset(payload, part.get_content_charset())
        if kind == "text/html":
            text = text_of_markup(text)[1]
        plain = plain or (kind == "text/plain" and bool(text.strip()))
        texts.append(text)
    return texts, files


def _in_charset(data: bytes, charset: str | None) -> str:
    # Decoding punycode does not take linear time.
    if charset and charset.lower() not in ("us-ascii", "utf-8", "unknown-8bit", "punycode"):
        try:
            return data.decode(charset, "replace")
        except (LookupError, ValueError):  # an unknown codec, or one that is not a text encoding
            pass
    return decoded(data)


def read_pdf(data: bytes, name: str) -> Iterator[ParsedDocument]:
    """The text of a PDF, page by page, until it takes too long."""
    try:
        from pypdf import PdfReader  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        raise Unreadable(str(missing_extra("PDF needs the package pypdf", "documents"))) from None
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # problems of a file are counted, not printed
    until = time.thread_time() + MAX_SECONDS
    with or_unreadable("broken PDF"):
        pages: list[str] = []
        reader = PdfReader(io.BytesIO(data))
        for number, page in enumerate(reader.pages):
            if number >= MAX_PAGES or sum(map(len, pages)) > MAX_TEXT or time.thread_time() > until:
                break
            pages.append(page.extract_text())
        about = reader.metadata
        title = one_line(str(about.get("/Title") or "")) if about else ""
    text = clean("\n\n".join(pages))
    if not text:
        raise Unreadable("PDF without text")
    yield titled(title, text, name)


def part_keys() -> Callable[[bytes], str]:
    """A function that returns a key for a part of a file by its content; equal parts are numbered."""
    seen: Counter[bytes] = Counter()

    def key(data: bytes) -> str:
        digest = hashlib.blake2b(data, digest_size=12).digest()
        seen[digest] += 1
        return f"{digest.hex()}-{seen[digest]}"

    return key
