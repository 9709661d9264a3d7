"""The command `fedrank`: this module assembles the commands of the other modules.

A command reads files, calls one function, writes files, and prints their paths. Heavy imports stand inside the
commands, and a group of commands is imported only if it is called, so `fedrank --help` is fast.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.main import get_group

from fedrank import plugins
from fedrank.cli.experiments import PANEL, experiments_app
from fedrank.cli.renamed import replacement
from fedrank.cli.shared import print_note
from fedrank.files import error_message
from fedrank.progress import show_warnings_as_notes

# One thread per matrix product, because whole runs execute in parallel. NumPy reads this when it is first imported.
for _variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

SEPARATOR = "  ·  "  # between the examples of a help text
# Headings of `fedrank --help`.
MODELS, PRIVACY, TOGETHER = "Models and data", "Privacy and rights", "Several organisations"
SEARCH = "Search engines and your own documents"
# Groups of commands: `data` is `data_app` in `fedrank.cli.data`.
GROUPS = {
    "bench": (PANEL, "FOLTR-Bench: six frozen tasks of federated learning to rank, submissions and a leaderboard."),
    "data": (MODELS, "Data sets: list and check them; build them from click logs; sketch documents."),
    "model": (MODELS, "Use a trained model: score, evaluate, export, estimate from clicks."),
    "trees": (
        MODELS,
        "Tree models of several organisations: split data, merge models, grow one forest together.",
    ),
    "privacy": (
        PRIVACY,
        "Privacy: guarantees of a spec, settings for an ε, attacks on messages, ledgers, impact assessment.",
    ),
    "forget": (
        PRIVACY,
        "Unlearn a client of finished runs, or delete a person or expired entries from a data set.",
    ),
    "deploy": (TOGETHER, "Train with other organisations: a coordinator, and sites that keep their data."),
    "engine": (SEARCH, "OpenSearch, Elasticsearch, Solr: features, logged features, and trials of a model."),
    "search": (
        SEARCH,
        "Search your own documents on this machine; what you opened for similar queries moves up. No data leave the "
        "device.",
    ),
    "rerank": (
        SEARCH,
        "Order passages for a language model, an agent or a site search, and learn from which of them were used.",
    ),
}


def _root(
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.", is_eager=True)] = False,
) -> None:
    if version:
        from fedrank import __version__

        typer.echo(f"fedrank {__version__}")
        raise typer.Exit


def build_app(called: str | None = None) -> typer.Typer:
    """Return the command with all its groups; of groups that differ from the called one, only name and help."""
    built = typer.Typer(
        name="fedrank",
        help="Federated learning to rank: train one ranker together, without moving documents, queries or clicks.",
        epilog="First steps:  fedrank run quickstart  ·  fedrank report runs/quickstart --out report.html",
        no_args_is_help=True,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
    )
    built.callback(invoke_without_command=True)(_root)
    built.add_typer(experiments_app)
    for name, (panel, text) in GROUPS.items():
        group = typer.Typer()
        if called in (None, name):
            group = getattr(import_module(f"fedrank.cli.{name}"), f"{name}_app")
        built.add_typer(group, name=name, rich_help_panel=panel, help=text)
    _add_plugins(built)
    _list_examples(built)
    return built


def __getattr__(name: str) -> Any:
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals().setdefault("app", build_app())


def _add_plugins(built: typer.Typer) -> None:
    """Add the commands of plug-ins. A plug-in that fails is ignored with a note."""
    taken = {*GROUPS} | {one.callback.__name__ for one in experiments_app.registered_commands if one.callback}
    for entry in plugins.commands():
        try:
            if entry.name in taken:
                raise ValueError(f"fedrank has a command {entry.name} already")
            added = entry.load()
            if not isinstance(added, typer.Typer):
                raise TypeError(f"it must be a typer.Typer (got {type(added).__name__})")
            get_group(added)  # a command that cannot be built would break all others
            built.add_typer(added, name=entry.name, rich_help_panel="Plug-ins")
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


def _refuse_earlier_names(words: list[str]) -> None:
    privacy: set[str] = set()
    if words[:1] == ["privacy"]:
        from fedrank.cli.privacy import privacy_app

        privacy = {*get_group(privacy_app).commands}
    if (error := replacement(words, privacy)) is not None:
        raise ValueError(error)


def main() -> None:
    """Run the command. An error that the user can fix is one message; any other error is a bug with a traceback."""
    try:
        show_warnings_as_notes()
        _refuse_earlier_names(sys.argv[1:])
        words = sys.argv[1:]
        if "_FEDRANK_COMPLETE" in os.environ:  # a shell asks for the words that may follow
            words = (os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS", "")).split()[1:]
        build_app(next((word for word in words if not word.startswith("-")), ""))()
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
