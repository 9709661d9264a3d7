"""`fedrank estimate` and `fedrank logs propensities`: what clicks of a log say, apart from where things stood."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedrank.cli.logs import logs_app
from fedrank.cli.shared import FAILED, Client, ModelFile, new_console, print_line, print_note, print_sections
from fedrank.files import write_atomic

if TYPE_CHECKING:
    from fedrank.ranking.propensity import Bias

LogFolder = Annotated[
    Path, typer.Option("--log", help="Folder of a log of shown lists, as `fedrank logs build` made it.")
]
WhichBias = Annotated[
    str, typer.Option(help="What clicks are corrected for: position, or trust in what stands high, too.")
]


def estimate(
    model: ModelFile,
    log: LogFolder,
    latest: Annotated[
        float | None,
        typer.Option(
            help="Share of the entries that counts, the latest; 0.2 of a log that the model learned from, or 1."
        ),
    ] = None,
    bias: WhichBias = "position",
    propensities: Annotated[
        Path | None, typer.Option(help="File of `fedrank logs propensities`, if not from the log itself.")
    ] = None,
    client: Client = None,
    out: Annotated[Path | None, typer.Option(help="Picture to write, such as estimate.png.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print all numbers as JSON.")] = False,
) -> None:
    """What would users have clicked with this model? With an interval, or why that cannot be told."""
    from fedrank.experiments.report.estimates import about_estimate, draw_estimate
    from fedrank.experiments.runner.estimating import estimate_model
    from fedrank.ranking.estimate import CannotTell

    console = new_console()
    try:
        found = estimate_model(
            model, log, latest=latest, bias=_bias(bias), propensities=propensities, client=client, tell=print_note
        )
    except CannotTell as problem:
        if as_json:
            typer.echo(json.dumps({"cannot": problem.because}))
        else:
            print_line(console, f"What users would have clicked {problem}.")
        raise typer.Exit(FAILED) from None
    if as_json:
        typer.echo(json.dumps(found.as_json(), indent=1))
    else:
        print_sections(about_estimate(found), console)
    if out is not None:
        draw_estimate(found, out)
        if not as_json:
            print_line(console, f"Picture: {out}")


@logs_app.command(
    "propensities",
    epilog="Examples:  fedrank logs propensities mylog  ·  fedrank logs propensities mylog --bias trust --out "
    "propensities.json",
)
def logs_propensities(
    folder: Annotated[Path, typer.Argument(help="Folder of a log of shown lists.")],
    bias: WhichBias = "position",
    out: Annotated[
        Path | None, typer.Option(help="File for the numbers, .json; data.propensities of a spec takes it.")
    ] = None,
) -> None:
    """Estimate how often each position is looked at, from documents that changed positions.

    Where a log cannot tell, the command says what an experiment would cost.
    """
    from fedrank.data.logs import load_log
    from fedrank.experiments.report.estimates import about_positions
    from fedrank.experiments.runner.position_bias import positions_of_log, shown_results
    from fedrank.ranking.propensity import NotIdentifiable

    console, log = new_console(), load_log(folder)
    try:
        by = positions_of_log(log, _bias(bias))
    except NotIdentifiable as problem:
        text = str(problem)
        print_line(console, f"{text[0].upper()}{text[1:]}.")
        raise typer.Exit(FAILED) from None
    print_sections(about_positions(by, shown_results(log)), console)
    if out is not None:
        write_atomic(out, json.dumps(by.as_json(), indent=1) + "\n")
        print_line(console, f"Propensities: {out}")


def _bias(name: str) -> Bias:
    from fedrank.ranking.propensity import BIASES

    for one in BIASES:
        if one == name:
            return one
    raise ValueError(f"--bias {name!r} corrects nothing; use {' or '.join(BIASES)}")
