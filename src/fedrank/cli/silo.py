"""`fedrank silo`: sketches of an organisation's documents, and the keys that go with them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedrank.cli.shared import new_console, say

silo_app = typer.Typer(
    help="Silos: organisations that keep their documents and exchange noised sketches of them.", no_args_is_help=True
)
key_app = typer.Typer(help="Keys that silos share and the relay between them does not have.", no_args_is_help=True)
silo_app.add_typer(key_app, name="key")

Docs = Annotated[Path, typer.Option(help="The documents, with id, title and text: .jsonl, .tsv; plain, .gz or .xz.")]
Key = Annotated[Path, typer.Option(help="The key that all silos share.")]
Sketch = Annotated[Path, typer.Argument(help="A file that fedrank silo sketch wrote.")]
Secret = Annotated[Path, typer.Option(help="Your own secret, as fedrank silo key identity made it.")]
Public = Annotated[Path, typer.Option(help="The public half of the other silo's.")]


@silo_app.command(
    "sketch",
    epilog="Example:  fedrank silo sketch --docs corpus.jsonl --key shared.key --noise 1.0 --out hospital-a.sketch",
)
def silo_sketch(
    docs: Docs,
    key: Key,
    out: Annotated[Path, typer.Option(help="File for the sketch; its ledger is written beside it.")],
    noise: Annotated[float, typer.Option(min=0, help="σ1 of the noise on every cell; 0 makes a secret file.")] = 1.0,
    width: Annotated[int, typer.Option(min=1, help="Columns, w; the same in all silos.")] = 200,
    depth: Annotated[int, typer.Option(min=1, help="Rows, z; the same in all silos.")] = 30,
    kind: Annotated[str, typer.Option(help="count-sketch or count-min.")] = "count-sketch",
    stem: Annotated[str, typer.Option(help="Stems of words instead of words: none, or english.")] = "none",
    noised_lengths: Annotated[
        bool, typer.Option("--noised-lengths", help="Hide how long documents are, too; cells then need half the noise.")
    ] = False,
    budget: Annotated[
        float | None, typer.Option(help="ε towards all queriers together, past which nobody is answered.")
    ] = None,
    querier_budget: Annotated[float | None, typer.Option(help="The same towards one querier.")] = None,
) -> None:
    """Sketch documents once; add and remove single ones later."""
    from fedrank.data.documents import read_documents
    from fedrank.data.text import Tokeniser
    from fedrank.silo.describe import describe_sketch, show_sketch
    from fedrank.silo.files import sketch_collection
    from fedrank.silo.keys import read_key
    from fedrank.silo.sketch import Sketcher
    from fedrank.silo.spending import Limits

    settings: dict[str, Any] = {"kind": kind, "tokeniser": Tokeniser(stem)}  # type: ignore[arg-type]
    sketcher = Sketcher(width=width, depth=depth, noise=noise, exact_lengths=not noised_lengths, **settings)
    limits = None if budget is None and querier_budget is None else Limits(querier_budget, budget)
    shared, documents = read_key(key), read_documents(docs)
    console = new_console()
    with _progress(console) as report:
        sketch_collection(documents, shared, sketcher, out, limits=limits, progress=report)
    show_sketch(describe_sketch(out), console)


@silo_app.command("describe", epilog="Example:  fedrank silo describe hospital-a.sketch")
def silo_describe(sketch: Sketch) -> None:
    """Noised or not, parameters, size, expected error, privacy per occurrence of a term, budget left."""
    from fedrank.silo.describe import describe_sketch, show_sketch

    show_sketch(describe_sketch(sketch), new_console())


@silo_app.command("add", epilog="Example:  fedrank silo add hospital-a.sketch --docs new.jsonl --key shared.key")
def silo_add(sketch: Sketch, docs: Docs, key: Key) -> None:
    """Put more documents into a sketch."""
    from fedrank.data.documents import read_documents
    from fedrank.silo.files import add_documents
    from fedrank.silo.keys import read_key

    documents = read_documents(docs)
    made = add_documents(sketch, documents, read_key(key))
    say(new_console(), f"{sketch}: {len(documents):,} added, {len(made):,} documents now")


@silo_app.command("remove", epilog="Example:  fedrank silo remove hospital-a.sketch --id d17 --id d18")
def silo_remove(
    sketch: Sketch, id_: Annotated[list[str], typer.Option("--id", help="Document to take out; may be repeated.")]
) -> None:
    """Take documents out of a sketch. What was answered about them before stays known."""
    from fedrank.silo.files import remove_documents

    made = remove_documents(sketch, id_)
    say(new_console(), f"{sketch}: {len(set(id_)):,} removed, {len(made):,} documents now")


@silo_app.command(
    "export", epilog="Example:  fedrank silo export hospital-a.sketch --to hospital-b --out a-for-b.sketch"
)
def silo_export(
    sketch: Sketch,
    to: Annotated[str, typer.Option(help="Who gets it; pseudonyms of documents are for them alone.")],
    out: Annotated[Path, typer.Option(help="File to send.")],
) -> None:
    """The copy of a sketch that may be sent: with noise, without ids. A file without noise is refused."""
    from fedrank.silo.files import export_sketch

    made = export_sketch(sketch, to, out)
    say(new_console(), f"{out}: {len(made):,} documents under pseudonyms for {to}")


@key_app.command("new", epilog="Example:  fedrank silo key new shared.key")
def key_new(out: Annotated[Path, typer.Argument(help="File for the key.")]) -> None:
    """Make the key that all silos share. Whoever has it can try out words: the relay must not."""
    from fedrank.silo.keys import fingerprint, new_key

    say(new_console(), f"{out}: key {fingerprint(new_key(out))}")


@key_app.command("identity", epilog="Example:  fedrank silo key identity hospital-a.secret")
def key_identity(out: Annotated[Path, typer.Argument(help="File for the secret half.")]) -> None:
    """Make a secret of your own, and the public half that you give to other silos."""
    from fedrank.silo.keys import fingerprint, new_identity, read_public

    public = new_identity(out)
    console = new_console()
    say(console, f"{out}: keep it.")
    say(
        console,
        f"{public}: {fingerprint(read_public(public))}. Give it to the other silos, and let each of them compare "
        "this number with you by telephone.",
    )


@key_app.command(
    "agree", epilog="Example:  fedrank silo key agree --secret a.secret --public b.public --out shared.key"
)
def key_agree(
    secret: Secret, public: Public, out: Annotated[Path, typer.Option(help="File for the shared key.")]
) -> None:
    """Two silos come to one shared key without sending it (X25519)."""
    from fedrank.silo.keys import agree_key, fingerprint

    say(new_console(), f"{out}: key {fingerprint(agree_key(secret, public, out))}; the other silo must read the same")


@key_app.command(
    "wrap",
    epilog="Example:  fedrank silo key wrap shared.key --secret a.secret --public c.public --out for-c.wrapped",
)
def key_wrap(
    key: Annotated[Path, typer.Argument(help="The key that all silos share.")],
    secret: Secret,
    public: Public,
    out: Annotated[Path, typer.Option(help="File to send.")],
) -> None:
    """Lock the shared key for one more silo, so that it can be sent."""
    from fedrank.silo.keys import fingerprint, read_key, read_public, read_secret, wrap_key

    theirs = read_public(public)
    wrapped = wrap_key(read_key(key), read_secret(secret), theirs)
    with out.open("xb") as file:
        file.write(wrapped)
    say(new_console(), f"{out}: only the owner of {public}, {fingerprint(theirs)}, can open it")


@key_app.command(
    "open", epilog="Example:  fedrank silo key open for-c.wrapped --secret c.secret --public a.public --out shared.key"
)
def key_open(
    wrapped: Annotated[Path, typer.Argument(help="A file that fedrank silo key wrap wrote.")],
    secret: Secret,
    public: Public,
    out: Annotated[Path, typer.Option(help="File for the shared key.")],
) -> None:
    """Open a shared key that another silo locked for you."""
    from fedrank.silo.keys import fingerprint, open_key, read_public, read_secret

    theirs = read_public(public)
    opened = open_key(wrapped.read_bytes(), read_secret(secret), theirs, out)
    say(new_console(), f"{out}: key {fingerprint(opened)}, from the owner of {public}, {fingerprint(theirs)}")


def _progress(console: Any) -> Any:
    from fedrank.data.build_log import progress_bar

    return progress_bar(console)
