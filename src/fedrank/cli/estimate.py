"""`fedrank estimate` and `fedrank logs places`: what clicks of a log say, apart from where things stood."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedrank.cli.logs import logs_app
from fedrank.cli.shared import FAILED, Client, ModelFile, answer, new_console, note, say
from fedrank.files import write_whole

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
        Path | None, typer.Option(help="File of `fedrank logs places`, if not from the log itself.")
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
            model, log, latest=latest, bias=_bias(bias), propensities=propensities, client=client, tell=note
        )
    except CannotTell as problem:
        if as_json:
            typer.echo(json.dumps({"cannot": problem.because}))
        else:
            say(console, f"What users would have clicked {problem}.")
        raise typer.Exit(FAILED) from None
    if as_json:
        typer.echo(json.dumps(found.as_json(), indent=1))
    else:
        answer(about_estimate(found), console)
    if out is not None:
        draw_estimate(found, out)
        if not as_json:
            say(console, f"Picture: {out}")


@logs_app.command(
    "places",
    epilog="Examples:  fedrank logs places mylog  ·  fedrank logs places mylog --bias trust --out places.json",
)
def logs_places(
    folder: Annotated[Path, typer.Argument(help="Folder of a log of shown lists.")],
    bias: WhichBias = "position",
    out: Annotated[
        Path | None, typer.Option(help="File for the numbers, .json; data.propensities of a spec takes it.")
    ] = None,
) -> None:
    """How often is each place looked at? From documents that changed places; or what it would cost to find out."""
    from fedrank.data.logs import load_log
    from fedrank.experiments.report.estimates import about_places
    from fedrank.experiments.runner.position_bias import positions_of_log, shown_results
    from fedrank.ranking.propensity import NotIdentifiable

    console, log = new_console(), load_log(folder)
    try:
        by = positions_of_log(log, _bias(bias))
    except NotIdentifiable as problem:
        text = str(problem)
        say(console, f"{text[0].upper()}{text[1:]}.")
        raise typer.Exit(FAILED) from None
    answer(about_places(by, shown_results(log)), console)
    if out is not None:
        write_whole(out, json.dumps(by.as_json(), indent=1) + "\n")
        say(console, f"Propensities: {out}")


def _bias(name: str) -> Bias:
    from fedrank.ranking.propensity import BIASES

    for one in BIASES:
        if one == name:
            return one
    raise ValueError(f"--bias {name!r} corrects nothing; use {' or '.join(BIASES)}")
