"""Compare the search of personal documents with Recoll, on the same folder in one run.

    python -m benchmarks.recoll [--collections cranfield cisi msmarco-mini nfcorpus vaswani] [--needs 120]
        [--documents 0]

It needs the commands of Recoll and its module for the Python of the system (apt-get install recollcmd python3-recoll
python3-lxml poppler-utils unrtf; SYSTEM_PYTHON), and says so where they are missing. Each document of the judged
collections of FEDRANK_DATA becomes an HTML file with its title; a folder per collection, one index of all by each
program with its default settings, stemming in English. --documents limits the documents of a collection (0: all).
Another folder has one file of each type with a different word, and a type is covered if a search for the word finds
the file.

Times are CPU seconds of a command with the processes that it started, or of a search in a process that is already
running: candidates, order, ten titles and excerpts (fedrank also records the search). Needs are searched in their
collection, by all their words; Recoll's default requires every word of a query, so it is measured with any word, too,
as is fedrank, which always does so. Short searches are two words of a need, in all collections. nDCG@10 counts all
judged documents in the ideal; the interval (95 %) of the difference is over the needs of a collection.
"""

from __future__ import annotations

import argparse
import html
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

COLLECTIONS = ("cranfield", "cisi", "msmarco-mini", "nfcorpus", "vaswani")
SYSTEM_PYTHON = "/usr/bin/python3"
RESULTS = 10
REPEATS = 5  # of a command for one search


def fedrank_side(index: str):
    """A function that searches with fedrank: paths of the results."""
    from fedrank.search.client import SearchClient
    from fedrank.search.results import Filters

    client = SearchClient(index)

    def search(query: str, folder: str | None, every: bool) -> list[str]:
        if every:  # not the default, and not measured
            return []
        shown = client.search(query, Filters(folder=folder) if folder else None)
        assert all(one.title and one.snippet.text is not None for one in shown.results)
        return [one.where for one in shown.results]

    return search


def recoll_side(index: str):
    """A function that searches with Recoll: paths of the results."""
    sys.path.pop(0)  # this file has the same name as Recoll's module
    from recoll import recoll

    database = recoll.connect(confdir=index)

    def search(query: str, folder: str | None, every: bool) -> list[str]:
        asked = recoll.SearchData(type="and", stemlang="english")
        asked.addclause(type="and" if every else "or", qstring=query)
        if folder:
            asked.addclause(type="path", qstring=folder)
        found = database.query()
        found.executesd(asked)
        results = found.fetchmany(RESULTS)
        for one in results:
            found.makedocabstract(one)
        return [one.url.removeprefix("file://") for one in results]

    return search


def measure_side(side: str, index: str) -> None:
    """Search for the queries from standard input; print results, CPU and wall seconds, and the peak of memory."""
    search = {"fedrank": fedrank_side, "recoll": recoll_side}[side](index)
    done = []
    for query, folder, every in json.load(sys.stdin):
        began, cpu = time.perf_counter(), time.process_time()
        paths = search(query, folder, every)
        done.append((paths, time.process_time() - cpu, time.perf_counter() - began))
    # Not ru_maxrss, which begins with the memory of the process that started this one.
    memory = int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) / 1024
    json.dump({"done": done, "memory": memory}, sys.stdout)


def missing() -> str:
    """Why Recoll cannot be measured; "" if it can."""
    if shutil.which("recollindex") is None or shutil.which("recollq") is None:
        return "the commands recollindex and recollq are not installed (apt-get install recollcmd)"
    if not Path(SYSTEM_PYTHON).exists():
        return f"there is no {SYSTEM_PYTHON} for Recoll's module"
    tried = subprocess.run([SYSTEM_PYTHON, "-c", "from recoll import recoll"], capture_output=True, check=False)
    return "Recoll's Python module is not installed (apt-get install python3-recoll)" if tried.returncode else ""


