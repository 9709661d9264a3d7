"""`fedrank deploy`: organisations train together, each on its own machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedrank.cli.shared import (
    FAILED,
    MAX_WAIT,
    Changes,
    Name,
    Spec,
    label_of,
    new_console,
    print_failures,
    print_line,
    print_sections,
    progress,
)

if TYPE_CHECKING:
    from fedrank.deploy.data_sources import SiteSplit
    from fedrank.deploy.plan import Plan
    from fedrank.deploy.settings import SiteSettings
    from fedrank.deploy.unlearning import Departure
    from fedrank.experiments.spec.grid import Grid

deploy_app = typer.Typer(
    help="Organisations train together: a coordinator, and sites that keep their data.", no_args_is_help=True
)
folder_app = typer.Typer(
    help="The same through a shared folder, without a server; noise on the client only.", no_args_is_help=True
)
deploy_app.add_typer(folder_app, name="folder")

Home = Annotated[Path, typer.Option(help="Folder of the coordinator, or of the site.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
AsJson = Annotated[bool, typer.Option("--json", help="As JSON, for programs.")]
Because = Annotated[str, typer.Option(help="Why; it goes into the records.")]
Planned = Annotated[
    str, typer.Argument(metavar="SPEC", help="A plan that came here (digits, name or file), or a spec in TOML.")
]
Out = Annotated[Path | None, typer.Option(help="Folder for results; runs in the home if not given.")]
Shared = Annotated[Path, typer.Argument(help="The folder that all share.")]
Fingerprint = Annotated[str, typer.Option(help="What you were told by telephone.")]
RunFolder = Annotated[Path, typer.Argument(help="Folder of a finished run between sites.")]
LeavingSites = Annotated[list[str], typer.Option("--site", help="Who leaves; may be repeated.")]
Method = Annotated[str, typer.Option(help="How: retrain, fed-eraser, fed-remove or fine-tune.")]
MethodChanges = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change one setting of the method; may be repeated."),
]


# Who belongs


@deploy_app.command(epilog="Example:  fedrank deploy init federation.toml --home clinics")
def init(
    federation: Annotated[Path, typer.Argument(help="federation.toml: name, host, port, sites and people.")],
    home: Annotated[Path | None, typer.Option(help="Folder to make; the federation's name if not given.")] = None,
) -> None:
    """Begin a federation: its CA, the coordinator's kit, and an invitation for each site."""
    from fedrank.deploy.flare_kit import init
    from fedrank.deploy.settings import read_federation

    asked = read_federation(federation)
    made = init(home or Path(asked.name), asked, federation.read_text(encoding="utf-8-sig"))
    console = new_console()
    print_line(console, f"Federation {asked.name}: {made.home}")
    print_line(console, "Fingerprint, which sites compare with you by telephone:")
    print_line(console, made.fingerprint, style="bold")
    for path in made.invitations:
        print_line(console, f"Send: {path}")
    print_line(console, "A site answers with `fedrank deploy request INVITATION`.")


@deploy_app.command(epilog="Example:  fedrank deploy invite clinic-d Clinic_D 3 --home clinics")
def invite(
    name: Annotated[str, typer.Argument(help="Name of the new site.")],
    organisation: Annotated[str, typer.Argument(help="Its organisation.")],
    id: Annotated[int, typer.Argument(help="Its id, which nobody else has or had.")],
    home: Home = Path(),
) -> None:
    """Invite one more site."""
    from fedrank.deploy.flare_kit import invite
    from fedrank.deploy.settings import new_entry

    print_line(new_console(), f"Send: {invite(home, new_entry(name, organisation, id))}")


@deploy_app.command(epilog="Example:  fedrank deploy request clinic-a.json --home clinic-a")
def request(
    invitation: Annotated[Path, typer.Argument(help="The invitation that the coordinator sent.")],
    home: Annotated[Path | None, typer.Option(help="Folder to make; the site's name if not given.")] = None,
) -> None:
    """Make this site's keys here, and a request without them."""
    from fedrank.deploy.flare_kit import Invitation, request
    from fedrank.deploy.identity import fingerprint, read_identity

    folder = home or Path(Invitation.read(invitation).name)
    path = request(invitation, folder)
    console = new_console()
    print_line(console, f"Send: {path}")
    print_line(console, "Your fingerprint, which the coordinator and the other sites compare with you by telephone:")
    print_line(console, fingerprint(read_identity(folder).public), style="bold")
    print_line(console, "Keys are in the folder, and stay there.")


