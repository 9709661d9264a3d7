"""Kill the search client at random moments of indexing, searching and learning, and look what is left.

    python -m tests.search.kills --count 50

After every kill -9 the store and the engine's index must agree, every click that was answered must be there, and what
was learned must be what the learned lists teach. Each time a process of its own works, and another one looks.
"""

from __future__ import annotations

import argparse
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
from fedrank.search import collect
from fedrank.search.client import SearchClient
from fedrank.search.impressions import LEARNER, first_weights, learn
from tests.search.made_up import write_documents

DOCUMENTS = 60


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


def work(store: Path, folder: Path, answered: int, turn: int) -> None:
    """Change files, index, search, click and learn until killed; every answered click is told."""
    collect.BATCH = 7
    with SearchClient.open(store) as client:
        while True:
            turn += 1
            for path in sorted(folder.iterdir())[turn % 5 :: 5]:
                path.write_text(f"the orchard in turn {turn}, {path.name}")
            client.index([folder])
            for place in range(3):
                found = client.search(f"orchard turn {turn}")
                client.open_document(found.impression, place)
                os.write(answered, f"{found.impression}\n".encode())
                client.close_impression(found.impression)


def look(store: Path, clicked: set[int]) -> None:
    """What must hold after every kill."""
    with SearchClient.open(store) as client:
        check_agreement(client)
        found = {id for (id,) in client.store.rows("SELECT impression FROM clicks")}
        assert clicked <= found, f"clicks that were answered and are lost: {sorted(clicked - found)}"
        expected = first_weights(client.features)
        for (id,) in client.store.rows("SELECT id FROM impressions WHERE state = 'learned' ORDER BY id"):
            one = client.rows.as_impression(client.rows.get(id))
            assert one is not None
            learn(expected, one, LEARNER)
        np.testing.assert_array_equal(client.rows.model()[1], expected)


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


def kills(folder: Path, count: int, seed: int = 1) -> int:
    """Kill so often; returns how many clicks were answered."""
    chance = random.Random(seed)
    documents, store, clicked = write_documents(folder / "documents", DOCUMENTS), folder / "store", set()
    with SearchClient.open(folder / "other") as client:  # so that children have what is compiled
        client.warm()
    for number in range(count):
        heard, told = os.pipe()
        child = in_child(work, store, documents, told, 1_000 * number)
        os.close(told)
        if number % 3:  # otherwise while it opens, or indexes for the first time
            clicked |= {int(line) for line in os.read(heard, 1 << 16).split()}
        time.sleep(chance.uniform(0.0, 0.8))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        with open(heard) as lines:
            clicked |= {int(line) for line in lines if line.endswith("\n")}
        if os.waitstatus_to_exitcode(os.waitpid(in_child(look, store, clicked), 0)[1]):
            raise SystemExit(f"kill {number + 1} of {count} did harm; the store is in {store}")
    return len(clicked)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        clicks = kills(Path(folder), given.count, given.seed)
    sys.stdout.write(f"{given.count} kills: both stores agree, {clicks} answered clicks are all there\n")


if __name__ == "__main__":
    main()
