"""Commands, options and words of earlier versions, and what replaces them."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Collection, Sequence

# Words after `fedrank` in an earlier version: their replacement. A group comes after its commands; those that are not
# listed have the same name in the new group.
RENAMED = {
    "demo": "`run demo`",
    "runs": "`watch FOLDERS --list`",
    "clients": "`data check SPEC`",
    "data clients": "`data check SPEC`",
    "logs convert": "`papers convert METADATA LETOR --out OUT`",
    "data build --aol4foltr": "`papers convert METADATA LETOR --out OUT`",
    "logs describe": "`data check FOLDER` (`--json` in place of `--numbers`)",
    "logs places": "`data propensities`",
    "logs": "`data`",
    "score": "`model score`",
    "evaluate": "`model evaluate`",
    "export": "`model export`",
    "estimate": "`model estimate`",
    "privacy ledger upgrade": "`privacy ledger HOME --upgrade`",
    "privacy ledger show": "`privacy ledger FOLDERS`",
    "privacy ledger forget": "`privacy ledger FOLDER --forget --because REASON`",
    "privacy SPEC": "`privacy show SPEC`",
    "audit": "`privacy audit`",
    "impact": "`privacy impact`",
    "ledger": "`privacy ledger`",
    "unlearn": "`forget client`",
    "forget-person": "`forget person`",
    "trees train": "removed; write a spec with `new FILE --kind trees`, then use `run FILE` (or `tune FILE`)",
    "silo key": "removed; `data sketch --key FILE` creates the key, and `deploy` exchanges keys between silos",
    "silo describe": "`data check SKETCH`",
    "silo add": "`data sketch --out SKETCH --add DOCUMENTS --key KEY`",
    "silo remove": "`data sketch --out SKETCH --remove ID`",
    "silo update": "`data sketch --out SKETCH --add DOCUMENTS --key KEY` (or `--remove ID`)",
    "silo ask": "removed; `deploy run` carries questions and answers between silos",
    "silo answer": "removed; `deploy run` carries questions and answers between silos",
    "silo seal": "removed; `deploy run` carries models between silos",
    "silo export": "removed; `deploy run` carries sketches between silos",
    "silo train": "removed; `deploy run` trains one model across silos",
    "silo": "`data sketch`",
    "deploy folder begin": "`deploy init --folder SHARED`",
    "deploy folder join": "`deploy join SHARED`",
    "deploy folder approve": "`deploy approve`",
    "deploy folder expel": "`deploy expel`",
    "deploy folder leave": "`deploy leave`",
    "deploy folder run": "`deploy run`",
    "deploy folder serve": "`deploy start`",
    "deploy folder unlearn": "`deploy forget`",
    "deploy folder": "`deploy init --folder SHARED`, or `deploy join SHARED`",
    "deploy request": "`deploy join INVITATION`",
    "deploy readmit": "`deploy run SPEC --readmit SITE`",
    "deploy unlearn": "`deploy forget`",
    "trial": "`engine trial`",
    "search index --encoder": "removed: its features never changed the order",
    "search learn reset": "removed: no weights are learned; `search forget --learned` deletes queries and clicks",
    "methods place": "`methods placement`",
    "methods user": "`methods click-model`",
    "data build --least": "`data build --min-interactions`",
    "data build --places": "`data build --positions`",
    "engine trial plan --places": "`engine trial plan --positions`",
    "engine trial show": "`engine trial decide TRIAL`",
    "engine trial decide --picture": "`engine trial decide --out`",
    "trees grow --least": "`trees grow --min-data-in-leaf`",
    "trees grow --edge-noise": "removed; use the default grid, or `trees grow --edges FILE`",
}
_TOGETHER = (
    "removed: in simulations, weights that 300 to 5,000 people trained together did not rank new searches better, even "
    "without noise for privacy; search alone, and leave a federation with `deploy leave`"
)
FORMER_SEARCH_COMMANDS = {  # their names are also words to search for
    "join": _TOGETHER,
    "aggregate": _TOGETHER,
    "leave": "removed; use `deploy leave` for the site that took part",
    "demo": "`search serve --demo`",
    "export": "`search status --ubi FOLDER`",
}


def replacement(words: Sequence[str], commands: Collection[str] = ()) -> str | None:
    """The error for words of an earlier version; None if they are not from one.

    `commands` are those of the group `privacy`, whose place a spec had before.
    """
    for old, new in RENAMED.items():
        if _matches(old.split(), words, commands):
            return _said(old, new)
    if words[:1] == ["search"] and len(words) > 1 and _is_former_search(words[1:]):
        old = f"search {words[1]}"
        return f"{_said(old, FORMER_SEARCH_COMMANDS[words[1]])}; to search for words, use `fedrank search -- WORDS`"
    return None


def _said(old: str, new: str) -> str:
    removed = new.startswith("removed")
    new = re.sub("`([a-z])", r"`fedrank \1", new)
    return f"`fedrank {old}` {'was' if removed else 'is now'} {new}"


def _is_former_search(words: Sequence[str]) -> bool:
    """Whether these are a former command with nothing, an option or a folder behind it, and not words to search for."""
    return words[0] in FORMER_SEARCH_COMMANDS and all(
        word.startswith(("--", "file:")) or os.path.isdir(word) for word in words[1:2]
    )


def _matches(old: Sequence[str], words: Sequence[str], commands: Collection[str]) -> bool:
    *command, last = old
    if list(words[: len(command)]) != command or len(words) <= len(command):
        return False
    after = words[len(command) :]
    if last.startswith("--"):
        return last in {word.split("=")[0] for word in after}
    if last == "SPEC":
        return not after[0].startswith("-") and not difflib.get_close_matches(after[0], commands)
    return after[0] == last
