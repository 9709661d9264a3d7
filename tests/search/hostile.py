"""Small files that want to do harm, of every format that is read: bombs, entities, endless nesting, tricks with paths,
metadata over each other, and databases whose tables are something else."""

from __future__ import annotations

import struct
import warnings
import zipfile
import zlib
from pathlib import Path

from tests.search.reading import zipped
from tests.search.test_databases import CHROME, ZOTERO, database

ENDLESS = "WITH n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x"
# What is read; everything else is refused with one of these reasons.
READABLE = {
    "bomb.png",
    "cycle.tif",
    "empty.jpg",
    "keys.sqlite/zotero.sqlite",
    "links.md",
    "codes.rtf",
    "numbers.xlsx",
    "tricks.epub",
}
REASONS = {
    "boundaries.eml": "broken mail", "columns/History": "broken database", "cut/zotero.sqlite": "broken database",
    "deep.odp": "broken office file", "deep.jsonl": "not a line of JSON", "deep.rtf": "empty",
    "laughs.docx": "broken office file",
    "laughs.epub": "empty", "method.pptx": "broken office file", "outside.odt": "broken office file",
    "view/History": "not text",
}  # fmt: skip


def write_hostile(folder: Path) -> None:
    """Write all files."""
    entries = struct.pack("<H", 500) + struct.pack("<HHII", 0x010E, 2, 2**32 - 1, 0) * 498
    entries += struct.pack("<HHII", 0x8769, 4, 1, 8) + struct.pack("<HHII", 0x010E, 2, 20_000, 2**32 - 1)
    (folder / "cycle.tif").write_bytes(b"II*\0\x08\0\0\0" + entries)
    text = b"zTXtComment\0\0" + zlib.compress(bytes(1 << 20))
    (folder / "bomb.png").write_bytes(b"\x89PNG\r\n\x1a\n" + struct.pack(">I", len(text) - 4) + text + bytes(4))
    (folder / "empty.jpg").write_bytes(b"\xff\xd8\xff" + b"\xff\xe1\0\2" * 20 + b"<x:xmpmeta" * 50)
    (folder / "links.md").write_text("---\ntitle: x\n---\n" + "[[" * 200 + "a|" * 200 + "]]" * 200)
    (folder / "deep.rtf").write_bytes(b"{\\rtf1" + b"{" * 100_000)
    codes = b"\\u-99999999 \\uc999999999 \\'zz \\'9 \\ansicpg99999 \\bin999999999 }}}{\\* \\"
    (folder / "codes.rtf").write_bytes(b"{\\rtf1\\ansicpg99999 text" + codes * 2_000)
    (folder / "deep.jsonl").write_text("[" * 2_000)
    (folder / "boundaries.eml").write_bytes(b"Subject: x\n" + b"Content-Type: multipart/x; boundary=a\n\n--a\n" * 250)
    cells = "".join(f'<c t="s"><v>{n}</v></c>' for n in ("0", "-1", "9" * 5_000, "x", "٣"))
    zipped(folder / "numbers.xlsx", {
        "xl/sharedStrings.xml": "<sst><si><t>text</t></si><si>" + "<si>" * 20 + "</si>" * 21 + "</sst>",
        "xl/worksheets/sheet1.xml": f"<r>{cells}</r>",
    })  # fmt: skip
    laughs = "<!DOCTYPE a [<!ENTITY b 'ha'>" + "".join(
        f"<!ENTITY {n} '{('&b;', '&c;')[n > 'c'] * 9}'>" for n in "cdefg"
    )
    zipped(folder / "laughs.docx", {"word/document.xml": f"{laughs}]><a>&g;</a>"})
    zipped(folder / "laughs.epub", {"x.opf": f"{laughs}]><a>&g;</a>"})
    outside = "<!DOCTYPE a [<!ENTITY b SYSTEM 'file:///etc/passwd'>]><a>&b;</a>"
    zipped(folder / "outside.odt", {"content.xml": outside})
    zipped(folder / "deep.odp", {"content.xml": "<a>" * 2_000})
    with zipfile.ZipFile(folder / "tricks.epub", "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a name that is there twice
        for name in ("../../out.html", "/etc/out.html", "C:\\out.html", "a.html", "a.html", "\0.html"):
            archive.writestr(zipfile.ZipInfo(name), "<p>one</p>")
    zipped(folder / "method.pptx", {"ppt/slides/slide1.xml": "<p>text</p>"})
    data = bytearray((folder / "method.pptx").read_bytes())
    data[data.index(b"PK\x03\x04") + 8] = data[data.index(b"PK\x01\x02") + 10] = 99  # a method that is unknown
    (folder / "method.pptx").write_bytes(data)
    keys = ZOTERO.replace("FFFFFFFF", "../../../etc/passwd").replace("SSSSSSSS", "../../x")
    database(folder / "keys.sqlite" / "zotero.sqlite", keys)
    whole = database(folder / "cut" / "zotero.sqlite", ZOTERO).read_bytes()
    (folder / "cut" / "zotero.sqlite").write_bytes(whole[: len(whole) // 2])
    for name, script in (
        ("view", f"CREATE VIEW urls AS {ENDLESS} url FROM n; CREATE VIEW visits AS {ENDLESS} id FROM n"),
        ("columns", CHROME.replace("hidden", "title2")),
    ):
        database(folder / name / "History", script)
        (folder / name / "Preferences").touch()
