"""Metadata of pictures, written by hand and by Pillow, which comes with matplotlib."""

from __future__ import annotations

import io
import struct
import zlib

import pytest
from PIL import Image, PngImagePlugin

from fedrank.search import pictures
from fedrank.search.readers import MAX_TEXT
from tests.search.reading import only, read

XMP = (
    "<x:xmpmeta xmlns:x='adobe:ns:meta/'><rdf:RDF><rdf:Description photoshop:City=\"Lisbon\"><dc:title><rdf:Alt>"
    "<rdf:li xml:lang='x-default'>Old tram</rdf:li></rdf:Alt></dc:title><dc:subject><rdf:Bag><rdf:li>rail &amp; road"
    "</rdf:li><rdf:li>hill</rdf:li></rdf:Bag></dc:subject></rdf:Description></rdf:RDF></x:xmpmeta>"
)


def exif() -> Image.Exif:
    made = Image.Exif()
    made[0x010E], made[0x0110], made[0x013B] = "a tram on a hill", "Camera 7", "Ann B."
    made[0x9C9E] = "schlüssel;wort".encode("utf-16-le") + b"\0\0"
    made.get_ifd(0x8769)[0x9003] = "2019:07:21 15:30:00"
    made.get_ifd(0x8769)[0x9286] = b"ASCII\0\0\0by the church"
    return made


def saved(path, **more):
    Image.new("RGB", (8, 8)).save(path, **more)


@pytest.mark.parametrize("ending", ["jpg", "png", "webp", "tif"])
def test_exif_is_read_in_every_format(tmp_path, ending):
    saved(tmp_path / f"dsc01.{ending}", exif=exif())
    (one,) = only(tmp_path)
    assert one.title == f"dsc01.{ending}"
    assert {"a tram on a hill", "Camera 7", "Ann B.", "schlüssel;wort"} <= {*one.text.split("\n")}
    if ending != "tif":  # Pillow leaves out its second directory
        assert one.date == 1563723000
        assert "by the church" in one.text


@pytest.mark.parametrize("ending", ["jpg", "png", "webp", "tif"])
def test_xmp_is_read_in_every_format(tmp_path, ending):
    if ending == "png":
        about = PngImagePlugin.PngInfo()
        about.add_itxt("XML:com.adobe.xmp", XMP)
        saved(tmp_path / "a.png", pnginfo=about)
    elif ending == "tif":
        saved(tmp_path / "a.tif", tiffinfo={700: XMP.encode()})
    else:
        saved(tmp_path / f"a.{ending}", xmp=XMP.encode())
    (one,) = only(tmp_path)
    assert (one.title, one.name) == ("Old tram", f"a.{ending}")
    assert {"Lisbon", "rail & road", "hill"} <= {*one.text.split("\n")}


def test_iptc_is_read(tmp_path):
    records = b"".join(
        struct.pack(">BBBH", 0x1C, 2, number, len(text)) + text
        for number, text in ((5, b"The bridge"), (25, b"river"), (25, b"stone"), (90, "Brücke".encode()), (40, b"no"))
    )
    block = b"Photoshop 3.0\x008BIM\x04\x04\0\0" + struct.pack(">I", len(records)) + records
    buffer = io.BytesIO()
    saved(buffer, format="JPEG")
    data = buffer.getvalue()
    (tmp_path / "a.jpeg").write_bytes(data[:2] + struct.pack(">HH", 0xFFED, len(block) + 2) + block + data[2:])
    (one,) = only(tmp_path)
    assert one.title == "The bridge"
    assert one.text.split("\n") == ["The bridge", "river", "stone", "Brücke"]


def test_texts_of_png_are_read_if_they_are_about_the_picture(tmp_path):
    about = PngImagePlugin.PngInfo()
    about.add_text("Description", "a map of the garden")
    about.add_text("Comment", "squeezed " * 50, zip=True)
    about.add_itxt("Title", "Gärten", zip=True)
    about.add_text("parameters", "of a program")
    saved(tmp_path / "a.png", pnginfo=about)
    (one,) = only(tmp_path)
    assert one.title == "Gärten"
    assert "a map of the garden" in one.text
    assert "squeezed squeezed" in one.text
    assert "program" not in one.text


