"""`fedrank trial`: two models on the same searches of an engine, an early decision, and one command back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedrank.cli.shared import LARGEST, new_console, print_line, print_note, print_sections

if TYPE_CHECKING:
    from rich.console import Console

    from fedrank.engine.adoption import InUse
    from fedrank.engine.trial import Count, EngineTrial
    from fedrank.engine.trial_decision import Judgement

trial_app = typer.Typer(
    help="Let two models answer the same searches of your engine, and let clicks decide which one stays.",
    no_args_is_help=True,
)
TrialFolder = Annotated[Path, typer.Argument(metavar="TRIAL", help="Folder of a trial.")]
ClientSummary = Annotated[
    str | None, typer.Option(help="Who does this, for the record; your name on this machine if not given.")
]
Picture = Annotated[Path | None, typer.Option(help="Picture of the evidence: .png, .svg or .pdf.")]


@trial_app.command(
    "plan",
    epilog="Examples:  fedrank trial plan model.json --against engine --to opensearch --index products --out "
    "trials/spring  ·  fedrank trial plan new.json --against old.json --to own --wins 0.55 --out trials/summer",
)
def trial_plan(
    model: Annotated[Path, typer.Argument(help="The new model: model.json, or the folder of a finished run.")],
    against: Annotated[str, typer.Option(help="The model in use; engine: the engine's own order.")],
    to: Annotated[str, typer.Option(help="What mixes the lists: opensearch, solr or own.")],
    out: Annotated[Path, typer.Option(help="Folder for the trial.")],
    wins: Annotated[
        float, typer.Option(help="Share of decided searches that a model worth having wins; smaller takes longer.")
    ] = 0.6,
    level: Annotated[float, typer.Option(help="Largest probability that a model is adopted that is no better.")] = 0.05,
    per_client: Annotated[int, typer.Option(max=LARGEST, help="Decided searches that one client counts at most.")] = 5,
    liars: Annotated[
        int, typer.Option(max=LARGEST, help="Clients without whom adoption must hold: those who did most for it.")
    ] = 1,
    wait: Annotated[float, typer.Option(help="Minutes for which clicks on a list are waited for.")] = 30.0,
    positions: Annotated[int, typer.Option(min=1, max=1_000, help="Places of a list.")] = 10,
    index: Annotated[str, typer.Option(help="Index or collection that people search.")] = "",
    url: Annotated[str, typer.Option(help="Where the engine is; this machine if not given.")] = "",
    feature_set: Annotated[str, typer.Option(help="Feature set, or store, of the models in the engine.")] = "engine-1",
    query: Annotated[
        Path | None, typer.Option(help="Your search body for OpenSearch, with %SearchText% for what is searched.")
    ] = None,
    current: Annotated[
        Path | None, typer.Option(help="File that says which model is in use; current.json beside TRIAL if not given.")
    ] = None,
    key: Annotated[
        str, typer.Option(help="Of the coin, for simulations that can be repeated; a new one if not given.")
    ] = "",
    because: Annotated[str, typer.Option(help="Why, for the record.")] = "",
    who: ClientSummary = None,
) -> None:
    """Begin a trial: the record of what is compared, what the engine needs, and how many searches it takes."""
    from fedrank.engine.start_trial import EngineAddress, plan_trial
    from fedrank.engine.trial_decision import TrialRules
    from fedrank.engine.trial_summary import about_plan

    rules = TrialRules.for_wins(wins, level, per_client=per_client, liars=liars, wait=60 * wait)
    engine = EngineAddress(url, index, feature_set, query)
    planned = plan_trial(model, against, to, out, rules, engine, positions, who, because, current, key)
    console = new_console()
    print_sections(about_plan(planned.plan, planned.needed), console)
    print_line(console, f"The record: {planned.record}")
    for file in planned.files:
        print_line(console, f"For your engine: {file}")
    print_line(console, f"Then: fedrank trial read {out} EVENTS")


@trial_app.command(
    "read",
    epilog="Examples:  fedrank trial read trials/spring searches.jsonl clicks.jsonl  ·  fedrank trial read "
    "trials/spring answers.jsonl ubi_events.ndjson --old-id 9c858901 --new-id 1b4e28ba",
)
def trial_read(
    trial: TrialFolder,
    events: Annotated[
        list[Path],
        typer.Argument(help="Searches as your server logged them, and clicks: UBI, JSONL, engine's answers."),
    ],
    old_id: Annotated[str | None, typer.Option(help="Which of OpenSearch's ids is the old model's.")] = None,
    new_id: Annotated[str | None, typer.Option(help="Which is the new model's.")] = None,
    complete: Annotated[
        bool, typer.Option("--complete", help="No more clicks will come for what was read: wait for none.")
    ] = False,
) -> None:
    """Read what was shown and clicked. The same file twice counts once, and nothing in it is believed unchecked."""
    from fedrank.engine.trial import EngineTrial
    from fedrank.engine.trial_summary import about_reading

    labels = {label: side for label, side in ((old_id, "old"), (new_id, "new")) if label is not None}
    folder = EngineTrial(trial)
    brought = folder.read(events, labels, complete)
    console = new_console()
    print_sections(about_reading(brought), console)
    judgement = folder.judged()
    print_line(console, f"So far: {judgement.because} ({judgement.ruling}). More: fedrank trial decide {trial}")


@trial_app.command("decide", epilog="Example:  fedrank trial decide trials/spring --picture evidence.png")
def trial_decide(trial: TrialFolder, picture: Picture = None, who: ClientSummary = None) -> None:
    """What do the clicks say: adopt, refuse, or go on? May be asked at any time; a ruling is written down."""
    from fedrank.engine.adoption import decide
    from fedrank.engine.trial import EngineTrial

    folder = EngineTrial(trial)
    count = folder.count()
    judgement = folder.judged(count)
    decide(folder, count, judgement, who)
    console = new_console()
    _tell(folder, count, judgement, console, picture)
    if judgement.ruling == "adopt":
        print_line(console, f"Put it in use: fedrank trial adopt {trial}")
    elif judgement.ruling == "refuse":
        print_line(console, f"Show the old order again: fedrank trial rollback {trial} --because '{judgement.because}'")
    else:
        print_line(console, f"Go on: fedrank trial read {trial} EVENTS")


@trial_app.command("show", epilog="Example:  fedrank trial show trials/spring")
def trial_show(trial: TrialFolder, picture: Picture = None) -> None:
    """How a trial stands, what that rests on, and who did what; changes nothing."""
    from fedrank.engine.trial import EngineTrial

    folder = EngineTrial(trial)
    count = folder.count()
    _tell(folder, count, folder.judged(count), new_console(), picture)


@trial_app.command(
    "adopt",
    epilog="Examples:  fedrank trial adopt trials/spring  ·  fedrank trial adopt trials/spring --anyway --because "
    "'the old one is not licensed any more'",
)
def trial_adopt(
    trial: TrialFolder,
    because: Annotated[str, typer.Option(help="Why, for the record; what the clicks say if not given.")] = "",
    anyway: Annotated[bool, typer.Option("--anyway", help="Without a decision for it; needs --because.")] = False,
    who: ClientSummary = None,
) -> None:
    """Put the new model in use, if the trial says so, and leave a record."""
    from fedrank.engine.adoption import adopt
    from fedrank.engine.trial import EngineTrial
    from fedrank.engine.trial_requests import ADOPT

    folder = EngineTrial(trial)
    _tell_put(folder, adopt(folder, who, because, anyway), ADOPT)


@trial_app.command(
    "rollback", epilog="Example:  fedrank trial rollback trials/spring --because 'customers find no spare parts'"
)
def trial_rollback(
    trial: TrialFolder,
    because: Annotated[str, typer.Option(help="Why, for the record.")],
    who: ClientSummary = None,
) -> None:
    """Put the old model back in use, or end a trial that goes on; at any time, and with a record."""
    from fedrank.engine.adoption import roll_back
    from fedrank.engine.trial import EngineTrial
    from fedrank.engine.trial_requests import ROLL_BACK

    folder = EngineTrial(trial)
    _tell_put(folder, roll_back(folder, because, who), ROLL_BACK)


def _tell(trial: EngineTrial, count: Count, judgement: Judgement, console: Console, picture: Path | None) -> None:
    from fedrank.engine.trial_summary import about_trial

    print_sections(about_trial(trial, count, judgement), console)
    if picture is not None:
        from fedrank.experiments.report.trial_figures import draw_trial

        title = f"{trial.plan.id}: {judgement.because}"
        draw_trial(judgement.evidence, trial.plan.rules.gate, title, picture)
        print_line(console, f"Picture: {picture}")


def _tell_put(trial: EngineTrial, put: InUse, script: str) -> None:
    from fedrank.engine.trial_requests import commands_of

    console = new_console()
    print_line(console, f"In use: {put.name or 'the engine'} ({put.path or 'its own order'})")
    print_line(console, f"The record: {trial.current}, and history.json in {trial.folder}")
    if command := commands_of(trial.folder, script):
        print_line(console, f"Tell your engine: {command}")
    else:
        print_note("your service reads which model is in use from that file")
