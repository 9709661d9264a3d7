"""A checkpoint from anybody: what cannot be read begins the run again, what was changed is an error."""

from __future__ import annotations

import numpy as np
import pytest

from fedrank.experiments.runner.folder import Facts
from fedrank.experiments.runner.perform import perform
from fedrank.experiments.runner.schedule import plan
from fedrank.experiments.spec.grid import read_tables


def one_task(out):
    tables = {"rounds": 30, "data": {"name": "synthetic-mq2007"}, "clients": {"count": 3}, "learner": {"name": "pdgd"}}
    [task] = plan(read_tables(tables), "test", out)
    return task


@pytest.fixture
def stopped(tmp_path):
    """A run that was stopped, with a checkpoint."""
    task = one_task(tmp_path)
    calls = iter([False] * 20 + [True])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedrank.experiments.runner.writer.SECONDS_BETWEEN_NEWS", 0.0)
        perform(task, stop=lambda: next(calls))
    assert (task.folder / "checkpoint.npz").exists()
    return task


@pytest.mark.parametrize("compression", [0, 12, 14, 97, 99])
def test_a_checkpoint_with_an_unknown_compression_begins_again(stopped, compression):
    file = stopped.folder / "checkpoint.npz"
    content = bytearray(file.read_bytes())
    for mark, place in ((b"PK\x01\x02", 10), (b"PK\x03\x04", 8)):
        at = content.find(mark)
        content[at + place : at + place + 2] = compression.to_bytes(2, "little")
    file.write_bytes(content)
    assert perform(stopped) == "finished"
    assert not Facts.read(stopped.folder).notes


def test_a_changed_checkpoint_is_an_error_and_one_without_a_checksum_a_note(stopped):
    file = stopped.folder / "checkpoint.npz"
    with np.load(file) as kept:
        parts = dict(kept)
    np.savez(file, **parts | {"weights": parts["weights"] + 1e-9})
    before = (stopped.folder / "rounds.csv").read_bytes()
    assert perform(stopped) == "failed"  # and nothing is lost
    assert "checkpoint.npz is wrong: the file is damaged; delete it" in Facts.read(stopped.folder).error["message"]
    assert (stopped.folder / "rounds.csv").read_bytes() == before
    np.savez(file, **{name: part for name, part in parts.items() if name != "checksum"})
    assert perform(stopped) == "finished"
    assert "its checkpoint had no checksum" in Facts.read(stopped.folder).notes[0]


@pytest.mark.parametrize(
    "change",
    [
        {"round": np.asarray(-1)},
        {"round": np.arange(3)},
        {"tally": np.asarray("[" * 100_000)},
        {"tally": np.asarray('{"interactions": "many"}')},
        {"weights": np.zeros(2, dtype=object)},
    ],
)
def test_a_checkpoint_that_makes_no_sense_begins_again(stopped, change):
    file = stopped.folder / "checkpoint.npz"
    with np.load(file) as kept:
        parts = dict(kept)
    del parts["checksum"]
    np.savez(file, **parts | change)
    assert perform(stopped) == "finished"
    assert not Facts.read(stopped.folder).notes
