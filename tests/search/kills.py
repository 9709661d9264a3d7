"""Kill the search client at random moments of indexing, searching and forgetting, and look what is left.

    python -m tests.search.kills --count 50

It also moves and renames files, and gives up orders and memories that lose. After every kill -9 the store and the
engine's index must agree, every document must have the id that it always had, every click that was answered must be
there once and no forgotten one, documents that were forgotten must be gone, and an order or a memory is given up only
by lists that are recorded. A new process works after every kill, and another one checks.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
import traceback
import zlib
from pathlib import Path

import numpy as np

from fedrank.data.live_features import ForwardRow, ForwardRows, WordStatistics
from fedrank.ranking.gate import Gate, Team
from fedrank.search import impressions, ingest, opponents
from fedrank.search.client import SearchClient
from fedrank.search.opponents import ENGINE, FORGETFUL, GIVEN_UP
from tests.search.made_up import write_documents
from tests.search.reading import zipped

DOCUMENTS = 60
FORGOTTEN = 1_000_000_000  # larger answers are documents that were forgotten


def check_agreement(client: SearchClient) -> None:
    """Word counts are those of the documents that are there, and the engine has exactly these."""
    rows = [ForwardRow.unpack(zlib.decompress(words)) for (words,) in client.store.rows("SELECT words FROM forward")]
    expected, found = WordStatistics.of(ForwardRows.join(rows)), client.store.statistics()
    np.testing.assert_array_equal(found.frequencies, expected.frequencies)
    counts = (expected.documents, expected.words, expected.title_words)
    assert (found.documents, found.words, found.title_words) == counts
    ids = {id for (id,) in client.store.rows("SELECT id FROM documents")}
    assert client.engine.documents == len(ids)
    if ids:
        searched = client.engine._searcher.search(client.engine._tantivy.Query.all_query(), len(ids) + 1)
        addresses = [address for _, address in searched.hits]
        assert set(client.engine._searcher.fast_field_values("id", addresses)) == ids
    assert client.store.indexed == client.store.seq


def decide_soon() -> None:
    """Let every search close the list before it, and comparisons end after a few searches."""
    impressions.BOUNCE, impressions.FAST = 0.0, 1 << 40
    opponents.SHARE = opponents.MEMORY_SHARE = 0.6
    opponents.GATE = Gate(level=0.6, stake=0.5, harm=0.6, harm_stake=0.5, most=6)


def work(store: Path, folder: Path, answered: int, turn: int) -> None:
    """Change files, index, search, click and forget until killed; every answered click is told."""
    ingest.BATCH = 7
    decide_soon()
    with SearchClient(store) as client:
        while True:
            turn += 1
            client.index([folder])  # what was moved before a kill is recognised before its text changes
            for path in files_of(folder)[turn % 5 :: 5]:
                write(path, turn)
            client.index()
            for path in files_of(folder)[turn % 3 :: 3]:
                part = folder / f"part {turn % 4}"
                part.mkdir(exist_ok=True)
                path.rename(part / f"{turn}-{name_of(path)}")
            client.index()
            for place in range(9):
                found = client.search(f"orchard turn {turn + place}")
                client.open_document(found.impression, choose(client, found.impression, place))
                os.write(answered, f"{found.impression}\n".encode())
            secret = client.search(f"orchard secret {turn}")
            client.open_document(secret.impression, 1)
            client.forget(query=secret.query)
            os.write(answered, f"-{secret.impression}\n".encode())
            if turn % 3 == 0:
                forget_a_document(client, folder.parent / "secrets", turn, answered)
            if turn % 7 == 0:  # what was given up is tried again
                with client.store.writing():
                    client.store.set(engine_after=0)


def forget_a_document(client: SearchClient, folder: Path, turn: int, answered: int) -> None:
    """Index a file, open it, and forget the document with the search that showed it; the file stays."""
    folder.mkdir(exist_ok=True)
    write(folder / f"secret {turn}.txt", turn)
    client.index([folder])
    found = client.search(f'"secret {turn}.txt"')
    client.open_document(found.impression, 0)
    client.forget(document=found.results[0].id, searches=True)
    os.write(answered, f"-{found.impression}\n-{FORGOTTEN + turn}\n".encode())
    client.index()


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("[!.]*.*") if path.is_file())


def name_of(path: Path) -> str:
    """The name of a file before it was renamed."""
    return path.name.rpartition("-")[2]


def write(path: Path, turn: int) -> None:
    """Write a file that says its name, as a whole: an empty file would be a deleted document."""
    part = path.with_name(f".{path.name}")
    text = f"the orchard in turn {turn}, {name_of(path)}"
    if path.suffix == ".docx":
        zipped(part, {"word/document.xml": f"<p>{text}</p>"})
    else:
        part.write_text(text)
    part.rename(path)


def check_ids(client: SearchClient, known: Path) -> None:
    """Every document has the id that it always had, wherever its file was moved."""
    ids = json.loads(known.read_text()) if known.exists() else {}
    rows = client.store.rows("SELECT id FROM documents")
    for (id,) in rows:
        name = client.store.text(id).rpartition(", ")[2]
        assert ids.setdefault(name, id) == id, f"{name} was document {ids[name]} and is {id}"
    assert len({client.store.text(id).rpartition(", ")[2] for (id,) in rows}) == len(rows), "a document is there twice"
    known.write_text(json.dumps(ids))


def choose(client: SearchClient, impression: int, place: int) -> int:
    """A result of the opponent, so that the order in use and the memory of clicks are given up."""
    teams = client.rows.get(impression).teams
    others = np.flatnonzero(teams == Team.NEW) if teams is not None else ()
    return int(others[0]) if len(others) else place


def look(store: Path, told: set[int]) -> None:
    """What must hold after every kill."""
    decide_soon()
    with SearchClient(store) as client:
        check_agreement(client)
        check_ids(client, store.parent / "ids.json")
        clicks = [id for (id,) in client.store.rows("SELECT impression FROM clicks")]
        known = {id for (id,) in client.store.rows("SELECT id FROM impressions")}
        lost = {id for id in told if id > 0} - {*clicks}
        assert not lost, f"clicks that were answered and are lost: {sorted(lost)}"
        assert len(clicks) == len({*clicks})
        assert known.issuperset(clicks)
        assert not {-id for id in told if id < 0} & known, "a forgotten search is there"
        client.index()
        names = {client.store.text(id).rpartition(", ")[2] for (id,) in client.store.rows("SELECT id FROM documents")}
        assert not {f"secret {-id - FORGOTTEN}.txt" for id in told} & names, "a forgotten document is there"
        for opponent, setting in GIVEN_UP.items():
            if since := client.store.setting(setting, 0):
                before = "SELECT count(*) FROM impressions WHERE opponent = ? AND id <= ? AND state = 'closed'"
                assert client.store.count(before, opponent, since), f"{setting} without a list that was compared"


def in_child(what, *arguments) -> int:
    """The id of a process that does it."""
    child = os.fork()
    if child:
        return child
    try:
        what(*arguments)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def kills(folder: Path, count: int, seed: int = 1) -> tuple[int, int]:
    """Kill so often; returns how many clicks were answered, and how many documents forgotten."""
    chance = random.Random(seed)
    documents, store, clicked = write_documents(folder / "documents", DOCUMENTS), folder / "store", set()
    for path in files_of(documents)[::6]:
        path.rename(path.with_suffix(".docx"))
    for path in files_of(documents):
        write(path, 0)
    for number in range(count):
        heard, told = os.pipe()
        child = in_child(work, store, documents, told, 1_001 * number)
        os.close(told)
        if number % 3:  # otherwise while it opens, or indexes for the first time
            clicked |= {int(line) for line in os.read(heard, 1 << 16).split()}
        time.sleep(chance.uniform(0.0, 2.0))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        with open(heard) as lines:
            clicked |= {int(line) for line in lines if line.endswith("\n")}
        finished(in_child(look, store, clicked), f"kill {number + 1} of {count} did harm; the store is in {store}")
    with SearchClient(store) as client:
        lists = "SELECT count(*) FROM impressions WHERE opponent = ?"
        engine, forgetful = (client.store.count(lists, opponent) for opponent in (ENGINE, FORGETFUL))
        sys.stderr.write(f"lists mixed with the engine's order: {engine}, with the order without memory: {forgetful}\n")
    return sum(id > 0 for id in clicked), sum(id < -FORGOTTEN for id in clicked)


def finished(child: int, otherwise: str) -> None:
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        raise SystemExit(otherwise)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        clicks, documents = kills(Path(folder) / "alone", given.count, given.seed)
    sys.stdout.write(
        f"{given.count} kills: both stores agree, {clicks} answered clicks are all there, and {documents} forgotten "
        "documents are gone\n"
    )


if __name__ == "__main__":
    main()
