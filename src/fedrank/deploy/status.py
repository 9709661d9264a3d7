"""The status of a federation, read from files, without contacting a running process.

A coordinator's home names the active run (`active.json`); its run folder holds progress, last answers and the sites
that it waits for. A site's folder holds its last request and refusal, and what its people have spent.
"""

from __future__ import annotations

import csv
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedrank.deploy.check import FlareKits, storage_problem
from fedrank.deploy.consent import proposals
from fedrank.deploy.flare_active import ACTIVE, reports
from fedrank.deploy.protocol import SAY_HELLO
from fedrank.deploy.settings import FEDERATION, SITE, no_home, read_federation, read_site
from fedrank.deploy.site_releases import MODEL_FILES
from fedrank.deploy.site_runtime import MODELS, PEOPLE
from fedrank.experiments.report.formatting import duration
from fedrank.experiments.report.sections import Cell, Section
from fedrank.files import is_locked, parse_json
from fedrank.privacy.guarantees import up
from fedrank.privacy.ledger import LedgerError
from fedrank.privacy.population import Population
from fedrank.toml import parse_toml

SILENT = 30.0  # seconds after which a failed heartbeat no longer counts; NVFLARE reports one every few seconds
TAIL = 1 << 16  # bytes read at the end of a file
RECENT = 20  # rounds from which the remaining time is estimated
SERVED = "start.lock"  # held by the process that serves a folder
SHARED = "federation.json"  # of a coordinator that uses a shared folder
BOOKS, SITES, LEFT_OUT = "sites.json", "sites.csv", "left-out.json"
RUN_LOCK = "lock"  # of a run folder, held by the process that performs the run
COMMAND_LOCKS = ("run.lock", "folder.lock")  # held by `fedrank deploy run`, with NVFLARE and with a shared folder
# Reasons for which a run waits that mean that a site does not answer at all.
SILENCE = ("cannot be reached", "no answer", "did not answer", "has not answered", "was lost")


@dataclass(frozen=True)
class SiteLine:
    """A site, as the coordinator sees it."""

    name: str
    state: str  # invited, joined, expelled or left; "" without a member list
    round: int = 0  # last answered round
    seconds: float | None = None  # duration of that round
    refused: str = ""  # why it did not answer the last request; "" if it did
    waited_for: str = ""  # why the run waits for it
    days_left: int | None = None  # of its certificate
    link: str = ""  # to the server, during a run: "up" or "down"; "" if it is not known
    silent: bool = False  # whether the last request got no answer at all
    contact: float | None = None  # when it last answered, in seconds since 1970; None if it is not known


@dataclass(frozen=True)
class DeploymentStatus:
    """The status of a coordinator or a site."""

    who: str  # "coordinator", or the name of the site
    federation: str
    serves: bool  # whether a process of `deploy start` is running, or of `deploy run` with a shared folder
    days_left: int | None  # of the own certificate
    run: str = ""
    folder: str = ""  # of the run
    # "starting", "running", "waiting", "finished", "interrupted" or "failed"; of a site "idle" or "stopped".
    state: str = ""
    round: int = 0
    rounds: int = 0
    quality: Mapping[str, float] | None = None  # of the last evaluated round
    seconds_left: float | None = None
    last_news: float | None = None  # seconds ago
    last_refusal: str = ""
    sites: tuple[SiteLine, ...] = ()
    spent: Mapping[str, float] | None = None  # at a site: ε of all runs, against each observer
    limit: float | None = None
    to_decide: tuple[str, ...] = ()  # at a site: plans that have not been accepted or refused
    storage: str = ""  # why nothing can be written, such as a full disk; "" if it can
    link: str = ""  # at a site: "down" if the server does not accept its heartbeats
    unattended: bool = False  # whether a job continues a run whose command has ended


def status(folder: Path, kits: FlareKits | None = None, now: float | None = None) -> DeploymentStatus:
    """The status of a coordinator's home or a site's folder."""
    folder, kits, now = Path(folder), kits or FlareKits(), time.time() if now is None else now
    if (folder / FEDERATION).exists() or (folder / SHARED).exists():
        return _of_coordinator(folder, kits, now)
    if (folder / SITE).exists():
        return _of_site(folder, kits, now)
    raise no_home(folder)


