"""Stand-ins for a site and a coordinator: bytes go there and come back, so that tests see the engine alone."""

from __future__ import annotations

import os
import time
from pathlib import Path

from fedrank.deploy.flare import HubController, SiteExecutor
from fedrank.deploy.hub import Silent
from fedrank.files import locked
from fedrank.run.writer import News

EXECUTOR = f"{__name__}.EchoExecutor"
CONTROLLER = f"{__name__}.EchoController"
ROUNDS, SIZE, SITES, PAUSE = "ECHO_ROUNDS", "ECHO_SIZE", "ECHO_SITES", "ECHO_PAUSE"


class Echo:
    """Answers with what came; what it is told to do, it does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = locked(folder / "lock", str(folder))
        self._lock.__enter__()

    def answer(self, request: bytes) -> bytes:
        if (self.folder / "silent").exists():
            time.sleep(float((self.folder / "silent").read_text()))
        if (self.folder / "word").exists():
            raise ValueError((self.folder / "word").read_text())
        return request[:1] * int(request[1:]) if request.startswith(b"x") else request

    def close(self) -> None:
        self._lock.__exit__(None, None, None)


class EchoExecutor(SiteExecutor):
    def open_site(self, folder):
        if (folder / "broken").exists():
            raise ValueError((folder / "broken").read_text())
        return Echo(folder)


class EchoController(HubController):
    """Sends rounds of bytes to every site, and notes in the run folder how each went."""

    def coordinate(self, active, tell, stop):
        settings, sites = active.settings, active.settings["sites"]
        folder = Path(active.folder)
        folder.mkdir(parents=True, exist_ok=True)
        done = folder / "rounds.csv"
        begin = len(done.read_text().splitlines()) if done.exists() else 0
        for number in range(begin, settings["rounds"]):
            began = time.perf_counter()
            request = b"%d " % number + os.urandom(200)
            sent = {site: self.send(site, request, settings.get("patience", 10.0)) for site in sites}
            answers = {}
            for site, future in sent.items():
                try:
                    answers[site] = "ok" if future.result() == request else "other"
                except Silent as why:
                    answers[site] = str(why).replace(",", ";")
            took = time.perf_counter() - began
            with open(done, "a") as file:
                file.write(
                    f"{number},{took:.4f},{time.time():.2f},{active.stretch}," + ",".join(answers.values()) + "\n"
                )
            tell(News(number + 1, settings["rounds"], 0.5, 0, 0.0, 0.0))
            if stop():
                return "interrupted"
            time.sleep(settings.get("pause", 0))
        return "finished"