def test_a_picture_without_metadata_is_found_by_its_name(tmp_path):
    saved(tmp_path / "passport scan.png")
    (one,) = only(tmp_path)
    assert (one.kind, one.title, one.text) == ("file", "passport scan.png", "")


def directory(*entries: bytes) -> bytes:
    return struct.pack("<H", len(entries)) + b"".join(entries) + bytes(4)


def entry(tag: int, kind: int, length: int, place: int) -> bytes:
    return struct.pack("<HHII", tag, kind, length, place)


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xd8\xff",
        b"\xff\xd8" + b"\xff\xe1\x00\x02" * 100_000,  # empty segments
        b"\xff\xd8\xff\xe1\x00\x00",  # a segment that is shorter than its length
        b"\x89PNG\r\n\x1a\n" + struct.pack(">I4s", 2**32 - 1, b"tEXt"),
        b"\x89PNG\r\n\x1a\n" + struct.pack(">I4s", 4, b"iTXt") + b"k\0\0\0",
        b"RIFF\0\0\0\0WEBP" + b"EXIF\x04\0\0\0abcd" * 1_000,
        b"II*\0\x08\0\0\0" + directory(entry(0x8769, 4, 1, 8), entry(0x8769, 4, 1, 8)),  # a directory of itself
        b"II*\0\x08\0\0\0" + directory(*[entry(0x010E, 2, 2**32 - 1, 0)] * 500),  # everything is a title
        b"II*\0\xff\xff\xff\xff",
        b"MM\0*" + b"\0" * 100,
        b"\xff\xd8\xff\xed\x00\x1cPhotoshop 3.0\x008BIM\x04\x04\x1c\x02\x05\xff\xff",
        b"\xff\xd8\xff" + b"<x:xmpmeta" * 100_000,
        b"\xff\xd8\xff<x:xmpmeta" + b"<dc:title>" * 30_000 + b"</x:xmpmeta>",
    ],
)
def test_damaged_metadata_are_left_out(tmp_path, data):
    (tmp_path / "a.jpg").write_bytes(data)
    documents, reasons = read(tmp_path)
    assert not reasons
    assert documents["a.jpg"][0].title == "a.jpg"
    assert len(documents["a.jpg"][0].text) <= pictures.MAX_VALUE


def test_a_bomb_in_a_text_is_not_unpacked(tmp_path):
    text = b"Comment\0\0" + zlib.compress(b"a" * 50_000_000)
    chunk = struct.pack(">I", len(text)) + b"zTXt" + text + bytes(4)
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n" + chunk)
    assert len(only(tmp_path)[0].text) == pictures.MAX_VALUE


def test_metadata_are_read_as_far_as_they_are_kept(tmp_path):
    """Values of EXIF may lie over each other, and texts of PNG are packed, so a small file may say much."""
    letters = b"".join(b"%06d" % number for number in range(10_000))
    entries = [entry(0x010E, 2, 20_000, 7_000 + number) for number in range(500)]
    (tmp_path / "a.tif").write_bytes((b"II*\0\x08\0\0\0" + directory(*entries)).ljust(7_000) + letters)
    chunks = b""
    for number in range(500):
        text = b"Comment\0\0" + zlib.compress(b"%d " % number * 9_000)
        chunks += struct.pack(">I", len(text)) + b"zTXt" + text + bytes(4)
    (tmp_path / "b.png").write_bytes(b"\x89PNG\r\n\x1a\n" + chunks)
    documents, reasons = read(tmp_path)
    assert not reasons
    for (one,) in documents.values():
        assert MAX_TEXT - pictures.MAX_VALUE - 100 <= len(one.text) <= MAX_TEXT + 100