@deploy_app.command(epilog="Example:  fedrank deploy approve clinic-a.request.zip --home clinics")
def approve(
    request: Annotated[Path, typer.Argument(help="The request of a site.")], home: Home = Path(), yes: Yes = False
) -> None:
    """Look at a request, compare the fingerprint by telephone, and sign it."""
    from fedrank.deploy.flare_kit import approve, sign

    applicant = approve(request, home)
    console = new_console()
    print_line(console, f"{'Renewal for' if applicant.renewal else 'Site'} {applicant.name}, id {applicant.id}")
    print_line(console, f"Organisation: {applicant.organisation}")
    print_line(console, f"Fingerprint: {applicant.fingerprint}")
    if not yes:
        typer.confirm("Did the site read you this fingerprint by telephone?", abort=True)
    print_line(console, f"Send: {sign(applicant, home)}")
    print_line(console, "The site goes on with `fedrank deploy join`, and your own fingerprint.")


@deploy_app.command(
    epilog="Example:  fedrank deploy join clinic-a.signed.zip --fingerprint SHA256:AB:CD... --home clinic-a"
)
def join(
    signed: Annotated[Path, typer.Argument(help="What the coordinator signed.")],
    fingerprint: Fingerprint,
    home: Home = Path(),
) -> None:
    """Join: the site's folder, for its owner alone, with a site.toml to fill in."""
    from fedrank.deploy.flare_kit import join
    from fedrank.deploy.settings import SITE

    folder = join(signed, home, fingerprint)
    console = new_console()
    print_line(console, f"Joined: {folder}")
    print_line(console, f"Fill in {folder / SITE}, then: fedrank deploy check --home {folder}")


@deploy_app.command(epilog="Example:  fedrank deploy renew --home clinic-a")
def renew(home: Home = Path()) -> None:
    """Renew a certificate: of a site, as a request to be approved and joined; of a coordinator, at once."""
    from fedrank.deploy.flare_kit import renew

    path = renew(home)
    console = new_console()
    if path.is_dir():
        print_line(console, f"Renewed: {path}; a server that runs is started again with it")
    else:
        print_line(console, f"Send: {path}; then join what comes back, as the first time")


@deploy_app.command(epilog='Example:  fedrank deploy expel clinic-c --because "its key was stolen" --home clinics')
def expel(
    name: Annotated[str, typer.Argument(help="The site.")], because: Because, home: Home = Path(), yes: Yes = False
) -> None:
    """Shut a site out. What it sent before stays in models: see `unlearn`."""
    from fedrank.deploy.flare_kit import expel

    if not yes:
        typer.confirm(f"Shut out {name}? It cannot come back under this name.", abort=True)
    member = expel(home, name, because)
    print_line(
        new_console(), f"{member.name} is {member.state}. A server that runs is started again, and lets it in no more."
    )


@deploy_app.command(epilog="Example:  fedrank deploy readmit clinic-c clinics/runs/my/only/fold-1-seed-1")
def readmit(
    site: Annotated[str, typer.Argument(help="The site.")],
    run: Annotated[Path, typer.Argument(help="Folder of the run.")],
) -> None:
    """Ask a site again that was left out of a run after three bad answers. Stop the run first."""
    from fedrank.deploy.make_plans import readmit

    why = readmit(run, site)
    print_line(new_console(), f"{site} is asked again when the run goes on. It had been {why}")


