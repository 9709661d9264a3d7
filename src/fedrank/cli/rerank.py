"""`fedrank rerank`: order passages for a reader, and learn from which of them were used."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedrank.cli.shared import AsJson, Browser, open_page, print_json, print_line, print_note
from fedrank.files import Locked
from fedrank.names import did_you_mean

if TYPE_CHECKING:
    from fedrank.search.rerank.tenants import Tenants

rerank_app = typer.Typer(no_args_is_help=True)
ADDRESS = "127.0.0.1:8011"
LOCAL = ("127.0.0.1", "::1", "localhost")
Folder = Annotated[
    Path | None,
    typer.Option("--folder", envvar="FEDRANK_RERANK", help="Folder of the server. Default: your data folder."),
]
Tenant = Annotated[str, typer.Argument(help="Name of a tenant: small letters, digits and '-'.")]


def _tenants(folder: Path | None, refits: bool = True, scorer: str | None = None) -> Tenants:
    from fedrank.search.folders import default_folder
    from fedrank.search.rerank.scorer import ModelScorer
    from fedrank.search.rerank.tenants import Tenants

    model = None if scorer is None else ModelScorer(scorer)
    return Tenants((folder or default_folder().with_name("rerank")).expanduser(), refits, model)


def _known(tenants: Tenants, tenant: str) -> Tenants:
    """The same tenants, if one of them has this name; a mistyped name is an error and is not created."""
    known = tenants.names()
    if tenant not in known:
        others = did_you_mean(tenant, known) if known else "; `fedrank rerank key NAME` creates the first one"
        raise ValueError(f"tenant {tenant!r} is not in {tenants.folder}{others}")
    return tenants


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not len(port) < 6 or int(port) > 65_535:
        raise ValueError(f"--address must have the form HOST:PORT, such as {ADDRESS} (got {address!r})")
    return host.strip("[]"), int(port)


@rerank_app.command("serve", epilog="Example:  fedrank rerank serve --address 127.0.0.1:8011")
def rerank_serve(
    address: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where to serve. Put TLS in front of anything but this machine.")
    ] = ADDRESS,
    refits: Annotated[
        bool, typer.Option("--refits/--no-refits", help="Fit weights to the caller's own signals.")
    ] = True,
    scorer: Annotated[
        str | None,
        typer.Option(
            help="Your own model: the URL of a rerank server, or a command that answers each line of JSON with one."
        ),
    ] = None,
    browser: Browser = True,
    folder: Folder = None,
) -> None:
    """Serve POST /v2/rerank and /v2/feedback until Ctrl-C, and a page that shows what was learned."""
    from fedrank.search.rerank.serve import serve

    def ready(address: str, link: str) -> None:
        print_line(f"Reranker: {address}/v2/rerank")
        open_page(link, browser, "stops the server")

    host, port = _host_and_port(address)
    tenants = _tenants(folder, refits, scorer)
    if not tenants.names():
        print_note("there is no API key yet; `fedrank rerank key NAME` creates one, also while the server runs")
    try:
        serve(tenants, host, port, ready)
    finally:
        tenants.close()
    print_line("Stopped; all feedback is stored.")


@rerank_app.command("key", epilog="Example:  fedrank rerank key shop")
def rerank_key(
    tenant: Tenant,
    revoke: Annotated[bool, typer.Option("--revoke", help="Revoke the earlier keys of the tenant.")] = False,
    folder: Folder = None,
) -> None:
    """Create an API key of a tenant. It is printed once; the server stores only its digest."""
    print_line(_tenants(folder).add_key(tenant, revoke))


@rerank_app.command("status", epilog="Example:  fedrank rerank status shop --json")
def rerank_status(tenant: Tenant, as_json: AsJson = False, folder: Folder = None) -> None:
    """Show what a tenant's reranker has learned, and how it compares with the caller's order."""
    from fedrank.search.rerank.page import MEANINGS, MODES, compared, consistency, names

    try:
        with _known(_tenants(folder), tenant).reranker(tenant) as reranker:
            status = reranker.status()
    except Locked as problem:
        raise Locked(f"{problem}; while a server runs, its page shows the status") from None
    if as_json:
        print_json(asdict(status))
        return
    print_line(MODES[status.mode])
    print_line(f"{status.requests:,} requests, {status.with_feedback:,} with feedback")
    print_line(f"Compared with the caller's order: {compared(status.against_caller)}")
    for reader, record in status.readers.items():
        print_line(f"Reader {reader or 'without a name'}: {consistency(record)}")
    for name in names(status):
        trial = "" if status.on_trial is None else f" (on trial: {status.on_trial.get(name, 0.0):+.2f})"
        print_line(f"{status.weights.get(name, 0.0):+6.2f}  {name}: {MEANINGS.get(name, 'sent by the caller')}{trial}")


@rerank_app.command("forget", epilog="Example:  fedrank rerank forget shop --query 'asthma inhaler'")
def rerank_forget(
    tenant: Tenant,
    query: Annotated[str | None, typer.Option(help="Delete the requests with this query.")] = None,
    document: Annotated[Path | None, typer.Option(help="File with the text of a passage to forget.")] = None,
    user: Annotated[str | None, typer.Option(help="Delete the requests of this user.")] = None,
    everything: Annotated[bool, typer.Option("--everything", help="Delete the tenant and its keys.")] = False,
    folder: Folder = None,
) -> None:
    """Delete what a tenant's reranker has stored of a query, a passage or a user. Stop the server first."""
    from fedrank.files import read_text

    tenants = _known(_tenants(folder), tenant)
    if everything and query is None and document is None and user is None:
        tenants.forget(tenant)
        print_line(f"Deleted: {tenant}")
        return
    with tenants.reranker(tenant) as reranker:
        text = None if document is None else read_text(document)
        count = reranker.forget(query=query, document=text, user=user, everything=everything)
    print_line(f"{count:,} requests deleted or changed")


