"""Pictures are whole files, or there is none."""

from __future__ import annotations

import pytest
from matplotlib.figure import Figure

from fedrank.experiments.report.figures import save_picture


@pytest.mark.parametrize(
    ("name", "begins"), [("a.png", b"\x89PNG"), ("a.svg", b"<?xml"), ("a.pdf", b"%PDF"), ("a", b"\x89PNG")]
)
def test_the_ending_is_the_format(tmp_path, name, begins):
    save_picture(Figure(figsize=(1, 1)), tmp_path / "new" / name)
    assert (tmp_path / "new" / name).read_bytes().startswith(begins)
    assert [path.name for path in (tmp_path / "new").iterdir()] == [name]


def test_a_picture_that_cannot_be_drawn_leaves_the_old_one(tmp_path):
    (tmp_path / "a.png").write_bytes(b"old")
    (tmp_path / "a.odd").write_bytes(b"old")

    class Broken(Figure):
        def savefig(self, file, **settings):
            file.write(b"half")
            raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        save_picture(Broken(), tmp_path / "a.png")
    with pytest.raises(ValueError, match="odd"):
        save_picture(Figure(), tmp_path / "a.odd")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "a.odd").read_bytes() == b"old"