@deploy_app.command(
    epilog='Examples:  fedrank deploy leave --home clinic-a --because "the study ended"  ·  '
    "fedrank deploy leave --site clinic-a --home clinics"
)
def leave(
    home: Home = Path(),
    site: Annotated[str | None, typer.Option(help="At the coordinator: who left.")] = None,
    because: Because = "",
    yes: Yes = False,
) -> None:
    """Leave a federation; or, at the coordinator, note that a site did."""
    console = new_console()
    if site is not None:
        from fedrank.deploy.flare_kit import leave

        if not yes:
            typer.confirm(f"Did {site} say that it leaves? It cannot come back under this name.", abort=True)
        print_line(console, f"{site} has {leave(home, site, because).state}")
        print_line(console, f"To let a model forget it: fedrank deploy unlearn RUN --site {site} --home {home}")
        return
    from fedrank.deploy.consent import leave_site
    from fedrank.deploy.flare_processes import stop_serving

    if not yes:
        typer.confirm("Leave the federation? Nothing is sent from here any more.", abort=True)
    stop_serving(home)
    aside = leave_site(home, because)
    print_line(
        console, f"Left. The kit lies in {aside}; ledger and models stay. Tell the coordinator, who notes it, too"
    )


# What is agreed to


@deploy_app.command(
    epilog="Examples:  fedrank deploy check --home clinic-a  ·  fedrank deploy check my.toml --home clinic-a"
)
def check(
    spec: Annotated[str | None, typer.Argument(metavar="[SPEC]", help="A plan, or a spec in TOML, to fit.")] = None,
    home: Home = Path(),
    json_: AsJson = False,
) -> None:
    """Chain, expiry, clock, host, port, data, features, policy, ledger, disk: a line each, and what to do."""
    from fedrank.deploy.check import about_checks, as_json, check, is_fine

    plan = None if spec is None else _plans(home, spec)[0]
    lines = check(home, plan)
    if json_:
        typer.echo(as_json(lines))
    else:
        print_sections(about_checks(lines), new_console())
    if not is_fine(lines):
        raise typer.Exit(FAILED)


@deploy_app.command(
    epilog="Examples:  fedrank deploy show --home clinic-a  ·  fedrank deploy show 3bbe77746412 --home clinic-a"
)
def show(
    spec: Annotated[str | None, typer.Argument(metavar="[SPEC]", help="A plan that came here, or a spec.")] = None,
    home: Home = Path(),
    json_: AsJson = False,
) -> None:
    """Before anything: what leaves, how many bytes, who sees it, at which ε, what is left, what would be refused."""
    from fedrank.deploy.consent import proposals
    from fedrank.deploy.show import about_plan, as_facts, look_at

    console = new_console()
    if spec is None:
        _site_settings(home)  # refuses a folder that is not a site's
        waiting = proposals(home)
        for plan in waiting:
            print_line(console, f"{plan.digest[:12]}  {plan.name}")
        print_line(console, "Look at one with its digits." if waiting else "No plan waits for this site's word.")
        return
    settings, share = _site(home)
    views = [look_at(home, settings, plan, share) for plan in _plans(home, spec, share)]
    if json_:
        typer.echo(json.dumps([as_facts(view) for view in views], ensure_ascii=False, indent=1))
        return
    for view in views:
        print_sections(about_plan(view), console)
    if not any(view.refused for view in views):
        print_line(console, f"To take part: fedrank deploy accept {spec} --home {home}")


@deploy_app.command(epilog="Example:  fedrank deploy accept 3bbe77746412 --home clinic-a")
def accept(
    spec: Planned,
    home: Home = Path(),
    new_key: Annotated[
        list[str] | None,
        typer.Option(metavar="SITE", help="Whose key changed, and was compared anew; may be repeated."),
    ] = None,
    yes: Yes = False,
) -> None:
    """Take part, after a look at `show`. The keys of partners are pinned: compare them by telephone first."""
    from fedrank.deploy.consent import accept, accept_spec
    from fedrank.deploy.show import look_at

    console = new_console()
    settings, share = _site(home)
    plans = _plans(home, spec, share)
    views = [look_at(home, settings, plan, share) for plan in plans]
    for plan, view in zip(plans, views, strict=True):
        if view.refused:
            raise ValueError("\n".join(["the plan would be refused here, accepted or not:", *view.refused]))
        print_line(
            console, f"Plan {plan.digest[:12]}: {plan.name}, {view.rounds:,} rounds with {len(plan.sites)} sites"
        )
        for one in view.partners:
            if one.fingerprint:
                print_line(console, f"  {one.name}: {one.fingerprint}{'' if one.pinned else '  (not compared yet)'}")
    drafted = _is_spec(spec)
    ask = "Take part?" if drafted else "Did each partner read you its fingerprint by telephone, and do you take part?"
    if not yes:
        typer.confirm(ask, abort=True)
    for plan, view in zip(plans, views, strict=True):
        word = accept_spec(home, plan) if drafted else accept(home, plan, new_key or ())
        print_line(console, f"Accepted: {'spec' if drafted else 'plan'} {word.digest[:12]}")
        if drafted and view.sum is not None:
            print_line(
                console,
                "The plan will bring keys of partners; then `fedrank deploy show`, compare them, accept it, too",
            )


