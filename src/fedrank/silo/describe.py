"""A sketch file described for its owner."""

from __future__ import annotations

import os
from math import isinf

from fedrank.privacy.guarantees import down, up
from fedrank.silo.files import SketchFile, open_sketch
from fedrank.silo.spending import SUFFIX, SiloLedger, is_ledger

DELTA = 1e-5  # unless the ledger has another
OCCURRENCES = (1, 2, 5, 10)  # of a word whose cost is shown
CHANCE = 0.05  # probability that an error exceeds the stated bound


def describe_sketch(path: str | os.PathLike[str]) -> dict[str, str]:
    """A sketch described: contents, error of counts, privacy, and remaining budget."""
    file = open_sketch(path)
    sketcher, rule = file.sketcher, file.fields["body"].rule
    where = "each end" if rule.ends == 2 else "one end"
    ledger = _ledger(file)
    delta = DELTA if ledger is None else ledger.limits.delta
    alike = ", noised alike" if file.noised else ""
    size = os.path.getsize(file.path)
    naive = 4 * len(file) * len(file.fields) * sketcher.depth * sketcher.width
    description = {
        "kind": f"{sketcher.kind}, {sketcher.depth} rows of {sketcher.width} cells",
        "noise": _noise(file),
        "held by": "its owner, with ids",
        "documents": f"{len(file):,}",
        "fields": ", ".join(file.fields),
        "document frequencies": f"{sketcher.depth} rows of {sketcher.wide.width:,} cells{alike}",
        "tokeniser": sketcher.tokeniser.name,
        "key": f"fingerprint {file.fingerprint.hex()} (of key, rows and cells)",
        "kept": f"up to {rule.capacity:,} documents at {where} of a cell (α = {rule.alpha:g}, K = {rule.k})",
        "size": f"{size / 1e6:,.1f} MB; the sketches of all documents would take {naive / 1e6:,.1f} MB",
    }
    if file.removed:
        description["document frequencies"] += f"; {file.removed:,} removed documents are still counted"
    for name, top in file.fields.items():
        description[f"error in {name}"] = _error(file, name)
        if top.holes:
            due = f"; {top.short_cells:,} ends have fewer than K; sketch the documents again" if top.short_cells else ""
            description[f"holes in {name}"] = f"{top.holes:,} positions left by removed documents{due}"
    description |= _privacy(file, delta)
    if ledger is not None:
        description |= _spent(ledger, file.noised)
    else:
        description["spent so far"] = f"unknown: {file.path.with_suffix(SUFFIX)}, the ledger of this file, is missing"
    return description


def _privacy(file: SketchFile, delta: float) -> dict[str, str]:
    """What is guaranteed for all that queriers can learn, and what is not."""
    sketcher = file.sketcher
    if not file.noised:
        return {"privacy": "none: with this file and the key, all counts can be read"}
    costs = [f"{k} times: {up(sketcher.privacy(delta, k))}" for k in OCCURRENCES[1:]]
    length = ", its length" if not sketcher.exact_lengths else ""
    change = "is replaced by another word" if sketcher.exact_lengths else "is there or not"
    return {
        "privacy": f"ε = {up(sketcher.privacy(delta))} at δ = {delta:g} for one occurrence of a word in one field of "
        f"one document, which {change}",
        "covers": f"all answers: the sketch of the document{length}, and the number of documents that contain a word",
        "for more": ", ".join(costs),
        "holds for": "all queries of all queriers to this file together; another sketch of the same documents costs "
        "in addition",
        "not covered": "that a document exists" + (", and how many words it has" if sketcher.exact_lengths else ""),
    }


def _ledger(file: SketchFile) -> SiloLedger | None:
    """The ledger beside the file; looking for one must not create it."""
    path = file.path.with_suffix(SUFFIX)
    return SiloLedger(path) if is_ledger(path) else None


def _noise(file: SketchFile) -> str:
    sketcher = file.sketcher
    if not file.noised:
        return "SECRET, no noise: as secret as the documents; do not send it"
    lengths = "exact lengths" if sketcher.exact_lengths else "noised lengths"
    return f"noised: σ1 = {sketcher.noise:g}, a deviation of {sketcher.deviation:.3g} in every cell, {lengths}"


def _error(file: SketchFile, field: str) -> str:
    """The error of a count in a document of average length."""
    if not len(file):
        return "no documents"
    length = max(0.0, float(file.lengths[field].mean()))
    bound = file.sketcher.error_bound(CHANCE, length, float(file.squares[field].mean()))
    return f"at most ±{bound:.1f} in {1 - CHANCE:.0%} of counts in a document of {length:,.0f} words"


def _spent(ledger: SiloLedger, noised: bool) -> dict[str, str]:
    spent, left = ledger.spent(), ledger.left()
    if isinf(spent):
        words = "no guarantee"
    elif spent:
        words = f"ε = {up(spent)} towards all queriers together"
    else:
        words = "no answers were given" + ("" if noised else ", and nothing is guaranteed if this file is given away")
    description = {"spent so far": words}
    limits = []
    if left is not None:
        limits.append(f"ε = {down(left)} of {ledger.limits.total:g} towards all queriers together")
    if ledger.limits.querier is not None:
        for row in ledger.totals()[:-1]:
            name = str(row["querier"])
            limits.append(f"ε = {down(ledger.left(name) or 0.0)} towards {name!r}")
        limits.append(f"ε = {down(ledger.left('') or 0.0)} of {ledger.limits.querier:g} towards any other querier")
    description["budget left"] = "; ".join(limits) or "no limit was set"
    return description
