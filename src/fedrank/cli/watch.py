"""The command that serves a page on runs."""

from __future__ import annotations

from fedrank.cli.search import Browser, Port, browse
from fedrank.cli.shared import RunsFolders, new_console, print_line


def watch(folders: RunsFolders, port: Port = 0, browser: Browser = True) -> None:
    """Show runs on a page while they go on: how far, curves, failures, comparisons, reports."""
    from fedrank.experiments.watch.serve import watch

    console = new_console()

    def ready(link: str) -> None:
        print_line(console, f"Open {link}")
        print_line(console, "This link works once, in one browser. Ctrl-C ends the page, and no run.")
        if browser:
            browse(link)

    watch(folders, port, ready)
    print_line(console, "Ended; the runs go on.")
