"""The page on runs, really served, over folders that a test writes to."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from fedrank.experiments.runner.runs import working_on
from fedrank.experiments.watch.state import Watched
from fedrank.experiments.watch.web import COMMAND, make_app
from fedrank.web.access import Access
from fedrank.web.server import listening, make_server
from tests.experiments.report.made_up_runs import write_experiment, write_run

BAD = "<script>alert(1)</script>"


@dataclass
class WatchedPage:
    door: Access
    folder: Path

    @property
    def origin(self) -> str:
        return self.door.origin

    def browser(self) -> httpx.Client:
        """Somebody who came in."""
        client = httpx.Client(base_url=self.origin, verify=False, trust_env=False, timeout=60)  # plain HTTP
        client.cookies.set(self.door.cookie, self.door._session, domain="127.0.0.1")
        return client


def write_folders(out: Path) -> None:
    """Two experiments on the same queries, of which one is done; one of the other's runs failed."""
    out.mkdir()
    for name, variants in {"first": ("mean", "krum"), "second": ("median",)}.items():
        asked = ", ".join(f'{variant} = {{ "aggregator.name" = "{variant}" }}' for variant in variants)
        write_experiment(out, f"variants = {{ {asked} }}\n", experiment=name)
        for variant in variants:
            for fold in (1, 2):
                for seed in (1, 2, 3) if name == "first" else (1, 2):
                    write_run(out, name, variant, fold, seed)
    folder = write_run(
        out, "second", "median", 1, 3, status="failed", round=7, rounds=40,
        error={"message": f"ValueError: {BAD}; mine.py, line 3, in Mine.__call__", "round": 7, "client": 2},
    )  # fmt: skip
    (folder / "traceback.txt").write_text(f"Traceback (most recent call last):\n  {BAD}\nValueError: no such luck\n")


@contextmanager
def running(out: Path, experiment: str, variant: str, fold: int, seed: int, round: int = 10) -> Iterator[Path]:
    """A run that is going on for as long as this lasts."""
    folder = write_run(out, experiment, variant, fold, seed, status="running", round=0, rounds=40)
    for name in ("queries.csv", "model.json"):
        (folder / name).unlink()
    rows = (folder / "rounds.csv").read_text().splitlines(keepends=True)
    (folder / "later.csv").write_text("".join(rows[round + 1 :]))
    (folder / "rounds.csv").write_text("".join(rows[: round + 1]))
    (folder / "timing.csv").write_text(f"round,seconds,cpu_seconds\n{round},{round * 2.0},{round * 2.0}\n")
    with working_on(folder):
        yield folder


def grow(folder: Path, rounds: int) -> None:
    """The next rounds of a run that is going on."""
    rows = (folder / "later.csv").read_text().splitlines(keepends=True)
    with (folder / "rounds.csv").open("a") as file:
        file.write("".join(rows[:rounds]))
    (folder / "later.csv").write_text("".join(rows[rounds:]))


def finish(folder: Path) -> None:
    """Its last round is done."""
    grow(folder, 40)
    facts = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(facts | {"status": "finished", "round": 40}))


@contextmanager
def served(out: Path) -> Iterator[WatchedPage]:
    ready = threading.Event()
    with listening(COMMAND) as (bound, door):
        app = make_app(Watched((out,)), door)
        server = make_server(app, door, lambda link: ready.set(), "watch")
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
        thread.start()
        assert ready.wait(20)
        try:
            yield WatchedPage(door, out)
        finally:
            server.should_exit = True
            thread.join(20)
