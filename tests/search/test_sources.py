"""What is read, and what is skipped with which reason. Nothing in a folder may stop the others from being read."""

from __future__ import annotations

import contextlib
import io
import json
import mailbox
import os
import socket

import pytest

from fedrank.search import formats, readers, sources
from fedrank.search.readers import Unreadable, link_of, name_in_words, read_rtf, text_of_markup
from fedrank.search.sources import FoundFile, walk
from tests.search.reading import only, read

MAIL = b"""From: "Ann B." <ann@example.org>
To: me@example.org
Subject: =?utf-8?q?Gr=C3=BC=C3=9Fe?=
Date: Mon, 01 Jan 2024 10:00:00 +0000
MIME-Version: 1.0
Content-Type: multipart/alternative; boundary=xx

--xx
Content-Type: text/plain; charset=iso-8859-1
Content-Transfer-Encoding: quoted-printable

the plain caf=E9
--xx
Content-Type: text/html

<p>the <b>html</b></p>
--xx
Content-Type: application/pdf; name=plan.pdf
Content-Disposition: attachment; filename=plan.pdf
Content-Transfer-Encoding: base64

AAAA
--xx--
"""


def test_text_markdown_and_code_are_files_with_titles(tmp_path):
    (tmp_path / "a.txt").write_text("plain text")
    (tmp_path / "b.md").write_text("some\n## A heading ##\nmore")
    (tmp_path / "c.py").write_text("def answer():\n    return 42\n")
    (tmp_path / "README").write_text("no ending")
    (tmp_path / "old.txt").write_bytes("Größe".encode("cp1252"))
    (tmp_path / "wide.txt").write_bytes("Größe".encode("utf-16"))
    documents, reasons = read(tmp_path)
    assert not reasons
    titles = {name: pieces[0].title for name, pieces in documents.items()}
    assert titles["b.md"] == "A heading"
    assert titles["c.py"] == "c.py"
    assert titles["README"] == "README"
    assert documents["old.txt"][0].text == documents["wide.txt"][0].text == "Größe"
    assert {piece.kind for pieces in documents.values() for piece in pieces} == {"file"}


def test_a_short_first_line_is_the_title_and_the_name_can_be_searched(tmp_path):
    (tmp_path / "letter.txt").write_text("Roof repair\n===\n\nThe tiles are broken.")
    (tmp_path / "long.txt").write_text("word " * 40 + "\nmore")
    (tmp_path / "digits.txt").write_text("12 345\nmore")
    (tmp_path / "one.txt").write_text("All of the text")
    (tmp_path / "table.csv").write_text("name,date\nann,2024")
    documents, _ = read(tmp_path)
    titles = {name: pieces[0].title for name, pieces in documents.items()}
    assert titles.pop("letter.txt") == "Roof repair"
    assert all(name == title for name, title in titles.items())
    assert documents["letter.txt"][0].text.endswith("The tiles are broken.")
    assert [documents[name][0].name for name in ("letter.txt", "long.txt")] == ["letter.txt", ""]
    assert documents["long.txt"][0].text.endswith("more")


def test_html_is_its_text_without_scripts(tmp_path):
    (tmp_path / "a.html").write_text(
        "<html><head><title>A &amp; B</title><style>p {}</style></head><body><!-- not this --><p>one <b>two</b></p>"
        "<script>three()</script>1 < 2<br>four</body>"
    )
    (piece,) = only(tmp_path)
    assert piece.title == "A & B"
    assert piece.text.split() == ["one", "two", "1", "<", "2", "four"]
    assert piece.name == "a.html"


@pytest.mark.parametrize("piece", ["<!--", "<script>", "<title>", "<a href='", "<!", "</", "&#", "<style><script>"])
def test_html_that_never_ends_takes_no_longer_than_its_length(piece):
    text_of_markup(piece * 200_000)  # a quadratic reader would take hours


def test_markup_is_read_no_further_than_it_is_kept(monkeypatch):
    monkeypatch.setattr(readers, "MAX_TEXT", 1_000)
    places: list[int] = []

    class Markup(str):
        def find(self, *what):
            places.append(str.find(self, *what))
            return places[-1]

    title, text = text_of_markup(Markup("<title>long</title>" + "<p> a word" * 100_000))
    assert max(places) < 10_000, "the rest of the text was searched"
    assert (title, len(text)) == ("long", 1_000)


