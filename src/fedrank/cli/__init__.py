"""The command `fedrank`: this module assembles the commands of the other modules.

A command reads files, calls one function, writes files, and prints their paths. Heavy imports stand inside the
commands, so `fedrank --help` is fast.
"""

from __future__ import annotations

import os
import sys
from importlib.metadata import EntryPoint
from typing import Annotated, Any

import typer
from typer.main import get_group

from fedrank import plugins
from fedrank.cli.bench import bench_app
from fedrank.cli.data import data_app
from fedrank.cli.experiments import PANEL, experiments_app
from fedrank.cli.forget import forget_app
from fedrank.cli.model import model_app
from fedrank.cli.privacy import privacy_app
from fedrank.cli.renamed import replacement
from fedrank.cli.shared import print_note
from fedrank.cli.silo import silo_app
from fedrank.cli.trees import trees_app
from fedrank.files import error_message
from fedrank.progress import show_warnings_as_notes

# One thread per matrix product, because whole runs execute in parallel. NumPy reads this when it is first imported.
for _variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

app = typer.Typer(
    name="fedrank",
    help="Federated learning to rank: train one ranker together, without moving documents, queries or clicks.",
    epilog="First steps:  fedrank run quickstart  ·  fedrank report runs/quickstart --out report.html",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
SEPARATOR = "  ·  "  # between the examples of a help text
# Headings of `fedrank --help`.
MODELS, PRIVACY, TOGETHER = "Models and data", "Privacy and rights", "Several organisations"
SEARCH = "Search engines and your own documents"
app.add_typer(experiments_app)
app.add_typer(bench_app, name="bench", rich_help_panel=PANEL)
app.add_typer(data_app, name="data", rich_help_panel=MODELS)
app.add_typer(model_app, name="model", rich_help_panel=MODELS)
app.add_typer(trees_app, name="trees", rich_help_panel=MODELS)
app.add_typer(privacy_app, name="privacy", rich_help_panel=PRIVACY)
app.add_typer(forget_app, name="forget", rich_help_panel=PRIVACY)
app.add_typer(silo_app, name="silo", rich_help_panel=TOGETHER)
# The applications of fedrank are entry points, like plug-ins.
APPLICATIONS = {
    EntryPoint("deploy", "fedrank.cli.deploy:deploy_app", plugins.COMMANDS): TOGETHER,
    EntryPoint("engine", "fedrank.cli.engine:engine_app", plugins.COMMANDS): SEARCH,
    EntryPoint("search", "fedrank.cli.search:search_app", plugins.COMMANDS): SEARCH,
    EntryPoint("rerank", "fedrank.cli.rerank:rerank_app", plugins.COMMANDS): SEARCH,
}


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.", is_eager=True)] = False,
) -> None:
    if version:
        from fedrank import __version__

        typer.echo(f"fedrank {__version__}")
        raise typer.Exit


def _add_applications() -> None:
    """Add the commands of the applications and of plug-ins. A plug-in that fails is ignored with a note."""
    taken = {group.name for group in app.registered_groups} | {entry.name for entry in APPLICATIONS}
    taken |= {one.callback.__name__ for one in experiments_app.registered_commands if one.callback}
    for entry, panel in APPLICATIONS.items():
        app.add_typer(entry.load(), name=entry.name, rich_help_panel=panel)
    for entry in plugins.commands():
        try:
            if entry.name in taken:
                raise ValueError(f"fedrank has a command {entry.name} already")
            added = entry.load()
            if not isinstance(added, typer.Typer):
                raise TypeError(f"it must be a typer.Typer (got {type(added).__name__})")
            get_group(added)  # a command that cannot be built would break all others
            app.add_typer(added, name=entry.name, rich_help_panel="Plug-ins")
            taken.add(entry.name)
        except (Exception, SystemExit) as problem:  # imported code may raise anything
            reason = " ".join(str(problem).split())[:200]
            print_note(f"the plug-in {entry.name} = {entry.value} is ignored: {reason}")


def _list_examples(group: typer.Typer) -> None:
    """Put each example of a help text on its own line."""
    texts: list[Any] = [group.info, *group.registered_commands]
    for one in texts:
        if isinstance(one.epilog, str) and SEPARATOR in one.epilog:
            heading, _, examples = one.epilog.partition(":  ")
            one.epilog = "\n\n".join([f"{heading}:", *(f"· {line}" for line in examples.split(SEPARATOR))])
    for inner in group.registered_groups:
        if inner.typer_instance is not None:
            _list_examples(inner.typer_instance)


_add_applications()
_list_examples(app)


def _refuse_earlier_names(words: list[str]) -> None:
    privacy = {*get_group(privacy_app).commands} if words[:1] == ["privacy"] else ()
    if (error := replacement(words, privacy)) is not None:
        raise ValueError(error)


def main() -> None:
    """Run the command. An error that the user can fix is one message; any other error is a bug with a traceback."""
    try:
        show_warnings_as_notes()
        _refuse_earlier_names(sys.argv[1:])
        app()
    except KeyboardInterrupt:  # outside the commands, which print how to resume
        raise SystemExit(130) from None
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except (ValueError, OSError, ImportError) as problem:
        if os.environ.get("FEDRANK_DEBUG"):
            raise
        from fedrank.display import visible

        typer.echo(f"fedrank: {visible(error_message(problem))}", err=True)
        raise SystemExit(2) from None
