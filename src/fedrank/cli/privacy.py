"""`fedrank privacy`: show, plan, audit, impact and ledger."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedrank.cli.shared import (
    AnswerFile,
    AsJson,
    Changes,
    Quiet,
    RunsFolder,
    Spec,
    Trust,
    Variants,
    print_file,
    print_json,
    print_line,
    print_note,
    print_result,
    print_sections,
    progress,
)

SIMULATED = "is valid only in a simulation"  # in a reason of `fedrank deploy`

if TYPE_CHECKING:
    from fedrank.experiments.report.sections import Section
    from fedrank.experiments.spec.grid import Grid

privacy_app = typer.Typer(no_args_is_help=True)


@privacy_app.command(
    epilog="Examples:  fedrank privacy show my.toml  ·  fedrank privacy show thesis/fig-3-6 --target 2 --target 8  ·  "
    "fedrank privacy show my.toml --set mechanism.noise=20 --out privacy.md"
)
def show(
    spec: Spec,
    set_: Changes = None,
    target: Annotated[
        list[float] | None,
        typer.Option(help="Privacy budget ε to compute the noise for; may be repeated. Default: 1, 2, 4 and 8."),
    ] = None,
    variant: Variants = None,
    out: AnswerFile = None,
    runs: RunsFolder = Path("runs"),
    trust: Trust = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Show, before a run, its privacy budget, what each party sees, and the noise that a target ε needs."""
    from fedrank.experiments.report.privacy_output import about_privacy
    from fedrank.experiments.report.write import answer_files, write_answer
    from fedrank.experiments.runner.disclosures import as_facts
    from fedrank.experiments.runner.privacy import TARGETS
    from fedrank.experiments.spec.source import read_spec

    for value in target or []:
        if not value > 0:
            raise ValueError(f"--target must be positive (got {value:g})")
    files = answer_files(out, "privacy")
    grid = read_spec(spec, set_ or [], trust=trust).only(variant or [])
    if as_json:
        if files:
            raise ValueError("--json prints what --out writes; remove one of them")
        print_json(as_facts(grid, target or TARGETS, runs) | _between_sites(grid))
        return
    with progress(quiet) as tell:
        sections = about_privacy(grid, target or TARGETS, tell, runs) + _about_sites(grid)
    print_sections(sections)
    write_answer(files, sections, lambda: as_facts(grid, target or TARGETS, runs) | _between_sites(grid))
    for file in files:
        print_line(f"Written: {file}")


