"""Privacy cards: issued for files, bound to them by hashes, and checked against the files when read."""

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
from fedrank.files import now, read_bytes, write_atomic
from fedrank.privacy.guarantees import up

ISSUER = "FEDRANK_ISSUER"  # environment variable: the person or organisation responsible for cards and receipts
NO_ISSUER = "not named"
LIBRARIES = ("numpy", "scipy", "numba", "dp-accounting", "cryptography", "lightgbm")
WHAT = {
    SIMULATED_RUN: "Simulated: one process had the data of all clients and simulated every party. The statements about "
    "the server, clients and noise would hold in a deployment that does the same; the simulation itself did not "
    "protect data from the person who ran it.",
    DEPLOYED_RUN: "Deployed: sites computed from their own data, and exchanged messages or files. fedrank cannot know "
    "who operates their machines.",
    SEARCH_LOG: "A search log: queries and clicks of users as they were recorded, under their user ids. It is "
    "not a model, and only the permissions of its files protect it.",
    SKETCH_FILE: "A sketch of documents, made by the organisation that holds them.",
}
ONE_MACHINE = (
    "A local run of a deployment: one machine ran the processes of all sites, and its operator could read all data."
)
TREES = (
    "thresholds and leaf values of trees: they are statistics of the training rows, and a leaf may hold few rows",
    "which features an organisation has, and the size of its model",
)
SINGLE_FOREST = "one organisation grew the forest on its own data; every recipient of the model sees all of it"
MERGED_FORESTS = "organisations see each other's forests or the answers that merging needs, without noise"
GROWN_FOREST = "the server sees histograms of every client's rows, which reveal relevance labels where rows are few"
GROWN_IN_SUM = "the server sees only histograms summed over all clients, if it sends all clients the same requests"
NOISED_FOREST = "the server sees noised sums of every client"
NOISED_IN_SUM = "the server sees only noised sums over all clients"
LOG = (
    "user ids, times, queries and clicks, which are stored as they were recorded",
    "people who are named in queries",
    "the cache of parsed data, which has the same content",
)


def issued(card: Card, folder: Path, data: str = "", files: Sequence[str] | None = None, by: str = "") -> Card:
    """A card ready to be written: dated, with its issuer, file hashes, and everything that it does not cover.

    Without `files` it covers every model in the folder and below. `by` is its issuer if none is named. The date of a
    run is only in run.json: the card of a resumed simulation has the same bytes as without the interruption.
    """
    if files is None:
        models = [*folder.rglob("model*.json"), *folder.rglob("model*.txt")]
        files = sorted(path.relative_to(folder).as_posix() for path in models)
    local = card.deployment is not None and card.deployment.get("one_machine")
    parts = [ONE_MACHINE if local else WHAT[card.what], card.summary]
    if card.population is not None:
        parts.append(about_population(card.population))
    if card.not_covered:
        parts.append(f"Not covered: {'; '.join(card.not_covered)}.")
    return replace(
        card,
        issued=None if (folder / Facts.FILE).exists() else now(),
        issuer=issuer(by),
        versions=versions(),
        data=data,
        files={name: sha256(folder / name) for name in files},
        summary=" ".join(part for part in parts if part),
    )


def issued_receipt(receipt: Receipt, folder: Path | None = None, parent: Path | None = None) -> Receipt:
    """A receipt ready to be written: dated, with its issuer and hashes of the models in a folder and its parent.

    Without folders it keeps the file hashes that it has.
    """
    if folder is not None and parent is not None:
        files = {"model.json": sha256(folder / "model.json"), "parent": sha256(parent / "model.json")}
        receipt = replace(receipt, files=files)
    return replace(receipt, summary=receipt.sentence, issued=now(), issuer=issuer(), versions=versions())


def issuer(otherwise: str = "") -> str:
    return os.environ.get(ISSUER, "").strip() or otherwise or NO_ISSUER


@cache
def versions() -> dict[str, str]:
    """The versions of fedrank, Python and the installed libraries that computed a result."""
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
    """A sentence about the total ε of all runs on the same population."""
    spent = [
        f"{'no privacy guarantee' if cost is None else f'ε = {up(cost)}'} against the {against}"
        for against, cost in population["epsilon"].items()
    ]
    text = (
        f"Total of all {population['runs']:,} runs on population {population['name']!r}: {', '.join(spent)}, of at "
        f"most ε = {population['limit']:g} at δ = {population['delta']:g}."
    )
    for one in population["forgotten"]:
        text += f" This total does not include a ledger that was deleted on {one['forgotten'][:10]} ({one['because']})."
    return text