def command(*words: str) -> tuple[float, float]:
    """CPU seconds and peak of memory in MB of a command with its processes."""
    environment = {"PATH": f"{Path(SYSTEM_PYTHON).parent}{os.pathsep}{os.environ['PATH']}"}  # for Recoll's filters
    started = subprocess.Popen(
        words, env=os.environ | environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, used = os.wait4(started.pid, 0)
    started.returncode = os.waitstatus_to_exitcode(status)
    if started.returncode:
        raise SystemExit(f"{' '.join(words)} ended with exit code {started.returncode}")
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def size_of(folder: Path) -> float:
    """MB of the files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6


def write_collection(collection, folder: Path, documents: int) -> None:
    """Write documents as HTML; with a limit, all judged ones come first."""
    judged = dict.fromkeys(collection.judged.tolist())
    rows = range(len(collection.documents.ids))
    if documents:
        rows = [*judged, *(row for row in rows if row not in judged)][:documents]
    folder.mkdir(parents=True)
    for row in rows:
        title, text = (html.escape(field[row]) for field in (collection.documents.title, collection.documents.text))
        page = f'<!DOCTYPE html>\n<html><head><meta charset="utf-8"><title>{title}</title></head>\n<body>{text}</body>'
        (folder / f"{row:06}.html").write_text(f"{page}</html>\n", encoding="utf-8", errors="replace")


def pdf(text: str) -> bytes:
    """A PDF of one page with a line of text."""
    stream = f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET".encode()
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R "
        b"/Resources << /Font << /F1 5 0 R >> >> >>",
        b"<< /Length %d >>\nstream\n%s\nendstream" % (len(stream), stream),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    out, offsets = b"%PDF-1.4\n", []
    for number, one in enumerate(objects, 1):
        offsets.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, one)
    table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    head = b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    return (
        out
        + head
        + table
        + b"trailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n"
        % (
            len(objects) + 1,
            len(out),
        )
    )


def write_types(folder: Path) -> dict[str, tuple[str, str]]:
    """One file of each type; returns the word and the beginning of the path of each type."""
    folder.mkdir(parents=True)
    words = {}

    def word(name: str, path: str) -> str:
        words[name] = (f"zq{len(words):02}x{name.split()[0].lower()}", str(folder / path))
        return words[name][0]

    def mail(text: str) -> str:
        return f"From: a@b.example\nTo: c@d.example\nSubject: hello\nDate: Mon, 06 Jan 2020 10:00:00 +0000\n\n{text}\n"

    for ending in ("txt", "md", "rst", "csv", "py", "c", "log", "json"):
        text = word(ending, f"a.{ending}")
        (folder / f"a.{ending}").write_text(f'{{"text": "{text}"}}\n' if ending == "json" else f"a {text} b\n")
    line = json.dumps({"id": 1, "title": "one", "text": word("jsonl", "a.jsonl")})
    (folder / "a.jsonl").write_text(f"{line}\n")
    (folder / "a.html").write_text(f"<html><body>{word('html', 'a.html')}</body></html>")
    (folder / "a.pdf").write_bytes(pdf(word("pdf", "a.pdf")))
    (folder / "a.rtf").write_text(rf"{{\rtf1\ansi {word('rtf', 'a.rtf')}}}")
    (folder / "a.eml").write_text(mail(word("eml", "a.eml")))
    (folder / "a.mbox").write_text(f"From a@b.example Mon Jan  6 10:00:00 2020\n{mail(word('mbox', 'a.mbox'))}")
    for inner in ("cur", "new", "tmp"):
        (folder / "maildir" / inner).mkdir(parents=True)
    (folder / "maildir" / "cur" / "1578304800.M1P1.host:2,S").write_text(mail(word("Maildir", "maildir/")))
    packed = {
        "docx": {"word/document.xml": '<w:document xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/'
                 'main"><w:body><w:p><w:r><w:t>{}</w:t></w:r></w:p></w:body></w:document>'},
        "pptx": {"ppt/slides/slide1.xml": '<p:sld xmlns:p="http://schemas.openxmlformats.org/presentationml/2006/main" '
                 'xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main"><p:cSld><p:spTree><p:sp><p:txBody>'
                 "<a:p><a:r><a:t>{}</a:t></a:r></a:p></p:txBody></p:sp></p:spTree></p:cSld></p:sld>"},
        "xlsx": {"xl/sharedStrings.xml": '<sst xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main" '
                 'count="1" uniqueCount="1"><si><t>{}</t></si></sst>',
                 "xl/workbook.xml": '<workbook xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main" '
                 'xmlns:r="http://schemas.openxmlformats.org/officeDocument/2006/relationships"><sheets>'
                 '<sheet name="one" sheetId="1" r:id="rId1"/></sheets></workbook>',
                 "xl/_rels/workbook.xml.rels": '<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/'
                 'relationships"><Relationship Id="rId1" Type="http://schemas.openxmlformats.org/officeDocument/2006/'
                 'relationships/worksheet" Target="worksheets/sheet1.xml"/></Relationships>',
                 "xl/worksheets/sheet1.xml": '<worksheet xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/'
                 'main"><sheetData><row r="1"><c r="A1" t="s"><v>0</v></c></row></sheetData></worksheet>'},
        **{ending: {"mimetype": f"application/vnd.oasis.opendocument.{kind}",
                    "META-INF/manifest.xml": '<manifest:manifest xmlns:manifest="urn:oasis:names:tc:opendocument:xmlns:'
                    'manifest:1.0"/>', "meta.xml": '<office:document-meta xmlns:office="urn:oasis:names:tc:'
                    'opendocument:xmlns:office:1.0"/>',
                    "content.xml": '<office:document-content xmlns:office="urn:oasis:names:tc:opendocument:xmlns:'
                    'office:1.0" xmlns:text="urn:oasis:names:tc:opendocument:xmlns:text:1.0"><office:body><office:'
                    "text><text:p>{}</text:p></office:text></office:body></office:document-content>"}
           for ending, kind in (("odt", "text"), ("ods", "spreadsheet"), ("odp", "presentation"))},
        "epub": {"mimetype": "application/epub+zip",
                 "META-INF/container.xml": '<container version="1.0" xmlns="urn:oasis:names:tc:opendocument:xmlns:'
                 'container"><rootfiles><rootfile full-path="a.opf" media-type="application/oebps-package+xml"/>'
                 "</rootfiles></container>",
                 "a.opf": '<package xmlns="http://www.idpf.org/2007/opf" version="2.0" unique-identifier="i"><metadata '
                 'xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>one</dc:title><dc:identifier id="i">1'
                 '</dc:identifier><dc:language>en</dc:language></metadata><manifest><item id="p" href="p.xhtml" '
                 'media-type="application/xhtml+xml"/></manifest><spine><itemref idref="p"/></spine></package>',
                 "p.xhtml": '<html xmlns="http://www.w3.org/1999/xhtml"><head><title>one</title></head><body><p>{}</p>'
                 "</body></html>"},
        "zip of text": {"inner.txt": "{}"},
    }  # fmt: skip
    for name, members in packed.items():
        path = f"a.{name.split()[0]}"
        text = word(name, path)
        with zipfile.ZipFile(folder / path, "w") as archive:
            for member, content in members.items():
                archive.writestr(member, content.replace("{}", text))
    try:
        from PIL import Image
    except ImportError:
        return words
    described = Image.Exif()
    described[0x010E] = word("jpg (EXIF description)", "a.jpg")
    Image.new("RGB", (8, 8)).save(folder / "a.jpg", exif=described)
    return words


def configure_recoll(folder: Path, topdir: Path) -> None:
    folder.mkdir()
    (folder / "recoll.conf").write_text(f"topdirs = {topdir}\nindexstemminglanguages = english\nloglevel = 1\n")


def asked_of(side: str, index: Path, queries: list[tuple[str, str | None, bool]]) -> dict:
    """Searches of one program in a separate process."""
    python = {"fedrank": sys.executable, "recoll": SYSTEM_PYTHON}[side]
    words = [python, str(Path(__file__).resolve()), "--side", side, "--index", str(index)]
    done = subprocess.run(words, input=json.dumps(queries), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{side} failed: {done.stderr[-2000:]}")
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--collections", nargs="+", choices=COLLECTIONS, default=COLLECTIONS)
    parser.add_argument("--needs", type=int, default=120, help="needs of a collection, evenly spaced")
    parser.add_argument("--documents", type=int, default=0, help="documents of a collection; 0: all")
    parser.add_argument("--side", choices=("fedrank", "recoll"), help=argparse.SUPPRESS)
    parser.add_argument("--index", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.side:
        measure_side(given.side, given.index)
        return
    if reason := missing():
        print(f"Nothing was measured: {reason}.")
        return
    work = Path(tempfile.mkdtemp(prefix="fedrank-recoll-"))
    try:
        compare(work, given.collections, given.needs, given.documents)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def compare(work: Path, names: list[str], needs: int, limit: int) -> None:
    import numpy as np

    from fedrank.data.collection import load_collection

    documents, indexes = work / "documents", {"fedrank": work / "fedrank", "recoll": work / "recoll"}
    rng, needed, queries = np.random.default_rng(1), [], []
    for name in names:
        collection = load_collection(name)
        write_collection(collection, documents / name, limit)
        judged = [need for need in range(len(collection.queries)) if grades_of(collection, need)]
        for need in [
            judged[at] for at in np.unique(np.linspace(0, len(judged) - 1, min(needs, len(judged))).astype(int))
        ]:
            needed.append((name, grades_of(collection, need)))
            queries.append((collection.queries[need], str(documents / name)))
    words = [[word for word in text.split() if len(word) > 3 and word.isalpha()] for text, _ in queries]
    short = [" ".join(rng.choice(some, 2, replace=False)) for some in words if len(some) > 1]
    types = write_types(documents / "types")
    files = sum(path.is_file() for path in documents.rglob("*"))
    configure_recoll(indexes["recoll"], documents)
    fedrank = (sys.executable, "-m", "fedrank", "search")
    commands = {
        "fedrank": (*fedrank, "index", str(documents), "--quiet", "--folder", str(indexes["fedrank"])),
        "recoll": ("recollindex", "-c", str(indexes["recoll"])),
    }
    one_search = {
        "fedrank": (*fedrank, "find", short[0], "--json", "--folder", str(indexes["fedrank"])),
        "recoll": ("recollq", "-c", str(indexes["recoll"]), "-A", "-o", "-n", str(RESULTS), short[0]),
    }
    asked = [
        *((word, None, False) for word, _ in types.values()),
        *((text, folder, False) for text, folder in queries),
        *((text, folder, True) for text, folder in queries),
        *((text, None, False) for text in short),
    ]
    parts = np.cumsum([0, len(types), len(queries), len(queries), len(short)])
    figures, covered, quality = {}, {}, {}
    for side, index in indexes.items():
        cpu, memory = command(*commands[side])
        row = {"index: CPU seconds": cpu, "index: peak memory in MB": memory, "index: size in MB": size_of(index)}
        row["update without changes: CPU seconds"], _ = command(*commands[side])
        found = asked_of(side, index, asked)
        for what, start, end in zip(
            ("a word", "needs", "needs, all words", "two words"), parts, parts[1:], strict=False
        ):
            if what == "needs, all words" and side == "fedrank":
                continue
            busy = 1e3 * np.array([cpu for _, cpu, _ in found["done"][start:end]])
            for share in (50, 99) if what != "a word" else ():
                row[f"search for {what}: p{share} in ms of CPU time"] = float(np.percentile(busy, share))
        row["searches: peak memory in MB"] = found["memory"]
        row["one search as a command: CPU seconds"] = float(
            np.median([command(*one_search[side])[0] for _ in range(REPEATS)])
        )
        figures[side] = row
        covered[side] = [
            name
            for (name, (_, path)), (paths, *_) in zip(types.items(), found["done"], strict=False)
            if any(one.rpartition(" · ")[2].startswith(path) for one in paths)
        ]
        for what, start in (("any word", parts[1]), ("all words", parts[2])):
            quality[side, what] = [
                ndcg(grades, [int(Path(path).stem) for path in found["done"][start + n][0]])
                for n, (_, grades) in enumerate(needed)
            ]
    report(files, size_of(documents), figures, types, covered, quality, [name for name, _ in needed])


def grades_of(collection, need: int) -> dict[int, int]:
    """Relevant documents of a need with their labels."""
    some = slice(*collection.offsets[need : need + 2])
    pairs = zip(collection.judged[some].tolist(), collection.grades[some].tolist(), strict=True)
    return {row: grade for row, grade in pairs if grade > 0}


def ndcg(grades: dict[int, int], rows: list[int]) -> float:
    from benchmarks.live_quality import dcg

    return dcg([grades.get(row, 0) for row in rows[:RESULTS]]) / dcg(sorted(grades.values(), reverse=True))


def report(files, megabytes, figures, types, covered, quality, names) -> None:
    import numpy as np

    print(f"{files:,} files, {megabytes:.1f} MB\n\n| | fedrank | Recoll | fedrank / Recoll |\n|---|---|---|---|")
    for name, theirs in figures["recoll"].items():
        ours = figures["fedrank"].get(name)
        shown = "" if ours is None else f"{ours:,.3g}"
        print(f"| {name} | {shown} | {theirs:,.3g} | {'' if ours is None else f'{ours / theirs:.2f}'} |")
    print(f"| types found, of {len(types)} | {len(covered['fedrank'])} | {len(covered['recoll'])} | |")
    for name in types:
        if (name in covered["fedrank"]) != (name in covered["recoll"]):
            print(f"| {name} | {'found' if name in covered['fedrank'] else ''} | "
                  f"{'found' if name in covered['recoll'] else ''} | |")  # fmt: skip
    neither = [name for name in types if name not in covered["fedrank"] and name not in covered["recoll"]]
    print(f"\nFound by neither: {', '.join(neither) or 'none'}\n")
    print("| nDCG@10 (needs) | fedrank | Recoll, any word | Recoll, all words | fedrank - Recoll, any word |")
    print("|---|---|---|---|---|")
    for name in dict.fromkeys(names):
        at = np.array(names) == name
        ours, any_word, all_words = (
            np.array(quality[key])[at]
            for key in (("fedrank", "any word"), ("recoll", "any word"), ("recoll", "all words"))
        )
        difference = ours - any_word
        half = 1.96 * difference.std(ddof=1) / np.sqrt(len(difference)) if len(difference) > 1 else np.nan
        print(
            f"| {name} ({at.sum()}) | {ours.mean():.3f} | {any_word.mean():.3f} | {all_words.mean():.3f} | "
            f"{difference.mean():+.3f} ± {half:.3f} |"
        )


if __name__ == "__main__":
    main()