@deploy_app.command(epilog='Example:  fedrank deploy refuse 3bbe77746412 --because "not our question" --home clinic-a')
def refuse(
    run: Planned, because: Annotated[str, typer.Option(help="Why; the coordinator is told.")], home: Home = Path()
) -> None:
    """Take no part in a run, from now on."""
    from fedrank.deploy.consent import refuse, spec_digest

    drafted = _is_spec(run)
    for plan in _plans(home, run):
        word = refuse(home, spec_digest(plan) if drafted else plan.digest, because, plan.name)
        print_line(new_console(), f"Refused: {word.digest[:12]}")


# Work


@deploy_app.command(
    epilog="Examples:  fedrank deploy start --home clinic-a  ·  fedrank deploy start --home clinic-a --unit"
)
def start(
    home: Home = Path(), unit: Annotated[bool, typer.Option("--unit", help="Print a systemd unit instead.")] = False
) -> None:
    """Serve, in the foreground: the coordinator's server, or a site. What dies is started again."""
    import getpass
    import threading

    from fedrank.deploy.flare_processes import ending_on_signals, serve
    from fedrank.deploy.flare_processes import unit as unit_of
    from fedrank.deploy.settings import SITE, read_site
    from fedrank.deploy.warm_up import warm_up

    _check_is_home(home)
    if unit:
        typer.echo(unit_of(home, user=getpass.getuser()))
        return
    console, stop = new_console(), threading.Event()
    learners = read_site(home).policy.learners if (home / SITE).exists() else ()  # a server learns nothing
    with ending_on_signals(stop):
        serve(home, lambda: warm_up(learners), lambda line: print_line(console, line), stop)


@deploy_app.command(epilog="Example:  fedrank deploy stop --home clinic-a")
def stop(home: Home = Path()) -> None:
    """End what `start` serves, in order."""
    from fedrank.deploy.flare_processes import stop_serving

    _check_is_home(home)
    print_line(new_console(), "Stopped." if stop_serving(home) else "Nothing runs here.")


@deploy_app.command(
    epilog="Examples:  fedrank deploy run my.toml --home clinics  ·  fedrank deploy run quickstart --local 3"
)
def run(
    spec: Spec,
    home: Home = Path(),
    out: Out = None,
    name: Name = None,
    set_: Changes = None,
    local: Annotated[
        int | None, typer.Option(min=1, max=100, help="Try it on this machine, with so many sites as processes.")
    ] = None,
) -> None:
    """Do an experiment with the sites of a federation; run again to go on."""
    from fedrank.experiments.spec.source import read_spec

    grid, label = read_spec(spec, set_ or [], trust=local is not None), label_of(name, spec)
    if local is not None:
        _run_local(grid, label, out or Path("runs"), local)
        return
    from fedrank.deploy.flare_jobs import run_deployed
    from fedrank.deploy.make_plans import do_runs, parties_of, plan_runs
    from fedrank.deploy.settings import FEDERATION, read_federation
    from fedrank.experiments.runner.stop_signals import stop_requested

    console, results_in = new_console(), out or home / "runs"
    runs = plan_runs(grid, label, results_in, parties_of(home), read_federation(home / FEDERATION).name)
    with progress(console) as report, stop_requested() as stop:
        results = do_runs(
            grid,
            runs,
            lambda task, plan, tell: run_deployed(home, task, plan, tell, stop, lambda line: print_line(console, line)),
            stop,
            report,
        )
    tell_results(results, results_in / label)


