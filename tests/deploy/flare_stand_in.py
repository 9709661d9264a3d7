"""Stand-ins for a site and a coordinator: bytes go there and come back, so that tests see the engine alone."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from fedrank.deploy.flare import HubController, SiteExecutor
from fedrank.deploy.site_calls import Silent
from fedrank.experiments.runner.writer import News
from fedrank.files import locked, write_atomic

EXECUTOR, CONTROLLER = f"{__name__}.EchoExecutor", f"{__name__}.EchoController"


class Echo:
    """Answers with what came; files in its folder tell it to do otherwise."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = locked(folder / "lock", str(folder))
        self._lock.__enter__()

    def answer(self, request: bytes) -> bytes:
        if (self.folder / "silent").exists():
            time.sleep(float((self.folder / "silent").read_text()))
        if (self.folder / "word").exists():
            raise ValueError((self.folder / "word").read_text())
        if request.startswith(b"grow "):
            return bytes(int(request[5:]))
        return request

    def close(self) -> None:
        self._lock.__exit__(None, None, None)


class EchoExecutor(SiteExecutor):
    def open_site(self, folder):
        if (folder / "broken").exists():
            raise ValueError((folder / "broken").read_text())
        return Echo(folder)


class EchoController(HubController):
    """Asks what the settings say, then sends rounds of bytes to every site; notes how each went."""

    def coordinate(self, active, tell, stop):
        settings, folder = active.settings, Path(active.folder)
        folder.mkdir(parents=True, exist_ok=True)
        patience = settings.get("patience", 10.0)
        asked = []
        for site, text, size in settings.get("ask", []):
            began = time.perf_counter()
            said = self._said(self.send(site, text.encode() + bytes(size), patience))
            asked.append([site, len(said), said[:200].decode(errors="replace"), time.perf_counter() - began])
        write_atomic(folder / "asked.json", json.dumps(asked))
        rows = folder / "rounds.csv"
        for number in range(len(read_rounds(folder)), settings["rounds"]):
            began = time.perf_counter()
            request = b"%d " % number + os.urandom(200)
            sent = [self.send(site, request, patience) for site in settings["sites"]]
            answers = [self._said(future) for future in sent]
            said = [answer == request for answer in answers]
            with open(rows, "a") as file:
                row = [number, time.perf_counter() - began, time.time(), active.stretch, *said]
                file.write(json.dumps(row) + "\n")
            tell(News(number + 1, settings["rounds"], 0.5, 0, 0.0, 0.0))
            if stop():
                return "interrupted"
            time.sleep(settings.get("pause", 0))
        return "finished"

    def _said(self, future) -> bytes:
        try:
            return future.result()
        except Silent as why:
            return str(why).encode()


def read_rounds(folder: Path) -> list[list]:
    """Number, seconds, when, stretch, and of each site whether it answered."""
    rows = folder / "rounds.csv"
    return [json.loads(line) for line in rows.read_text().splitlines()] if rows.exists() else []