def about_status(found: DeploymentStatus) -> list[Section]:
    """The status in sections."""
    pairs = [("federation", found.federation), ("member", found.who)]
    pairs.append(("process", "running" if found.serves else "stopped"))
    if found.days_left is not None:
        pairs.append(("certificate", _ends(found.days_left)))
    if found.run:
        far = f"round {found.round:,} of {found.rounds:,}" if found.rounds else f"round {found.round:,}"
        pairs += [("run", found.run), ("state", found.state), ("progress", far)]
    pairs += [(name, f"{value:.4f}") for name, value in (found.quality or {}).items()]
    if found.seconds_left is not None:
        pairs.append(("time left", f"about {duration(found.seconds_left)}"))
    if found.last_news is not None:
        pairs.append(("last update", f"{duration(max(0.0, found.last_news))} ago"))
    if found.spent is not None:
        most = max(found.spent.values(), default=0.0)
        cost = "no guarantee" if math.isinf(most) else f"ε = {up(most)}"
        pairs.append(("spent over all runs", cost + ("" if found.limit is None else f" of {found.limit:g}")))
    if found.folder:
        pairs.append(("results", found.folder))
    section = Section("").pairs(pairs)
    if found.storage:
        section = section.paragraph(f"{found.storage[0].upper()}{found.storage[1:]}.", tone="warn")
    if found.link:
        section = section.paragraph(
            "The server does not accept the heartbeats of this site: it is down, or it no longer admits this site; ask "
            "the coordinator.", tone="warn",
        )  # fmt: skip
    if found.unattended:
        section = section.paragraph(
            "`fedrank deploy run` is not running: a job continues the run, but nothing replaces it when it fails or "
            "when a site comes back; run the command again.", tone="warn",
        )  # fmt: skip
    if found.last_refusal:
        section = section.paragraph(f"Last refusal: {found.last_refusal}", tone="warn")
    if waiting := [f"{site.name}: {site.waited_for}" for site in found.sites if site.waited_for]:
        section = section.paragraph("The run is waiting for:", tone="warn").points(waiting)
    if found.to_decide:
        section = section.paragraph("To review with `fedrank deploy show`:", tone="warn").points(found.to_decide)
    return [_with_sites(section, found.sites) if found.sites else section]


def as_facts(found: DeploymentStatus) -> dict[str, Any]:
    """The status as data; values without a guarantee are null."""
    spent = found.spent
    return asdict(found) | {
        "spent": None
        if spent is None
        else {against: None if math.isinf(cost) else cost for against, cost in spent.items()}
    }


def _with_sites(section: Section, sites: Sequence[SiteLine]) -> Section:
    rows = [
        [
            Cell(site.name, tone="name"),
            site.state,
            Cell(site.link, tone="warn" if site.link == "down" else ""),
            f"{site.round:,}" if site.round else "",
            "" if site.seconds is None else f"{site.seconds:.2f} s",
            Cell("" if site.days_left is None else _ends(site.days_left), tone=_urgent(site.days_left)),
            Cell(site.refused, tone="warn" if site.refused else ""),
        ]
        for site in sites
    ]
    return section.table(["site", "membership", "link", "last round", "took", "certificate", "reason"], rows, 3)


def _urgent(days: int | None) -> str:
    return "" if days is None or days >= 30 else "warn" if days >= 0 else "worse"


def _ends(days: int) -> str:
    return "has expired" if days < 0 else "expires in 1 day" if days == 1 else f"expires in {days:,} days"


def _of_coordinator(home: Path, kits: FlareKits, now: float) -> DeploymentStatus:
    name, listed = _federation(home, kits)
    server = (home / FEDERATION).exists()  # with a shared folder, a site that computes and one that is off look alike
    active = _facts(home / ACTIVE)
    news = _facts(home / reports(str(active.get("run")), str(active.get("stretch"))))
    folder = Path(str(active["folder"])) if active.get("folder") else _latest(home / "runs")
    books, run = ({}, {}) if folder is None else (_facts(folder / BOOKS), _facts(folder / "run.json"))
    answered = {} if folder is None else last_answers(folder / SITES)
    waiting = _texts(books.get("waiting"))
    reached, rounds = _whole(books.get("round")), _whole(books.get("rounds"))
    # While a run waits, this file names the round in progress.
    done = max((one.round for one in answered.values()), default=0)
    done = done if waiting else max(done, reached)
    rounds = rounds or _planned_rounds(active)
    state = _state(home, folder, run, news, bool(waiting), bool(active.get("stopped")))
    reported = news.get("lost")
    lost = reported if isinstance(reported, list) else []
    excluded = {} if folder is None else _texts(_facts(folder / LEFT_OUT))
    contact = books.get("contact")
    contacts = contact if isinstance(contact, dict) else {}
    lines = []
    for site, where, until in listed:
        one = answered.get(site, SiteLine(site, ""))
        why = waiting.get(site, "")
        asked = server and state in ("running", "waiting") and where in ("joined", "")
        link = _link(one, why, site in lost) if asked else ""
        lines.append(
            SiteLine(
                site, where, one.round, one.seconds, excluded.get(site, one.refused), why, _days(until, now), link,
                one.silent, _number(contacts.get(site)),
            )
        )  # fmt: skip
    at = max((float(found["at"]) for found in (books, news) if isinstance(found.get("at"), (int, float))), default=0.0)
    return DeploymentStatus(
        who="coordinator",
        federation=name,
        serves=any(map(is_locked, (home / SERVED, home / COMMAND_LOCKS[1]))),
        days_left=_own_days(home, kits, now),
        run=str(books.get("run") or active.get("name") or ""),
        folder="" if folder is None else str(folder),
        state=state,
        round=done,
        rounds=rounds,
        quality=None if folder is None else quality(folder / "rounds.csv"),
        seconds_left=_left(folder, done, rounds) if folder is not None and state in ("running", "waiting") else None,
        last_news=now - at if at else None,
        last_refusal=str(books.get("last_refusal") or news.get("why") or ""),
        sites=tuple(lines),
        storage=storage_problem(home),
        unattended=state in ("running", "waiting") and is_locked(home / COMMAND_LOCKS[0]) is False,
    )


