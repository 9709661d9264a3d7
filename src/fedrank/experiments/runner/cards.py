"""Cards: issued for a file, bound to it by a hash, and read again together with it."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from fedrank import __version__
from fedrank.data.logs import BROWSERS, FACTS, SearchLog
from fedrank.experiments.runner.folder import DEPLOYED_RUN, SEARCH_LOG, SIMULATED_RUN, SKETCH_FILE, Card, Facts, Receipt
from fedrank.files import read_bytes, write_atomic
from fedrank.privacy.guarantees import up
from fedrank.privacy.population import now

ISSUER = "FEDRANK_ISSUER"  # environment: who answers for cards and receipts
NO_ISSUER = "not named"
LIBRARIES = ("numpy", "scipy", "numba", "dp-accounting", "cryptography", "lightgbm")
WHAT = {
    SIMULATED_RUN: "Simulated: the data of all clients lay in one folder, and one process played everybody. What is "
    "said here of the server, of clients and of noise would hold in a deployment that does the same; it protected "
    "nobody from whoever ran the simulation.",
    DEPLOYED_RUN: "Deployed: every organisation worked on its own computer, and files passed between them.",
    SEARCH_LOG: "A search log: what people searched for and clicked, as it was recorded, under their user ids. It is "
    "no model, and nothing protects it but the permissions of its files.",
    SKETCH_FILE: "A sketch of documents, made by the organisation that has them.",
}
TREES = (
    "thresholds and leaf values of trees: they are statistics of the rows they were grown on, and a leaf may hold few",
    "which features an organisation has, and how large its model is",
)
SINGLE_FOREST = "one organisation grew the forest on data it has; whoever gets the model sees all of it"
MERGED_FORESTS = "organisations see each other's forests, or what merging asks of them; nothing is noised"
GROWN_FOREST = "the server sees histograms of every client's rows, which tell grades where rows are few"
GROWN_IN_SUM = "the server sees histograms of all clients' rows together, and no client's own, if it asks all the same"
NOISED_FOREST = "the server sees noised sums of every client"
NOISED_IN_SUM = "the server sees noised sums of all clients together, and no client's own"
LOG = (
    "user ids, times, queries and clicks, which are in the folder as they were recorded",
    "whoever appears in a query: people search for names",
    "the cache of parsed data, which holds the same",
)


def issued(card: Card, folder: Path, data: str = "", files: Sequence[str] | None = None) -> Card:
    """A card as it is written: dated, signed with a name, bound to files, and with all that it leaves open in words.

    Without `files` it is the card of every model at or below the folder. A run has its date in run.json alone: the card
    of a resumed run is the same, byte for byte, as if it had not been interrupted.
    """
    if files is None:
        models = [*folder.rglob("model*.json"), *folder.rglob("model*.txt")]
        files = sorted(path.relative_to(folder).as_posix() for path in models)
    parts = [WHAT[card.what], card.summary]
    if card.population is not None:
        parts.append(about_population(card.population))
    if card.not_covered:
        parts.append(f"Not covered: {'; '.join(card.not_covered)}.")
    return replace(
        card,
        issued=None if (folder / Facts.FILE).exists() else now(),
        issuer=issuer(),
        versions=versions(),
        data=data,
        files={name: sha256(folder / name) for name in files},
        summary=" ".join(part for part in parts if part),
    )


def issued_receipt(receipt: Receipt, folder: Path | None = None, parent: Path | None = None) -> Receipt:
    """A receipt as it is written: dated, signed with a name, bound to the models in a folder and in that of its parent.

    Without folders it stays bound to the files that it has.
    """
    if folder is not None and parent is not None:
        files = {"model.json": sha256(folder / "model.json"), "parent": sha256(parent / "model.json")}
        receipt = replace(receipt, files=files)
    return replace(receipt, summary=receipt.sentence, issued=now(), issuer=issuer(), versions=versions())


def issuer() -> str:
    return os.environ.get(ISSUER, "").strip() or NO_ISSUER


@cache
def versions() -> dict[str, str]:
    """What computed a result: fedrank, Python and the libraries that are here."""
    found = {"fedrank": __version__, "python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def sha256(file: Path) -> str:
    return hashlib.sha256(read_bytes(file)).hexdigest()


def about_population(population: Mapping[str, Any]) -> str:
    """What all runs on the same people have spent, in a sentence."""
    spent = [
        f"{'nothing can be claimed' if cost is None else f'ε = {up(cost)}'} against the {against}"
        for against, cost in population["epsilon"].items()
    ]
    text = (
        f"All {population['runs']:,} runs on population {population['name']!r} together: {', '.join(spent)}, of at "
        f"most ε = {population['limit']:g} at δ = {population['delta']:g}."
    )
    for one in population["forgotten"]:
        text += f" Not counted is a ledger that was deleted on {one['forgotten'][:10]} ({one['because']})."
    return text


def read_card(folder: Path) -> Card | None:
    """The card of a folder. One that is not that of the files beside it claims nothing."""
    card = Card.read(folder)
    if card is None:
        return None
    other = [name for name, was in card.files.items() if (folder / name).is_file() and sha256(folder / name) != was]
    if not other:
        return card
    doubt = f"This card was issued for another {other[0]}, so that nothing can be claimed for the one that is here."
    return replace(card, promises=(), summary=doubt)


def forest_card(clients: int | None) -> Card:
    """Of a forest that one organisation grew, or of those that several merged."""
    sees = SINGLE_FOREST if clients is None else MERGED_FORESTS
    summary = f"No mechanism: {sees}. Nothing can be claimed."
    settings: dict[str, Any] = {"mechanism": None, "delta": 0.0, "budget": None}
    return Card(**settings, who_sees_what=sees, not_covered=TREES, clients=clients or 1, summary=summary)


def merged_card(folder: Path, clients: int) -> Card:
    """Of forests that came as files and were merged into models in a folder."""
    return issued(replace(forest_card(clients), what=DEPLOYED_RUN), folder)


def grown_card(folder: Path, clients: int, secure: bool, edges: str = "") -> Card:
    """Of a forest that several grew from histograms; `edges` says what those of its bins have cost."""
    sees = GROWN_IN_SUM if secure else GROWN_FOREST
    summary = f"No mechanism: {sees}; nothing {'else ' if edges else ''}is noised. Nothing can be claimed.{edges}"
    card = replace(forest_card(clients), what=SIMULATED_RUN, who_sees_what=sees, summary=summary)
    return issued(card, folder)


def about_priced_edges(unit: str, times: int, epsilon: float, delta: float) -> str:
    """What estimating bin edges has cost, as a sentence after others."""
    often = "" if times == 1 else f", which were estimated {times:,} times,"
    return f" Bin edges{often} alone cost ε = {up(epsilon)} at δ = {delta:g} for one {unit}."


def log_card(log: SearchLog) -> Card:
    """Of a data set made from a search log."""
    sees = "whoever can read the folder sees everything"
    made = Card(
        what=SEARCH_LOG,
        mechanism=None,
        who_sees_what=sees,
        delta=0.0,
        budget=None,
        not_covered=(*LOG, *_not_covered_of_shown(log)),
        clients=len(log.users),
        summary=f"No mechanism: {sees}. Nothing can be claimed; do not pass it on.{_not_stored_of_shown(log)}",
    )
    return issued(made, log.folder, log.folder.name, [FACTS])


def _not_covered_of_shown(log: SearchLog) -> tuple[str, ...]:
    text = [BROWSERS] if log.unit == "browser" else []
    if log.facts.get("redacted"):
        text.append("what redacted queries found: lists, clicks and features of theirs are there, and can tell a lot")
    return tuple(text)


def _not_stored_of_shown(log: SearchLog) -> str:
    """What was decided not to be kept."""
    settings, redacted = log.facts.get("settings", {}), log.facts.get("redacted") or {}
    text = ""
    if days := settings.get("keep_days"):
        text += f" Lists older than {days:,} days before it was made were never stored; build it anew to keep to that."
    if redacted:
        reasons = ", ".join(f"{reason}: {n:,}" for reason, n in redacted.items())
        text += f" The text of {sum(redacted.values()):,} queries is not stored ({reasons})."
    return text


def sketch_card(path: Path) -> Card:
    """The privacy card of a sketch file."""
    from fedrank.silo.describe import DELTA, describe_sketch
    from fedrank.silo.files import open_sketch

    description, sketcher = describe_sketch(path), open_sketch(path).sketcher
    mechanism = {"name": "sketch", "noise": sketcher.noise} if "not covered" in description else None
    about = [description["noise"], description["privacy"]]
    if mechanism is not None:
        about += [
            f"For a word that stands there more often, {description['for more']}",
            f"Holds for {description['holds for']}",
        ]
    made = Card(
        what=SKETCH_FILE,
        mechanism=mechanism,
        who_sees_what=f"held by {description['held by']}",
        delta=DELTA,
        budget=None,
        not_covered=(description["not covered"],)
        if mechanism
        else ("all of it: the file is as secret as the documents",),
        summary=_sentences(about),
    )
    return issued(made, path.parent, description["documents"] + " documents", [path.name])


def write_card_for(card: Card, path: Path) -> Path:
    """The card of a single file, next to it."""
    beside = path.with_name(f"{path.name}.{Card.FILE}")
    write_atomic(beside, card.json())
    return beside


def _sentences(parts: Sequence[str]) -> str:
    return " ".join(f"{part if part.startswith('ε') else part[0].upper() + part[1:]}." for part in parts if part)
