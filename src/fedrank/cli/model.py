"""`fedrank model`: score, evaluate, export and estimate."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedrank.cli.shared import (
    EXIT_FAILURE,
    AsJson,
    Client,
    DataFile,
    ModelFile,
    Picture,
    print_file,
    print_json,
    print_line,
    print_note,
    print_result,
)
from fedrank.files import write_atomic

if TYPE_CHECKING:
    from fedrank.ranking.estimate import ClickEstimate
    from fedrank.ranking.propensity import Bias

model_app = typer.Typer(no_args_is_help=True)
BiasName = Annotated[
    str, typer.Option(help="Bias of clicks to correct: position, or trust (position and trust in high ranks).")
]


@model_app.command(
    epilog="Examples:  fedrank model score runs/quickstart/federated/fold-1-seed-1 new.txt > scores.txt  ·  "
    "fedrank model score model.json new.txt --trec mine --out mine.run"
)
def score(
    model: ModelFile,
    data: DataFile,
    out: Annotated[Path | None, typer.Option(help="File to write. Default: standard output.")] = None,
    trec: Annotated[str | None, typer.Option(metavar="TAG", help="Write a TREC run file with this tag.")] = None,
    client: Client = None,
) -> None:
    """Score documents: one number per line in the order of the file, or a TREC run file."""
    from fedrank.experiments.runner.scoring import score_lines

    lines = score_lines(model, data, trec, client, print_note)
    if out is None:
        sys.stdout.writelines(lines)
    else:
        write_atomic(out, lines)
        print_line(f"Scores: {out}")


@model_app.command(
    epilog="Examples:  fedrank model evaluate runs/quickstart/federated/fold-1-seed-1 synthetic-mq2007  ·  "
    "fedrank model evaluate model.json test.txt --measure ndcg@5 --measure map --per-query values.csv  ·  "
    "fedrank model evaluate bm25.run test.txt"
)
def evaluate(
    model: ModelFile,
    data: DataFile,
    measure: Annotated[
        list[str] | None, typer.Option(help="Metric, such as ndcg@10, map, mrr@10, err or p@5; may be repeated.")
    ] = None,
    per_query: Annotated[Path | None, typer.Option(help="CSV file for the values of each query.")] = None,
    client: Client = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate a model, or a TREC run file (.run), on judged data: the mean of each metric, and values per query."""
    from fedrank.experiments.report.model_output import about_quality
    from fedrank.experiments.runner.scoring import evaluate_model
    from fedrank.ranking.measures import average

    quality = evaluate_model(model, data, measure or ["ndcg@10", "mrr@10", "map"], client, print_note)
    means = dict(zip(quality.measures, average(quality.values), strict=True))
    print_result(as_json, lambda: means, lambda: about_quality(quality))
    if per_query is not None:
        write_atomic(per_query, quality.csv())
        print_file("Values per query", per_query, as_json)


