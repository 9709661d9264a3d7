"""Sketch files: what is read back, what is refused, what a copy does not tell."""

from __future__ import annotations

import io
import json
import shutil
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from fedrank.data.documents import Documents
from fedrank.experiments.report.data_output import about_sketch
from fedrank.experiments.report.terminal import show
from fedrank.files import Locked
from fedrank.privacy.noise import SecureSource
from fedrank.privacy.population import Account
from fedrank.silo import array_file, files
from fedrank.silo.array_file import SketchFileError
from fedrank.silo.describe import describe_sketch
from fedrank.silo.files import (
    add_documents,
    open_sketch,
    remove_documents,
    sketch_collection,
)
from fedrank.silo.rtk import TopKRule
from fedrank.silo.sketch import Sketcher
from fedrank.silo.spending import Limits, SiloLedger
from tests.silo.test_spending import answered

KEY = bytes(range(32))
RULE = TopKRule(alpha=2, k=3)
PLAIN = Sketcher(width=50, depth=6)
NOISED = replace(PLAIN, noise=1.0)
COST = NOISED.privacy(1e-5)  # 6.6


def collection(many: int = 8, first: int = 0) -> Documents:
    """Document d holds "flu" d times in its body, and "common" once in its title."""
    numbers = range(first, first + many)
    return Documents(
        [f"d{d}" for d in numbers],
        ["common title" for _ in numbers],
        [f"word{d} " + "flu " * d for d in numbers],
        ["" for _ in numbers],
    )


def made(tmp_path, sketcher=PLAIN, documents=None, name="a.sketch", **more):
    return sketch_collection(documents or collection(), KEY, sketcher, tmp_path / name, rule=RULE, **more)


def best(file, term="flu", field="body"):
    cells, signs = file.sketcher.locate([term], file.hashing(KEY))
    rows, counts = file.fields[field].query(cells[0], signs[0])
    return [file.ids[row] for row in rows], counts.tolist()


def same(one, other):
    for field, top in one.fields.items():
        for part in files.TOP_PARTS:
            np.testing.assert_array_equal(getattr(top, part), getattr(other.fields[field], part))
        np.testing.assert_array_equal(one.lengths[field], other.lengths[field])
        if not one.removed:
            np.testing.assert_array_equal(one.frequencies[field], other.frequencies[field])


def test_a_file_is_read_back_as_it_was_made(tmp_path):
    file = made(tmp_path)
    assert best(file) == (["d7", "d6", "d5"], [7, 6, 5])
    assert best(file, "common", "title")[1] == [1, 1, 1]
    assert file.lengths["body"].tolist() == [1 + d for d in range(8)]
    assert file.squares["body"].tolist() == [1 + d * d for d in range(8)]
    again = open_sketch(tmp_path / "a.sketch")
    same(file, again)
    assert (again.sketcher, again.ids, again.fields["body"].rule) == (PLAIN, file.ids, RULE)


def test_only_its_owner_can_read_the_owners_file(tmp_path):
    made(tmp_path)
    assert stat.S_IMODE((tmp_path / "a.sketch").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "a.spending").stat().st_mode) == 0o700
    assert not list(tmp_path.glob("*.part"))


def test_progress_is_told_for_every_field(tmp_path):
    told = []
    made(tmp_path, progress=lambda *each: told.append(each))
    assert told == [("body", 8, 8), ("title", 8, 8)]


def test_a_collection_without_titles_has_no_field_of_them(tmp_path):
    documents = replace(collection(), title=[""] * 8)
    file = made(tmp_path, documents=documents)
    assert list(file.fields) == ["body"]
    with pytest.raises(ValueError, match="has no titles"):
        add_documents(tmp_path / "a.sketch", collection(1, 8), KEY)
    assert len(add_documents(tmp_path / "a.sketch", replace(collection(1, 8), title=[""]), KEY)) == 9


def test_empty_documents_are_documents(tmp_path):
    file = made(tmp_path, documents=Documents(["x", "y"], ["", ""], ["", "flu"], ["", ""]))
    assert file.lengths["body"].tolist() == [0, 1]
    assert best(file) == (["y"], [1])