@deploy_app.command(
    epilog="Example:  fedrank deploy unlearn clinics/runs/my/only/fold-1-seed-1 --site clinic-c --home clinics"
)
def unlearn(
    run: RunFolder,
    site: LeavingSites,
    method: Method = "retrain",
    set_: MethodChanges = None,
    home: Home = Path(),
    out: Out = None,
    name: Name = None,
) -> None:
    """Let a finished run forget sites, with those who stay; the receipt goes to all. Then note who left: `leave`."""
    from fedrank.deploy.flare_jobs import run_deployed
    from fedrank.deploy.make_plans import forget_sites
    from fedrank.experiments.runner.stop_signals import stop_requested

    console, asked = new_console(), _departure(run, site, method, set_)
    with progress(console) as report, stop_requested() as stop:
        folder = forget_sites(
            asked,
            out or home / "runs",
            name,
            lambda task, plan, tell: run_deployed(
                home, task, plan, tell, stop, lambda line: print_line(console, line), departure=asked
            ),
            report,
        )
    _tell_forgotten(folder)


@deploy_app.command(
    epilog="Examples:  fedrank deploy status --home clinics  ·  fedrank deploy status --home clinic-a --json"
)
def status(home: Home = Path(), json_: AsJson = False) -> None:
    """Sites, round, quality, time left, last refusal and why, days until a certificate ends."""
    from fedrank.deploy.status import about_status, as_facts, status

    found = status(home)
    if json_:
        typer.echo(json.dumps(as_facts(found), ensure_ascii=False, indent=1))
    else:
        print_sections(about_status(found), new_console())


@deploy_app.command(epilog="Example:  fedrank deploy backup clinic-a.backup --home clinic-a")
def backup(
    out: Annotated[Path, typer.Argument(help="File to write; keep it as safe as the folder.")], home: Home = Path()
) -> None:
    """Copy what cannot be made again: CA and keys, ledgers, outboxes."""
    from fedrank.deploy.backup import backup

    made = backup(home, out)
    print_line(new_console(), f"Backup of {made.files:,} files: {made.path}")


@deploy_app.command(epilog="Example:  fedrank deploy restore clinic-a.backup --home clinic-a")
def restore(
    file: Annotated[Path, typer.Argument(help="A file that fedrank deploy backup wrote.")], home: Home = Path()
) -> None:
    """Bring a backup back. No ledger ever says less than before."""
    from fedrank.deploy.backup import restore

    done = restore(file, home)
    console = new_console()
    print_line(
        console,
        f"Restored from {done.made}: {len(done.brought):,} files came back, {len(done.kept):,} stayed as they were",
    )
    for line in done.ledgers:
        print_line(console, line)


# Through a folder


@folder_app.command("begin", epilog="Example:  fedrank deploy folder begin shared --name clinics --home coordinator")
def folder_begin(
    shared: Shared, name: Annotated[str, typer.Option(help="Name of the federation.")], home: Home = Path()
) -> None:
    """Begin a federation in a folder that all share."""
    from fedrank.deploy.folder_members import create_folder_federation
    from fedrank.deploy.settings import check_name

    made = create_folder_federation(shared, home, check_name(name))
    console = new_console()
    print_line(console, f"Federation {made.name}: {shared}")
    print_line(console, "Fingerprint, which sites compare with you by telephone:")
    print_line(console, made.fingerprint, style="bold")


@folder_app.command(
    "join",
    epilog="Example:  fedrank deploy folder join shared clinic-a --id 0 --fingerprint SHA256:66... --home clinic-a",
)
def folder_join(
    shared: Shared,
    name: Annotated[str, typer.Argument(help="Name of this site.")],
    id: Annotated[int, typer.Option(min=0, max=1_000_000, help="Its id, as agreed with the coordinator.")],
    fingerprint: Fingerprint,
    home: Home = Path(),
) -> None:
    """Ask to take part, and get a site.toml to fill in."""
    from fedrank.deploy.folder_members import join_folder, read_invitation
    from fedrank.deploy.settings import SITE, write_template

    own = join_folder(shared, home, name, fingerprint)
    write_template(home, name, id, read_invitation(shared).name)
    console = new_console()
    print_line(console, "Your fingerprint, which you tell the coordinator by telephone:")
    print_line(console, own, style="bold")
    print_line(console, f"Fill in {home / SITE}.")