@privacy_app.command(
    epilog="Examples:  fedrank privacy plan my.toml --epsilon 1  ·  fedrank privacy plan hospitals --variant "
    "trusted-server --epsilon 1 --out planned.toml"
)
def plan(
    spec: Spec,
    epsilon: Annotated[float, typer.Option(help="Privacy budget ε of each person, for one run.")],
    set_: Changes = None,
    variant: Variants = None,
    out: Annotated[Path | None, typer.Option(help="Spec to write; an existing file is not replaced.")] = None,
    trust: Trust = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Propose rounds, server rate, clip and noise for a target ε, from simulation on generated data; or advise against.

    Only the sizes of the spec are used. Its data are not read, so a plan costs no privacy.
    """
    from fedrank.experiments.report.privacy_output import about_plan
    from fedrank.experiments.runner.privacy_plan import as_facts, plan_privacy, planned_toml
    from fedrank.experiments.spec.source import read_experiment
    from fedrank.files import writing

    if out is not None and out.suffix != ".toml":
        raise ValueError(f"--out must end in .toml (got {out}); the plan is a spec")
    if out is not None and out.exists():
        raise FileExistsError(f"{out} exists and is not replaced; choose another name")
    grid = read_experiment(spec, set_ or [], trust=trust).only(variant or [])
    if len(grid.variants) != 1:
        names = ", ".join(grid.names)
        raise ValueError(
            f"a plan is for one variant, and {spec} has {len(grid.names)}; use --variant with one of {names}"
        )
    with progress(quiet or as_json) as tell:
        made = plan_privacy(grid.variants[0].experiment, epsilon, tell)
    print_result(as_json, lambda: as_facts(made), lambda: about_plan(made))
    if out is None:
        return
    if not made.worthwhile:
        print_note(f"{out} was not written, because the plan is not to train")
        return
    with writing(out, replace=False) as file:
        file.write(planned_toml(made).encode())
    print_file("Written", out, as_json)


@privacy_app.command(
    epilog="Examples:  fedrank privacy audit my.toml  ·  fedrank privacy audit quickstart --variant federated --out "
    "audit.md  ·  fedrank privacy audit my.toml --set mechanism.noise=1 --out audit.json"
)
def audit(
    spec: Spec,
    set_: Changes = None,
    variant: Variants = None,
    messages: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=10_000_000,
            help="Number of messages to attack, however long it takes. Default: two minutes in all.",
        ),
    ] = None,
    out: AnswerFile = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Attack the messages of clients, silos or tree growers, and compare what leaks with the guarantee."""
    from fedrank.experiments.report.privacy_output import about_audit
    from fedrank.experiments.report.write import answer_files, write_answer
    from fedrank.experiments.runner.audit import as_facts, audit_experiment
    from fedrank.experiments.spec.source import read_spec

    files = answer_files(out, "audit")
    if as_json and files:
        raise ValueError("--json prints what --out writes; remove one of them")
    grid = read_spec(spec, set_ or []).only(variant or [])
    with progress(quiet or as_json) as tell:
        findings = audit_experiment(grid, messages=messages, progress=tell)
    if as_json:
        print_json(as_facts(findings, grid) | _between_sites(grid))
        return
    sections = about_audit(findings, grid) + _about_sites(grid)
    print_sections(sections)
    write_answer(files, sections, lambda: as_facts(findings, grid) | _between_sites(grid))
    for file in files:
        print_line(f"Written: {file}")


def _between_sites(grid: Grid[Any]) -> dict[str, dict[str, list[str]]]:
    """By variant, why it cannot run between sites: the reasons of `fedrank deploy`."""
    from fedrank.deploy.plan import problems_between_sites

    found = {each.name: problems_between_sites(each.experiment) for each in grid.variants}
    return {"refused_between_sites": {name: lines for name, lines in found.items() if lines}}


def _about_sites(grid: Grid[Any]) -> list[Section]:
    """The same as a section; none if every variant can run."""
    from fedrank.experiments.report.sections import Section, paragraph

    names: dict[str, list[str]] = {}  # by reasons
    for name, lines in _between_sites(grid)["refused_between_sites"].items():
        simulated = [line.partition(":")[0] for line in lines if SIMULATED in line]
        why = [line for line in lines if SIMULATED not in line]
        if simulated:
            why.insert(0, f"{', '.join(simulated)} can only be simulated")
        names.setdefault("; ".join(why), []).append(name)
    parts = []
    for why_, variants in names.items():
        which = "this spec" if len(variants) == len(grid.variants) else ", ".join(variants)
        parts.append(paragraph(f"Between sites, `fedrank deploy` refuses {which}: {why_}.", tone="quiet"))
    return [Section("", tuple(parts))] if parts else []


@privacy_app.command(
    epilog="Examples:  fedrank privacy impact my.toml --out dpia.md  ·  fedrank privacy impact runs/my --out dpia.md"
)
def impact(
    source: Annotated[str, typer.Argument(metavar="SPEC_OR_RUNS", help="Spec, or folder of finished runs.")],
    out: Annotated[Path, typer.Option(help="Markdown file to write; an existing file is not replaced.")],
    runs: RunsFolder = Path("runs"),
    trust: Trust = False,
) -> None:
    """Write a draft of a data protection impact assessment; what you must complete is marked."""
    from fedrank.experiments.report.impact import TO_FILL_IN, read_assessed
    from fedrank.experiments.report.impact import impact as assess
    from fedrank.experiments.report.markdown import markdown
    from fedrank.files import writing

    if out.suffix.lower() != ".md":
        raise ValueError(f"--out must end in .md (got {out}); the assessment is Markdown")
    if out.exists():
        raise FileExistsError(f"{out} exists and is not replaced; choose another name")
    text = markdown(assess(read_assessed(source, trust), runs))
    with writing(out, replace=False) as file:
        file.write(text.encode())
    marks = text.count(TO_FILL_IN.strip())
    print_line(f"Written: {out}; {marks:,} entries to complete are marked {TO_FILL_IN.strip(': ')}")


@privacy_app.command(
    epilog="Examples:  fedrank privacy ledger runs  ·  fedrank privacy ledger runs/populations/town  ·  "
    "fedrank privacy ledger clinic-a --upgrade  ·  "
    "fedrank privacy ledger runs/my/only/fold-1-seed-1 --forget --because 'generated people'",
)
def ledger(
    folders: Annotated[
        list[Path],
        typer.Argument(help="Folders with ledgers: runs, or a population such as runs/populations/town."),
    ],
    upgrade: Annotated[
        bool,
        typer.Option("--upgrade", help="Write the journal of sites from an earlier version, once, so they can send."),
    ] = False,
    forget: Annotated[
        bool,
        typer.Option(
            "--forget", help="Delete the ledgers, so their budget no longer counts. The totals stay recorded."
        ),
    ] = False,
    because: Annotated[str | None, typer.Option(help="With --forget: reason; it is recorded with the totals.")] = None,
    words: Annotated[
        str | None, typer.Option(help="With --forget: the sentence that confirms it, instead of the question.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show each ledger, and the total budget if all of them belong to the same people. Ledgers outlive their runs."""
    from fedrank.experiments.report.privacy_output import about_ledgers

    if (because is None) == forget or (words is not None and not forget) or (forget and upgrade):
        raise ValueError("--forget needs --because REASON, and excludes --upgrade; --because and --words need --forget")
    if upgrade:
        from fedrank.deploy.heads import upgrade as write_journal

        for folder in folders:
            print_line(f"The journal of {folder} has {write_journal(folder):,} entries")
        return
    if because is not None:
        if len(folders) != 1:
            raise ValueError(f"--forget deletes the ledgers of one folder (got {len(folders)})")
        _forget_ledgers(folders[0], because, words)
        return
    for folder in folders:
        if not folder.is_dir():
            raise FileNotFoundError(f"no folder {folder}; give a folder of runs, or of a population")
    sections = about_ledgers(folders)  # in any case, because it checks the ledgers
    print_result(as_json, lambda: _ledger_facts(folders), lambda: sections)


def _ledger_facts(folders: list[Path]) -> list[dict[str, object]]:
    from fedrank.privacy.population import Account, ledgers_below, spent_together

    found: list[dict[str, object]] = []
    for ledger in (ledger for folder in folders for ledger in ledgers_below(folder)):
        account = Account.read(ledger)
        if account is not None:
            found.append(
                {
                    "ledger": ledger,
                    "people": account.terms.people,
                    "rounds": account.rounds,
                    "most_participations": int(account.participations.max(initial=0)),
                    "delta": account.terms.delta,
                    "epsilon": spent_together([account], account.terms.delta),
                }
            )
    return found


@privacy_app.command(
    "filter",
    epilog="Examples:  fedrank privacy filter filter.toml  ·  fedrank privacy filter filter.toml --kit site-1",
)
def filter_updates(
    settings: Annotated[Path, typer.Argument(help="Settings: unit, shapes, clip, epsilon, rounds, sites, people.")],
    kit: Annotated[Path | None, typer.Option(help="Kit of an NVFLARE site, in whose policy the filter is put.")] = None,
    anyway: Annotated[
        bool,
        typer.Option(
            "--anyway", help="Install it even if noise leaves almost nothing, or data can leave beside results."
        ),
    ] = False,
) -> None:
    """A privacy filter for NVFLARE jobs: show what it promises and leaves of an update, and install it."""
    from fedrank.privacy.updates import UpdatePrivacy

    found = UpdatePrivacy.read(settings)
    for line in found.about():
        print_line(line)
    if kit is None:
        return
    if not anyway:
        found.check_useful()
    from fedrank.deploy.flare_filter import install

    print_file("Written", install(settings, kit, anyway), False)


def _forget_ledgers(folder: Path, because: str, words: str | None) -> None:
    from fedrank.privacy.population import FORGOTTEN, Account, forget_ledgers, ledgers_below, totals

    ledgers = ledgers_below(folder)
    if not ledgers:
        raise FileNotFoundError(f"no ledger in {folder} or its subfolders; nothing was deleted")
    found = totals([account for account in map(Account.read, ledgers) if account is not None])
    sentence = f"forget what {found['people']} people spent"
    if words is None:
        words = typer.prompt(
            f"{found['participations']:,} participations of {found['people']:,} people in {folder} will no longer "
            f"count. Type '{sentence}' to continue"
        )
    if words.strip() != sentence:
        raise ValueError(f"the sentence must be {sentence!r} (got {words!r}); nothing was deleted")
    record = forget_ledgers(folder, because)
    print_line(f"Deleted {len(record['ledgers'])} ledgers; {folder / FORGOTTEN} records which, when and why")