def test_a_document_of_a_million_words_is_counted(tmp_path):
    file = made(tmp_path, documents=Documents(["long", "short"], ["", ""], ["flu " * 1_000_000, "flu"], ["", ""]))
    assert file.lengths["body"].tolist() == [1_000_000, 1]
    assert best(file) == (["long", "short"], [1_000_000, 1])


def test_added_documents_are_as_if_they_had_always_been_there(tmp_path):
    made(tmp_path, documents=collection(5))
    grown = add_documents(tmp_path / "a.sketch", collection(3, 5), KEY)
    whole = made(tmp_path, name="b.sketch")
    same(grown, whole)
    assert grown.ids == whole.ids
    assert grown.squares["body"].tolist() == whole.squares["body"].tolist()


def test_removed_documents_leave_neither_id_nor_length(tmp_path):
    made(tmp_path, documents=collection(5))
    left = remove_documents(tmp_path / "a.sketch", ["d4", "d1"])
    assert left.ids == ["d0", "d2", "d3"]
    assert left.lengths["body"].tolist() == [1, 3, 4]
    assert best(left) == (["d3", "d2"], [3, 2])
    assert array_file.read_arrays(left.path, files.TYPES)[1]["ids"].tobytes() == b"d0\nd2\nd3"
    same(left, made(tmp_path, documents=pick(collection(5), [0, 2, 3]), name="b.sketch"))


def test_frequencies_count_removed_documents_still_and_describe_says_so(tmp_path):
    """Taken out without new noise, a document would be the difference between two files."""
    before = made(tmp_path, NOISED)
    left = remove_documents(tmp_path / "a.sketch", ["d4", "d1", "d1"])
    np.testing.assert_array_equal(left.frequencies["body"], before.frequencies["body"])
    assert left.removed == 2
    assert "2 removed documents are still counted" in describe_sketch(left.path)["document frequencies"]
    assert remove_documents(left.path, ["d0"]).removed == 3


@pytest.mark.usefixtures("impatient")
def test_two_processes_cannot_change_a_sketch_at_once(tmp_path):
    made(tmp_path, NOISED)
    before = (tmp_path / "a.sketch").read_bytes()
    with files._held(tmp_path / "a.sketch"):
        for change in (
            lambda: add_documents(tmp_path / "a.sketch", collection(1, 8), KEY),
            lambda: remove_documents(tmp_path / "a.sketch", ["d1"]),
            lambda: made(tmp_path, NOISED),
        ):
            with pytest.raises(Locked, match=r"a\.sketch is in use by process"):
                change()
    assert (tmp_path / "a.sketch").read_bytes() == before
    assert Account.read(tmp_path / "a.spending" / "ledger").rounds == 1, "nothing was charged"


@pytest.mark.process
def test_what_many_processes_add_is_all_there(tmp_path):
    """Each waits its turn, or is told to; none overwrites what another added."""
    made(tmp_path, NOISED)
    code = (
        "import sys; sys.path.insert(0, sys.argv[3]); from tests.silo.test_files import *; "
        "done = add_documents(sys.argv[1], collection(1, int(sys.argv[2])), KEY)"
    )
    many = range(20, 26)
    command = [sys.executable, "-c", code, str(tmp_path / "a.sketch")]
    here = str(Path(__file__).parents[2])
    running = {d: subprocess.Popen([*command, str(d), here], stderr=subprocess.PIPE, text=True) for d in many}
    said = {d: process.communicate()[1] for d, process in running.items()}
    added = {f"d{d}" for d in many if running[d].returncode == 0}
    assert added
    assert all("is in use by" in said[d] for d in many if running[d].returncode != 0)
    assert set(open_sketch(tmp_path / "a.sketch").ids) == {f"d{d}" for d in range(8)} | added


def pick(documents, rows):
    columns = (documents.ids, documents.title, documents.text, documents.url)
    return Documents(*([column[row] for row in rows] for column in columns))