@folder_app.command(
    "approve",
    epilog="Example:  fedrank deploy folder approve shared clinic-a --id 0 --fingerprint SHA256:66... --home hub",
)
def folder_approve(
    shared: Shared,
    name: Annotated[str, typer.Argument(help="The site.")],
    id: Annotated[int, typer.Option(min=0, max=1_000_000, help="Its id, as agreed.")],
    fingerprint: Fingerprint,
    home: Home = Path(),
) -> None:
    """Take a site in whose fingerprint you were told."""
    from fedrank.deploy.folder_members import approve_in_folder

    made = approve_in_folder(shared, home, name, fingerprint, id)
    print_line(new_console(), f"{made.name} takes part, with id {made.id}")


@folder_app.command(
    "leave", epilog='Example:  fedrank deploy folder leave shared --home clinic-c --because "the study ended"'
)
def folder_leave(shared: Shared, home: Home = Path(), because: Because = "", yes: Yes = False) -> None:
    """Take no further part. Ledger and models stay here; what was sent stays with those who have it."""
    from fedrank.deploy.folder_members import leave_folder

    if not yes:
        typer.confirm("Leave the federation? Nothing is sent from here any more.", abort=True)
    leave_folder(shared, home, because)
    print_line(new_console(), "Left. The coordinator sees it in the folder.")


@folder_app.command(
    "expel", epilog='Example:  fedrank deploy folder expel shared clinic-c --home hub --because "sends nonsense"'
)
def folder_expel(
    shared: Shared,
    name: Annotated[str, typer.Argument(help="The site.")],
    because: Because,
    home: Home = Path(),
    yes: Yes = False,
) -> None:
    """Shut a site out. What it sent before stays in models: see `unlearn`."""
    from fedrank.deploy.folder_members import expel_from_folder

    if not yes:
        typer.confirm(f"Shut out {name}? It cannot come back under this name.", abort=True)
    expel_from_folder(shared, home, name, because)
    print_line(new_console(), f"{name} is expelled, and nothing is asked of it any more.")


@folder_app.command("serve", epilog="Example:  fedrank deploy folder serve shared --home clinic-a")
def folder_serve(
    shared: Shared,
    home: Home = Path(),
    once: Annotated[bool, typer.Option("--once", help="Answer what is there, and end.")] = False,
) -> None:
    """Answer what is asked through the folder, until Ctrl-C."""
    from fedrank.deploy.folder import serve, serve_once
    from fedrank.experiments.runner.stop_signals import stop_requested

    console = new_console()
    if once:
        for one in serve_once(shared, home):
            print_line(
                console, f"round {one.round}: {one.kind} {'refused; site.log says why' if one.refused else 'answered'}"
            )
        return
    with stop_requested() as stop:
        serve(shared, home, stop=stop, tell=lambda line: print_line(console, line))


@folder_app.command("run", epilog="Example:  fedrank deploy folder run shared my.toml --home coordinator")
def folder_run(
    shared: Shared,
    spec: Spec,
    home: Home = Path(),
    out: Out = None,
    name: Name = None,
    set_: Changes = None,
    patience: Annotated[
        float, typer.Option(min=1, max=MAX_WAIT, help="Seconds to wait for a site in a round.")
    ] = 86_400,
) -> None:
    """Do an experiment with the sites that share the folder; run again to go on."""
    from fedrank.deploy.folder_members import read_home
    from fedrank.deploy.make_plans import do_runs, plan_runs, run_in_folder
    from fedrank.experiments.runner.stop_signals import stop_requested
    from fedrank.experiments.spec.source import read_spec

    grid, label = read_spec(spec, set_ or [], trust=False), label_of(name, spec)
    federation, results_in = read_home(home), out or home / "runs"
    runs = plan_runs(grid, label, results_in, federation.parties(), federation.name)
    console = new_console()
    with progress(console) as report, stop_requested() as stop:
        results = do_runs(
            grid,
            runs,
            lambda task, plan, tell: run_in_folder(
                shared, home, task, plan, tell, stop, patience, say=lambda line: print_line(console, line)
            ),
            stop,
            report,
        )
    tell_results(results, results_in / label)


