"""Redact an existing data set: replace query texts and nothing else."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import numpy as np

from fedrank.data.log_folder import working_on
from fedrank.data.logs import FACTS, SearchLog, load_log
from fedrank.data.redaction import Redaction
from fedrank.files import write_atomic

EARLIER = "for reasons that are not on record"  # by a process that was killed before it counted them
_REDACTED = re.compile(r"\[redacted ([0-9]+)\]")


def redact_log(folder: str | os.PathLike[str], how: Redaction) -> SearchLog:
    """Permanently replace texts that must not be stored. Lists, clicks and features remain.

    A process that is killed between its two writes has replaced the texts but not counted them; another call counts
    them.
    """
    folder = Path(folder)
    if how.what != "replace":
        raise ValueError("lists cannot be dropped from an existing data set; build it again with --drop-redacted")
    with working_on(folder):
        log = load_log(folder)
        searched = np.unique(np.stack([log.query, log.user]), axis=1)[0]
        people = np.bincount(searched, minlength=len(log.queries))
        reasons = how.reasons(log.queries, people)
        before = [_REDACTED.fullmatch(text) for text in log.queries]
        next_number = 1 + max((int(found[1]) for found in before if found), default=0)
        texts, counts = [], dict(log.facts.get("redacted") or {})
        for text, why, was in zip(log.queries, reasons, before, strict=True):
            if why and not was:
                text, next_number = f"[redacted {next_number}]", next_number + 1
                counts[why] = counts.get(why, 0) + 1
            texts.append(text)
        uncounted = sum(bool(_REDACTED.fullmatch(text)) for text in texts) - sum(counts.values())
        if uncounted > 0:
            counts[EARLIER] = uncounted
        write_atomic(folder / "queries.txt", "".join(f"{text}\n" for text in texts), private=True)
        facts = log.facts | {"redacted": counts}
        write_atomic(folder / FACTS, json.dumps(facts, indent=1, ensure_ascii=False) + "\n", private=True)
    return load_log(folder)