def test_all_documents_can_be_removed_and_others_added(tmp_path):
    made(tmp_path, documents=collection(2))
    assert len(remove_documents(tmp_path / "a.sketch", ["d0", "d1"])) == 0
    assert describe_sketch(tmp_path / "a.sketch")["error in body"] == "no documents"
    assert best(add_documents(tmp_path / "a.sketch", collection(2, 2), KEY)) == (["d3", "d2"], [3, 2])


def test_removing_a_document_that_is_not_there_changes_nothing(tmp_path):
    made(tmp_path)
    before = (tmp_path / "a.sketch").read_bytes()
    with pytest.raises(ValueError, match=r"no document 'd9' \(1 of 2 are unknown\)"):
        remove_documents(tmp_path / "a.sketch", ["d1", "d9"])
    assert (tmp_path / "a.sketch").read_bytes() == before


def test_a_document_that_is_there_already_is_refused(tmp_path):
    made(tmp_path)
    before = (tmp_path / "a.sketch").read_bytes()
    with pytest.raises(ValueError, match="'d7' exists already"):
        add_documents(tmp_path / "a.sketch", collection(2, 7), KEY)
    twice = replace(collection(2, 8), ids=["new", "new"])
    with pytest.raises(ValueError, match="given twice"):
        add_documents(tmp_path / "a.sketch", twice, KEY)
    assert (tmp_path / "a.sketch").read_bytes() == before


def test_ids_that_cannot_stand_in_a_line_are_refused(tmp_path):
    for name in ("", "two\nlines"):
        with pytest.raises(ValueError, match="is not valid"):
            made(tmp_path, documents=replace(collection(1), ids=[name]))
    with pytest.raises(ValueError, match="given twice"):
        made(tmp_path, documents=replace(collection(2), ids=["same", "same"]))
    assert not list(tmp_path.iterdir())


def test_another_key_is_named_and_refused(tmp_path):
    made(tmp_path)
    with pytest.raises(ValueError, match="made with another key"):
        add_documents(tmp_path / "a.sketch", collection(1, 8), bytes(32))


def test_a_sketch_is_not_overwritten(tmp_path):
    made(tmp_path)
    with pytest.raises(FileExistsError, match="costs as much again"):
        made(tmp_path)


@pytest.mark.parametrize("sketcher", [PLAIN, NOISED])
def test_every_damaged_byte_is_noticed(tmp_path, sketcher):
    file = made(tmp_path, sketcher, documents=collection(2))
    content = bytearray((tmp_path / "a.sketch").read_bytes())
    rng = np.random.default_rng(1)
    padding = 0
    places = [*range(array_file.BEGIN.size), *rng.integers(0, len(content), 60).tolist(), len(content) - 1]
    for place in places:
        content[place] ^= 0x10
        (tmp_path / "bad.sketch").write_bytes(content)
        content[place] ^= 0x10
        try:
            same(open_sketch(tmp_path / "bad.sketch"), file)
            padding += 1  # between two parts: nothing depends on it
        except SketchFileError:
            pass
    assert padding <= 3


