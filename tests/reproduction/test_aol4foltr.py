"""The published files of AOL4FOLTR, in the format that the released code writes, become a data set; never in memory."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrank.cli import main
from fedrank.data import log_folder
from fedrank.data.describe_log import notes
from fedrank.data.letor import read_letor
from fedrank.data.log_features import FEATURE_NAMES
from fedrank.data.logs import load_log
from fedrank_papers import aol4foltr as module
from fedrank_papers.aol4foltr import convert_aol4foltr, read_metadata, read_queries

WIDTH, LENGTH = 103, 20
HEADER = "qid,user_id,timestamp,query,target_doc_id,candidate_doc_ids\n"


def metadata_row(qid, user, time, query, document) -> str:
    others = ", ".join(repr(f"other{i}") for i in range(LENGTH - 1))
    return f"{qid},{user},{time},{query},{document},\"{{'{document}', {others}}}\"\n"


def features_of(qid: int) -> np.ndarray:
    rng = np.random.default_rng(qid + 1)
    values = np.where(rng.random((LENGTH, WIDTH)) < 0.4, 0, rng.normal(0, 3, (LENGTH, WIDTH))).astype(np.float32)
    values[:, -1] = rng.integers(0, 5, LENGTH)
    return values


def letor_lines(qid, target, documents=LENGTH) -> list[str]:
    """As the released code writes them: float32 with all digits of a double, counts as whole numbers."""
    lines = []
    for place, row in enumerate(features_of(int(qid))[:documents]):
        numbers = [repr(float(value)) for value in row[:-1]] + [str(int(row[-1]))]
        pairs = " ".join(f"{i}:{number}" for i, number in enumerate(numbers, 1))
        lines.append(f"{int(place == target)} qid:{qid} {pairs}\n")
    return lines


ENTRIES = [
    # qid, user, time, query, document, place of the click
    (4, 17, "2006-03-01 07:00:00", "New  york", "d1", 3),
    (0, 23, "2006-03-01 07:00:05", "asthma", "d2", 0),
    (2, 17, "2006-03-01 07:00:05", "new york", "d2", 19),
    (1, 17, "2006-03-02 00:00:00", '"say ""cheese"", please"', "d1", 7),
]
MIDNIGHT = 1_141_171_200  # 1 March 2006, UTC: date -u -d 2006-03-01 +%s


def write_files(folder: Path, entries=ENTRIES, order=None) -> tuple[Path, Path]:
    metadata, letor = folder / "metadata.csv", folder / "letor.txt"
    metadata.write_text(HEADER + "".join(metadata_row(*entry[:5]) for entry in entries))
    in_order = entries if order is None else [entries[i] for i in order]
    letor.write_text("".join(line for entry in in_order for line in letor_lines(entry[0], entry[5])))
    return metadata, letor


def many(entries: int, seed: int = 1) -> list[tuple]:
    rng = random.Random(seed)
    qids = rng.sample(range(1000), entries)
    return [
        (qid, rng.randrange(5), f"2006-03-01 {i // 3600:02}:{i // 60 % 60:02}:{i % 60:02}", f"q{rng.randrange(9)}",
         f"d{rng.randrange(30)}", rng.randrange(LENGTH))
        for i, qid in zip(sorted(rng.choices(range(86400), k=entries)), qids, strict=True)
    ]  # fmt: skip


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_every_entry_by_eye(tmp_path):
    log = convert_aol4foltr(*write_files(tmp_path), tmp_path / "out")
    assert log.users == ("17", "23")  # three entries, one entry
    assert log.user.tolist() == [0, 1, 0, 0]
    assert log.time.tolist() == [MIDNIGHT + 25200, MIDNIGHT + 25205, MIDNIGHT + 25205, MIDNIGHT + 86400]
    assert [log.queries[q] for q in log.query] == ["new york", "asthma", "new york", 'say "cheese", please']
    assert log.target.tolist() == [3, 0, 19, 7]
    assert log.feature_names == tuple(FEATURE_NAMES)
    for place, (qid, *_, document, target) in enumerate(ENTRIES):
        assert log.lists[place].tolist() == list(range(20 * place, 20 * place + 20))
        assert np.array_equal(log.features[log.lists[place]], features_of(qid)), "float32 comes back bit by bit"
        of_list = log.document[log.lists[place]].tolist()
        assert log.documents[of_list.pop(target)] == document
        assert of_list == [-1] * 19, "the files do not say which candidate is which"
    counts = {"rows": 4, "sound": 4, "entries": 4, "pairs": 80, "users": 2, "queries": 3, "documents": 2}
    assert log.facts["counts"] == counts
    assert notes(log.facts)[0] == "4 rows, 4 of them valid; the data set contains 4 entries of 2 users with 3 queries"
    assert set(contents(tmp_path / "out")) == {
        *("features.npy", "lists.npy", "target.npy", "user.npy", "time.npy", "query.npy", "document.npy"),
        *("users.txt", "queries.txt", "documents.txt", "facts.json"),
    }


def test_at_the_same_second_the_order_of_letor_counts(tmp_path):
    """The released code sorts both files by time, each in its own way where times are equal."""
    log = convert_aol4foltr(*write_files(tmp_path, order=[0, 2, 1, 3]), tmp_path / "out")
    assert log.target.tolist() == [3, 19, 0, 7]
    assert log.lists.ravel().tolist() == list(range(80)), "features stay as they lie"
    assert log.facts["out_of_order"] == 0


def test_a_file_that_is_not_sorted_by_time(tmp_path):
    entries = many(30)
    shuffled = random.Random(2).sample(entries, len(entries))
    log = convert_aol4foltr(
        *write_files(tmp_path, shuffled, order=random.Random(3).sample(range(30), 30)), tmp_path / "o"
    )
    assert log.facts["out_of_order"] > 0
    assert log.target.tolist() == [entry[5] for entry in entries]
    for place, entry in enumerate(entries):
        assert np.array_equal(log.features[log.lists[place]], features_of(entry[0]))


def test_what_does_not_fit_is_left_out_and_counted(tmp_path):
    metadata, letor = write_files(tmp_path)
    with metadata.open("ab") as file:
        file.write(metadata_row(1, 5, "2006-03-03", "again", "d9").encode())  # line 6
        file.write(metadata_row("x", 5, "2006-03-03", "who", "d9").encode())
        file.write(metadata_row(31, 5, "soon", "when", "d9").encode())
        file.write(metadata_row(32, 5, "2006-03-03", " ", "d9").encode())
        file.write(b'33,5,2006-03-03,"open,d9\n')
        file.write(b"34,5,2006-03-03,\xff,d9,{}\n")
        file.write(b"35,5\n")
        for qid in (40, 41, 42, 43):  # lines 13 .. 16
            file.write(metadata_row(qid, 5, "2006-03-03", "fine", "d9").encode())
    with letor.open("a") as file:
        file.writelines(letor_lines(40, 1, documents=19))  # line 81
        file.writelines(letor_lines(41, -1))  # 100: no click
        file.writelines(["1" + line[1:] if i == 4 else line for i, line in enumerate(letor_lines(42, 2))])  # 120: two
        file.write("# a remark\n")
        file.writelines(letor_lines(99, 2))  # 141
        file.writelines(letor_lines(4, 2))  # 161
    log = convert_aol4foltr(metadata, letor, tmp_path / "out")
    assert len(log) == 4
    assert log.facts["counts"]["rows"] == 15
    assert log.facts["counts"]["sound"] == 8
    assert log.facts["left_out"] == {
        "metadata.csv: qid that occurs more than once": {"rows": 1, "lines": [6]},
        "metadata.csv: qid that is not an integer": {"rows": 1, "lines": [7]},
        "metadata.csv: unreadable time": {"rows": 1, "lines": [8]},
        "metadata.csv: empty query": {"rows": 1, "lines": [9]},
        "metadata.csv: not a row": {"rows": 2, "lines": [10, 12]},
        "metadata.csv: not UTF-8": {"rows": 1, "lines": [11]},
        "letor.txt: query without 20 documents": {"rows": 1, "lines": [81]},
        "letor.txt: query without exactly one clicked document": {"rows": 2, "lines": [100, 120]},
        "letor.txt: qid without an entry in metadata.csv": {"rows": 1, "lines": [141]},
        "letor.txt: qid that occurs more than once": {"rows": 1, "lines": [161]},
    }
    assert log.facts["dropped"] == {"entry without lines in letor.txt": 4}
    assert any("lines 100, 120" in note for note in notes(log.facts))


@pytest.mark.parametrize("block", [70_000, 8 << 20])  # two queries and a bit, or all
def test_what_is_not_a_number_counts_as_0(tmp_path, monkeypatch, block):
    monkeypatch.setattr(module, "BLOCK", block)
    metadata, letor = write_files(tmp_path)
    lines = letor.read_text().splitlines()
    for line in (5, 41, 79):
        pairs = lines[line].split(" ")
        pairs[8], pairs[90] = "7:nan", "89:NaN"
        lines[line] = " ".join(pairs)
    letor.write_text("\n".join(lines))  # the last line has no end
    log = convert_aol4foltr(metadata, letor, tmp_path / "out")
    expected = np.concatenate([features_of(entry[0]) for entry in ENTRIES])
    expected[np.ix_([5, 41, 79], [6, 88])] = 0
    assert np.array_equal(log.features, expected)
    reason = "letor.txt: value that is not a number, counted as 0"
    assert log.facts["left_out"] == {reason: {"rows": 6, "lines": [6, 6, 42, 42, 80]}}


@pytest.mark.long
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_any_mark_it_continues_with_the_same_bytes(tmp_path, monkeypatch, when):
    monkeypatch.setattr(module, "BLOCK", 70_000)  # two queries and a bit
    monkeypatch.setattr(module, "BETWEEN_MARKS", 60_000)
    files = write_files(tmp_path, many(9), order=[*range(5), 3, 5, 6, 8])  # 3 is there twice, 7 is not
    convert_aol4foltr(*files, tmp_path / "whole")
    write = log_folder.write_atomic
    for fatal in count():
        written = 0

        def dies(path, text, private=False, fatal=fatal):
            nonlocal written
            written += 1
            if when == "after":
                write(path, text, private)
            if written == fatal + 1:
                raise KeyboardInterrupt
            if when == "before":
                write(path, text, private)

        out = tmp_path / f"killed-{fatal}"
        monkeypatch.setattr(log_folder, "write_atomic", dies)
        try:
            convert_aol4foltr(*files, out)
            break
        except KeyboardInterrupt:
            pass
        monkeypatch.setattr(log_folder, "write_atomic", write)
        if not (out / "facts.json").exists():
            with pytest.raises((ValueError, FileNotFoundError), match=r"incomplete|not a data set"):
                load_log(out)
        convert_aol4foltr(*files, out)
        assert contents(out) == contents(tmp_path / "whole"), f"killed at mark {fatal}"
    assert fatal > 3, "a conversion has many marks"


@pytest.mark.process
def test_a_process_that_dies_between_marks_leaves_what_another_continues(tmp_path, monkeypatch):
    entries = many(12)
    files = write_files(tmp_path, entries)
    code = (
        "import os, sys\n"
        "from fedrank_papers import aol4foltr\n"
        "aol4foltr.BLOCK, aol4foltr.BETWEEN_MARKS = 70_000, 150_000\n"
        "die = lambda step, done, of: os._exit(9) if done > 250_000 else None\n"
        "aol4foltr.convert_aol4foltr(*sys.argv[1:], progress=die)\n"
    )
    died = subprocess.run([sys.executable, "-c", code, *map(str, files), str(tmp_path / "out")], check=False)
    assert died.returncode == 9
    begun = json.loads((tmp_path / "out" / "begun.json").read_text())["done"]["letor"]
    assert 150_000 <= begun["position"] < 250_000
    seen = []
    log = convert_aol4foltr(*files, tmp_path / "out", progress=lambda step, done, of: seen.append((step, done)))
    assert min(done for step, done in seen if step == "letor") > begun["position"], "nothing is read twice"
    convert_aol4foltr(*files, tmp_path / "whole")
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    assert log.target.tolist() == [entry[5] for entry in entries]
    convert_aol4foltr(*files, tmp_path / "out", progress=seen.pop(0))  # complete: nothing is reported at all


@settings(max_examples=30, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=12),
    block=st.integers(1000, 3000),  # no query has 900 bytes
    rows=st.integers(10, 40),
    end=st.sampled_from(["\n", "", "\n\n# the end\n"]),
)
def test_blocks_are_the_file_however_it_is_cut(tmp_path_factory, lengths, block, rows, end):
    """Against the reader for files that fit into memory."""
    path = tmp_path_factory.mktemp("letor") / "letor.txt"
    rng = np.random.default_rng(len(lengths))
    lines = [
        f"{rng.integers(2)} qid:{qid} " + " ".join(f"{i}:{rng.normal():.17g}" for i in (1, 2, 3))
        for qid, length in enumerate(lengths)
        for _ in range(length)
    ]
    path.write_text("\n".join(lines) + end)
    expected = read_letor(path, cache=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BLOCK", block)
        patch.setattr(module, "_ROWS", rows)
        qids, starts, features, grades, stops = [], [], [], [], []
        for found in read_queries(path, 0, 1, 3):
            qids += found.qids
            starts += found.lines
            used = slice(found.starts[0], found.starts[-1])
            features.append(found.features[used].copy())
            grades.append(found.grades[used].copy())
            stops.append((found.position, found.line, len(qids)))
        for position, line, before in stops[:-1]:
            again = [qid for found in read_queries(path, position, line, 3) for qid in found.qids]
            assert again == qids[before:], "it can begin at the end of any block"
    assert qids == expected.query_ids.astype(int).tolist()
    assert starts == (expected.offsets[:-1] + 1).tolist()
    assert np.array_equal(np.concatenate(features), expected.features)
    assert np.array_equal(np.concatenate(grades), expected.grades)
    assert stops[-1][0] == path.stat().st_size


def test_values_half_way_between_two_numbers_go_to_the_even_one(tmp_path):
    """Their text is read once more, by Python."""
    path = tmp_path / "letor.txt"
    path.write_text("0 qid:4 1:1000000059604644775390625e-24 2:3\n1 qid:4 1:7 2:1000000178813934326171875e-24\n")
    [found] = read_queries(path, 0, 1, 2)
    assert found.features[:2].tolist() == [[1, 3], [7, 1 + 2**-22]]  # of 1 + 2^-24 and 1 + 3 x 2^-24


def test_files_that_are_something_else(tmp_path):
    metadata, letor = write_files(tmp_path)
    out = tmp_path / "out"

    def refused(text, **files):
        chosen = {"metadata": metadata, "letor": letor} | files
        with pytest.raises(ValueError, match=text):
            convert_aol4foltr(chosen["metadata"], chosen["letor"], out)
        return not out.exists()

    other = tmp_path / "other.csv"
    other.write_text("qid,user,when\n1,2,3\n")
    assert refused(
        r"other.csv, line 1: no column 'timestamp' for the time; the columns are 'qid', 'user', 'when'", metadata=other
    )
    other.write_text(HEADER)
    assert refused("no usable entries", metadata=other)
    other.write_text(HEADER + metadata_row(77, 1, "2006-03-03", "q", "d"))
    refused(
        r"no query of .* matches metadata.csv \(qid without an entry in metadata.csv: 4 \(lines .*\)\); check that",
        metadata=other,
    )
    out = tmp_path / "out2"
    bad = tmp_path / "bad.txt"
    bad.write_bytes(b"\x1f\x8b\x08\x00packed\n")
    assert refused("line 1: .* cannot be read; .* unpack the file again", letor=bad)
    bad.write_text("")
    assert refused("bad.txt is empty", letor=bad)
    bad.write_text("1 qid:4 1:0.5 2:1\n")
    assert refused("2 features, but the published file has 103", letor=bad)
    bad.write_text("".join(letor_lines(4, 3)).replace(" 103:", " 104:"))
    assert refused("104 features, but the published file has 103", letor=bad)
    bad.write_text("".join(letor_lines(4, 3)).replace(" 5:", " 5:inf#", 1))
    assert refused("line 1: '5:inf", letor=bad)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BLOCK", 30_000)
        assert refused("line 1: a query has more than 30,000 bytes")


def test_a_changed_file_does_not_mix(tmp_path):
    metadata, letor = write_files(tmp_path)
    convert_aol4foltr(metadata, letor, tmp_path / "out")
    before = contents(tmp_path / "out")
    text = bytearray(letor.read_bytes())
    text[len(text) // 2 : len(text) // 2 + 400] = text[len(text) // 2 : len(text) // 2 + 400].replace(b"0", b"1")
    letor.write_bytes(text)
    with pytest.raises(FileExistsError, match="another version of these files"):
        convert_aol4foltr(metadata, letor, tmp_path / "out")
    assert contents(tmp_path / "out") == before


@pytest.mark.usefixtures("impatient")
def test_one_process_at_a_time(tmp_path):
    files = write_files(tmp_path)
    with (
        log_folder.working_on(tmp_path / "new" / "out"),
        pytest.raises(FileExistsError, match="is in use by process"),
    ):
        convert_aol4foltr(*files, tmp_path / "new" / "out")
    assert not (tmp_path / "new").exists(), "nothing was begun"
    assert len(convert_aol4foltr(*files, tmp_path / "new" / "out")) == 4


def test_metadata_is_put_in_order_of_time(tmp_path):
    metadata, _ = write_files(tmp_path, [ENTRIES[3], ENTRIES[0]])
    read = read_metadata(metadata)
    assert read.qid.tolist() == [4, 1]
    assert read.line.tolist() == [3, 2]
    assert read.clicks.out_of_order == 1


@pytest.mark.long
def test_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path)

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["fedrank", "papers", "convert", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        return end.value.code or 0, *capsys.readouterr()

    asked = ("metadata.csv", "letor.txt", "--out", "aol")
    code, out, err = call(*asked)
    assert (code, err) == (0, "")
    assert out.startswith("4 rows, 4 of them valid; the data set contains 4 entries"), "no empty line of a bar"
    assert "fedrank data check aol" in out
    code, out, err = call("metadata.csv", "metadata.csv", "--out", "other")
    assert (code, out) == (2, ""), "no empty line before an error"
    assert err.startswith("fedrank: metadata.csv, line 1: 'qid,user_id,timestamp,query,target_doc_i' cannot be read")
    assert not Path("other").exists()
