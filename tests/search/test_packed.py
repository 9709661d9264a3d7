"""Zipped XML: what is text in it, and files that want to do harm."""

from __future__ import annotations

import zipfile

import pytest

from fedrank.search import packed
from fedrank.search.index import tags_of
from tests.search.reading import only, read, zipped

CELLS = """<worksheet><sheetData>
<row><c t="s"><v>0</v></c><c t="s"><v>1</v></c></row>
<row><c t="s"><v>2</v></c><c><f>SUM(A1:A2)</f><v>3.25</v></c><c t="inlineStr"><is><t>direct</t></is></c></row>
<row><c t="s"><v>99</v></c><c t="s"><v>x</v></c></row></sheetData></worksheet>"""
SHARED = "<sst><si><t>Fruit</t></si><si><r><t>Pri</t></r><r><t>ce</t></r></si><si><t>Apple<rPh>no</rPh></t></si></sst>"


def text_of(tmp_path, name, members):
    zipped(tmp_path / name, members)
    return only(tmp_path)[0]


def test_word_has_its_text_its_notes_and_no_deleted_text(tmp_path):
    body = (
        "<w:document xmlns:w='w' xmlns:m='m'><w:p><w:r><w:t>Letter</w:t></w:r></w:p><w:p><w:t>two &amp; </w:t>"
        "<w:t>three</w:t><w:delText>gone</w:delText><w:instrText>HYPERLINK</w:instrText><m:Fallback><w:t>twice</w:t>"
        "</m:Fallback></w:p></w:document>"
    )
    one = text_of(
        tmp_path, "a.docx", {"word/document.xml": body, "word/footnotes.xml": "<n><p>a note</p></n>", "x.xml": "<a/>"}
    )  # fmt: skip
    assert (one.title, one.text) == ("Letter", "Letter\ntwo & three\n\na note")


def test_slides_come_in_their_order_with_their_notes(tmp_path):
    slides = {f"ppt/slides/slide{n}.xml": f"<s><a:p xmlns:a='a'>slide {n}</a:p></s>" for n in (10, 2, 1)}
    one = text_of(tmp_path, "a.pptx", slides | {"ppt/notesSlides/notesSlide1.xml": "<p>say this</p>"})
    assert [line for line in one.text.split("\n") if line] == ["slide 1", "slide 2", "slide 10", "say this"]


def test_cells_of_a_sheet_are_lines_of_its_rows(tmp_path):
    one = text_of(
        tmp_path, "a.xlsx",
        {
            "xl/worksheets/sheet1.xml": CELLS, "xl/sharedStrings.xml": SHARED,
            "xl/workbook.xml": '<w><sheet name="Budget"/><definedName>Sheet!$A</definedName></w>',
        },
    )  # fmt: skip
    lines = [" ".join(line.split()) for line in one.text.split("\n") if line.strip()]
    assert lines == ["Budget", "Fruit Price", "Apple 3.25 direct"]
    assert one.title == "a.xlsx"


@pytest.mark.parametrize("name", ["docProps/core.xml", "meta.xml"])
def test_properties_are_behind_the_text_and_keywords_are_tags(tmp_path, name):
    about = (
        "<o:meta xmlns:o='o'><o:keywords/><o:title>Fence</o:title><o:creator>Anna</o:creator><o:keyword>garden"
        "</o:keyword><o:revision>7</o:revision><o:creation-date>2026</o:creation-date></o:meta>"
    )
    body = {"a.docx": "word/document.xml", "a.odt": "content.xml"}["a.docx" if "/" in name else "a.odt"]
    one = text_of(tmp_path, "a.docx" if "/" in name else "a.odt", {body: "<p>Letter</p>", name: about})
    assert (one.title, one.text.split()) == ("Letter", ["Letter", "Fence", "Anna", "keywords:", "garden"])
    assert tags_of(one.text, False) == ["garden"]


def test_headers_and_comments_are_read_and_names_of_styles_are_not(tmp_path):
    word = {"word/document.xml": "<p>Letter</p>", "word/header2.xml": "<p>on top</p>"}
    assert text_of(tmp_path, "a.docx", word).text.split() == ["Letter", "on", "top"]
    (tmp_path / "a.docx").unlink()
    comment = "<c><authors><author>Bo</author></authors><comment><text><t>why?</t></text></comment></c>"
    assert text_of(tmp_path, "a.xlsx", {"xl/comments/comment1.xml": comment}).text.split() == ["Bo", "why?"]
    (tmp_path / "a.xlsx").unlink()
    table = "<a:tbl xmlns:a='a'><a:tableStyleId>{5C22544A}</a:tableStyleId><a:p>cell</a:p></a:tbl>"
    assert text_of(tmp_path, "a.pptx", {"ppt/slides/slide1.xml": table}).text == "cell"


def test_a_number_of_a_text_may_be_read_in_two_pieces(tmp_path):
    shared = "<sst>" + "".join(f"<si><t>text {n}</t></si>" for n in range(13)) + "</sst>"
    begin, cell = "<r><!--", '--><c t="s">\n<v>12</v>\n</c></r>'
    sheet = begin + "x" * ((1 << 22) - len(begin) - cell.index("2")) + cell
    one = text_of(tmp_path, "a.xlsx", {"xl/sharedStrings.xml": shared, "xl/worksheets/sheet1.xml": sheet})
    assert one.text.strip() == "text 12"


