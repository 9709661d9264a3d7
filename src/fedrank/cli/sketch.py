"""`fedrank data sketch`; `fedrank data check` describes a sketch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from fedrank.cli.config import Config, with_settings
from fedrank.cli.shared import print_line, print_sections, progress
from fedrank.value_checks import Positive

DOCUMENTS = "with id, title and text: .jsonl or .tsv; plain, .gz or .xz"
EXAMPLES = (
    "Examples:  fedrank data sketch --docs corpus.jsonl --key shared.key --noise 1.0 --out hospital-a.sketch  ·  "
    "fedrank data sketch --out hospital-a.sketch --add new.jsonl --key shared.key  ·  "
    "fedrank data sketch --out hospital-a.sketch --remove d17 --remove d18"
)


@dataclass(frozen=True)
class SketchOptions:
    """Further options of `data sketch`."""

    width: Positive = 100  # number of columns; equal in all silos
    depth: Positive = 10  # number of rows; equal in all silos
    kind: str = "count-sketch"  # kind of sketch: count-sketch or count-min
    stem: str = "none"  # stemming of words: none or english
    noised_lengths: bool = False  # also protect the lengths of documents; cells then need half the noise
    querier_budget: float | None = None  # maximum privacy budget ε for one querier
    quiet: bool = False  # do not print progress


@with_settings
def sketch(
    out: Annotated[Path, typer.Option(help="File of the sketch; its ledger is beside it.")],
    docs: Annotated[Path | None, typer.Option(help=f"Documents of a new sketch, {DOCUMENTS}.")] = None,
    key: Annotated[
        Path | None, typer.Option(help="File with the key that all silos share; a new sketch creates it if missing.")
    ] = None,
    noise: Annotated[
        float, typer.Option(min=0, help="Standard deviation of the noise per cell; 0 makes a secret file.")
    ] = 1.0,
    budget: Annotated[float | None, typer.Option(help="Maximum privacy budget ε for all queriers together.")] = None,
    add: Annotated[Path | None, typer.Option(help=f"Documents to add to the sketch, {DOCUMENTS}.")] = None,
    remove: Annotated[list[str] | None, typer.Option(help="Id of a document to remove; may be repeated.")] = None,
    config: Config = None,
    *,
    more: SketchOptions,
) -> None:
    """Sketch a collection of documents that stays with its owner; add documents to the sketch, or remove them.

    Earlier answers about removed documents remain known.
    """
    if docs is None:
        if noise != 1.0 or budget is not None or more != SketchOptions(quiet=more.quiet):
            raise ValueError(
                "a sketch keeps the settings it was made with; remove all but --out, --add, --key and --remove"
            )
        _update(out, add, remove or [], key)
        return
    if add is not None or remove:
        raise ValueError("--docs makes a new sketch; remove --add and --remove, or --docs")
    if key is None:
        raise ValueError("a new sketch needs --key FILE, the key that all silos share")
    _create(out, docs, key, noise, budget, more)


def _create(out: Path, docs: Path, key: Path, noise: float, budget: float | None, more: SketchOptions) -> None:
    from fedrank.data.documents import read_documents
    from fedrank.data.text import Tokeniser
    from fedrank.experiments.report.data_output import about_sketch
    from fedrank.experiments.runner.cards import sketch_card, write_card_for
    from fedrank.silo.describe import describe_sketch
    from fedrank.silo.files import sketch_collection
    from fedrank.silo.sketch import Sketcher
    from fedrank.silo.spending import Limits

    settings: dict[str, Any] = {"kind": more.kind, "tokeniser": Tokeniser(more.stem)}  # type: ignore[arg-type]
    settings |= {"width": more.width, "depth": more.depth, "exact_lengths": not more.noised_lengths}
    sketcher = Sketcher(noise=noise, **settings)
    limits = None if budget is None and more.querier_budget is None else Limits(more.querier_budget, budget)
    documents = read_documents(docs)
    shared = _key(key)
    with progress(more.quiet) as report:
        sketch_collection(documents, shared, sketcher, out, limits=limits, progress=report)
    print_sections(about_sketch(describe_sketch(out)))
    print_line(f"Privacy card: {write_card_for(sketch_card(out), out)}")


def _update(sketch: Path, add: Path | None, remove: list[str], key: Path | None) -> None:
    from fedrank.data.documents import read_documents
    from fedrank.silo.files import add_documents, remove_documents
    from fedrank.silo.keys import read_key

    if add is None and not remove:
        raise ValueError("give --docs DOCUMENTS for a new sketch, or --add DOCUMENTS, --remove ID or both")
    if (add is None) != (key is None):
        raise ValueError("--add and --key belong together; give both")
    documents = None if add is None else read_documents(add)
    shared = None if key is None else read_key(key)
    if remove:
        made = remove_documents(sketch, remove)
        print_line(f"{sketch}: {len(set(remove)):,} removed, {len(made):,} documents now")
    if documents is not None and shared is not None:
        made = add_documents(sketch, documents, shared)
        print_line(f"{sketch}: {len(documents):,} added, {len(made):,} documents now")


def _key(file: Path) -> bytes:
    """The shared key of a file, which is created if it does not exist."""
    from fedrank.silo.keys import fingerprint, new_key, read_key

    if file.exists():
        return read_key(file)
    made = new_key(file)
    print_line(f"New key: {file}, fingerprint {fingerprint(made)}. Give it to the other silos confidentially.")
    return made