def test_mail_has_its_plain_part_and_the_names_of_files(tmp_path):
    (tmp_path / "a.eml").write_bytes(MAIL)
    (piece,) = only(tmp_path)
    assert (piece.kind, piece.title, piece.sender, piece.date) == ("mail", "Grüße", "ann@example.org", 1704103200)
    assert piece.text == "the plain café\n\nplan.pdf"
    assert piece.where == "Ann B."
    assert piece.recipients == ("me@example.org",)


def test_mail_without_a_plain_part_is_its_html(tmp_path):
    (tmp_path / "a.eml").write_bytes(b"Subject: x\nContent-Type: text/html\n\n<p>only <i>this</i></p>")
    assert only(tmp_path)[0].text == "only this"


@pytest.mark.parametrize(
    "mail",
    [
        b"Subject: x\nDate: not a date\n\ntext",
        b"Subject: x\nDate: Mon, 99 Jan 99999 10:00:00 +9999\n\ntext",
        b"Subject: =?nonsense?b?AAAA?=\n\ntext",
        b"Subject: x\nContent-Type: text/plain; charset=no-such\n\ntext",
        b"Subject: x\nContent-Type: text/plain; charset=rot13\n\ntext",
        b"Subject: x\nContent-Transfer-Encoding: base64\n\n!!!!text",
        b"Subject: x\nFrom: " + b"<" * 5000 + b"\n\ntext",
        b"Subject: \xff\xfe\n\n\xff\xfetext",
        b"Subject: x\nContent-Type: multipart/mixed; boundary=a\n\n--a\nContent-Type: text/plain\n\ntext",
    ],
)
def test_a_mail_that_is_a_little_broken_is_read_still(tmp_path, mail):
    (tmp_path / "a.eml").write_bytes(mail)
    (piece,) = only(tmp_path)
    assert piece.kind == "mail"
    piece.text.encode(), piece.title.encode()  # no halves of surrogates


@pytest.mark.parametrize(
    "mail",
    [
        *(b"Content-Type: text/plain" + evil * 300_000 + b"\n\nbody" for evil in (b";", b'; a=";"', b' ";')),
        b"Content-Disposition: attachment; filename=\"" + b'\\";' * 300_000 + b"\n\nbody",
        b"Content-Type: text/plain; charset=punycode\n\n" + b"body-" + b"b9a8" * 300_000,
    ],
)  # fmt: skip
def test_long_headers_of_a_mail_are_read(tmp_path, mail):
    (tmp_path / "a.eml").write_bytes(b"Subject: long\n" + mail)
    documents, reasons = read(tmp_path)  # a quadratic reader would take hours
    assert not reasons
    assert documents["a.eml"][0].title == "long"


def test_one_mail_does_not_hide_the_others_of_its_box(tmp_path):
    (tmp_path / "box.mbox").write_bytes(
        b"From a\nSubject: one\n\nx\n\nFrom b\nSubject: two\nTo: "
        + b"(" * 9000
        + b"\n\nx\n\nFrom c\nSubject: three\n\nx\n"
    )
    documents, reasons = read(tmp_path)
    assert [piece.title for piece in documents["box.mbox"]] == ["one", "three"]
    assert reasons == {"box.mbox": "broken mail"}


def test_broken_mail_is_counted(tmp_path):
    (tmp_path / "nothing.eml").write_bytes(b"\n\n\n")
    nested = b"".join(b"Content-Type: multipart/mixed; boundary=b%d\n\n--b%d\n" % (n, n) for n in range(2_000))
    (tmp_path / "nested.eml").write_bytes(nested)
    documents, reasons = read(tmp_path)
    assert reasons == {"nested.eml": "broken mail", "nothing.eml": "broken mail"}
    assert not documents


