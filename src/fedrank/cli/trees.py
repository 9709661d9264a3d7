"""`fedrank trees`: tree models of one organisation, and of several that merge theirs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedrank.cli.shared import LARGEST, Changes, Workers, do_experiment, new_console, print_note, print_sections

trees_app = typer.Typer(
    help="Tree models: LambdaMART and its relatives through LightGBM, split data, merged models.", no_args_is_help=True
)
Seed = Annotated[int, typer.Option(help="For what is drawn by chance.")]


@trees_app.command(
    "train",
    epilog="Examples:  fedrank trees train --data istella-x --method selgb --keep 0.01 --out model  ·  fedrank trees "
    "train --data train.txt --validation vali.txt --test test.txt --method lambdamart --tune 100 --out model",
)
def trees_train(
    data: Annotated[str, typer.Option(help="A name of the catalog, a LETOR file, or a search log (its clicks).")],
    out: Annotated[Path, typer.Option(help="Folder for the run: spec, model, curves.")],
    method: Annotated[
        str, typer.Option(help="lambdamart, selgb, sgb, negsgb, goss, bagging, shortlist: see fedrank methods booster.")
    ] = "lambdamart",
    keep: Annotated[float | None, typer.Option(help="Share of negatives, or of rows, that a tree is grown on.")] = None,
    every: Annotated[int | None, typer.Option(min=1, max=100_000, help="Trees between two selections.")] = None,
    trees: Annotated[int | None, typer.Option(min=1, max=100_000, help="At most so many trees.")] = None,
    validation: Annotated[Path | None, typer.Option(help="LETOR file by which training stops.")] = None,
    test: Annotated[
        Path | None, typer.Option(help="LETOR file to measure on; the validation file if not given.")
    ] = None,
    tune: Annotated[
        int, typer.Option(min=0, max=10_000, help="Settings to try on the validation queries, with Optuna.")
    ] = 0,
    fold: Annotated[int, typer.Option(min=1, help="Of a set with folds.")] = 1,
    seed: Seed = 1,
    set_: Changes = None,
    workers: Workers = None,
) -> None:
    """Train a forest: one ordinary LightGBM model, with a spec and a run folder like everything else."""
    from fedrank.experiments.spec.grid import read_tables
    from fedrank.toml import parse_override, put

    booster: dict[str, Any] = {"name": method}
    booster |= {key: value for key, value in (("keep", keep), ("every", every), ("trees", trees)) if value is not None}
    source: dict[str, Any] = {"name": data, "folds": [fold]}
    if Path(data).is_file():
        judge = test or validation
        if judge is None:
            raise ValueError(f"--data {data} is a file: give --test, and --validation if training is to stop by itself")
        source = {"train": str(Path(data).resolve()), "test": str(judge.resolve())}
        source |= {} if validation is None else {"validation": str(validation.resolve())}
    elif Path(data).is_dir():
        if test is not None or validation is not None:
            raise ValueError(f"--data {data} is a search log, which tests on its latest entries; leave out --test")
        source = {"log": str(Path(data).resolve())}
    elif Path(data).suffix:
        raise FileNotFoundError(f"no file {data}; give a LETOR file, or a name that `fedrank data list` shows")
    elif test is not None or validation is not None:
        raise ValueError(
            f"--data {data} is no file, so --test and --validation go with nothing; name a file to train on"
        )
    tables: dict[str, Any] = {"kind": "trees", "title": f"{method} on {Path(data).name}", "data": source}
    tables |= {"booster": booster, "tune": tune, "seeds": [seed]}
    for keys, value in map(parse_override, set_ or []):
        put(tables, keys, value)
    do_experiment(read_tables(tables), out.name, out.parent, workers)


@trees_app.command(
    "split",
    epilog="Examples:  fedrank trees split --data istella-s --by category.tsv --rule exclusive --out split  ·  "
    "fedrank trees split --data mslr-sample --by topics --clients 3 --out split",
)
def trees_split(
    data: Annotated[str, typer.Option(help="A name of the catalog, or a LETOR file.")],
    by: Annotated[
        str,
        typer.Option(help="A file of categories, a feature (a number, or feature:NAME), topics (k-means), or chance."),
    ],
    out: Annotated[Path, typer.Option(help="Folder for the clients' files and their merge sets.")],
    rule: Annotated[str, typer.Option(help="tie-breaking, no-ties or exclusive.")] = "tie-breaking",
    clients: Annotated[int, typer.Option(min=2, max=10_000, help="How many.")] = 2,
    category: Annotated[
        list[str] | None, typer.Option(help="Category of the first client, the second ..; may be repeated.")
    ] = None,
    rest: Annotated[
        str, typer.Option(help="Which other queries the last client keeps: all, no-relevant, no-document or none.")
    ] = "no-relevant",
    merge: Annotated[str, typer.Option(help="Where merge sets come from: remaining, or validation.")] = "remaining",
    bins: Annotated[
        int, typer.Option(min=0, max=10_000, help="Of a feature: so many categories; 0: each value is one.")
    ] = 0,
    validation: Annotated[Path | None, typer.Option(help="LETOR file, divided too; to stop and to merge by.")] = None,
    test: Annotated[Path | None, typer.Option(help="LETOR file, divided too; to measure on.")] = None,
    fold: Annotated[int, typer.Option(min=1, help="Of a set with folds.")] = 1,
    seed: Seed = 1,
) -> None:
    """Divide queries among clients whose data differ, with a merge set for each."""
    from fedrank.experiments.report.command_output import about_split
    from fedrank.trees.split_folder import split_data, splitter_for

    split = splitter_for(by, rule, clients, category or (), rest, merge, bins)
    print_sections(about_split(split_data(data, split, out, fold, seed, validation, test)), new_console())


@trees_app.command(
    "merge",
    epilog="Examples:  fedrank trees merge a.txt b.txt --on split --method linear --out merged  ·  fedrank trees merge "
    "a.txt b.txt --on merge.txt --method stacking --out merged",
)
def trees_merge(
    models: Annotated[list[Path], typer.Argument(help="Model files of the clients, in their order.")],
    on: Annotated[Path, typer.Option(help="A merge set (LETOR), or a folder that fedrank trees split wrote.")],
    out: Annotated[Path, typer.Option(help="Folder for the merged models, one for each client.")],
    method: Annotated[
        str, typer.Option(help="linear, uniform, stacking, stacking-scores or stacking-features.")
    ] = "linear",
    seed: Seed = 1,
) -> None:
    """Merge the models of clients that never saw each other's data; who gains, and who loses."""
    from fedrank.experiments.report.command_output import about_merged
    from fedrank.experiments.runner.cards import merged_card
    from fedrank.trees.merge_files import merge_models

    print_sections(about_merged(merge_models(models, on, method, out, seed, tell=print_note)), new_console())
    merged_card(out, len(models)).write(out)