def _link(last: SiteLine, waited_for: str, lost: bool) -> str:
    """Whether a site answers during a run: one that refuses a request does."""
    if lost or any(words in waited_for for words in SILENCE):
        return "down"
    if waited_for or not last.name or (not last.round and not last.refused):
        return ""
    return "down" if last.silent else "up"


def _planned_rounds(active: Mapping[str, Any]) -> int:
    try:
        return _whole(parse_toml(str(active["spec"])).get("rounds"))
    except (KeyError, ValueError):
        return 0


def _state(
    home: Path, folder: Path | None, run: Mapping[str, Any], news: Mapping[str, Any], waits: bool, stopped: bool
) -> str:
    if folder is None:
        return ""
    said = str(run.get("status") or news.get("ended") or "")
    held, commands = is_locked(folder / RUN_LOCK), [is_locked(home / name) for name in COMMAND_LOCKS]
    if said in ("finished", "failed") or (said == "interrupted" and not any(commands)):
        return said
    if held:
        return "waiting" if waits else "running"
    if any(commands):
        return "starting"
    if stopped or held is False or False in commands:  # a killed process could not record its end
        return "interrupted"
    return "waiting" if waits else "running"


def _of_site(folder: Path, kits: FlareKits, now: float) -> DeploymentStatus:
    settings = read_site(folder)
    content = _facts(folder / "status.json")
    spent: Mapping[str, float] | None = None
    problem = ""
    try:
        if (known := Population.find(folder / PEOPLE)) is not None:
            spent = known.spent()
    except (LedgerError, ValueError, OSError) as trouble:
        problem = str(trouble)
    at = content.get("at")
    sent = _last_sent(folder / "outbox" / str(content.get("digest", ""))[:32])
    return DeploymentStatus(
        who=settings.name,
        federation=settings.federation,
        serves=bool(is_locked(folder / SERVED)) or bool(is_locked(folder / "lock")),
        days_left=_own_days(folder, kits, now),
        run=str(content.get("run") or ""),
        state=_state_of_site(folder, content),
        round=max(sent, _whole(content.get("round"))),
        rounds=_whole(content.get("rounds")),
        last_news=now - float(at) if isinstance(at, (int, float)) else None,
        last_refusal=problem or str(content.get("refused") or "") or _last_refusal(folder / "site.log"),
        spent=spent,
        limit=settings.policy.largest_epsilon,
        to_decide=tuple(f"{plan.digest[:12]} ({plan.name})" for plan in proposals(folder)),
        storage=storage_problem(folder),
        link="down" if _heartbeat_fails(folder / "engine.log", now) else "",
    )


def _heartbeat_fails(path: Path, now: float) -> bool:
    """Whether NVFLARE reported lately that the server does not accept a heartbeat of this site."""
    failed = [line for line in _tail(path) if "Failed to send heartbeat" in line]
    try:
        return bool(failed) and now - datetime.fromisoformat(failed[-1][:19]).timestamp() < SILENT
    except ValueError:
        return False


def _state_of_site(folder: Path, content: Mapping[str, Any]) -> str:
    """The state of the last run at a site; a process that uses a shared folder holds the lock between runs, too."""
    held, digest = is_locked(folder / "lock"), str(content.get("digest") or "")
    models = folder / MODELS / digest[:16]
    if digest and any((models / name).exists() for name in MODEL_FILES.values()):
        return "finished"
    if held:
        return "running" if content else "idle"
    return "" if not content else "idle" if is_locked(folder / SERVED) else "stopped"


def _last_sent(outbox: Path) -> int:
    """The last round for which a message was sent."""
    try:
        return max((_whole(path.name.partition("-")[0]) for path in outbox.iterdir()), default=0)
    except OSError:
        return 0


