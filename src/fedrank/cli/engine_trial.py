"""`fedrank engine trial`: compare two models on the queries of an engine, decide early, adopt or roll back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedrank.cli.config import Config
from fedrank.cli.shared import (
    MAX_COUNT,
    AsJson,
    Picture,
    new_console,
    print_json,
    print_line,
    print_note,
    print_sections,
)

if TYPE_CHECKING:
    from rich.console import Console

    from fedrank.engine.adoption import InUse
    from fedrank.engine.trial import Count, EngineTrial
    from fedrank.engine.trial_decision import Judgement

trial_app = typer.Typer(
    help="Compare two models on live queries of your engine (interleaving); clicks decide which one is used.",
    no_args_is_help=True,
)
TrialFolder = Annotated[Path, typer.Argument(metavar="TRIAL", help="Folder of the trial.")]
Who = Annotated[str | None, typer.Option(help="Your name, for the record. Default: your user name.")]


@trial_app.command(
    "plan",
    epilog="Examples:  fedrank engine trial plan model.json --against engine --to opensearch --index products --out "
    "trials/spring  ·  fedrank engine trial plan new.json --against old.json --to own --wins 0.55 --out trials/summer",
)
def trial_plan(
    model: Annotated[Path, typer.Argument(help="New model: model.json, or folder of a finished run.")],
    against: Annotated[str, typer.Option(help="Model in use, or engine for the order of the engine.")],
    to: Annotated[str, typer.Option(help="Software that interleaves the lists: opensearch, solr or own.")],
    out: Annotated[Path, typer.Option(help="Folder for the trial.")],
    wins: Annotated[
        float, typer.Option(help="Share of decided queries that a useful model wins; a smaller share takes longer.")
    ] = 0.6,
    level: Annotated[
        float, typer.Option(help="Significance level: probability to adopt a model that is not better.")
    ] = 0.05,
    per_client: Annotated[
        int,
        typer.Option(
            max=MAX_COUNT,
            hidden=True,
            help="Maximum number of decided queries per client; more than 1 is valid only if they are independent.",
        ),
    ] = 1,
    liars: Annotated[
        int,
        typer.Option(
            max=MAX_COUNT,
            hidden=True,
            help="Minimum number of dishonest clients to tolerate: adoption must hold without the clients that favour "
            "it most, at least this many and 5 % of all. 0: all clients are trusted.",
        ),
    ] = 1,
    wait: Annotated[float, typer.Option(hidden=True, help="Minutes to wait for clicks on a list.")] = 30.0,
    positions: Annotated[int, typer.Option(min=1, max=1_000, hidden=True, help="Number of positions per list.")] = 10,
    index: Annotated[str, typer.Option(help="Index or collection of the engine.")] = "",
    url: Annotated[str, typer.Option(help="Address of the engine. Default: this machine.")] = "",
    feature_set: Annotated[
        str, typer.Option(hidden=True, help="Feature set, or store, of the models in the engine.")
    ] = "engine-1",
    query: Annotated[
        Path | None,
        typer.Option(hidden=True, help="Query body for OpenSearch, with %SearchText% in place of the query text."),
    ] = None,
    current: Annotated[
        Path | None,
        typer.Option(hidden=True, help="File that names the model in use. Default: current.json beside TRIAL."),
    ] = None,
    key: Annotated[
        str,
        typer.Option(hidden=True, help="Key of the random draws, for reproducible simulations. Default: a new key."),
    ] = "",
    because: Annotated[str, typer.Option(hidden=True, help="Reason, for the record.")] = "",
    who: Annotated[
        str | None, typer.Option(hidden=True, help="Your name, for the record. Default: your user name.")
    ] = None,
    config: Config = None,
) -> None:
    """Plan a trial: write its record and the files for the engine, and compute the number of queries."""
    from fedrank.engine.start_trial import EngineAddress, plan_trial
    from fedrank.engine.trial_decision import TrialRules
    from fedrank.engine.trial_summary import about_plan

    rules = TrialRules.for_wins(wins, level, per_client=per_client, liars=liars, wait=60 * wait)
    engine = EngineAddress(url, index, feature_set, query)
    planned = plan_trial(model, against, to, out, rules, engine, positions, who, because, current, key)
    console = new_console()
    print_sections(about_plan(planned.plan, planned.needed), console)
    print_line(console, f"Record: {planned.record}")
    for file in planned.files:
        print_line(console, f"For your engine: {file}")
    print_line(console, f"Then: fedrank engine trial read {out} EVENTS")


@trial_app.command(
    "read",
    epilog="Examples:  fedrank engine trial read trials/spring searches.jsonl clicks.jsonl  ·  fedrank engine trial "
    "read trials/spring answers.jsonl ubi_events.ndjson --old-id 9c858901 --new-id 1b4e28ba",
)
def trial_read(
    trial: TrialFolder,
    events: Annotated[
        list[Path],
        typer.Argument(help="Logged queries and clicks: UBI, JSONL, or responses of the engine."),
    ],
    old_id: Annotated[str | None, typer.Option(help="Id of the old model in OpenSearch.")] = None,
    new_id: Annotated[str | None, typer.Option(help="Id of the new model in OpenSearch.")] = None,
    complete: Annotated[bool, typer.Option("--complete", help="Do not wait for more clicks on these queries.")] = False,
) -> None:
    """Read shown lists and clicks into a trial. Every row is checked; a file that is read twice counts once."""
    from fedrank.engine.trial import EngineTrial
    from fedrank.engine.trial_summary import about_reading

    labels = {label: side for label, side in ((old_id, "old"), (new_id, "new")) if label is not None}
    folder = EngineTrial(trial)
    brought = folder.read(events, labels, complete)
    console = new_console()
    print_sections(about_reading(brought), console)
    judgement = folder.judged()
    print_line(
        console, f"So far: {judgement.because} ({judgement.ruling}). Details: fedrank engine trial decide {trial}"
    )


@trial_app.command("decide", epilog="Example:  fedrank engine trial decide trials/spring --out evidence.png")
def trial_decide(trial: TrialFolder, out: Picture = None, who: Who = None) -> None:
    """Decide from the clicks: adopt, refuse or continue. You may ask at any time; a decision is recorded."""
    from fedrank.engine.adoption import decide
    from fedrank.engine.trial import EngineTrial

    folder = EngineTrial(trial)
    count = folder.count()
    judgement = folder.judged(count)
    decide(folder, count, judgement, who)
    console = new_console()
    _print_trial(folder, count, judgement, console, out)
    if judgement.ruling == "adopt":
        print_line(console, f"Use the new model: fedrank engine trial adopt {trial}")
    elif judgement.ruling == "refuse":
        print_line(
            console, f"Return to the old order: fedrank engine trial rollback {trial} --because '{judgement.because}'"
        )
    else:
        print_line(console, f"Continue: fedrank engine trial read {trial} EVENTS")


@trial_app.command("show", epilog="Example:  fedrank engine trial show trials/spring")
def trial_show(trial: TrialFolder, out: Picture = None, as_json: AsJson = False) -> None:
    """Show the state of a trial, its evidence and its history, without changes."""
    from fedrank.engine.trial import EngineTrial

    folder = EngineTrial(trial)
    count = folder.count()
    judgement = folder.judged(count)
    if as_json:
        counts = vars(count) | {"earlier": len(count.earlier)}
        facts = {"trial": folder.plan.id, "ruling": judgement.ruling, "because": judgement.because, "count": counts}
        print_json(facts)
        return
    _print_trial(folder, count, judgement, new_console(), out)


@trial_app.command(
    "adopt",
    epilog="Examples:  fedrank engine trial adopt trials/spring  ·  fedrank engine trial adopt trials/spring "
    "--anyway --because 'the license of the old model has expired'",
)
def trial_adopt(
    trial: TrialFolder,
    because: Annotated[str, typer.Option(help="Reason, for the record. Default: the decision.")] = "",
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Adopt without a decision for the new model; needs --because.")
    ] = False,
    who: Who = None,
) -> None:
    """Adopt the new model if the trial decided for it, and record the adoption."""
    from fedrank.engine.adoption import adopt
    from fedrank.engine.trial import EngineTrial
    from fedrank.engine.trial_requests import ADOPT

    folder = EngineTrial(trial)
    _print_model_in_use(folder, adopt(folder, who, because, anyway), ADOPT)


@trial_app.command(
    "rollback", epilog="Example:  fedrank engine trial rollback trials/spring --because 'customers find no spare parts'"
)
def trial_rollback(
    trial: TrialFolder,
    because: Annotated[str, typer.Option(help="Reason, for the record.")],
    who: Who = None,
) -> None:
    """Return to the old model, or end a running trial, and record it."""
    from fedrank.engine.adoption import roll_back
    from fedrank.engine.trial import EngineTrial
    from fedrank.engine.trial_requests import ROLL_BACK

    folder = EngineTrial(trial)
    _print_model_in_use(folder, roll_back(folder, because, who), ROLL_BACK)


def _print_trial(trial: EngineTrial, count: Count, judgement: Judgement, console: Console, out: Path | None) -> None:
    from fedrank.engine.trial_summary import about_trial

    print_sections(about_trial(trial, count, judgement), console)
    if out is not None:
        from fedrank.experiments.report.trial_figures import draw_trial

        title = f"{trial.plan.id}: {judgement.because}"
        draw_trial(judgement.evidence, trial.plan.rules.gate, title, out)
        print_line(console, f"Picture: {out}")


def _print_model_in_use(trial: EngineTrial, put: InUse, script: str) -> None:
    from fedrank.engine.trial_requests import commands_of

    console = new_console()
    print_line(console, f"In use: {put.name or 'the engine'} ({put.path or 'order of the engine'})")
    print_line(console, f"Record: {trial.current}, and history.json in {trial.folder}")
    if command := commands_of(trial.folder, script):
        print_line(console, f"Run this for your engine: {command}")
    else:
        print_note("your service reads from that file which model is in use")