def test_every_cut_is_noticed(tmp_path):
    made(tmp_path, documents=collection(2))
    content = (tmp_path / "a.sketch").read_bytes()
    for length in [0, 10, array_file.BEGIN.size, 100, len(content) // 2, len(content) - 1]:
        (tmp_path / "bad.sketch").write_bytes(content[:length])
        with pytest.raises(SketchFileError, match=r"truncated|damaged"):
            open_sketch(tmp_path / "bad.sketch")


def test_another_version_and_another_file_are_named(tmp_path):
    made(tmp_path)
    content = bytearray((tmp_path / "a.sketch").read_bytes())
    for version, mend in ((2, "sketch the documents again with `fedrank data sketch`"), (5, "update fedrank")):
        content[16] = version
        (tmp_path / "other.sketch").write_bytes(content)
        with pytest.raises(
            SketchFileError, match=f"version {version}, and this fedrank reads versions 3 and 4; {mend}"
        ):
            open_sketch(tmp_path / "other.sketch")
    (tmp_path / "other.sketch").write_bytes(b"x" * 100)
    with pytest.raises(SketchFileError, match="not a sketch file"):
        open_sketch(tmp_path / "other.sketch")


def forged(file, path, **parts):
    """A file with right checksums and wrong contents."""
    changed = {**files._parts(file), **parts}
    settings = {
        "sketcher": {**vars(file.sketcher), "tokeniser": file.sketcher.tokeniser.name},
        "rule": vars(file.fields["body"].rule),
        "fingerprint": "00",
        "fields": list(file.fields),
        "removed": 0,
    }
    array_file.write_arrays(path, settings, changed, files.TYPES)


def test_a_forged_file_cannot_lead_compiled_code_astray(tmp_path):
    file = made(tmp_path)
    forged(file, tmp_path / "fine.sketch")
    open_sketch(tmp_path / "fine.sketch")
    top = file.fields["body"]
    for name, wrong in {
        "body.documents": np.where(top.documents >= 0, 10**6, -1),
        "body.sizes": np.full_like(top.sizes, 10**6),
        "body.lengths": file.lengths["body"][:-1],
        "title.lengths": file.lengths["title"][:-1],
        "title.frequencies": file.frequencies["title"][:, :-1],
        "ids": np.frombuffer(b"only one", dtype=np.uint8),
    }.items():
        forged(file, tmp_path / "bad.sketch", **{name: wrong})
        with pytest.raises(SketchFileError):
            open_sketch(tmp_path / "bad.sketch")
    forged(file, tmp_path / "bad.sketch", **{"body.sizes": np.zeros_like(top.sizes)})
    with pytest.raises(SketchFileError, match="declared number of documents"):
        open_sketch(tmp_path / "bad.sketch")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda header: [], "cannot be read"),
        (lambda header: {**header, "parts": [{**header["parts"][0], "shape": [0, 10**30]}]}, "cannot be read"),
        (lambda header: {**header, "parts": [{**header["parts"][0], "shape": [10**30]}]}, "truncated"),
        (lambda header: {**header, "parts": [{**header["parts"][0], "at": -64}]}, "truncated"),
        (lambda header: {**header, "parts": [{**header["parts"][0], "at": 0.5}]}, "cannot be read"),
        (lambda header: {**header, "parts": [{**header["parts"][0], "name": 7}]}, "cannot be read"),
        (lambda header: {**header, "rule": {**header["rule"], "alpha": float("inf")}}, "infinity"),
        (lambda header: {**header, "rule": {**header["rule"], "alpha": float("nan")}}, "alpha must be"),
        (lambda header: {**header, "sketcher": {**header["sketcher"], "noise": float("nan")}}, "noise must be"),
        (lambda header: {**header, "sketcher": {**header["sketcher"], "width": 51}}, "do not match its settings"),
        (lambda header: {**header, "sketcher": {**header["sketcher"], "more": 1}}, "more"),
        (lambda header: {**header, "fields": ["title"]}, "must be body, or body and title"),
        (lambda header: {**header, "fields": ["body", "secret"]}, "must be body, or body and title"),
        (lambda header: {**header, "fingerprint": 5}, "str"),
    ],
)
def test_a_header_of_nonsense_is_a_refusal_and_no_crash(tmp_path, change, told):
    made(tmp_path, documents=collection(2))
    raw = (tmp_path / "a.sketch").read_bytes()
    begin = array_file.BEGIN
    _, _, length, _ = begin.unpack_from(raw)
    first = -(-(begin.size + length) // array_file.ALIGN) * array_file.ALIGN
    header = json.dumps(change(json.loads(raw[begin.size : begin.size + length]))).encode()
    head = begin.pack(array_file.FORMAT, array_file.PLAIN, len(header), array_file._digest(header)) + header
    (tmp_path / "bad.sketch").write_bytes(head + bytes(-len(head) % array_file.ALIGN) + raw[first:])
    with pytest.raises(SketchFileError, match=told):
        open_sketch(tmp_path / "bad.sketch")


def test_a_header_that_is_no_json_is_a_refusal(tmp_path):
    for header in (b"{", b"\xff\xff", b"[" * 100_000):
        head = (
            array_file.BEGIN.pack(array_file.FORMAT, array_file.PLAIN, len(header), array_file._digest(header)) + header
        )
        (tmp_path / "bad.sketch").write_bytes(head + bytes(64))
        with pytest.raises(SketchFileError, match="cannot be read"):
            open_sketch(tmp_path / "bad.sketch")


def test_what_a_crash_left_does_not_lend_its_rights(tmp_path):
    (tmp_path / "a.sketch.part").write_bytes(b"half")
    (tmp_path / "a.sketch.part").chmod(0o644)
    made(tmp_path)
    assert stat.S_IMODE((tmp_path / "a.sketch").stat().st_mode) == 0o600


def test_a_file_grows_and_shrinks_with_its_documents(tmp_path):
    def size() -> int:
        return (tmp_path / "a.sketch").stat().st_size

    made(tmp_path, documents=collection(1))
    one = size()
    add_documents(tmp_path / "a.sketch", collection(4, 1), KEY)
    cells = PLAIN.depth * PLAIN.width
    # Two fields, two ends of every cell, eight bytes for each of four more documents, and their ids.
    assert 0 <= size() - one - 2 * 2 * cells * 8 * 4 < 1000
    remove_documents(tmp_path / "a.sketch", ["d1", "d2", "d3", "d4"])
    assert abs(size() - one) < 100


def test_a_tokeniser_that_we_do_not_have_is_named(tmp_path, monkeypatch):
    made(tmp_path)
    monkeypatch.setattr("fedrank.data.text.VERSION", 2)
    with pytest.raises(SketchFileError, match="'words-1'"):
        open_sketch(tmp_path / "a.sketch")


def test_a_file_without_noise_answers_nobody(tmp_path):
    file = made(tmp_path)
    raw = (tmp_path / "a.sketch").read_bytes()
    length = array_file.BEGIN.unpack_from(raw)[2]
    assert json.loads(raw[array_file.BEGIN.size :][:length])["secret"] is True
    with pytest.raises(ValueError, match="as secret as the documents"):
        file.copy_for("b")


def test_a_copy_answers_as_the_original_and_holds_no_secret(tmp_path):
    file = made(tmp_path, NOISED)
    copy = file.copy_for("b")
    assert vars(copy).keys() == {"sketcher", "fields", "lengths", "frequencies", "pseudonyms"}
    names = dict(zip(file.pseudonyms_for("b").tolist(), file.ids, strict=True))
    assert np.all(np.diff(copy.pseudonyms.astype(object)) > 0)
    for term in ("flu", "word3", "common"):
        cells, signs = copy.sketcher.locate([term], file.hashing(KEY))
        rows, counts = copy.fields["body"].query(cells[0], signs[0])
        told = {names[int(copy.pseudonyms[row])]: count for row, count in zip(rows, counts, strict=True)}
        mine = dict(zip(*best(file, term), strict=True))
        # Of equal counts another document may be the last.
        assert sorted(told.values()) == sorted(mine.values())
        last = min(mine.values(), default=0)
        assert {n: c for n, c in told.items() if c > last} == {n: c for n, c in mine.items() if c > last}
    assert [copy.lengths["body"][i] for i, p in enumerate(copy.pseudonyms) if names[int(p)] == "d7"] == [8]
    np.testing.assert_array_equal(copy.frequencies["body"], file.frequencies["body"])


def test_a_copy_in_a_file_of_version_0_1_is_refused(tmp_path):
    file = made(tmp_path, NOISED)
    settings, parts = array_file.read_arrays(file.path, files.TYPES)
    del settings["parts"]
    parts = {name: part for name, part in parts.items() if name not in ("ids", "pseudonym-key")}
    array_file.write_arrays(tmp_path / "copy.sketch", settings, parts, files.TYPES)
    with pytest.raises(SketchFileError, match=r"copy\.sketch: it is a copy .* use the owner's file"):
        open_sketch(tmp_path / "copy.sketch")


def test_equal_values_of_a_copy_stand_in_the_order_of_its_rows(tmp_path):
    copy = made(tmp_path, NOISED).copy_for("b")
    for top in copy.fields.values():
        for cell in np.ndindex(top.sizes.shape):
            pairs = list(zip(top.values[cell], top.documents[cell], strict=True))[: top.sizes[cell]]
            assert pairs == sorted(pairs, key=lambda pair: (pair[0] if cell[0] else -pair[0], pair[1]))


def test_two_queriers_get_names_that_cannot_be_matched(tmp_path):
    file = made(tmp_path, NOISED)
    b, c = file.pseudonyms_for("b"), file.pseudonyms_for("c")
    assert not set(b.tolist()) & set(c.tolist())
    assert np.argsort(b).tolist() != list(range(8))
    other = made(tmp_path, NOISED, name="other.sketch")
    assert not set(b.tolist()) & set(other.pseudonyms_for("b").tolist())


def test_noise_is_fresh_for_every_file(tmp_path):
    one, two = made(tmp_path, NOISED), made(tmp_path, NOISED, name="b.sketch")
    assert not np.array_equal(one.fields["body"].values, two.fields["body"].values)


def test_lengths_are_exact_or_noised_as_the_settings_say(tmp_path):
    exact = made(tmp_path, NOISED)
    assert exact.lengths["body"].tolist() == [1 + d for d in range(8)]
    hidden = made(tmp_path, replace(NOISED, exact_lengths=False), name="b.sketch", source=SecureSource(bytes(32)))
    away = hidden.lengths["body"] - exact.lengths["body"]
    assert 5 < np.sqrt(np.mean(away**2.0)) < 30  # a deviation of 15 times σ1 = 1


def test_the_ledger_pays_for_sketching_and_for_changed_documents(tmp_path):
    made(tmp_path, NOISED, limits=Limits(total=11.0))
    ledger = SiloLedger(tmp_path / "a.spending")
    assert ledger.spent() == pytest.approx(COST)
    add_documents(tmp_path / "a.sketch", collection(1, 8), KEY)
    assert SiloLedger(tmp_path / "a.spending").spent() == ledger.spent()
    remove_documents(tmp_path / "a.sketch", ["d1"])
    add_documents(tmp_path / "a.sketch", collection(1, 1), KEY)  # d1 comes back with new noise
    twice = SiloLedger(tmp_path / "a.spending").spent()
    assert twice == pytest.approx(replace(NOISED, noise=1 / np.sqrt(2)).privacy(1e-5))
    remove_documents(tmp_path / "a.sketch", ["d1"])
    with pytest.raises(ValueError, match="budget is ε = 11"):
        add_documents(tmp_path / "a.sketch", collection(1, 1), KEY)
    assert "d1" not in open_sketch(tmp_path / "a.sketch").rows


def test_a_ledger_that_is_gone_is_not_begun_anew(tmp_path):
    made(tmp_path, NOISED, limits=Limits(total=7.0))
    shutil.rmtree(tmp_path / "a.spending")
    before = (tmp_path / "a.sketch").read_bytes()
    with pytest.raises(FileNotFoundError, match="the spent budget is unknown"):
        add_documents(tmp_path / "a.sketch", collection(1, 8), KEY)
    assert (tmp_path / "a.sketch").read_bytes() == before
    assert not (tmp_path / "a.spending").exists()
    assert describe_sketch(tmp_path / "a.sketch")["spent so far"].startswith("unknown")
    with pytest.raises(ValueError, match="the ledger of the sketch would have this name"):
        made(tmp_path, NOISED, name="a.spending")


def test_the_charge_is_noted_before_any_noise_is_drawn(tmp_path):
    """A crash in between then costs the owner ε, and not the documents their privacy."""

    class Broken:
        def __getattr__(self, name):
            raise RuntimeError("no noise")

    with pytest.raises(RuntimeError, match="no noise"):
        made(tmp_path, NOISED, source=Broken())
    assert not (tmp_path / "a.sketch").exists()
    assert SiloLedger(tmp_path / "a.spending").spent() == pytest.approx(COST)
    made(tmp_path, NOISED)
    before = SiloLedger(tmp_path / "a.spending").spent()
    remove_documents(tmp_path / "a.sketch", ["d1"])
    with pytest.raises(RuntimeError, match="no noise"):
        add_documents(tmp_path / "a.sketch", collection(1, 1), KEY, source=Broken())
    assert SiloLedger(tmp_path / "a.spending").spent() > before


def test_a_sketch_too_dear_is_not_made(tmp_path):
    with pytest.raises(ValueError, match="budget is ε = 1"):
        made(tmp_path, NOISED, limits=Limits(total=1.0))
    assert not (tmp_path / "a.sketch").exists()


def test_describe_tells_what_a_noised_file_costs_and_what_is_left(tmp_path):
    made(tmp_path, NOISED, limits=Limits(querier=8.0, total=9.0))
    told = describe_sketch(tmp_path / "a.sketch")
    assert told["noise"].startswith("noised: σ1 = 1, a deviation of 4.9")  # 2 sqrt(6)
    assert told["privacy"].startswith("ε = 6.6 at δ = 1e-05 for one occurrence of a word")
    assert told["for more"].startswith("2 times: 15.5")
    assert told["documents"] == "8"
    assert told["tokeniser"] == "words-1"
    assert PLAIN.hashing(KEY).fingerprint.hex() in told["key"]
    assert told["budget left"].startswith(f"ε = {int((9 - COST) * 100) / 100:.2f} of 9 towards all queriers together")
    assert told["spent so far"].startswith("ε = 6.6")
    assert told["budget left"].endswith(f"ε = {int((8 - COST) * 100) / 100:.2f} of 8 towards any other querier")
    answered(SiloLedger(tmp_path / "a.spending"), "b", 2, 0.5)
    assert f"ε = {int((7 - COST) * 100) / 100:.2f} towards 'b'" in describe_sketch(tmp_path / "a.sketch")["budget left"]


def test_describe_promises_nothing_without_noise(tmp_path):
    made(tmp_path)
    told = describe_sketch(tmp_path / "a.sketch")
    assert told["noise"].startswith("SECRET")
    assert told["privacy"].startswith("none")
    assert "for more" not in told
    assert told["budget left"] == "no limit was set"
    assert not any("ε" in value for value in told.values())
    assert told["spent so far"].startswith("no answers were given, and nothing is guaranteed")
    answered(SiloLedger(tmp_path / "a.spending"), "b", 2, 0.5)  # answers with noise of their own
    assert describe_sketch(tmp_path / "a.sketch")["spent so far"].startswith("ε = 1.0")


def test_describe_tells_of_noise_that_protected_nothing(tmp_path):
    made(tmp_path, NOISED)
    answered(SiloLedger(tmp_path / "a.spending"), "b", 1, None)
    assert describe_sketch(tmp_path / "a.sketch")["spent so far"] == "no guarantee"


def test_describe_says_when_a_rebuild_is_due(tmp_path):
    made(tmp_path, documents=collection(30))
    assert "holes in body" not in describe_sketch(tmp_path / "a.sketch")
    remove_documents(tmp_path / "a.sketch", [f"d{d}" for d in range(5, 30)])
    assert "sketch the documents again" in describe_sketch(tmp_path / "a.sketch")["holes in body"]


def test_the_error_that_is_told_is_that_of_the_sketcher(tmp_path):
    made(tmp_path, NOISED)
    length, squares = 1 + 28 / 8, 1 + (49 + 36 + 25 + 16 + 9 + 4 + 1) / 8
    bound = NOISED.error_bound(0.05, length, squares)
    assert f"±{bound:.1f} " in describe_sketch(tmp_path / "a.sketch")["error in body"]


def test_show_prints_every_row(tmp_path):
    made(tmp_path)
    told = describe_sketch(tmp_path / "a.sketch")
    out = io.StringIO()
    show(about_sketch(told), Console(file=out, width=200))
    assert all(name in out.getvalue() and value in out.getvalue() for name, value in told.items())