@rerank_app.command(
    "join",
    epilog="Examples:  fedrank rerank join shop --log feedback  ·  after the run:  fedrank rerank join shop --model "
    "site/models/ranker/model.json",
)
def rerank_join(
    tenant: Tenant,
    log: Annotated[Path | None, typer.Option(help="New folder for the feedback, for `log` in a site.toml.")] = None,
    model: Annotated[Path | None, typer.Option(help="Model of the federation to try on random requests.")] = None,
    folder: Folder = None,
) -> None:
    """Learn with other tenants or companies through `fedrank deploy`. Stop the server first."""
    from fedrank.search.rerank.joining import try_model, write_log

    if (log is None) == (model is None):
        raise ValueError("give either --log, to write the feedback, or --model, to try a model")
    with _known(_tenants(folder), tenant).reranker(tenant) as reranker:
        if log is not None:
            made = write_log(reranker, log)
            print_line(f"{log}: {len(made):,} requests of {len(made.users):,} people")
            print_line(f'In the spec: [data] features = "{made.facts["settings"]["features"]}"')
        elif model is not None:
            try_model(reranker, model)
            print_line("The model is on trial: half of the requests use it until there is a decision.")


@rerank_app.command("mcp", epilog="Example:  fedrank rerank mcp agent")
def rerank_mcp(
    tenant: Tenant = "agent",
    address: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Serve streamable HTTP on this machine. Default: standard input."),
    ] = None,
    folder: Folder = None,
) -> None:
    """Serve the tools `rerank` and `feedback` to an agent (Model Context Protocol)."""
    from fedrank.search.mcp import rerank_tools

    if address is not None and _host_and_port(address)[0] not in LOCAL:
        raise ValueError(f"--address must be on this machine, such as {ADDRESS} (got {address!r}); it asks for no key")
    with _tenants(folder).reranker(tenant) as reranker:
        server = rerank_tools(reranker)
        if address is None:
            server.run("stdio")
        else:
            host, port = _host_and_port(address)
            server.run("streamable-http", host=host, port=port)
