"""Compiled code is found again only as long as no kernel has changed."""

from __future__ import annotations

from fedrank.kernels.compile import _compiled_folder


def test_a_change_in_a_sub_folder_makes_compiled_code_stale(tmp_path):
    (tmp_path / "deeper").mkdir()
    (tmp_path / "sums.py").write_text("one = 1\n")
    (tmp_path / "deeper" / "more.py").write_text("two = 2\n")
    before = _compiled_folder(tmp_path)
    assert _compiled_folder(tmp_path) == before
    (tmp_path / "deeper" / "more.py").write_text("two = 3\n")
    assert _compiled_folder(tmp_path) != before
