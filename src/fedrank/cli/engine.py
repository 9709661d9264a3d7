"""`fedrank engine`: features and queries for a search engine that is already there, and what it logged."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedrank.cli.shared import new_console, print_line, print_note

engine_app = typer.Typer(
    help="OpenSearch, Elasticsearch, Solr: features and queries for an engine, and what it logged.",
    no_args_is_help=True,
)

LETOR = (".txt", ".letor", ".dat")


@engine_app.command(
    "features",
    epilog="Examples:  fedrank engine features engine-1 --to opensearch --out engine  ·  fedrank engine features "
    "engine-1-english --to solr --index products --changed updated --popularity sold --out engine",
)
def engine_features(
    features: Annotated[str, typer.Argument(help="engine-1; or with Snowball's stemmer engine-1-english.")],
    to: Annotated[str, typer.Option(help="opensearch, elasticsearch or solr.")],
    out: Annotated[Path, typer.Option(help="Folder for the files.")],
    url: Annotated[str, typer.Option(help="Where the engine answers; on this machine if not given.")] = "",
    index: Annotated[str, typer.Option(help="The engine's index, or Solr's collection.")] = "documents",
    model: Annotated[str, typer.Option(help="What the engine calls the model.")] = "fedrank",
    title: Annotated[str, typer.Option(help="The engine's field with the title.")] = "title",
    body: Annotated[str, typer.Option(help="The engine's field with the text.")] = "body",
    all_: Annotated[str, typer.Option("--all", help="Its field into which both are copied.")] = "all",
    changed: Annotated[str, typer.Option(help="Its field with a date; nothing is recent if not given.")] = "",
    popularity: Annotated[str, typer.Option(help="Its field with a number; nothing is popular if not given.")] = "",
    bm25: Annotated[
        str, typer.Option(help="lucene, or legacy with a factor k1 + 1; as new versions do it if not given.")
    ] = "",
) -> None:
    """Write a feature set, the logging query and the rescore query, as files and as command lines."""
    from fedrank.data.engine_features import EngineFeatures
    from fedrank.engine.templates import EngineSetup, curl_lines, write_engine_files

    setup = EngineSetup(
        to, EngineFeatures.named(features), url, index, model, title, body, all_, changed, popularity, bm25
    )
    written = write_engine_files(setup, out)
    console = new_console()
    print_line(console, f"{len(written)} files: {out}")
    for what, line in curl_lines(setup).items():
        print_line(console, f"{what}:\n    {line}")
    print_line(console, f"What to fill in, and what each feature means: {out / 'README.md'}")


@engine_app.command(
    "read-log",
    epilog="Examples:  fedrank engine read-log ltr.ndjson --clicks events.ndjson --out train.txt  ·  fedrank engine "
    "read-log ltr.ndjson --ubi-queries queries.ndjson --ubi-events events.ndjson --out data",
)
def engine_read_log(
    log: Annotated[Path, typer.Argument(help="Answers of the engine, one a line, each with its query_id.")],
    out: Annotated[Path, typer.Option(help="LETOR file (.txt); or a folder for lists as they were shown, with UBI.")],
    clicks: Annotated[
        Path | None, typer.Option(help="Clicks: query_id and document, or UBI's events; .jsonl, .tsv or .csv.")
    ] = None,
    ubi_queries: Annotated[Path | None, typer.Option(help="UBI's queries: who was shown what, and when.")] = None,
    ubi_events: Annotated[Path | None, typer.Option(help="UBI's events.")] = None,
    person: Annotated[
        str | None, typer.Option(help="UBI's field that names the person; client_id, a browser, if not given.")
    ] = None,
    feature_names: Annotated[
        Path | None, typer.Option(help="Names of the features, one a line; those of engine-1 if not given.")
    ] = None,
    entry: Annotated[str, typer.Option(help="Which of several logged sets; the only one if not given.")] = "",
) -> None:
    """Logged features joined with clicks. What cannot be used is left out and counted with its reason."""
    from fedrank.data.engine_features import NAMES
    from fedrank.engine.read_log import read_feature_names, read_joined_clicks, read_logged, write_logged

    if clicks is not None and ubi_queries is not None:
        raise ValueError("--clicks and --ubi-queries are two ways to say who clicked what; leave one of them out")
    if (ubi_queries is None) != (ubi_events is None):
        raise ValueError("UBI is two files: queries, which say what was shown, and events; give both or none")
    if out.suffix.lower() not in LETOR and ubi_queries is None:
        raise ValueError(
            f"--out {out}: a folder holds lists as they were shown, and nothing says what was; give --ubi-queries "
            "and --ubi-events, or let the name end in .txt for a LETOR file"
        )
    console = new_console()
    logged = read_logged(log, read_feature_names(feature_names) if feature_names is not None else NAMES, entry)
    _say_left_out(log, logged.left_out)
    if logged.missing:
        print_note(f"{logged.missing:,} values were not logged, as their query did not match; they count as 0")
    if ubi_queries is not None and ubi_events is not None:
        from fedrank.engine.shown_log import join_ubi, write_joined
        from fedrank.experiments.runner.cards import log_card

        joined = join_ubi(logged, ubi_queries, ubi_events, person)
        _say_left_out(ubi_queries, joined.left_out)
        if out.suffix.lower() in LETOR:
            write_logged(out, logged, joined.grades)
            grades = joined.grades
        else:
            data = write_joined(out, logged, joined)
            log_card(data).write(data.folder)
            print_line(console, f"Data set: {out}, {len(data):,} lists of {len(data.users):,} users ({data.unit}s)")
            return
    elif clicks is not None:
        found = read_joined_clicks(clicks, logged)
        _say_left_out(clicks, found.left_out)
        write_logged(out, logged, found.grades)
        grades = found.grades
    else:
        print_note("no clicks were given: all grades are 0, so that the file is for scoring, not for training")
        write_logged(out, logged)
        grades = None
    clicked = 0 if grades is None else int(grades.sum())
    print_line(
        console,
        f"LETOR: {out}, {len(logged.searches):,} searches, {len(logged):,} documents, {clicked:,} of them clicked",
    )


@engine_app.command(
    "compare",
    epilog="Examples:  fedrank engine compare rescored.ndjson --model runs/mine/only/fold-1-seed-1  ·  fedrank engine "
    "compare ltr.ndjson --docs docs.jsonl --queries queries.tsv",
)
def engine_compare(
    log: Annotated[Path, typer.Argument(help="Answers of the engine, one a line, each with its query_id.")],
    model: Annotated[Path | None, typer.Option(help="The model behind the engine's scores: compare these.")] = None,
    docs: Annotated[Path | None, typer.Option(help="The documents that the engine has: compare features.")] = None,
    queries: Annotated[
        Path | None, typer.Option(help="With --docs: query_id, query and perhaps time; .tsv or .jsonl.")
    ] = None,
    features: Annotated[str, typer.Option(help="With --docs: engine-1, or with a stemmer.")] = "engine-1",
    feature_names: Annotated[
        Path | None, typer.Option(help="Names of the features, one a line; those of engine-1 if not given.")
    ] = None,
    entry: Annotated[str, typer.Option(help="Which of several logged sets; the only one if not given.")] = "",
) -> None:
    """Does the engine compute what fedrank does? Features from documents, or scores and the ten best, to 1e-5."""
    from fedrank.data.documents import read_documents
    from fedrank.data.engine_features import NAMES, EngineFeatures
    from fedrank.engine.compare import compare_features, compare_scores, read_queries
    from fedrank.engine.read_log import read_feature_names, read_logged
    from fedrank.trees.model_files import load_model

    if (model is None) == (docs is None) or (docs is None) != (queries is None):
        raise ValueError("compare scores with --model, or features with --docs and --queries")
    logged = read_logged(log, read_feature_names(feature_names) if feature_names is not None else NAMES, entry)
    _say_left_out(log, logged.left_out)
    console = new_console()
    if docs is not None and queries is not None:
        found = compare_features(logged, read_documents(docs), read_queries(queries), EngineFeatures.named(features))
        for one in found:
            print_line(
                console, f"{one.what}: {one.values:,} values, at most {one.worst:.2g} apart, {one.beyond:,} beyond 1e-5"
            )
        agrees = all(one.agrees for one in found)
    else:
        assert model is not None
        scores = compare_scores(logged, load_model(model, print_note))
        one = scores.scores
        print_line(console, f"{one.values:,} scores, at most {one.worst:.2g} apart, {one.beyond:,} beyond 1e-5")
        print_line(console, f"The ten best are the same in {scores.same_top:,} of {scores.lists:,} lists")
        agrees = scores.agrees
    if not agrees:
        print_line(console, "They differ: see What engines do differently, and the README of the feature set.")
        raise typer.Exit(1)


def _say_left_out(path: Path, left_out: object) -> None:
    if isinstance(left_out, dict):
        for reason, count in left_out.items():
            print_note(f"{path}: left out, {reason}: {count}")