def read_card(folder: Path) -> Card | None:
    """The card of a folder. A card that does not match its files claims nothing."""
    card = Card.read(folder)
    if card is None:
        return None
    other = [name for name, was in card.files.items() if (folder / name).is_file() and sha256(folder / name) != was]
    if not other:
        return card
    doubt = f"This card was issued for another {other[0]}, so it is not a privacy guarantee for this one."
    return replace(card, promises=(), summary=doubt)


def forest_card(clients: int | None) -> Card:
    """The card of a forest that one organisation grew, or that several merged."""
    sees = SINGLE_FOREST if clients is None else MERGED_FORESTS
    summary = f"No mechanism: {sees}. No privacy guarantee."
    settings: dict[str, Any] = {"mechanism": None, "delta": 0.0, "budget": None}
    return Card(**settings, who_sees_what=sees, not_covered=TREES, clients=clients or 1, summary=summary)


def merged_card(folder: Path, clients: int) -> Card:
    """The card of forests that were read from files and merged into models in a folder."""
    return issued(replace(forest_card(clients), what=DEPLOYED_RUN), folder)


def grown_card(folder: Path, clients: int, secure: bool) -> Card:
    """The card of a forest that clients grew from histograms."""
    sees = GROWN_IN_SUM if secure else GROWN_FOREST
    summary = f"No mechanism: {sees}; noise is not added. No privacy guarantee."
    card = replace(forest_card(clients), what=SIMULATED_RUN, who_sees_what=sees, summary=summary)
    return issued(card, folder)


def log_card(log: SearchLog) -> Card:
    """The card of a data set built from a search log."""
    sees = "every user who can read the folder sees everything"
    summary = f"No mechanism: {sees}. No privacy guarantee; do not share it."
    not_covered = [*LOG, *([BROWSERS] if log.unit == "browser" else [])]
    if days := log.facts.get("settings", {}).get("keep_days"):
        summary += (
            f" Lists older than {days:,} days at build time are not stored. The data set is refused once it contains "
            "older ones; build it again then."
        )
    if redacted := log.facts.get("redacted"):
        not_covered.append("lists, clicks and features of redacted queries, which can reveal a lot about them")
        reasons = ", ".join(f"{reason}: {n:,}" for reason, n in redacted.items())
        summary += f" The text of {sum(redacted.values()):,} queries is not stored ({reasons})."
    made = Card(
        what=SEARCH_LOG,
        mechanism=None,
        who_sees_what=sees,
        delta=0.0,
        budget=None,
        not_covered=tuple(not_covered),
        clients=len(log.users),
        summary=summary,
    )
    return issued(made, log.folder, log.folder.name, [FACTS])


def sketch_card(path: Path) -> Card:
    """The privacy card of a sketch file."""
    from fedrank.silo.describe import DELTA, describe_sketch
    from fedrank.silo.files import open_sketch

    description, sketcher = describe_sketch(path), open_sketch(path).sketcher
    about, mechanism = [description["noise"], description["privacy"]], None
    not_covered = "the whole content: the file is as confidential as the documents"
    if "not covered" in description:
        mechanism, not_covered = {"name": "sketch", "noise": sketcher.noise}, description["not covered"]
        about.append(f"For a word that occurs more often, {description['for more']}")
        about.append(f"Holds for {description['holds for']}")
    sentences = (f"{part if part.startswith('ε') else part[0].upper() + part[1:]}." for part in about if part)
    made = Card(
        what=SKETCH_FILE,
        mechanism=mechanism,
        who_sees_what=f"held by {description['held by']}",
        delta=DELTA,
        budget=None,
        not_covered=(not_covered,),
        summary=" ".join(sentences),
    )
    return issued(made, path.parent, description["documents"] + " documents", [path.name])


def write_card_for(card: Card, path: Path) -> Path:
    """Write the card of a single file next to it."""
    beside = path.with_name(f"{path.name}.{Card.FILE}")
    write_atomic(beside, card.json())
    return beside
