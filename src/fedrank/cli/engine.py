"""`fedrank engine`: features, read-log, compare; `fedrank engine trial` is in engine_trial.py."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedrank.cli.config import Config
from fedrank.cli.engine_trial import trial_app
from fedrank.cli.shared import EXIT_FAILURE, AsJson, new_console, print_json, print_line, print_note

if TYPE_CHECKING:
    from fedrank.engine.compare import Compared

engine_app = typer.Typer(
    help="OpenSearch, Elasticsearch, Solr: features, logged features, and trials of a model.",
    no_args_is_help=True,
)
engine_app.add_typer(trial_app, name="trial")

LETOR = (".txt", ".letor", ".dat")


@engine_app.command(
    "features",
    epilog="Examples:  fedrank engine features engine-1 --to opensearch --out engine  ·  fedrank engine features "
    "engine-1-english --to solr --index products --changed updated --popularity sold --out engine",
)
def engine_features(
    features: Annotated[
        str, typer.Argument(help="Feature set: engine-1, or with Snowball's stemmer engine-1-english.")
    ],
    to: Annotated[str, typer.Option(help="Engine: opensearch, elasticsearch or solr.")],
    out: Annotated[Path, typer.Option(help="Folder for the files.")],
    url: Annotated[str, typer.Option(help="Address of the engine. Default: this machine.")] = "",
    index: Annotated[str, typer.Option(help="Index of the engine, or collection of Solr.")] = "documents",
    model: Annotated[str, typer.Option(help="Name of the model in the engine.")] = "fedrank",
    title: Annotated[str, typer.Option(hidden=True, help="Field with the title.")] = "title",
    body: Annotated[str, typer.Option(hidden=True, help="Field with the text.")] = "body",
    all_: Annotated[
        str, typer.Option("--all", hidden=True, help="Field into which title and text are copied.")
    ] = "all",
    changed: Annotated[str, typer.Option(help="Field with a date, for the feature recency.")] = "",
    popularity: Annotated[str, typer.Option(help="Field with a number, for the feature popularity.")] = "",
    bm25: Annotated[
        str,
        typer.Option(
            hidden=True, help="BM25 formula: lucene, or legacy (with a factor k1 + 1). Default: that of new versions."
        ),
    ] = "",
    config: Config = None,
) -> None:
    """Write a feature set, a logging query and a rescore query for an engine, as files and command lines."""
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
    print_line(console, f"Instructions and the meaning of each feature: {out / 'README.md'}")


@engine_app.command(
    "read-log",
    epilog="Examples:  fedrank engine read-log ltr.ndjson --clicks events.ndjson --out train.txt  ·  fedrank engine "
    "read-log ltr.ndjson --ubi-queries queries.ndjson --ubi-events events.ndjson --out data",
)
def engine_read_log(
    log: Annotated[Path, typer.Argument(help="Responses of the engine, one per line, each with its query_id.")],
    out: Annotated[Path, typer.Option(help="LETOR file (.txt); or, with UBI, a folder for a data set of shown lists.")],
    clicks: Annotated[
        Path | None, typer.Option(help="Clicks: query_id and document, or UBI events; .jsonl, .tsv or .csv.")
    ] = None,
    ubi_queries: Annotated[Path | None, typer.Option(help="UBI queries with the shown results.")] = None,
    ubi_events: Annotated[Path | None, typer.Option(help="UBI events.")] = None,
    person: Annotated[
        str | None, typer.Option(help="UBI field that identifies the person. Default: client_id, a browser.")
    ] = None,
    feature_names: Annotated[
        Path | None, typer.Option(help="File with feature names, one per line. Default: those of engine-1.")
    ] = None,
    entry: Annotated[str, typer.Option(help="Name of the logged feature set, if there are several.")] = "",
) -> None:
    """Join logged features with clicks. Rows that cannot be used are omitted and counted with the reason."""
    from fedrank.data.engine_features import NAMES
    from fedrank.engine.read_log import read_feature_names, read_joined_clicks, read_logged, write_logged

    if clicks is not None and ubi_queries is not None:
        raise ValueError("--clicks and --ubi-queries cannot be combined; remove one of them")
    if (ubi_queries is None) != (ubi_events is None):
        raise ValueError("UBI has two files; give both --ubi-queries and --ubi-events")
    if out.suffix.lower() not in LETOR and ubi_queries is None:
        raise ValueError(
            f"--out {out} is a folder for shown lists, which needs --ubi-queries and --ubi-events; give them, or a "
            "name that ends in .txt for a LETOR file"
        )
    console = new_console()
    logged = read_logged(log, read_feature_names(feature_names) if feature_names is not None else NAMES, entry)
    _note_omitted(log, logged.left_out)
    if logged.missing:
        print_note(f"{logged.missing:,} values were not logged, because their query did not match; they count as 0")
    if ubi_queries is not None and ubi_events is not None:
        from fedrank.engine.shown_log import join_ubi, write_joined
        from fedrank.experiments.runner.cards import log_card

        joined = join_ubi(logged, ubi_queries, ubi_events, person)
        _note_omitted(ubi_queries, joined.left_out)
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
        _note_omitted(clicks, found.left_out)
        write_logged(out, logged, found.grades)
        grades = found.grades
    else:
        print_note("without clicks all relevance labels are 0; use the file for scoring, not for training")
        write_logged(out, logged)
        grades = None
    clicked = 0 if grades is None else int(grades.sum())
    print_line(
        console,
        f"LETOR file: {out}, {len(logged.searches):,} queries, {len(logged):,} documents, {clicked:,} of them clicked",
    )


@engine_app.command(
    "compare",
    epilog="Examples:  fedrank engine compare rescored.ndjson --model runs/mine/only/fold-1-seed-1  ·  fedrank engine "
    "compare ltr.ndjson --docs docs.jsonl --queries queries.tsv",
)
def engine_compare(
    log: Annotated[Path, typer.Argument(help="Responses of the engine, one per line, each with its query_id.")],
    model: Annotated[Path | None, typer.Option(help="Model that the engine uses: compare scores.")] = None,
    docs: Annotated[Path | None, typer.Option(help="Documents of the engine: compare features.")] = None,
    queries: Annotated[
        Path | None, typer.Option(help="With --docs: query_id, query and optional time; .tsv or .jsonl.")
    ] = None,
    features: Annotated[str, typer.Option(help="With --docs: feature set, such as engine-1.")] = "engine-1",
    feature_names: Annotated[
        Path | None, typer.Option(help="File with feature names, one per line. Default: those of engine-1.")
    ] = None,
    entry: Annotated[str, typer.Option(help="Name of the logged feature set, if there are several.")] = "",
    as_json: AsJson = False,
) -> None:
    """Compare the features or scores of an engine with those of fedrank, to a tolerance of 1e-5."""
    from fedrank.data.documents import read_documents
    from fedrank.data.engine_features import NAMES, EngineFeatures
    from fedrank.engine.compare import compare_features, compare_scores, read_queries
    from fedrank.engine.read_log import read_feature_names, read_logged
    from fedrank.trees.model_files import load_model

    if (model is None) == (docs is None) or (docs is None) != (queries is None):
        raise ValueError("give --model to compare scores, or --docs and --queries to compare features")
    logged = read_logged(log, read_feature_names(feature_names) if feature_names is not None else NAMES, entry)
    _note_omitted(log, logged.left_out)
    console = new_console()
    if docs is not None and queries is not None:
        found = compare_features(logged, read_documents(docs), read_queries(queries), EngineFeatures.named(features))
        for one in [] if as_json else found:
            print_line(console, f"{one.what}: {_difference(one)}")
        agrees = all(one.agrees for one in found)
        facts: object = found
    else:
        assert model is not None
        scores = compare_scores(logged, load_model(model, print_note))
        agrees, facts = scores.agrees, scores
        if not as_json:
            print_line(console, f"Scores: {_difference(scores.scores)}")
            print_line(console, f"The ten best are the same in {scores.same_top:,} of {scores.lists:,} lists")
    if as_json:
        print_json({"agrees": agrees, "compared": facts})
    if not agrees and not as_json:
        print_line(console, "They differ; the README of the feature set lists known differences between engines.")
    if not agrees:
        raise typer.Exit(EXIT_FAILURE)


def _difference(one: Compared) -> str:
    return f"{one.values:,} values, largest difference {one.worst:.2g}, {one.beyond:,} above 1e-5"


def _note_omitted(path: Path, left_out: object) -> None:
    if isinstance(left_out, dict):
        for reason, count in left_out.items():
            print_note(f"{path}: omitted, {reason}: {count}")
