"""`fedrank silo`: sketches of an organisation's documents, keys and letters, and a model that travels between them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedrank.cli.shared import new_console, print_line, print_sections, progress

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
Identity = Annotated[Path, typer.Option(help="Your own secret, as fedrank silo key identity made it.")]
To = Annotated[Path, typer.Option(help="The public key of the silo that gets it.")]
Out = Annotated[Path, typer.Option(help="File to send.")]
OwnSketch = Annotated[Path, typer.Option(help="Your own sketch, as fedrank silo sketch made it.")]
Folder = Annotated[Path, typer.Argument(help="Your own corpus.jsonl, queries.jsonl and qrels.tsv.")]


@silo_app.command(
    "sketch",
    epilog="Example:  fedrank silo sketch --docs corpus.jsonl --key shared.key --noise 1.0 --out hospital-a.sketch",
)
def silo_sketch(
    docs: Docs,
    key: Key,
    out: Annotated[Path, typer.Option(help="File for the sketch; its ledger is written beside it.")],
    noise: Annotated[float, typer.Option(min=0, help="σ1 of the noise on every cell; 0 makes a secret file.")] = 1.0,
    width: Annotated[int, typer.Option(min=1, help="Columns, w; the same in all silos.")] = 100,
    depth: Annotated[int, typer.Option(min=1, help="Rows, z; the same in all silos.")] = 10,
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
    from fedrank.experiments.report.command_output import about_sketch
    from fedrank.experiments.runner.cards import sketch_card, write_card_for
    from fedrank.silo.describe import describe_sketch
    from fedrank.silo.files import sketch_collection
    from fedrank.silo.keys import read_key
    from fedrank.silo.sketch import Sketcher
    from fedrank.silo.spending import Limits

    settings: dict[str, Any] = {"kind": kind, "tokeniser": Tokeniser(stem)}  # type: ignore[arg-type]
    sketcher = Sketcher(width=width, depth=depth, noise=noise, exact_lengths=not noised_lengths, **settings)
    limits = None if budget is None and querier_budget is None else Limits(querier_budget, budget)
    shared, documents = read_key(key), read_documents(docs)
    console = new_console()
    with progress(console) as report:
        sketch_collection(documents, shared, sketcher, out, limits=limits, progress=report)
    print_sections(about_sketch(describe_sketch(out)), console)
    print_line(console, f"Privacy card: {write_card_for(sketch_card(out), out)}")


@silo_app.command("describe", epilog="Example:  fedrank silo describe hospital-a.sketch")
def silo_describe(sketch: Sketch) -> None:
    """Noised or not, parameters, size, expected error, privacy per occurrence of a term, budget left."""
    from fedrank.experiments.report.command_output import about_sketch
    from fedrank.silo.describe import describe_sketch

    print_sections(about_sketch(describe_sketch(sketch)), new_console())


@silo_app.command("add", epilog="Example:  fedrank silo add hospital-a.sketch --docs new.jsonl --key shared.key")
def silo_add(sketch: Sketch, docs: Docs, key: Key) -> None:
    """Put more documents into a sketch."""
    from fedrank.data.documents import read_documents
    from fedrank.silo.files import add_documents
    from fedrank.silo.keys import read_key

    documents = read_documents(docs)
    made = add_documents(sketch, documents, read_key(key))
    print_line(new_console(), f"{sketch}: {len(documents):,} added, {len(made):,} documents now")


@silo_app.command("remove", epilog="Example:  fedrank silo remove hospital-a.sketch --id d17 --id d18")
def silo_remove(
    sketch: Sketch, id_: Annotated[list[str], typer.Option("--id", help="Document to take out; may be repeated.")]
) -> None:
    """Take documents out of a sketch. What was answered about them before stays known."""
    from fedrank.silo.files import remove_documents

    made = remove_documents(sketch, id_)
    print_line(new_console(), f"{sketch}: {len(set(id_)):,} removed, {len(made):,} documents now")


@silo_app.command(
    "export",
    epilog="Example:  fedrank silo export a.sketch --identity a.secret --to b.public --out a-for-b.sketch",
)
def silo_export(sketch: Sketch, identity: Identity, to: To, out: Out) -> None:
    """The copy of a sketch that may be sent: with noise, without ids. A file without noise is refused."""
    from fedrank.experiments.runner.cards import sketch_card, write_card_for
    from fedrank.silo.files import export_sketch

    me = _party(identity, [to])
    (querier,) = me.others
    made = export_sketch(sketch, me, querier, out)
    console = new_console()
    print_line(console, f"{out}: {len(made):,} documents under pseudonyms for {querier}")
    print_line(console, f"Privacy card: {write_card_for(sketch_card(out), out)}")


@silo_app.command(
    "ask",
    epilog="Example:  fedrank silo ask hospital-b --sketch b.sketch --key shared.key --identity b.secret "
    "--to a.public --out question.letter",
)
def silo_ask(folder: Folder, sketch: OwnSketch, key: Key, identity: Identity, to: To, out: Out) -> None:
    """Ask another silo about the words of your queries, where it gives no copy of its sketch away. It reads them."""
    from fedrank.data.collection import read_collection
    from fedrank.silo.files import open_owned
    from fedrank.silo.keys import read_key
    from fedrank.silo.protocol import ask_all

    me, own, shared = _party(identity, [to]), open_owned(sketch), read_key(key)
    own.hashing(shared)
    (owner,) = me.others
    questions = ask_all(read_collection(folder).queries, owner, me, own.sketcher, shared)
    console = new_console()
    for number, asked in enumerate(questions, start=1):
        path = out if number == 1 else out.with_stem(f"{out.stem}-{number}")
        _write_new(path, asked.letter)
        print_line(console, f"{path}: {len(asked.terms):,} words for {owner}; keep it, the answer is read with it")


@silo_app.command(
    "answer",
    epilog="Example:  fedrank silo answer question.letter --sketch a.sketch --identity a.secret --to b.public "
    "--out answer.letter",
)
def silo_answer(
    question: Annotated[Path, typer.Argument(help="A letter that fedrank silo ask wrote.")],
    sketch: OwnSketch,
    identity: Identity,
    to: Annotated[Path, typer.Option(help="The public key of the silo that asks.")],
    out: Out,
) -> None:
    """Answer a letter from your sketch: what a copy of it would tell, for the words that are asked about."""
    from fedrank.silo.files import ledger_of, open_owned
    from fedrank.silo.protocol import Owner, answer
    from fedrank.silo.turns import read_letter

    file = open_owned(sketch)
    me = _party(identity, [to])
    letter = answer(read_letter(question), Owner(me, file, ledger_of(file)))
    _write_new(out, letter)
    print_line(
        new_console(), f"{out}: sealed for {next(iter(me.others))}, {len(letter):,} bytes; the sketch has paid for it"
    )


@silo_app.command(
    "train",
    epilog="Example:  fedrank silo train hospital-a --sketch a.sketch --key shared.key --identity a.secret "
    "--public b.public --partner b-for-a.sketch --out turns",
)
def silo_train(
    folder: Folder,
    sketch: OwnSketch,
    key: Key,
    identity: Identity,
    public: Annotated[list[Path], typer.Option(help="The public key of a partner; may be repeated.")],
    partner: Annotated[
        list[Path], typer.Option(help="A partner's sketch that was exported to you, or its answer; may be repeated.")
    ],
    out: Annotated[Path, typer.Option(help="Folder for the models of your turns.")],
    asked: Annotated[
        list[Path] | None, typer.Option(help="The letter of yours that a partner answers; may be repeated.")
    ] = None,
    model: Annotated[
        Path | None, typer.Option(help="The model as it came to you, file or letter; not given: begin one.")
    ] = None,
    passes: Annotated[int, typer.Option(min=1, help="Passes over your lists.")] = 1,
    k: Annotated[int | None, typer.Option(help="Documents of partners in a list, at most; 150 if not given.")] = None,
    rate: Annotated[float | None, typer.Option(help="Of the SGD; 0.5 if not given.")] = None,
    batch: Annotated[int | None, typer.Option(help="Documents of a step; 32 if not given.")] = None,
    top_grade: Annotated[int | None, typer.Option(help="The highest grade that anybody gives; yours, else.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of orders and held-out queries; 1 if not given.")] = None,
    normalise: Annotated[
        str | None,
        typer.Option(help="fixed, so that engines can use the model, or query; fixed if not given when you begin."),
    ] = None,
) -> None:
    """Take your turn: train the model that came to you, at home, and write the one that you pass on."""
    from fedrank.data.collection import read_collection
    from fedrank.experiments.report.command_output import about_sketch
    from fedrank.experiments.runner.cards import turn_card, write_card_for
    from fedrank.silo.describe import describe_turn
    from fedrank.silo.files import open_owned
    from fedrank.silo.keys import read_key
    from fedrank.silo.turns import load_partners, read_turn, save_turn, take_turn, turn_file

    me, shared = _party(identity, public), read_key(key)
    open_owned(sketch).hashing(shared)
    came = None if model is None else read_turn(model, me)
    path = turn_file(out, came)
    collection = read_collection(folder)
    partners = load_partners(partner, asked or [], me, shared, collection.queries)
    normalise = normalise or ("fixed" if came is None else None)
    chosen = {"k": k, "rate": rate, "batch": batch, "top_grade": top_grade, "seed": seed, "normalise": normalise}
    taken = take_turn(collection, me, partners, came, chosen, passes)
    console = new_console()
    told = describe_turn(taken, partners, sketch)
    print_sections(about_sketch(told), console)
    save_turn(taken.model, path)  # after all is said: a turn that is there is not taken again
    print_line(console, f"Privacy card: {write_card_for(turn_card(path, told), path)}")
    print_line(console, f"{path}: pass it on, as it is or by fedrank silo seal")


@silo_app.command(
    "seal",
    epilog="Example:  fedrank silo seal turns/turn-1.json --identity a.secret --to b.public --out turn-1.letter",
)
def silo_seal(
    model: Annotated[Path, typer.Argument(help="A model that fedrank silo train wrote.")],
    identity: Identity,
    to: To,
    out: Out,
) -> None:
    """Put the model of your turn into a letter that only one silo can open, and that proves who trained it."""
    from fedrank.silo.turns import seal_turn

    me = _party(identity, [to])
    (addressee,) = me.others
    _write_new(out, seal_turn(model, me, addressee))
    print_line(new_console(), f"{out}: only {addressee} can open it, and knows that it is from {me.name}")


@key_app.command("new", epilog="Example:  fedrank silo key new shared.key")
def key_new(out: Annotated[Path, typer.Argument(help="File for the key.")]) -> None:
    """Make the key that all silos share. Whoever has it can try out words: the relay must not."""
    from fedrank.silo.keys import fingerprint, new_key

    print_line(new_console(), f"{out}: key {fingerprint(new_key(out))}")


@key_app.command("identity", epilog="Example:  fedrank silo key identity hospital-a.secret")
def key_identity(out: Annotated[Path, typer.Argument(help="File for the secret half.")]) -> None:
    """Make a secret of your own, and the public half that you give to other silos."""
    from fedrank.silo.keys import fingerprint, new_identity, read_public

    public = new_identity(out)
    console = new_console()
    print_line(console, f"{out}: keep it.")
    print_line(
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

    print_line(
        new_console(), f"{out}: key {fingerprint(agree_key(secret, public, out))}; the other silo must read the same"
    )


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
    _write_new(out, wrapped)
    print_line(new_console(), f"{out}: only the owner of {public}, {fingerprint(theirs)}, can open it")


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
    from fedrank.files import read_bytes
    from fedrank.silo.keys import fingerprint, open_key, read_public, read_secret

    theirs = read_public(public)
    opened = open_key(read_bytes(wrapped), read_secret(secret), theirs, out)
    print_line(new_console(), f"{out}: key {fingerprint(opened)}, from the owner of {public}, {fingerprint(theirs)}")


def _party(identity: Path, others: list[Path]) -> Any:
    """Us and those whom we know, each under the fingerprint of its public key."""
    from fedrank.silo.keys import read_public, read_secret
    from fedrank.silo.letters import party

    return party(read_secret(identity), [read_public(path) for path in others])


def _write_new(path: Path, content: bytes) -> None:
    from fedrank.files import writing

    if path.exists():
        raise FileExistsError(f"{path} exists; choose another name for what you send")
    with writing(path, replace=False) as file:
        file.write(content)