@model_app.command(
    epilog="Examples:  fedrank model export runs/mine/only/fold-1-seed-1 --to opensearch --out model.json  ·  "
    "fedrank model export forest.txt --to solr --name mine --feature-names names.txt --out model.json  ·  "
    "fedrank model export runs/mine/only/fold-1-seed-1 --to onnx --out model.onnx --anyway  ·  "
    "fedrank model export runs/mine/only/fold-1-seed-1 --to card --out README.md  ·  "
    "fedrank model export runs/mine/only/fold-1-seed-1 --to mlflow:http://tracker:5000 --name products"
)
def export(
    model: ModelFile,
    to: Annotated[
        str,
        typer.Option(
            help="Format: opensearch, elasticsearch, solr, onnx, or card (Markdown); or mlflow[:URI] (its registry)."
        ),
    ],
    out: Annotated[Path | None, typer.Option(help="File to write; required, except for mlflow.")] = None,
    name: Annotated[
        str | None,
        typer.Option(help="Name of the model in the engine or registry. Default: that of the file or experiment."),
    ] = None,
    feature_names: Annotated[
        Path | None,
        typer.Option(help="File with the engine's feature names, one per line. Default: those of the model."),
    ] = None,
    client: Client = None,
    store: Annotated[str | None, typer.Option(help="Feature store in Solr. Default: Solr's default store.")] = None,
    anyway: Annotated[
        bool,
        typer.Option("--anyway", help="Export a model that its run or its estimate calls worse than doing nothing."),
    ] = False,
) -> None:
    """Export a ranker to a search engine or ONNX, and verify that the exported model gives the same scores.

    `--to card` writes the model card of a run: Markdown with a YAML header, as Hugging Face reads it.
    """
    from fedrank.experiments.report.analysis import worse_than_nothing
    from fedrank.ranking.model import model_file
    from fedrank.ranking.model_remarks import remarks_on
    from fedrank.ranking.stored_estimate import stored_estimate
    from fedrank.trees.export import export as write

    for remark in remarks_on(model):
        print_note(remark)
    file, registry = model_file(model), to.partition(":")[0] == "mlflow"
    if out is None and not registry:
        raise ValueError(f"--to {to} writes a file; name it with --out")
    if to == "card":
        assert out is not None
        from fedrank.experiments.report.model_card import model_card

        write_atomic(out, model_card(file.parent))
        print_line(f"Model card: {out}")
        return
    from fedrank.deploy.site_releases import MODEL_FILES

    if file.name == MODEL_FILES["veto"] and not anyway:
        raise ValueError(f"{file}: the gate vetoed this model. Nothing was exported; use another model, or --anyway")
    if file.name == MODEL_FILES["inconclusive"]:
        print_note(f"the gate left {file.name} to a trial: use the export in the trial only, until it is adopted")
    found = stored_estimate(file)
    worse = found.verdict if found is not None and found.finding == "worse" else worse_than_nothing(file.parent)
    if worse and not anyway:
        raise ValueError(
            f"{file}: {worse[0].lower()}{worse[1:].rstrip('.')}. Nothing was exported; try it on live queries (fedrank "
            "engine trial plan), or use --anyway"
        )
    if registry or out is None:
        from fedrank.experiments.report.trackers import register

        called, version, place = register(file.parent, to, name)
        print_line(f"Registered in {place}: {called}, version {version}")
        return
    done = write(model, to, out, name=name, feature_names=feature_names, client=client, tell=print_note, store=store)
    print_line(f"{done.what}: {done.path}")
    print_line(done.next)
    if done.needs:
        print_note(done.needs)


@model_app.command(
    epilog="Examples:  fedrank model estimate runs/mine/only/fold-1-seed-1 --log mylog  ·  fedrank model estimate "
    "model.json --log mylog --out estimate.png  ·  fedrank model estimate model.json --log mylog --json"
)
def estimate(
    model: ModelFile,
    log: Annotated[
        Path, typer.Option("--log", help="Folder of a click log with shown lists, written by fedrank data build.")
    ],
    latest: Annotated[
        float | None,
        typer.Option(
            help="Share of the entries to use, the latest. Default: 0.2 if the model was trained on this log, else 1."
        ),
    ] = None,
    propensities: Annotated[
        Path | None, typer.Option(help="File written by fedrank data propensities. Default: estimated from the log.")
    ] = None,
    client: Client = None,
    out: Picture = None,
    as_json: AsJson = False,
) -> None:
    """Estimate from a click log how this model compares with the engine, under position bias and under trust bias."""
    from fedrank.experiments.report.model_output import about_estimate
    from fedrank.experiments.runner.scoring import estimate_model
    from fedrank.ranking.estimate import CannotTell
    from fedrank.ranking.stored_estimate import store_estimate

    def store(answer: ClickEstimate | str) -> None:
        try:
            store_estimate(model, log.resolve().name, answer)
        except OSError as problem:
            print_note(f"the estimate is not stored beside the model ({problem}), so export and reports do not use it")

    try:
        found = estimate_model(model, log, latest=latest, propensities=propensities, client=client, tell=print_note)
        store(found)
    except CannotTell as problem:
        store(problem.because)
        if as_json:
            print_json({"cannot": problem.because})
        else:
            print_line(f"The clicks cannot be estimated from this log: {problem.because}.")
        raise typer.Exit(EXIT_FAILURE) from None
    print_result(as_json, found.as_json, lambda: about_estimate(found))
    if out is not None:
        from fedrank.experiments.report.charts import draw_estimate

        draw_estimate(found, out)
        print_file("Picture", out, as_json)


def bias_named(name: str) -> Bias:
    """The bias of clicks with this name."""
    from fedrank.ranking.propensity import BIASES

    for one in BIASES:
        if one == name:
            return one
    raise ValueError(f"--bias must be {' or '.join(BIASES)} (got {name!r})")
