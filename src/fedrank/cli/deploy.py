"""`fedrank deploy`: organisations train together, each on its own machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedrank.cli.config import Config, with_settings
from fedrank.cli.shared import (
    EXIT_FAILURE,
    MAX_WAIT,
    AsJson,
    MethodChanges,
    Name,
    Quiet,
    Spec,
    Yes,
    print_json,
    print_line,
    print_outcome,
    print_result,
    print_sections,
    progress,
    results_name,
    unlearner,
)
from fedrank.value_checks import at_least, at_most

if TYPE_CHECKING:
    from fedrank.deploy.data_sources import SiteSplit
    from fedrank.deploy.make_plans import Do
    from fedrank.deploy.plan import Plan
    from fedrank.deploy.settings import SiteSettings
    from fedrank.deploy.show import PlanView
    from fedrank.deploy.status import DeploymentStatus
    from fedrank.deploy.unlearning import Departure
    from fedrank.experiments.spec.grid import Grid

deploy_app = typer.Typer(no_args_is_help=True)

Home = Annotated[Path, typer.Option(help="Folder of the coordinator or of the site.")]
Because = Annotated[str, typer.Option(help="Reason; it is recorded.")]
Planned = Annotated[
    str,
    typer.Argument(metavar="SPEC", help="Plan that this site received (first digits, name or file), or a TOML spec."),
]
PlanChanges = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override one key of the spec before the plan is made; may be repeated. Sites see and accept the changed "
        "plan; a started run keeps its plan.",
    ),
]
Out = Annotated[Path | None, typer.Option(help="Folder for the results. Default: runs in the home.")]
SiteId = Annotated[
    int | None,
    typer.Option(min=0, max=1_000_000, help="Id of the site, as agreed with the coordinator; with a shared folder."),
]


# Members


@deploy_app.command(
    epilog="Examples:  fedrank deploy init federation.toml --home clinics  ·  fedrank deploy init --folder shared "
    "--name clinics --home coordinator"
)
def init(
    federation: Annotated[
        Path | None, typer.Argument(help="For NVFLARE: federation.toml with name, host, port, sites and people.")
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(metavar="SHARED", help="Shared folder that carries all messages, instead of NVFLARE."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="With --folder: name of the federation.")] = None,
    home: Annotated[Path | None, typer.Option(help="Folder to create. Default: the name of the federation.")] = None,
) -> None:
    """Create a federation that exchanges messages through NVFLARE or through a shared folder.

    The home stores this choice. With NVFLARE, each site gets an invitation.
    """
    if folder is not None:
        if federation is not None or name is None:
            raise ValueError("a federation in a shared folder needs --folder SHARED and --name NAME, and no file")
        from fedrank.deploy.folder_members import create_folder_federation
        from fedrank.deploy.settings import check_name
        from fedrank.deploy.transport import store_shared_folder

        _check_is_not_local(name)
        created = create_folder_federation(folder, home or Path(name), check_name(name))
        store_shared_folder(home or Path(name), folder)
        print_line(f"Federation {name}: {folder}")
        print_line("Fingerprint; sites compare it with you by telephone:")
        print_line(created.fingerprint, style="bold")
        print_line(f"A site joins with `fedrank deploy join {folder} --name SITE --id NUMBER --fingerprint ...`.")
        return
    if federation is None or name is not None:
        raise ValueError("give federation.toml for NVFLARE, or --folder SHARED and --name NAME for a shared folder")
    from fedrank.deploy.flare_kit import init
    from fedrank.deploy.settings import read_federation

    asked = read_federation(federation)
    _check_is_not_local(asked.name)
    made = init(home or Path(asked.name), asked, federation.read_text(encoding="utf-8-sig"))
    print_line(f"Federation {asked.name}: {made.home}")
    print_line("Fingerprint; sites compare it with you by telephone:")
    print_line(made.fingerprint, style="bold")
    for path in made.invitations:
        print_line(f"Send: {path}")
    print_line("A site answers with `fedrank deploy join INVITATION`.")


def _check_is_not_local(name: str) -> None:
    from fedrank.deploy.settings import LOCAL

    if name == LOCAL:
        raise ValueError(f'name: "{LOCAL}" is the federation of `fedrank deploy run --local`; choose another name')


@deploy_app.command(epilog="Example:  fedrank deploy invite clinic-d Clinic_D 3 --home clinics")
def invite(
    name: Annotated[str, typer.Argument(help="Name of the new site.")],
    organisation: Annotated[str, typer.Argument(help="Organisation of the site.")],
    id: Annotated[int, typer.Argument(help="Id of the site; no other site has or had it.")],
    home: Home = Path(),
) -> None:
    """Invite another site to a federation that uses NVFLARE."""
    from fedrank.deploy.flare_kit import invite
    from fedrank.deploy.settings import new_entry
    from fedrank.deploy.transport import require_nvflare

    require_nvflare(home, "invite", "a site joins with `fedrank deploy join SHARED --name SITE`")
    print_line(f"Send: {invite(home, new_entry(name, organisation, id))}")


@deploy_app.command(
    epilog="Examples:  fedrank deploy join clinic-a.json --home clinic-a  ·  fedrank deploy join clinic-a.signed.zip "
    "--fingerprint SHA256:66... --home clinic-a  ·  fedrank deploy join shared --name clinic-a --id 0 --fingerprint "
    "SHA256:66... --home clinic-a"
)
def join(
    source: Annotated[
        Path,
        typer.Argument(
            help="Invitation (.json), then the signed answer (.signed.zip); or a shared folder.",
        ),
    ],
    fingerprint: Annotated[
        str | None,
        typer.Option(help="Fingerprint of the coordinator, heard by telephone; with an answer or a shared folder."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of this site; with a shared folder.")] = None,
    id: SiteId = None,
    home: Annotated[
        Path | None, typer.Option(help="Folder of the site. Default: the name of the site, or the current folder.")
    ] = None,
) -> None:
    """Join a federation with an invitation, the signed answer, or a shared folder.

    With an invitation, the command creates the keys and a request for the coordinator.

    With the signed answer or a shared folder, it writes site.toml, which you complete.
    """
    import zipfile

    if not source.exists():
        raise FileNotFoundError(f"no file or folder {source}; give an invitation, a signed answer or a shared folder")
    if source.is_dir():
        _join_folder(source, home or Path(), name, id, fingerprint)
        return
    for option, given in (("--name", name), ("--id", id)):
        if given is not None:
            raise ValueError(f"{option} is for a shared folder; the invitation contains it; remove {option}")
    if zipfile.is_zipfile(source):
        _join_signed(source, home or Path(), fingerprint)
    else:
        _request(source, home)


def _request(invitation: Path, home: Path | None) -> None:
    from fedrank.deploy.flare_kit import Invitation, request
    from fedrank.deploy.identity import fingerprint, read_identity

    folder = home or Path(Invitation.read(invitation).name)
    path = request(invitation, folder)
    print_line(f"Send: {path}")
    print_line("Your fingerprint; the coordinator and the other sites compare it with you by telephone:")
    print_line(fingerprint(read_identity(folder).public), style="bold")
    print_line(f"The private keys stay in {folder}. Then: fedrank deploy join SIGNED --home {folder}")


def _join_signed(signed: Path, home: Path, fingerprint: str | None) -> None:
    from fedrank.deploy.flare_kit import join
    from fedrank.deploy.settings import SITE

    if fingerprint is None:
        raise ValueError("--fingerprint is missing; ask the coordinator for it by telephone")
    folder = join(signed, home, fingerprint)
    print_line(f"Joined: {folder}")
    print_line(f"Complete {folder / SITE}, then: fedrank deploy check --home {folder}")


def _join_folder(shared: Path, home: Path, name: str | None, id: int | None, fingerprint: str | None) -> None:
    from fedrank.deploy.folder_members import join_folder, read_invitation
    from fedrank.deploy.settings import SITE, write_template
    from fedrank.deploy.transport import store_shared_folder

    if name is None or id is None or fingerprint is None:
        raise ValueError("a shared folder needs --name and --id of this site, and --fingerprint of the coordinator")
    own = join_folder(shared, home, name, fingerprint)
    store_shared_folder(home, shared)
    write_template(home, name, id, read_invitation(shared).name)
    print_line("Your fingerprint; tell the coordinator by telephone:")
    print_line(own, style="bold")
    print_line(f"Complete {home / SITE}, then: fedrank deploy start --home {home}")


@deploy_app.command(
    epilog="Examples:  fedrank deploy approve clinic-a.request.zip --home clinics  ·  fedrank deploy approve clinic-a "
    "--id 0 --fingerprint SHA256:66... --home coordinator"
)
def approve(
    request: Annotated[
        str, typer.Argument(help="Request of a site (.request.zip); in a shared folder, the name of the site.")
    ],
    fingerprint: Annotated[
        str | None, typer.Option(help="Fingerprint of the site, heard by telephone. Default: you are asked.")
    ] = None,
    id: SiteId = None,
    home: Home = Path(),
    yes: Yes = False,
) -> None:
    """Admit a site after you have compared its fingerprint by telephone."""
    from fedrank.deploy.transport import shared_folder

    shared = shared_folder(home)
    if shared is not None:
        _approve_in_folder(shared, home, request, fingerprint, id, yes)
        return
    from fedrank.deploy.flare_kit import approve, sign

    if id is not None:
        raise ValueError("--id is for a shared folder; the invitation contains the id; remove --id")
    applicant = approve(Path(request), home)
    print_line(f"{'Renewal for' if applicant.renewal else 'Site'} {applicant.name}, id {applicant.id}")
    print_line(f"Organisation: {applicant.organisation}")
    _compare(applicant.name, applicant.fingerprint, fingerprint, yes)
    print_line(f"Send: {sign(applicant, home)}")
    print_line("The site continues with `fedrank deploy join` and your own fingerprint.")


def _approve_in_folder(shared: Path, home: Path, name: str, fingerprint: str | None, id: int | None, yes: bool) -> None:
    from fedrank.deploy.folder_members import applications, approve_in_folder

    if fingerprint is None:
        waiting = {one.name: one.fingerprint for one in applications(shared, home)}
        if name in waiting:
            fingerprint = waiting[name]
            print_line(f"Site {name}")
            _compare(name, fingerprint, None, yes)
    made = approve_in_folder(shared, home, name, fingerprint or "", id)
    print_line(f"{made.name} participates with id {made.id}")


def _compare(name: str, found: str, heard: str | None, yes: bool) -> None:
    """Compare a fingerprint with the one that was heard, or ask whether it was compared."""
    from fedrank.deploy.identity import same_fingerprint

    print_line(f"Fingerprint: {found}")
    if heard is not None and not same_fingerprint(found, heard):
        raise ValueError(
            f"the request of {name!r} has the fingerprint {found}, not {heard}; do not approve it, and ask the site "
            "again by telephone"
        )
    if heard is None and not yes:
        typer.confirm("Did the site read you this fingerprint by telephone?", abort=True)


@deploy_app.command(epilog="Example:  fedrank deploy renew --home clinic-a")
def renew(home: Home = Path()) -> None:
    """Renew a certificate of NVFLARE: of a site, with a request to the coordinator; of the coordinator, at once."""
    from fedrank.deploy.flare_kit import renew
    from fedrank.deploy.transport import require_nvflare

    require_nvflare(home, "renew", "its keys do not expire")

    path = renew(home)
    if path.is_dir():
        print_line(f"Renewed: {path}; a running server restarts with it")
    else:
        print_line(f"Send: {path}; then run `fedrank deploy join` with the signed answer")


@deploy_app.command(epilog='Example:  fedrank deploy expel clinic-c --because "its key was stolen" --home clinics')
def expel(
    name: Annotated[str, typer.Argument(help="Name of the site.")],
    because: Because,
    home: Home = Path(),
    yes: Yes = False,
) -> None:
    """Expel a site. Models keep what it sent before; `fedrank deploy forget` unlearns it."""
    from fedrank.deploy.transport import shared_folder

    shared = shared_folder(home)
    if not yes:
        typer.confirm(f"Expel {name}? It cannot join again under this name.", abort=True)
    if shared is not None:
        from fedrank.deploy.folder_members import expel_from_folder

        expel_from_folder(shared, home, name, because)
        print_line(f"{name} is expelled and receives no more requests.")
        return
    from fedrank.deploy.flare_kit import expel

    member = expel(home, name, because)
    print_line(f"{member.name} is {member.state}. A running server restarts and refuses it.")


@deploy_app.command(
    epilog='Examples:  fedrank deploy leave --home clinic-a --because "the study ended"  ·  '
    "fedrank deploy leave --site clinic-a --home clinics"
)
def leave(
    home: Home = Path(),
    site: Annotated[str | None, typer.Option(help="At the coordinator: the site that left.")] = None,
    because: Because = "",
    yes: Yes = False,
) -> None:
    """Leave a federation; or, at the coordinator, record that a site left."""
    from fedrank.deploy.transport import require_nvflare, shared_folder

    if site is not None:
        from fedrank.deploy.flare_kit import leave

        require_nvflare(home, "leave --site", "the next `fedrank deploy run` records which sites left")

        if not yes:
            typer.confirm(f"Did {site} say that it leaves? It cannot join again under this name.", abort=True)
        print_line(f"{site} has {leave(home, site, because).state}")
        print_line(f"To unlearn it: fedrank deploy forget RUN --site {site} --home {home}")
        return
    shared = shared_folder(home)
    if not yes:
        typer.confirm("Leave the federation? This site will send nothing more.", abort=True)
    if shared is not None:
        from fedrank.deploy.folder_members import leave_folder

        leave_folder(shared, home, because)
        print_line("Left. The coordinator sees it in the shared folder.")
        return
    from fedrank.deploy.consent import leave_site
    from fedrank.deploy.flare_processes import stop_serving

    stop_serving(home)
    aside = leave_site(home, because)
    print_line(f"Left. The kit is now in {aside}; ledger and models stay. Tell the coordinator, who records it.")


# Consent


@deploy_app.command(
    epilog="Examples:  fedrank deploy check --home clinic-a  ·  fedrank deploy check my.toml --home clinic-a"
)
def check(
    spec: Annotated[
        str | None, typer.Argument(metavar="[SPEC]", help="Plan or TOML spec to check against this site.")
    ] = None,
    home: Home = Path(),
    json_: AsJson = False,
) -> None:
    """Check a home: certificates, clock, host, port, data, features, policy, ledger and disk, with remedies."""
    from fedrank.deploy.check import about_checks, check, is_fine

    plan = None if spec is None else _plans(home, spec)[0]
    lines = check(home, plan, draft=spec is not None and _is_spec(spec))
    print_result(json_, lambda: lines, lambda: about_checks(lines))
    if not is_fine(lines):
        raise typer.Exit(EXIT_FAILURE)


@deploy_app.command(
    epilog="Examples:  fedrank deploy show --home clinic-a  ·  fedrank deploy show 3bbe77746412 --home clinic-a"
)
def show(
    spec: Annotated[
        str | None, typer.Argument(metavar="[SPEC]", help="Received plan, or TOML spec. Default: list the plans.")
    ] = None,
    home: Home = Path(),
    json_: AsJson = False,
) -> None:
    """Show a plan before you accept it: what leaves the site, who sees it, its privacy budget, objections."""
    from fedrank.deploy.consent import proposals
    from fedrank.deploy.settings import read_site
    from fedrank.deploy.show import about_plan, as_facts

    if spec is None:
        read_site(home)  # refuses a folder that is not a site's
        waiting = proposals(home)
        if json_:
            print_json([{"digest": plan.digest, "name": plan.name} for plan in waiting])
            return
        for plan in waiting:
            print_line(f"{plan.digest[:12]}  {plan.name}")
        print_line("Show one with its digits." if waiting else "No plan waits for a decision of this site.")
        return
    views = [view for _, view in _views(home, spec)]
    if json_:
        print_json([as_facts(view) for view in views])
        return
    for view in views:
        print_sections(about_plan(view))
    if any(view.refused for view in views):
        raise typer.Exit(EXIT_FAILURE)
    if all(view.word == "accepted" for view in views):
        print_line(f"Accepted at this site. To withdraw: fedrank deploy refuse {spec} --because REASON --home {home}")
    else:
        print_line(f"To participate: fedrank deploy accept {spec} --home {home}")


@deploy_app.command(epilog="Example:  fedrank deploy accept 3bbe77746412 --home clinic-a")
def accept(
    spec: Planned,
    home: Home = Path(),
    new_key: Annotated[
        list[str] | None,
        typer.Option(metavar="SITE", help="Site whose key changed and was compared again; may be repeated."),
    ] = None,
    yes: Yes = False,
) -> None:
    """Accept a plan that `fedrank deploy show` displays. Compare the keys of partners by telephone first."""
    from fedrank.deploy.consent import accept, accept_spec
    from fedrank.privacy.guarantees import up

    planned = _views(home, spec)
    for plan, view in planned:
        if view.refused:
            raise ValueError("\n".join(["this site refuses the plan even if you accept it:", *view.refused]))
        print_line(f"Plan {plan.digest[:12]}: {plan.name}, {view.rounds:,} rounds with {len(plan.sites)} sites")
        for one in view.partners:
            if one.fingerprint:
                print_line(f"  {one.name}: {one.fingerprint}{'' if one.pinned else '  (not compared yet)'}")
        if cost := max(view.after.values(), default=0.0):
            limit = "no limit" if view.limit is None else f"the limit is {view.limit:g}"
            print_line(f"  ε of each {view.prices[0].guarantee.unit} after it: {up(cost)} over all runs; {limit}")
    drafted = _is_spec(spec)
    if drafted:
        print_line("An accepted spec covers later plans with it, within the policy, until `fedrank deploy refuse`.")
    question = "Participate?" if drafted else "Did each partner read you its fingerprint by telephone? Participate?"
    if not yes:
        typer.confirm(question, abort=True)
    for plan, view in planned:
        word = accept_spec(home, plan) if drafted else accept(home, plan, new_key or ())
        print_line(f"Accepted: {'spec' if drafted else 'plan'} {word.digest[:12]}")
        if drafted and view.sum is not None:
            print_line("The plan will contain the keys of partners; then compare them and accept the plan, too.")


@deploy_app.command(epilog='Example:  fedrank deploy refuse 3bbe77746412 --because "not our question" --home clinic-a')
def refuse(
    run: Planned, because: Annotated[str, typer.Option(help="Reason; the coordinator sees it.")], home: Home = Path()
) -> None:
    """Refuse a plan. This site no longer participates in its run."""
    from fedrank.deploy.consent import refuse, spec_digest

    drafted = _is_spec(run)
    for plan in _plans(home, run):
        word = refuse(home, spec_digest(plan) if drafted else plan.digest, because, plan.name)
        print_line(f"Refused: {word.digest[:12]}")


# Runs


@deploy_app.command(
    epilog="Examples:  fedrank deploy start --home clinic-a  ·  fedrank deploy start --home clinic-a --unit  ·  "
    "fedrank deploy start --home clinic-a --once"
)
def start(
    home: Home = Path(),
    unit: Annotated[bool, typer.Option("--unit", help="Print a systemd unit instead.")] = False,
    once: Annotated[
        bool, typer.Option("--once", help="In a shared folder: answer the open requests, and exit.")
    ] = False,
    confirm_head: Annotated[
        bool, typer.Option(help="Confirm that this folder of a site is its newest copy, although no witness does.")
    ] = False,
    json_: Annotated[
        bool, typer.Option("--json-lines", help="Print events as JSON lines, without reasons, which are in site.log.")
    ] = False,
) -> None:
    """Serve in the foreground: the server of the coordinator, or a site. A process that dies is restarted."""
    import getpass
    import threading

    from fedrank.deploy.flare_processes import ending_on_signals, serve
    from fedrank.deploy.flare_processes import unit as unit_of
    from fedrank.deploy.records import event_printer
    from fedrank.deploy.settings import SITE, read_site
    from fedrank.deploy.transport import shared_folder

    shared = shared_folder(home)
    if shared is None:
        _check_is_home(home)
    if unit:
        typer.echo(unit_of(home, user=getpass.getuser()))
        return
    member = read_site(home).name if json_ and (home / SITE).exists() else "coordinator"
    tell = event_printer(member) if json_ else print_line
    if confirm_head:
        from fedrank.deploy.heads import confirm

        tell(confirm(home))
    if shared is not None:
        _serve_folder(shared, home, once, tell)
        return
    if once:
        raise ValueError(f"--once is for a shared folder, and {home} uses NVFLARE; remove --once")
    stop = threading.Event()
    learners = read_site(home).policy.learners if (home / SITE).exists() else ()  # a server does not train
    with ending_on_signals(stop):
        serve(home, learners, tell, stop)


def _serve_folder(shared: Path, home: Path, once: bool, tell: Callable[[str], None]) -> None:
    from fedrank.deploy.folder import not_approved, serve, serve_once
    from fedrank.deploy.folder_members import MEMBERSHIP
    from fedrank.experiments.runner.stop_signals import stop_requested

    if not (home / MEMBERSHIP).exists():
        raise ValueError(
            f"a shared folder needs no server; the coordinator uses `fedrank deploy run SPEC --home {home}`"
        )
    if once:
        if why := not_approved(shared, home):
            tell(why)
        for one in serve_once(shared, home):
            tell(f"round {one.round}: {one.kind} {f'refused: {one.refused}' if one.refused else 'answered'}")
        return
    with stop_requested() as stop:
        serve(shared, home, stop=stop, tell=tell)


@deploy_app.command(epilog="Example:  fedrank deploy stop --home clinic-a")
def stop(home: Home = Path()) -> None:
    """Stop the process that `fedrank deploy start` runs."""
    from fedrank.deploy.flare_processes import stop_serving
    from fedrank.deploy.transport import require_nvflare

    require_nvflare(home, "stop", "end `fedrank deploy start` with Ctrl-C or SIGTERM")

    _check_is_home(home)
    print_line("Stopped." if stop_serving(home) else "No process runs here.")


@dataclass(frozen=True)
class DeployedRunOptions:
    """Further options of `deploy run`."""

    readmit: list[str] | None = None  # site to ask again after its exclusion from the run; may be repeated
    patience: Annotated[float, at_least(1), at_most(MAX_WAIT)] = 86_400  # seconds to wait for a site, in a folder


@deploy_app.command(
    epilog="Examples:  fedrank deploy run my.toml --home clinics  ·  fedrank deploy run quickstart --local 3  ·  "
    "fedrank deploy run my.toml --readmit clinic-c --home clinics"
)
@with_settings
def run(
    spec: Spec,
    home: Home = Path(),
    out: Out = None,
    name: Name = None,
    set_: PlanChanges = None,
    local: Annotated[
        int | None,
        typer.Option(min=1, max=100, help="Try the experiment on this machine with this number of site processes."),
    ] = None,
    log: Annotated[
        list[Path] | None,
        typer.Option(metavar="FOLDER", help="With --local: data set of one site; repeat it once per site."),
    ] = None,
    quiet: Quiet = False,
    config: Config = None,
    *,
    more: DeployedRunOptions,
) -> None:
    """Run an experiment with the sites of a federation. Run the command again to continue."""
    from fedrank.experiments.spec.source import read_spec

    grid, label = read_spec(spec, set_ or [], trust=local is not None), results_name(name, spec)
    if local is not None:
        _run_local(grid, label, out or Path("runs"), local, quiet, log or [])
        return
    if log:
        raise ValueError("--log is for a trial on this machine with --local; a site names its log in site.toml")
    from fedrank.deploy.folder import refuse_online_plan
    from fedrank.deploy.folder_members import read_home
    from fedrank.deploy.make_plans import do_runs, gate_of, parties_of, plan_runs, site_problems
    from fedrank.deploy.settings import FEDERATION, read_federation
    from fedrank.deploy.transport import shared_folder
    from fedrank.experiments.runner.stop_signals import stop_requested

    results_in, shared = out or home / "runs", shared_folder(home)
    if shared is None:
        runs = plan_runs(grid, label, results_in, parties_of(home), read_federation(home / FEDERATION).name)
    else:
        federation = read_home(home)
        runs = plan_runs(grid, label, results_in, federation.parties(), federation.name)
        for _, plan in runs:
            refuse_online_plan(plan)
    for site in more.readmit or []:
        why = _readmit(site, [task.folder for task, _ in runs])
        print_line(f"{site} is asked again. Reason of its exclusion: {why}")
    with progress(quiet) as report, stop_requested() as stop:
        results = do_runs(grid, runs, _transport(home, shared, stop, more.patience), stop, report)
    for line in dict.fromkeys(line for task, plan in runs for line in site_problems(task, plan)):
        print_line(line)
    gates = [gate for task, _ in runs if (gate := gate_of(task)) is not None]
    for gate in gates:
        print_line(f"gate: {gate['outcome']}")
        for word in gate["words"]:
            print_line(f"  {word}")
    print_outcome(results, results_in / label)
    if any(gate.get("released") == [] for gate in gates):  # a refusal of every site; the reasons are printed above
        raise typer.Exit(EXIT_FAILURE)


def _transport(
    home: Path,
    shared: Path | None,
    stop: Callable[[], bool],
    patience: float = 86_400,
    departure: Departure | None = None,
) -> Do:
    """The function that executes one run with the sites of a home."""
    if shared is None:
        from fedrank.deploy.flare_jobs import run_deployed

        more: dict[str, Any] = {} if departure is None else {"departure": departure}
        return lambda task, plan, tell: run_deployed(home, task, plan, tell, stop, print_line, **more)
    from fedrank.deploy.make_plans import run_in_folder

    return lambda task, plan, tell: run_in_folder(
        shared, home, task, plan, tell, stop, patience, departure=departure, say=print_line
    )


def _readmit(site: str, runs: Sequence[Path]) -> str:
    """Ask an excluded site again in all runs that excluded it; returns the reason of the exclusion."""
    from fedrank.deploy.make_plans import readmit

    reasons: list[str] = []
    problems: list[Exception] = []
    for folder in runs:
        try:
            reasons.append(readmit(folder, site))
        except (FileNotFoundError, ValueError) as problem:
            problems.append(problem)
    if not reasons:
        raise problems[0]
    return reasons[0]


@deploy_app.command(
    epilog="Example:  fedrank deploy forget clinics/runs/my/only/fold-1-seed-1 --site clinic-c --home clinics"
)
def forget(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run of this federation.")],
    site: Annotated[list[str], typer.Option("--site", help="Site to unlearn; may be repeated.")],
    method: Annotated[
        str, typer.Option(help="Unlearning method: retrain, fed-eraser, fed-remove or fine-tune.")
    ] = "retrain",
    set_: MethodChanges = None,
    home: Home = Path(),
    out: Out = None,
    name: Name = None,
    quiet: Quiet = False,
) -> None:
    """Unlearn sites of a finished run, with the remaining sites. All sites receive the receipt.

    Then record the departure: `fedrank deploy leave --site`.
    """
    from fedrank.deploy.make_plans import forget_sites
    from fedrank.deploy.transport import shared_folder
    from fedrank.deploy.unlearning import named
    from fedrank.experiments.runner.folder import Receipt
    from fedrank.experiments.runner.stop_signals import stop_requested

    asked, shared = named(run, site, unlearner(method, set_)), shared_folder(home)
    with progress(quiet) as report, stop_requested() as stop:
        execute = _transport(home, shared, stop, departure=asked)
        folder = forget_sites(asked, out or home / "runs", name, execute, report)
    print_line(f"Receipt: {folder / Receipt.FILE}")
    print_line(f"Model without these sites: {folder / 'model.json'}")


@deploy_app.command(
    epilog="Examples:  fedrank deploy status --home clinics  ·  fedrank deploy status --home clinic-a --json  ·  "
    "fedrank deploy status --home clinic-a --metrics clinic-a.prom"
)
def status(
    home: Home = Path(),
    json_: AsJson = False,
    metrics: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write metrics for Prometheus to this file; - for standard output."),
    ] = None,
    serve: Annotated[bool, typer.Option("--serve", help="Serve the status as a page on this machine.")] = False,
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port of the page; 0 selects a free port.")] = 0,
) -> None:
    """Show sites, round, quality, remaining time, the last refusal, and when certificates expire."""
    from fedrank.deploy.status import about_status, as_facts, status

    found = status(home)
    if metrics is not None:
        from fedrank.deploy.metrics import exposition

        if str(metrics) == "-":
            typer.echo(exposition(found, home), nl=False)
        else:
            from fedrank.files import write_atomic

            write_atomic(metrics, exposition(found, home))
        return
    if serve:
        from fedrank.deploy.metrics import make_app
        from fedrank.experiments.report.html import page, policy
        from fedrank.web.server import serve_page

        def shown(found: DeploymentStatus) -> str:
            return page(f"{found.federation}: {found.who}", about_status(found))

        serve_page(
            "fedrank deploy status --serve",
            lambda door: make_app(home, door, shown, policy("")),
            port,
            lambda link: print_line(f"Open {link} in a browser. Ctrl-C ends it."),
            extra="watch",
        )
        return
    print_result(json_, lambda: as_facts(found), lambda: about_status(found))


@deploy_app.command(epilog="Example:  fedrank deploy backup clinic-a.backup --home clinic-a")
def backup(
    out: Annotated[Path, typer.Argument(help="File to write; it contains private keys.")], home: Home = Path()
) -> None:
    """Back up what cannot be recreated: CA, keys, ledgers, outboxes."""
    from fedrank.deploy.backup import backup

    made = backup(home, out)
    print_line(f"Backup of {made.files:,} files: {made.path}")


@deploy_app.command(epilog="Example:  fedrank deploy restore clinic-a.backup --home clinic-a")
def restore(
    file: Annotated[Path, typer.Argument(help="File written by fedrank deploy backup.")], home: Home = Path()
) -> None:
    """Restore a backup. Ledgers are merged, so recorded spending is never lost."""
    from fedrank.deploy.backup import restore

    done = restore(file, home)
    print_line(
        f"Restored the backup of {done.made}: {len(done.restored):,} files restored, {len(done.kept):,} unchanged"
    )
    for line in done.ledgers:
        print_line(line)


def _run_local(grid: Grid[Any], label: str, out: Path, sites: int, quiet: bool, logs: Sequence[Path]) -> None:
    from fedrank.deploy.local import run_local, run_local_logs
    from fedrank.experiments.runner.stop_signals import stop_requested

    if logs and len(logs) != sites:
        raise ValueError(f"--local {sites} needs one --log per site, or none (got {len(logs)})")
    if not logs and any(getattr(variant.experiment.data, "at_sites", False) for variant in grid.variants):
        raise ValueError(f"data: the spec names no data; give the data set of each of {sites} sites with --log FOLDER")
    with progress(quiet) as tell, stop_requested() as stop:
        if logs:
            results = run_local_logs(grid, label, out, logs, tell, stop, print_line)
        else:
            results = run_local(grid, label, out, sites, tell, stop, print_line)
    print_outcome(results, out / label)


def _site(home: Path) -> tuple[SiteSettings, SiteSplit | None]:
    """The settings of a site, and its training data."""
    from fedrank.deploy.data_sources import load_share
    from fedrank.deploy.settings import read_site

    settings = read_site(home)
    return settings, load_share(settings.data) if settings.data.learns else None


def _is_spec(text: str) -> bool:
    return text.endswith(".toml")


def _plans(home: Path, text: str, site: tuple[SiteSettings, SiteSplit | None] | None = None) -> list[Plan]:
    """A plan that a site received, or the plans of a spec."""
    from fedrank.deploy.consent import find_plan
    from fedrank.deploy.show import drafts

    if not _is_spec(text):
        return [find_plan(home, text)]
    settings, share = site or _site(home)
    return drafts(Path(text).read_text(encoding="utf-8-sig"), settings, None if share is None else share.train)


def _views(home: Path, text: str) -> list[tuple[Plan, PlanView]]:
    """The plans, and what a site is shown of each before it decides."""
    from fedrank.deploy.show import look_at

    settings, share = _site(home)
    plans = _plans(home, text, (settings, share))
    return [(plan, look_at(home, settings, plan, share, _is_spec(text))) for plan in plans]


def _check_is_home(home: Path) -> None:
    from fedrank.deploy.settings import FEDERATION, SITE, no_home

    if not any((home / name).exists() for name in (SITE, FEDERATION, "kit")):
        raise no_home(home)
