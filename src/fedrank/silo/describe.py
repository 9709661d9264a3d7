"""What a sketch file is: for its owner before it is sent, and for a querier who got it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from math import isinf
from typing import TYPE_CHECKING

from fedrank.silo.files import SketchFile, open_sketch, release_multiplier
from fedrank.silo.spending import SUFFIX, Spending

if TYPE_CHECKING:
    from rich.console import Console

DELTA = 1e-5  # where no ledger says another
OCCURRENCES = (1, 2, 5, 10)  # of a word: what they cost is told
CHANCE = 0.05  # of an error that is larger than the one told


def describe_sketch(path: str | os.PathLike[str]) -> dict[str, str]:
    """A sketch in words: what it holds, how far off its counts may be, what it gives away, what may still be spent."""
    from fedrank.protect.promises import up

    file = open_sketch(path)
    sketcher, rule = file.sketcher, file.fields["body"].rule
    where = "each end" if rule.ends == 2 else "one end"
    ledger = _ledger(file)
    delta = DELTA if ledger is None else ledger.limits.delta
    size = os.path.getsize(file.path)
    told = {
        "kind": f"{sketcher.kind}, {sketcher.depth} rows of {sketcher.width} cells",
        "noise": _noise(file),
        "held by": _holder(file),
        "documents": f"{len(file):,}",
        "fields": ", ".join(file.fields),
        "tokeniser": sketcher.tokeniser.name,
        "key": f"fingerprint {file.fingerprint.hex()} (of key, rows and cells)",
        "kept": f"up to {rule.capacity:,} documents at {where} of a cell (α = {rule.alpha:g}, K = {rule.k})",
        "size": f"{size / 1e6:,.1f} MB; the sketches of all documents would take {_full_size(file) / 1e6:,.1f} MB",
    }
    for name, top in file.fields.items():
        told[f"error in {name}"] = _error(file, name)
        if top.holes:
            due = f"; {top.short_cells:,} ends keep fewer than K, make it anew" if top.short_cells else ""
            told[f"holes in {name}"] = f"{top.holes:,} places left by removed documents{due}"
    multiplier = release_multiplier(sketcher)
    if multiplier is None:
        told["privacy"] = "none: whoever has this file and the key reads all counts"
    else:
        costs = [(k, up(epsilon_of(multiplier, delta, k))) for k in OCCURRENCES]
        told["privacy"] = (
            f"ε = {costs[0][1]} at δ = {delta:g} for one occurrence of a word in one field of one document"
        )
        told["for more"] = ", ".join(f"{k} times: {cost}" for k, cost in costs[1:])
        told["holds for"] = (
            "all queries of all queriers to this file together; another sketch of the same documents costs on top, and "
            "that a document exists is not protected"
        )
    if ledger is not None:
        told |= _spent(ledger, file.noised)
    elif file.ids is not None:
        told["spent so far"] = f"unknown: {file.path.with_suffix(SUFFIX)}, the ledger of this file, is not there"
    return told


def epsilon_of(multiplier: float, delta: float, occurrences: int = 1) -> float:
    """ε of a word that occurs so often in one field of one document, at this noise (deviation / sensitivity)."""
    from fedrank.protect.accounting import GaussianEvent, epsilon
    from fedrank.silo.spending import SLACK

    return epsilon(GaussianEvent(multiplier / occurrences), 1, delta) + SLACK


def show_sketch(description: Mapping[str, str], console: Console) -> None:
    """Print a description as two columns."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in description.items():
        table.add_row(name, Text(value, style="red" if value.startswith(("none", "SECRET")) else ""))
    console.print(table)


def _ledger(file: SketchFile) -> Spending | None:
    """The ledger beside the owner's file; a copy has none, and looking for one must not make it."""
    path = file.path.with_suffix(SUFFIX)
    return Spending(path) if file.ids is not None and path.exists() else None


def _holder(file: SketchFile) -> str:
    if file.ids is None:
        return "a querier, under pseudonyms"
    return "its owner, with ids: send a copy only" if file.noised else "its owner, with ids"


def _noise(file: SketchFile) -> str:
    sketcher = file.sketcher
    if not file.noised:
        return "SECRET, no noise: as secret as the documents, never send it"
    lengths = "exact lengths" if sketcher.exact_lengths else "noised lengths"
    return f"noised: σ1 = {sketcher.noise:g}, a deviation of {sketcher.deviation:.3g} in every cell, {lengths}"


def _full_size(file: SketchFile) -> int:
    sketcher = file.sketcher
    return 4 * len(file) * len(file.fields) * sketcher.depth * sketcher.width


def _error(file: SketchFile, field: str) -> str:
    """The error of a count in a document of usual length; without the secret squares, as if no word were repeated."""
    if not len(file):
        return "no documents"
    length = max(0.0, float(file.lengths[field].mean()))
    squares = length if file.squares is None else float(file.squares[field].mean())
    bound = file.sketcher.error_bound(CHANCE, length, squares)
    repeated = ", if no word is repeated" if file.squares is None else ""
    return f"at most ±{bound:.1f} in {1 - CHANCE:.0%} of counts in a document of {length:,.0f} words{repeated}"


def _spent(ledger: Spending, noised: bool) -> dict[str, str]:
    from fedrank.protect.promises import up

    spent, left = ledger.spent(), ledger.left()
    if isinf(spent):
        words = "none can be claimed"
    elif spent:
        words = f"ε = {up(spent)} towards all queriers together"
    else:
        words = "nothing was answered" + ("" if noised else ", and nothing can be claimed once this file leaves you")
    told = {"spent so far": words}
    limits = []
    if left is not None:
        limits.append(f"ε = {_down(left)} of {ledger.limits.total:g} towards all queriers together")
    if ledger.limits.querier is not None:
        for row in ledger.totals()[:-1]:
            name = str(row["querier"])
            limits.append(f"ε = {_down(ledger.left(name) or 0.0)} towards {name!r}")
        limits.append(f"ε = {_down(ledger.left('') or 0.0)} of {ledger.limits.querier:g} towards any other querier")
    told["budget left"] = "; ".join(limits) or "no limit was set"
    return told


def _down(epsilon: float) -> str:
    """What may be spent, rounded down.

    >>> _down(0.129), _down(2.0)
    ('0.12', '2.00')
    """
    return f"{int(epsilon * 100 + 1e-9) / 100:,.2f}"