@trees_app.command(
    "grow",
    epilog="Examples:  fedrank trees grow --silo a.txt --silo b.txt --trees 300 --out forest  ·  fedrank trees grow "
    "--silo a.txt --silo b.txt --validation va.txt --validation vb.txt --secure --out forest",
)
def trees_grow(
    silo: Annotated[list[Path], typer.Option(help="LETOR file of one organisation; repeat it for each.")],
    out: Annotated[Path, typer.Option(help="Folder for the forest; an unfinished one in it grows on.")],
    trees: Annotated[int, typer.Option(min=1, max=100_000, help="At most so many.")] = 300,
    leaves: Annotated[int, typer.Option(min=2, max=100_000, help="Of a tree, at most.")] = 64,
    rate: Annotated[float, typer.Option(help="What a tree's output is multiplied by.")] = 0.05,
    min_data_in_leaf: Annotated[int, typer.Option(min=1, max=LARGEST, help="Rows of a leaf.")] = 20,
    bins: Annotated[int, typer.Option(min=2, max=256, help="Of a feature; 63 make smaller messages than 255.")] = 255,
    edges: Annotated[
        Path | None, typer.Option(help="File of bin edges that all agreed on; a grid for all numbers if not given.")
    ] = None,
    edge_noise: Annotated[
        float | None,
        typer.Option(help="Estimate edges by noised counts; so wide, in units of what one query can change."),
    ] = None,
    bounds: Annotated[
        tuple[float, float] | None, typer.Option(help="Of all features, for estimated edges; any number if not given.")
    ] = None,
    validation: Annotated[
        list[Path] | None, typer.Option(help="LETOR file of one organisation to stop by; one for each, in order.")
    ] = None,
    test: Annotated[list[Path] | None, typer.Option(help="LETOR file to measure on; may be repeated.")] = None,
    secure: Annotated[bool, typer.Option(help="The server sees the sum of histograms, no one's own.")] = False,
    vote: Annotated[
        int,
        typer.Option(
            min=0, max=1_000_000, help="Features of a leaf that each votes for; twice as many are sent. 0: all are."
        ),
    ] = 0,
    seed: Seed = 1,
) -> None:
    """Grow one forest of several organisations' rows, the one that pooled rows would grow; not private by itself."""
    from fedrank.experiments.report.command_output import about_grown
    from fedrank.experiments.runner.cards import about_priced_edges, grown_card
    from fedrank.trees.boosters import Grower
    from fedrank.trees.growing_files import PricedEdges, grow_files
    from fedrank.trees.noise import EdgeNoise

    if bounds is not None and edge_noise is None:
        raise ValueError(
            f"--bounds {bounds[0]:g} {bounds[1]:g} are for estimated edges, and none are estimated; add --edge-noise, "
            "or leave them out"
        )
    rules = Grower(trees, leaves, rate, min_data_in_leaf, bins=bins)

    def tell(grown: int, quality: float) -> None:
        if grown % 10 == 0:
            print_note(f"{grown:,} of {trees:,} trees" + ("" if quality != quality else f", nDCG@10 {quality:.4f}"))

    def finish(folder: Path, priced: PricedEdges | None) -> None:
        said = "" if priced is None else about_priced_edges(priced.unit, priced.times, priced.epsilon, priced.delta)
        grown_card(folder, len(silo), secure, said).write(folder)

    noise = None if edge_noise is None else EdgeNoise(edge_noise, bounds=bounds)
    made = grow_files(silo, out, rules, validation or (), test or (), edges, secure, seed, tell, finish, noise, vote)
    print_sections(about_grown(made), new_console())
