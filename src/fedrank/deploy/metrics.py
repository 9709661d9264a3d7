"""The status of a coordinator or a site as metrics in the text format of Prometheus, and as a page.

Metrics contain numbers and the names of members, no reasons and no data. They are read from files, as `status` is.
"""

from __future__ import annotations

import csv
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from fedrank.deploy.status import SITES, DeploymentStatus, status

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp

    from fedrank.web.access import Access

CONTENT_TYPE = "text/plain; version=0.0.4"
STATES = ("starting", "running", "waiting", "finished", "interrupted", "failed", "idle", "stopped")
LOGS = ("site.log.1", "site.log")
Sample = tuple[str, str, str, dict[str, str], float]  # name, type, help, labels, value


def exposition(found: DeploymentStatus, folder: Path, now: float | None = None) -> str:
    """The metrics of a member, one per line, below their help and type."""
    now, lines, seen = time.time() if now is None else now, list[str](), set[str]()
    for name, kind, about, labels, value in sorted(_samples(found, Path(folder), now), key=lambda one: one[0]):
        if name not in seen:
            seen.add(name)
            lines += [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]
        labels = {"member": found.who, **labels}
        pairs = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
        lines.append(f"{name}{{{pairs}}} {_number(value)}")
    return "\n".join(lines) + "\n"


def make_app(home: Path, door: Access, shown: Callable[[DeploymentStatus], str], policy: str) -> ASGIApp:
    """Two pages behind the one-time link: the status, and the metrics."""
    from starlette.responses import HTMLResponse, PlainTextResponse

    from fedrank.web.local_app import LocalApp

    def page(folder: Path, request: Request) -> Response:
        headers = {"content-security-policy": f"{policy}; frame-ancestors 'none'", "refresh": "10"}
        return HTMLResponse(shown(status(folder)).encode("utf-8", "replace"), headers=headers)

    def metrics(folder: Path, request: Request) -> Response:
        return PlainTextResponse(exposition(status(folder), folder), media_type=CONTENT_TYPE)

    app = LocalApp(door, home, "watch", lambda code, text: PlainTextResponse(f"{text}\n", code))
    app.get("/", page)
    app.get(
        "/metrics", lambda folder, _: PlainTextResponse(exposition(status(folder), folder), media_type=CONTENT_TYPE)
    )
    return app.build({ValueError: lambda problem: (503, "The status cannot be read; use fedrank deploy status.")})


def _samples(found: DeploymentStatus, folder: Path, now: float) -> Iterator[Sample]:
    def gauge(name: str, about: str, value: float, **labels: str) -> Sample:
        return f"fedrank_{name}", "gauge", about, labels, value

    def counter(name: str, about: str, value: float, **labels: str) -> Sample:
        return f"fedrank_{name}_total", "counter", about, labels, value

    yield gauge("serving", "Whether a process of fedrank deploy start runs.", found.serves)
    yield gauge("storage_ok", "Whether the folder can be written.", not found.storage)
    if found.days_left is not None:
        yield gauge("certificate_days", "Days until the certificate expires.", found.days_left)
    if found.run:
        for state in STATES:
            yield gauge("run_state", "State of the last run.", state == found.state, state=state)
        yield gauge("run_round", "Last round of the run.", found.round)
        yield gauge("run_rounds", "Rounds of the run's plan; 0 if they are not known.", found.rounds)
    if found.last_news is not None:
        yield gauge("last_update_seconds", "Time of the last update, in seconds since 1970.", now - found.last_news)
    if found.who != "coordinator":
        yield from _of_site(found, folder, gauge, counter)
        return
    yield gauge("command_missing", "Whether a run continues without its command.", found.unattended)
    totals = _totals(Path(found.folder) / SITES) if found.folder else {}
    for site in found.sites:
        labels = {"site": site.name}
        refusals, seconds, down, up = totals.get(site.name, (0, 0.0, 0, 0))
        yield counter("site_refusals", "Requests of the run that a site refused or did not answer.", refusals, **labels)
        yield counter("site_seconds", "Seconds in which the run waited for answers of a site.", seconds, **labels)
        about = "Bytes exchanged with a site in the run."
        yield counter("site_bytes", about, down, direction="down", **labels)
        yield counter("site_bytes", about, up, direction="up", **labels)
        yield gauge("site_round", "Last round that a site answered.", site.round, **labels)
        yield gauge("site_waited_for", "Whether the run waits for a site.", bool(site.waited_for), **labels)
        if site.contact is not None:
            yield gauge("site_contact_seconds", "Last answer of a site, in seconds since 1970.", site.contact, **labels)
        if site.link:
            yield gauge("site_up", "Whether a site answers during a run.", site.link == "up", **labels)
        if site.days_left is not None:
            yield gauge("site_certificate_days", "Days until a site's certificate expires.", site.days_left, **labels)


def _of_site(
    found: DeploymentStatus, folder: Path, gauge: Callable[..., Sample], counter: Callable[..., Sample]
) -> Iterator[Sample]:
    yield gauge("connected", "Whether the server accepts the heartbeats of this site.", not found.link)
    yield gauge("plans_to_decide", "Plans that were neither accepted nor refused.", len(found.to_decide))
    yield counter("refusals", "Refusals in site.log; it starts again when the log is rotated twice.", _refusals(folder))
    sizes = [path.stat().st_size for path in (folder / "outbox").glob("*/*") if path.is_file()]
    yield gauge("outbox_messages", "Messages that were prepared to be sent.", len(sizes))
    yield gauge("outbox_bytes", "Bytes of these messages.", sum(sizes))
    spent = found.spent or {}
    for against, cost in spent.items():
        yield gauge("epsilon_spent", "Privacy loss of all runs; +Inf: no guarantee.", cost, against=against)
    if found.limit is not None:
        yield gauge("epsilon_limit", "Largest privacy loss that the policy allows.", found.limit)
        left = max(0.0, found.limit - max(spent.values(), default=0.0))
        yield gauge("epsilon_left", "What the policy still allows.", left)


def _totals(path: Path) -> dict[str, tuple[int, float, int, int]]:
    """Refusals, seconds, bytes to and from each site, over the whole run."""
    found: dict[str, tuple[int, float, int, int]] = {}
    try:
        with open(path, encoding="utf-8", errors="replace", newline="") as file:
            for row in csv.DictReader(file):
                try:
                    seconds, down, up = float(row["seconds"]), int(row["bytes_down"]), int(row["bytes_up"])
                except (KeyError, TypeError, ValueError):
                    continue  # a line that is being written
                a, b, c, d = found.get(row["site"], (0, 0.0, 0, 0))
                found[row["site"]] = (a + bool(row["refused"]), b + seconds, c + down, d + up)
    except (OSError, csv.Error):
        return found
    return found


def _refusals(folder: Path) -> int:
    count = 0
    for name in LOGS:
        try:
            count += (folder / name).read_bytes().count(b": Refused: ")
        except OSError:
            continue
    return count


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return f"{float(value):.15g}"