def test_open_documents_are_their_text(tmp_path):
    body = (
        "<o:d xmlns:o='o'><o:tracked-changes><o:p>gone</o:p></o:tracked-changes><o:h>Title</o:h><o:p>a<o:s/>b"
        "<o:line-break/>c</o:p></o:d>"
    )
    one = text_of(tmp_path, "a.odt", {"content.xml": body, "mimetype": "x"})
    assert (one.title, one.text) == ("Title", "Title\na b\nc")


def test_a_book_is_its_chapters_in_their_order(tmp_path):
    opf = "<package><dc:title id='t'>Trees &amp; more</dc:title><dc:creator>Ann B.</dc:creator></package>"
    chapters = {f"OEBPS/c{n}.xhtml": f"<html><p>chapter {n}</p><script>no</script></html>" for n in (11, 2)}
    one = text_of(tmp_path, "a.epub", {"OEBPS/content.opf": opf, "../../escape.xhtml": "<p>found</p>", **chapters})
    assert one.title == "Trees & more"
    assert one.text.split() == ["Trees", "&", "more", "Ann", "B.", "found", "chapter", "2", "chapter", "11"]
    assert sorted(path.name for path in tmp_path.parent.iterdir() if "escape" in path.name) == []


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "iso-8859-1"])
def test_an_encoding_that_xml_declares_is_read(tmp_path, encoding):
    source = f"<?xml version='1.0' encoding='{encoding}'?><p>Grüße</p>".encode(encoding)
    assert text_of(tmp_path, "a.odt", {"content.xml": source}).text == "Grüße"


def test_bombs_are_not_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(packed, "MAX_UNPACKED", 1 << 20)
    hostile = {
        "spaces.docx": {"word/document.xml": b"<a>" + b" " * (8 << 20) + b"</a>"},
        "chapters.epub": {f"{n}.html": " " * (1 << 17) for n in range(20)},
        "laughs.docx": {"word/document.xml": "<!DOCTYPE a [<!ENTITY b 'ha'><!ENTITY c '&b;&b;'>]><a>&c;</a>"},
        "outside.odt": {"content.xml": "<!DOCTYPE a [<!ENTITY b SYSTEM 'file:///etc/passwd'>]><a>&b;</a>"},
        "deep.odp": {"content.xml": "<a>" * 2_000},
        "unknown.odt": {"content.xml": "<?xml version='1.0' encoding='nonsense'?><a>x</a>"},
        "cut.odt": {"content.xml": "<a><b>x</b>"},
        "other.pptx": {"nothing.xml": "<a>x</a>"},
    }
    for name, members in hostile.items():
        zipped(tmp_path / name, members)
    (tmp_path / "header.docx").write_bytes(b"PK\x03\x04 nothing more")
    documents, reasons = read(tmp_path)
    assert not documents
    assert reasons == dict.fromkeys(("laughs.docx", "outside.odt", "deep.odp", "unknown.odt", "cut.odt", "header.docx"),
        "broken office file") | dict.fromkeys(("spaces.docx", "chapters.epub"), "unpacks to too much") | {
        "other.pptx": "empty"}  # fmt: skip


def test_a_file_with_too_much_text_is_read_as_far_as_it_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(packed, "MAX_TEXT", 1_000)
    shared = "<sst><si><t>" + "long " * 100 + "</t></si></sst>"
    cells = '<c t="s"><v>0</v></c>' * 100_000  # 50 MB of text
    one = text_of(tmp_path, "a.xlsx", {"xl/sharedStrings.xml": shared, "xl/worksheets/sheet1.xml": f"<r>{cells}</r>"})
    assert 4_000 < len(one.text) < 6_000


def test_locked_and_damaged_members_are_counted(tmp_path):
    zipped(tmp_path / "a.odt", {"content.xml": "<p>" + "text " * 50 + "</p>"})
    data = (tmp_path / "a.odt").read_bytes()
    at = data.index(b"content.xml") + 20
    (tmp_path / "a.odt").write_bytes(data[:at] + b"\xff\xff\xff" + data[at + 3 :])
    with zipfile.ZipFile(tmp_path / "b.odt", "w") as archive:
        archive.writestr("content.xml", "<p>secret</p>")
    data = bytearray((tmp_path / "b.odt").read_bytes())
    for sign, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(sign) + place] |= 1  # encrypted
    (tmp_path / "b.odt").write_bytes(data)
    assert read(tmp_path)[1] == dict.fromkeys(("a.odt", "b.odt"), "broken office file")


@pytest.mark.long
def test_office_files_of_one_comment_or_of_elements_in_each_other(tmp_path):
    zipped(tmp_path / "a.docx", {"word/document.xml": b"<a><!--" + b"x" * (40 << 20) + b"-->text</a>"})
    zipped(tmp_path / "b.docx", {"word/document.xml": b"<a>" * (5 << 20)})
    documents, reasons = read(tmp_path)
    assert documents["a.docx"][0].text == "text"
    assert reasons == {"b.docx": "broken office file"}
