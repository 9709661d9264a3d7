"""`fedrank trees`: split, merge and grow."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from fedrank.cli.config import Config, with_settings
from fedrank.cli.shared import Seed, print_note, print_sections
from fedrank.value_checks import Positive, at_least, at_most

trees_app = typer.Typer(no_args_is_help=True)


Votes = Annotated[int, at_least(0), at_most(1_000_000)]


@dataclass(frozen=True)
class SplitOptions:
    """Further options of `trees split`."""

    category: list[str] | None = None  # category of the first client, of the second, and so on; may be repeated
    rest: str = "no-relevant"  # other queries that the last client gets: all, no-relevant, no-document or none
    merge: str = "remaining"  # source of the merge sets: remaining or validation
    bins: Annotated[int, at_least(0), at_most(10_000)] = 0  # categories of a feature; 0 makes each value a category
    fold: Annotated[int, at_least(1)] = 1  # fold, if the data set has folds
    seed: int = 1  # random seed


@trees_app.command(
    "split",
    epilog="Examples:  fedrank trees split --data istella-s --by category.tsv --rule exclusive --out split  ·  "
    "fedrank trees split --data mslr-sample --by topics --clients 3 --out split",
)
@with_settings
def trees_split(
    data: Annotated[str, typer.Option(help="Data set of the catalog, or LETOR file.")],
    by: Annotated[
        str,
        typer.Option(
            help="Criterion: a file of categories, a feature (number or feature:NAME), topics (k-means), or chance."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for the files of the clients and their merge sets.")],
    rule: Annotated[str, typer.Option(help="Rule for ties: tie-breaking, no-ties or exclusive.")] = "tie-breaking",
    clients: Annotated[int, typer.Option(min=2, max=10_000, help="Number of clients.")] = 2,
    validation: Annotated[Path | None, typer.Option(help="LETOR file to split for validation and merging.")] = None,
    test: Annotated[Path | None, typer.Option(help="LETOR file to split for testing.")] = None,
    config: Config = None,
    *,
    more: SplitOptions,
) -> None:
    """Split queries among clients with different data, with a merge set for each client."""
    from fedrank.experiments.report.model_output import about_split
    from fedrank.trees.split_folder import split_data, splitter_for

    split = splitter_for(by, rule, clients, more.category or (), more.rest, more.merge, more.bins)
    print_sections(about_split(split_data(data, split, out, more.fold, more.seed, validation, test)))


@trees_app.command(
    "merge",
    epilog="Examples:  fedrank trees merge a.txt b.txt --on split --method linear --out merged  ·  fedrank trees merge "
    "a.txt b.txt --on merge.txt --method stacking --out merged",
)
def trees_merge(
    models: Annotated[list[Path], typer.Argument(help="Model files of the clients, in the order of the clients.")],
    on: Annotated[Path, typer.Option(help="Merge set (LETOR file), or folder written by fedrank trees split.")],
    out: Annotated[Path, typer.Option(help="Folder for the merged models, one per client.")],
    method: Annotated[
        str,
        typer.Option(help="Merge method: linear, uniform, stacking, stacking-scores or stacking-features."),
    ] = "linear",
    seed: Seed = 1,
) -> None:
    """Merge the models of clients that do not share data, and show the gain or loss of each client."""
    from fedrank.experiments.report.model_output import about_merged
    from fedrank.experiments.runner.cards import merged_card
    from fedrank.trees.merge_files import merge_models

    print_sections(about_merged(merge_models(models, on, method, out, seed, tell=print_note)))
    merged_card(out, len(models)).write(out)


@dataclass(frozen=True)
class GrowOptions:
    """Further options of `trees grow`."""

    min_data_in_leaf: Positive = 20  # minimum number of rows per leaf
    bins: Annotated[int, at_least(2), at_most(256)] = 255  # maximum per feature; fewer bins make smaller messages
    edges: Path | None = None  # file with the bin edges; default: a fixed grid for all numbers
    test: list[Path] | None = None  # LETOR file for testing; may be repeated
    vote: Votes = 0  # number of features per leaf that each organisation votes for; twice as many are sent; 0: all
    seed: int = 1  # random seed
    quiet: bool = False  # do not print progress


@trees_app.command(
    "grow",
    epilog="Examples:  fedrank trees grow --silo a.txt --silo b.txt --trees 300 --out forest  ·  fedrank trees grow "
    "--silo a.txt --silo b.txt --validation va.txt --validation vb.txt --secure --out forest",
)
@with_settings
def trees_grow(
    silo: Annotated[list[Path], typer.Option(help="LETOR file of one organisation; repeat it for each organisation.")],
    out: Annotated[Path, typer.Option(help="Folder for the forest; an unfinished forest in it continues.")],
    trees: Annotated[int, typer.Option(min=1, max=100_000, help="Maximum number of trees.")] = 300,
    leaves: Annotated[int, typer.Option(min=2, max=100_000, help="Maximum number of leaves per tree.")] = 64,
    rate: Annotated[float, typer.Option(help="Learning rate.")] = 0.05,
    validation: Annotated[
        list[Path] | None, typer.Option(help="LETOR file for early stopping; one per organisation, in order.")
    ] = None,
    secure: Annotated[
        bool, typer.Option(help="Use secure aggregation: the server sees only sums of histograms.")
    ] = False,
    config: Config = None,
    *,
    more: GrowOptions,
) -> None:
    """Grow one forest on the data of several organisations: the forest that pooled data gives.

    Growing alone gives no privacy guarantee.
    """
    from fedrank.experiments.report.model_output import about_grown
    from fedrank.experiments.runner.cards import grown_card
    from fedrank.trees.boosters import Grower
    from fedrank.trees.growing_files import grow_files

    rules = Grower(trees, leaves, rate, more.min_data_in_leaf, bins=more.bins)

    def tell(grown: int, quality: float) -> None:
        if grown % 10 == 0 and not more.quiet:
            print_note(f"{grown:,} of {trees:,} trees" + ("" if quality != quality else f", nDCG@10 {quality:.4f}"))

    made = grow_files(
        silo,
        out,
        rules,
        validation or (),
        more.test or (),
        more.edges,
        secure,
        more.seed,
        tell,
        lambda folder: grown_card(folder, len(silo), secure).write(folder),
        more.vote,
    )
    print_sections(about_grown(made))