def test_mbox_has_a_document_for_each_message_named_by_what_it_holds(tmp_path):
    path = tmp_path / "Inbox"
    box = mailbox.mbox(path)
    for n in range(3):
        box.add(b"Subject: number %d\n\nFrom here it begins\n" % n)
    box.close()
    before = only(tmp_path)
    assert [piece.title for piece in before] == ["number 0", "number 1", "number 2"]
    assert before[0].text == "From here it begins"
    path.write_bytes(b"From x\nSubject: new\n\nnew\n\n" + path.read_bytes())
    after = only(tmp_path)
    assert {piece.part for piece in after} > {piece.part for piece in before}


def test_maildir_keeps_a_message_when_its_flags_change(tmp_path):
    box = mailbox.Maildir(tmp_path / "Mail")
    box.add(MAIL)
    (before,) = read(tmp_path)[0]
    (new,) = (tmp_path / "Mail" / "new").iterdir()
    new.rename(tmp_path / "Mail" / "cur" / f"{new.name}:2,S")
    ((after, pieces),) = read(tmp_path)[0].items()
    assert after == before
    assert pieces[0].kind == "mail"


def test_lines_of_json_are_documents_each(tmp_path):
    lines = [
        {"_id": "a", "title": "First", "text": "one", "url": "https://example.org/x", "date": "2024-01-01"},
        {"id": 7, "body": "two " * 50, "timestamp": 1704103200000},
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n{broken\n[1]\n\n{}\n" + "[" * 100_000)
    documents, reasons = read(tmp_path)
    first, second = documents["a.jsonl"]
    assert (first.title, first.link, first.date) == ("First", "https://example.org/x", 1704067200)
    assert second.title.startswith("two two")
    assert second.date == 1704103200
    assert reasons


def test_bookmarks_are_pages_and_only_some_become_links(tmp_path):
    (tmp_path / "bookmarks.html").write_text(
        "<!DOCTYPE NETSCAPE-Bookmark-file-1>\n<TITLE>Bookmarks</TITLE><DL><p>\n<DT><H3>Garden</H3><DL><p>\n"
        '<DT><A HREF="https://example.org/apple-trees" ADD_DATE="1704103200">Trees &amp; more</A>\n<DD>good\n'
        '<DT><A HREF="javascript:alert(1)">bad</A>\n<DT><A HREF="file:///etc/passwd">worse</A></DL><p></DL>'
    )
    first, second, third = only(tmp_path)
    assert (first.kind, first.title, first.link) == ("page", "Trees & more", "https://example.org/apple-trees")
    assert "Garden" in first.text
    assert "good" in first.text
    assert "apple trees" in first.text
    assert first.date == 1704103200
    assert (second.where, second.link, third.link) == ("javascript:alert(1)", "", "")


@pytest.mark.parametrize(
    "address",
    ["javascript:x", "file:///x", "data:text/html,x", "//x", "https://", "http://[", "https://a b", "ftp://a", ""],
)
def test_what_may_not_become_a_link(address):
    assert link_of(address) == ""


def test_links_pipes_sockets_and_devices_are_never_opened(tmp_path):
    (tmp_path / "secret.txt").write_text("outside")
    root = tmp_path / "root"
    root.mkdir()
    (root / "out.txt").symlink_to(tmp_path / "secret.txt")
    (root / "folder").symlink_to(tmp_path)
    (root / "loop").symlink_to(root)
    os.mkfifo(root / "pipe.txt")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(root / "socket"))
        documents, reasons = read(root)
    assert not documents
    assert reasons == {
        "folder": "link", "loop": "link", "out.txt": "link", "pipe.txt": "no file", "socket": "no file",
    }  # fmt: skip


def test_a_file_exchanged_for_a_link_or_a_pipe_while_we_walk_is_not_read(tmp_path):
    (tmp_path / "secret").write_text("outside")
    root = tmp_path / "root"
    (root / "inner").mkdir(parents=True)
    for name in ("a.txt", "b.txt", "c.txt"):
        (root / "inner" / name).write_text("inside")
    reasons = []
    for found in walk(root):
        assert isinstance(found, FoundFile)
        path = root / os.fsdecode(found.path)
        path.unlink()
        if path.name == "a.txt":
            path.symlink_to(tmp_path / "secret")
        elif path.name == "b.txt":
            os.mkfifo(path)
        reasons += [str(piece) for piece in found.pieces()]
    assert reasons == ["cannot be read", "no file", "vanished"]


def test_too_large_too_deep_hidden_binary_and_empty_are_counted(tmp_path):
    with open(tmp_path / "large.txt", "wb") as file:
        file.truncate(2 << 30)
    with open(tmp_path / "large.mbox", "wb") as file:
        file.write(b"From x\nSubject: y\n\n")
        file.truncate(2 << 30)
    (tmp_path / "empty.txt").touch()
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\0\0\0")
    (tmp_path / "noise").write_bytes(bytes(range(128, 256)) * 40)
    (tmp_path / ".git").mkdir()
    (tmp_path / ".hidden.txt").write_text("x")
    deep = tmp_path
    for _ in range(sources.DEEPEST + 2):
        deep = deep / "d"
        deep.mkdir()
    documents, reasons = read(tmp_path)
    assert not documents
    assert reasons.pop("/".join("d" * (sources.DEEPEST + 1))) == "too deep"
    assert reasons == {
        ".git": "hidden", ".hidden.txt": "hidden", "empty.txt": "empty", "large.mbox": "too large",
        "large.txt": "too large", "noise": "not text", "picture.png": "not text",
    }  # fmt: skip


def test_a_number_of_many_digits_spoils_neither_a_page_nor_bookmarks(tmp_path):
    evil = "&#" + "9" * 5000 + ";"
    (tmp_path / "a.html").write_text(f"<p>before {evil} after</p>")
    (tmp_path / "b.html").write_text(
        f'<!DOCTYPE NETSCAPE-Bookmark-file-1><DT><A HREF="{evil}">bad</A><DT><A HREF="http://b.example/">good</A>'
    )
    documents, reasons = read(tmp_path)
    assert not reasons
    assert documents["a.html"][0].text.endswith("after")
    assert documents["b.html"][1].title == "good"


def test_a_file_without_a_size_is_not_read(tmp_path, monkeypatch):
    class Endless(io.FileIO):
        def read(self, size: int = -1) -> bytes:
            pytest.fail("as /proc/kmsg, it may have no end, or wait for ever")

    (tmp_path / "a.txt").touch()
    monkeypatch.setattr(sources, "open", Endless, raising=False)
    assert read(tmp_path) == ({}, {"a.txt": "empty"})


def test_a_year_that_no_database_takes_is_no_obstacle(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("text")
    real = os.stat(tmp_path / "a.txt")
    for years in (10**15, -(10**15)):
        facts = os.stat_result([*real[:7], 0, years, 0], {"st_mtime_ns": years * 10**9})
        _, modified = sources._size_and_time(None, "", facts, "")
        assert abs(modified) == sources.LATEST < 1 << 63


def test_what_may_not_be_read_is_counted(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("x")
    real = os.open

    def refuse(path, *rest, **more):
        if path == "a.txt":
            raise PermissionError(13, "no")
        return real(path, *rest, **more)

    monkeypatch.setattr(sources.os, "open", refuse)
    assert read(tmp_path)[1] == {"a.txt": "not allowed"}


def test_pdf_without_the_package_is_counted(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pypdf", None)
    (tmp_path / "a.pdf").write_bytes(b"%PDF-1.7 ...")
    assert read(tmp_path)[1] == {"a.pdf": "PDF needs the package pypdf: pip install 'fedrank[documents]'"}


def pdf_of(text: str) -> bytes:
    """The smallest PDF with a line of text."""
    stream = f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET".encode()
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R "
        b"/Resources << /Font << /F1 << /Type /Font /Subtype /Type1 /BaseFont /Helvetica >> >> >> >>",
        b"<< /Length %d >>\nstream\n%s\nendstream" % (len(stream), stream),
    ]
    out, offsets = b"%PDF-1.4\n", []
    for number, one in enumerate(objects, 1):
        offsets.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, one)
    table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    end = b"trailer << /Size 5 /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF" % len(out)
    return out + b"xref\n0 5\n0000000000 65535 f \n" + table + end


def test_pdf_is_its_text_and_a_broken_one_is_counted(tmp_path):
    pytest.importorskip("pypdf")
    whole = pdf_of("an orchard on paper")
    (tmp_path / "a.pdf").write_bytes(whole)
    (tmp_path / "b.pdf").write_bytes(whole[:60])
    (tmp_path / "c.pdf").write_bytes(pdf_of(""))
    documents, reasons = read(tmp_path)
    assert documents["a.pdf"][0].text == "an orchard on paper"
    assert reasons == {"b.pdf": "broken PDF", "c.pdf": "PDF without text"}


def test_no_other_page_of_a_pdf_is_read_after_some_seconds(tmp_path, monkeypatch):
    pytest.importorskip("pypdf")
    pages = b"/Kids [3 0 R 3 0 R 3 0 R] /Count 3"
    (tmp_path / "a.pdf").write_bytes(pdf_of("an orchard").replace(b"/Kids [3 0 R] /Count 1", pages))
    assert only(tmp_path)[0].text.split("\n\n") == ["an orchard"] * 3
    seconds = iter((0.0, 1.0, readers.MAX_SECONDS + 1))
    monkeypatch.setattr(readers.time, "thread_time", lambda: next(seconds))
    assert only(tmp_path)[0].text == "an orchard"


def test_one_message_too_large_does_not_hide_the_others(monkeypatch):
    monkeypatch.setattr(readers, "MAX_PART", 1000)
    data = b"From a\nSubject: 1\n\nx\n\nFrom b\nSubject: 2\n\n" + b"y" * 3000 + b"\n" + b"z\n" * 900
    data += b"\nFrom c\nSubject: 3\n\nz\n"
    pieces = list(formats.read_pieces(io.BytesIO(data), len(data), "box", "mbox"))
    assert [str(p) if isinstance(p, Unreadable) else p.title for p in pieces] == ["1", "too large", "3"]


PROFILE = {
    "prefs.js": "user_pref('x', 1);", "logins.json": "{}", "Mail/Local Folders/Inbox.msf": "// <!-- <mdb:mork -->",
    "Mail/Local Folders/msgFilterRules.dat": "name=x", "Mail/Local Folders/Archive.sbd/2020.msf": "",
    "ImapMail/host/INBOX.msf": "",
}  # fmt: skip


def test_a_profile_of_thunderbird_is_its_mail(tmp_path):
    profile = tmp_path / "abc.default"
    for name, text in PROFILE.items():
        (profile / name).parent.mkdir(parents=True, exist_ok=True)
        (profile / name).write_text(text)
    box = b"From - Mon Jan 1\nX-Mozilla-Status: 0001\n" + MAIL + b"\n\n"
    (profile / "Mail" / "Local Folders" / "Inbox").write_bytes(box)
    (profile / "Mail" / "Local Folders" / "Archive.sbd" / "2020").write_bytes(box.replace(b"0001", b"0009"))
    (profile / "ImapMail" / "host" / "Sent" / "cur").mkdir(parents=True)
    (profile / "ImapMail" / "host" / "Sent" / "tmp").mkdir()
    (profile / "ImapMail" / "host" / "Sent" / "cur" / "123.eml").write_bytes(MAIL)
    documents, reasons = read(tmp_path)
    below = "abc.default/Mail/Local Folders/"
    assert [*documents] == ["abc.default/ImapMail/host/Sent/123.eml", f"{below}Inbox"]
    assert reasons.pop(f"{below}Archive.sbd/2020") == "deleted in the mail program"
    assert {*reasons.values()} == {"data of a program"}


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_a_message_of_a_box_keeps_its_key_when_its_flags_change(tmp_path, end):
    mail = b"Subject: x\nX-Mozilla-Status: 0000\nX-Mozilla-Keys: a\nStatus: RO\n\nX-Status: of the body\n"
    (tmp_path / "a.mbox").write_bytes((b"From x\n" + mail).replace(b"\n", end))
    (before,) = only(tmp_path)
    changed = mail.replace(b"0000", b"0003").replace(b"RO", b"O").replace(b"Keys: a", b"Keys:  ")
    (tmp_path / "a.mbox").write_bytes((b"From x\n" + changed).replace(b"\n", end))
    assert only(tmp_path)[0].part == before.part
    (tmp_path / "a.mbox").write_bytes((b"From x\n" + mail.replace(b"the body", b"another")).replace(b"\n", end))
    assert only(tmp_path)[0].part != before.part


def test_notes_of_obsidian_have_titles_dates_and_links_as_words(tmp_path):
    (tmp_path / "a.md").write_text(
        '---\ntitle: "Garden plan"\ntags: [fruit, winter]\ncreated: 2024-01-01\n---\n# Heading\n'
        "See [[People/Ann|my friend]], ![[plan.png]] and [[Trees]] #garden/soil\n"
    )
    (tmp_path / "b.md").write_text("---\nnot: closed\n# Heading\n[[broken\nlink]] [[]]")
    (tmp_path / "c.md").write_text("Some text first.\n\n---\n\ntitle: no front matter\n\n---\n")
    documents, _ = read(tmp_path)
    note = documents["a.md"][0]
    assert (note.title, note.date, note.name) == ("Garden plan", 1704067200, "a.md")
    assert "See my friend (People/Ann), plan.png and Trees #garden/soil" in note.text
    assert "tags: [fruit, winter]" in note.text
    assert not note.text.startswith("---")
    assert documents["b.md"][0].title == "Heading"
    assert "[[broken\nlink]] [[]]" in documents["b.md"][0].text
    assert (documents["c.md"][0].title, documents["c.md"][0].date) == ("Some text first.", 0)


def test_identifiers_of_source_code_are_words_too(tmp_path):
    (tmp_path / "a.py").write_text("def read_file(httpServer, XMLParser2, x, größeGeändert):\n    return __init__\n")
    (tmp_path / "b.c").write_text("int x;")
    documents, _ = read(tmp_path)
    text, words = documents["a.py"][0].text.rsplit("\n\n", 1)
    assert text == "def read_file(httpServer, XMLParser2, x, größeGeändert):\n return __init__"
    assert words == "identifiers: read file, http server, xml parser 2, größe geändert"
    assert documents["b.c"][0].text == "int x;"


@pytest.mark.parametrize("text", ["a_" * 500_000, "aB" * 500_000, "x" * 1_000_000, "a_b " * 250_000, "---\n" * 200_000])
def test_source_code_and_notes_take_linear_time(tmp_path, text):
    (tmp_path / "a.c").write_text(text)
    (tmp_path / "b.md").write_text(text + "[[" * 100_000)
    documents, reasons = read(tmp_path)
    assert not reasons
    assert all(len(pieces[0].text) <= readers.MAX_TEXT + 20 for pieces in documents.values())


RTF = (
    rb"{\rtf1\ansi\ansicpg1252{\fonttbl{\f0 Helvetica;}}{\*\generator x;}{\info{\title no}}\f0 "
    rb"Letter on the r\'f6\'f6f\par\u8364?5 {\b bold} \{x\} \uc2\u-10179??\u-8704?? "
    rb"{\field{\*\fldinst HYPERLINK y}{\fldrslt a link}}}"
)


def test_rtf_is_its_text_without_codes(tmp_path):
    (tmp_path / "a.rtf").write_bytes(RTF)
    one = only(tmp_path)[0]
    assert (one.title, one.text) == ("Letter on the rööf", "Letter on the rööf\n€5 bold {x} \U0001f600 a link")


@pytest.mark.parametrize(
    "piece", [b"{", b"}", b"\\", b"\\u65 ", b"\\u-1", b"\\'41", b"\\uc999999999", b"x", b"{\\*", b"\\ansicpg000"]
)
def test_hostile_rtf_is_read_or_refused(piece):
    data = b"{\\rtf1 " + piece * 20_000
    with contextlib.suppress(Unreadable):
        assert len(next(read_rtf(data, "a.rtf")).text) <= len(data)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("RoofInvoice_2026.pdf", "Roof Invoice 2026 pdf"),
        ("tax_Köln2.txt", "tax Köln 2 txt"),
        ("roof-invoice.pdf", ""),
        ("日本.txt", ""),
        ("_", ""),
    ],
)
def test_words_of_a_name_are_found_each(name, words):
    assert name_in_words(name) == words