@folder_app.command(
    "unlearn",
    epilog="Example:  fedrank deploy folder unlearn shared hub/runs/my/only/fold-1-seed-1 --site clinic-c --home hub",
)
def folder_unlearn(
    shared: Shared,
    run: RunFolder,
    site: LeavingSites,
    method: Method = "retrain",
    set_: MethodChanges = None,
    home: Home = Path(),
    out: Out = None,
    name: Name = None,
) -> None:
    """Let a finished run forget sites, with those who stay."""
    from fedrank.deploy.make_plans import forget_sites, run_in_folder
    from fedrank.experiments.runner.stop_signals import stop_requested

    asked = _departure(run, site, method, set_)
    console = new_console()
    with progress(console) as report, stop_requested() as stop:
        folder = forget_sites(
            asked,
            out or home / "runs",
            name,
            lambda task, plan, tell: run_in_folder(
                shared, home, task, plan, tell, stop, departure=asked, say=lambda line: print_line(console, line)
            ),
            report,
        )
    _tell_forgotten(folder)


def _departure(run: Path, sites: list[str], method: str, changes: list[str] | None) -> Departure:
    from fedrank.deploy.unlearning import named
    from fedrank.experiments.spec.families import build
    from fedrank.toml import parse_override
    from fedrank.unlearning.methods import Unlearner

    settings = {".".join(keys): value for keys, value in map(parse_override, changes or [])}
    return named(run, sites, build(Unlearner, {"name": method} | settings, "method"))


def _tell_forgotten(folder: Path) -> None:
    from fedrank.experiments.runner.folder import Receipt

    console = new_console()
    print_line(console, f"Receipt: {folder / Receipt.FILE}")
    print_line(console, f"The model without them: {folder / 'model.json'}")


def _run_local(grid: Grid[Any], label: str, out: Path, sites: int) -> None:
    from fedrank.deploy.local import run_local
    from fedrank.experiments.runner.stop_signals import stop_requested

    console = new_console()
    with progress(console) as tell, stop_requested() as stop:
        results = run_local(grid, label, out, sites, tell, stop, lambda line: print_line(console, line))
    tell_results(results, out / label)


def tell_results(results: Any, folder: Path) -> None:
    """What became of the runs, as `fedrank run` tells it."""
    from fedrank.experiments.report.compose import brief
    from fedrank.experiments.runner.runs import load_runs

    console = new_console()
    print_failures(results.failed, console)
    if results.interrupted:
        print_line(
            console,
            f"Stopped. {len(results.interrupted)} not finished; nothing is lost: run the same command to go on.",
        )
    if results.finished or results.skipped:
        print_sections(brief(load_runs(folder)), console)
        print_line(console, f"Pictures and tests: fedrank report {folder} --out report.html")
    if results.interrupted:
        raise typer.Exit(130)
    if results.failed:
        raise typer.Exit(FAILED)


def _site(home: Path) -> tuple[SiteSettings, SiteSplit | None]:
    """A site's settings, and what it has to learn from."""
    from fedrank.deploy.data_sources import load_share
    from fedrank.deploy.settings import read_site

    settings = read_site(home)
    return settings, load_share(settings.data) if settings.data.learns else None


def _is_spec(text: str) -> bool:
    return text.endswith(".toml")


def _plans(home: Path, text: str, share: SiteSplit | None = None) -> list[Plan]:
    """A plan that came to a site; or those that a spec would make."""
    from fedrank.deploy.consent import find_plan

    if not _is_spec(text):
        return [find_plan(home, text)]
    from fedrank.deploy.show import drafts

    settings, held = _site(home) if share is None else (_site_settings(home), share)
    return drafts(Path(text).read_text(encoding="utf-8-sig"), settings, None if held is None else held.train)


def _check_is_home(home: Path) -> None:
    from fedrank.deploy.settings import FEDERATION, SITE, no_home

    if not any((home / name).exists() for name in (SITE, FEDERATION, "kit")):
        raise no_home(home)


def _site_settings(home: Path) -> SiteSettings:
    from fedrank.deploy.settings import read_site

    return read_site(home)