def last_answers(path: Path) -> dict[str, SiteLine]:
    """The last answer of each site, from the end of sites.csv."""
    found: dict[str, SiteLine] = {}
    for row in _rows(path):
        seconds = _number(row.get("seconds"))
        line = SiteLine(row.get("site", ""), "", _whole(row.get("round")), seconds, row.get("refused", ""))
        before, silent = found.get(line.name), not _whole(row.get("bytes_up"))
        if line.refused == SAY_HELLO and before is not None and before.refused:
            continue  # the reason why the site does not know the run
        if line.refused and before is not None:  # keep the last answered round
            line = replace(before, refused=line.refused, silent=silent)
        elif line.refused:
            line = SiteLine(line.name, "", 0, None, line.refused, silent=silent)
        found[line.name] = line
    return found


def quality(path: Path) -> dict[str, float] | None:
    """Measures of the last evaluated round, from the end of rounds.csv."""
    found: dict[str, float] | None = None
    for row in _rows(path):
        values = {name: _number(text) for name, text in row.items() if name not in _NO_MEASURES}
        known = {name: value for name, value in values.items() if value is not None}
        if known and len(known) == len(values):
            found = known
    return found


_NO_MEASURES = ("round", "online", "interactions", "bytes_up", "bytes_down", "reward")


def _left(folder: Path, done: int, rounds: int) -> float | None:
    """Estimated seconds until the last round: each round takes as long as its slowest site did recently."""
    took: dict[int, dict[str, float]] = {}  # secure aggregation sends several requests per round
    for row in _rows(folder / SITES):
        seconds = _number(row.get("seconds"))
        if seconds is not None:
            sites = took.setdefault(_whole(row.get("round")), {})
            sites[row.get("site", "")] = sites.get(row.get("site", ""), 0.0) + seconds
    took.pop(0, None)  # before the first round
    slowest = {number: max(sites.values()) for number, sites in took.items()}
    recent = [slowest[number] for number in sorted(slowest)[-RECENT:]]
    return None if not recent or not rounds else sum(recent) / len(recent) * max(0, rounds - done)


def _federation(home: Path, kits: FlareKits) -> tuple[str, Sequence[tuple[str, str, str]]]:
    """The name of the federation; and name, state and certificate expiry of each site."""
    if not (home / FEDERATION).exists():
        from fedrank.deploy.folder_members import read_home

        met = read_home(home)
        return met.name, [(site.name, site.state, "") for site in met.sites]
    written = read_federation(home / FEDERATION)
    try:
        return written.name, kits.members(home)
    except (OSError, ValueError, ImportError):
        return written.name, [(site.name, "", "") for site in written.sites]


def _latest(runs: Path) -> Path | None:
    """The run between sites that was active last."""
    found = sorted(runs.rglob(BOOKS), key=lambda path: path.stat().st_mtime)
    return found[-1].parent if found else None


def _own_days(folder: Path, kits: FlareKits, now: float) -> int | None:
    try:
        return (kits.facts(folder).not_after - datetime.fromtimestamp(now, UTC)).days
    except (OSError, ValueError, KeyError, ImportError):
        return None


def _days(until: str, now: float) -> int | None:
    return (datetime.fromisoformat(until) - datetime.fromtimestamp(now, UTC)).days if until else None


def _last_refusal(path: Path) -> str:
    # A restarted site receives the plan of the run again: nothing is wrong.
    lines = [line for line in _tail(path) if ": Refused: " in line and not line.endswith(SAY_HELLO)]
    return lines[-1] if lines else ""


def _rows(path: Path) -> list[dict[str, str]]:
    """Rows at the end of a table, without an incomplete one."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            names = next(csv.reader([file.readline()]), [])
        cells = [row for row in csv.reader(_tail(path)) if len(row) == len(names)]
    except (OSError, csv.Error):
        return []
    rows = [dict(zip(names, row, strict=True)) for row in cells]
    return [row for row in rows if list(row.values()) != names]


def _tail(path: Path) -> list[str]:
    """Complete lines at the end of a file."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return []
    lines = text.split("\n")[:-1]
    return lines[1:] if size > TAIL else lines


def _facts(path: Path) -> dict[str, Any]:
    """Read a small JSON file of another process; empty if it is missing or damaged."""
    try:
        found = parse_json(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _texts(found: Any) -> dict[str, str]:
    return {str(name): str(why) for name, why in found.items()} if isinstance(found, dict) else {}


def _whole(found: Any) -> int:
    try:
        return int(float(found))
    except (TypeError, ValueError, OverflowError):
        return 0


def _number(text: Any) -> float | None:
    try:
        value = float(text)
    except (TypeError, ValueError):
        return None
    return value if math.isfinite(value) else None
