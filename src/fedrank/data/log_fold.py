"""A search log as a fold: its earlier entries to learn from, its latest to test on."""

from __future__ import annotations

import math
import os
from dataclasses import replace

import numpy as np

from fedrank.data.catalog import Fold
from fedrank.data.logs import as_ranking, load_log
from fedrank.data.normalise import feature_ranges, normalise

TEST_SHARE = 0.2  # of the entries, the latest ones (AOL4FOLTR)


def log_fold(
    folder: str | os.PathLike[str], users: int | None = None, test_share: float = TEST_SHARE, how: str = "query"
) -> Fold:
    """The entries of a log's most active users (None: of all) in order of time; the last of them are the test set.

    The clicked document of an entry has grade 1, all others 0. Training queries know who asked them and when.
    """
    log = load_log(folder)
    chosen = np.arange(len(log))
    if users is not None:
        entries = np.bincount(log.user, minlength=len(log.users))
        if users > np.count_nonzero(entries):
            raise ValueError(
                f"{users} users asked for, but {folder} has entries of {np.count_nonzero(entries)}; ask for fewer"
            )
        active = np.argsort(-entries, kind="stable")[:users]
        chosen = np.flatnonzero(np.isin(log.user, active))
    kept = len(chosen) - math.floor(len(chosen) * test_share)
    if not 0 < kept < len(chosen):
        raise ValueError(
            f"a test share of {test_share:g} divides {len(chosen)} entries into {kept} to learn from and "
            f"{len(chosen) - kept} to test on; use a larger log, or another share"
        )
    learn, check = (
        replace(as_ranking(log, rows), who=np.asarray(log.user[rows]), when=np.asarray(log.time[rows]))
        for rows in (chosen[:kept], chosen[kept:])
    )
    ranges = feature_ranges(learn) if how == "global" else None
    note = (
        f"temporal split: {kept:,} entries of {len(np.unique(learn.who)):,} users to learn from, "
        f"the latest {len(chosen) - kept:,} to test on"
    )
    return Fold(normalise(learn, how, ranges), None, normalise(check, how, ranges), learn.name, 1, (note,))
