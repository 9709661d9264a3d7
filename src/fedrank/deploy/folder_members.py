"""Membership of a federation that uses a shared folder.

The coordinator's home holds the member list; `federation.json` in the shared folder is its signed copy. A site that
wants to join compares the coordinator's fingerprint by telephone, stores its key, and writes the own key into
`joining/`. The coordinator compares that fingerprint and approves. Every reader of the folder can read all messages, so
what a site sends must be protected before it leaves the site.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fedrank.deploy.identity import (
    IDENTITY,
    IdentityKey,
    fingerprint,
    new_identity,
    read_identity,
    same_fingerprint,
    verify,
)
from fedrank.deploy.plan import PlannedSite
from fedrank.deploy.records import record
from fedrank.deploy.signed_files import (
    FOREIGN_NAME,
    FileAddress,
    Ignoring,
    Unusable,
    looked_at,
    own_folder,
    read_signed,
    write_signed,
)
from fedrank.files import opened, parse_json, private_folder, write_atomic

FEDERATION = "federation.json"
MEMBERSHIP = "folder.json"  # in the folder of a site: which federation it joined, and the coordinator's key
JOINING, LEFT = "joining", "left"
COORDINATOR = ""  # no site has this name
MAX_DOCUMENT = 4 << 20  # bytes: some 10,000 sites
MAX_LETTER = 4096  # maximum size of a public key or a reason in bytes
STATES = ("joined", "expelled", "left")
SITE_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_-]{0,62}[A-Za-z0-9])?")  # a valid file name on every system
_CONTEXT = b"fedrank folder federation 1\n"  # context of the document's signature


@dataclass(frozen=True)
class FolderMember:
    """A site of the federation."""

    name: str
    public: str  # its key
    id: int  # of its client in every run
    state: str = "joined"


@dataclass(frozen=True)
class FolderFederation:
    """The content of `federation.json`."""

    federation: str  # 32 hexadecimal digits, drawn once
    name: str
    coordinator: str  # public key
    sequence: int  # increases with every change, to detect old copies
    sites: tuple[FolderMember, ...] = ()

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the coordinator's key."""
        return fingerprint(self.coordinator)

    def dump(self, key: IdentityKey) -> bytes:
        body = asdict(self)
        signature = key.sign(_CONTEXT + _canonical(body)).hex()
        return (json.dumps({"format": 1, **body, "signature": signature}, indent=1) + "\n").encode()

    @classmethod
    def load(cls, content: bytes, where: Path) -> FolderFederation:
        """Read a document signed with the key it names; the fingerprint shows whether it is the coordinator's."""
        try:
            found = parse_json(content)
            kinds = {"federation": str, "name": str, "coordinator": str, "sequence": int, "sites": list}
            if not isinstance(found, dict) or set(found) != {"format", "signature", *kinds} or found["format"] != 1:
                raise ValueError("its keys are not the expected ones")
            if wrong := [key for key, kind in kinds.items() if type(found[key]) is not kind]:
                raise ValueError(f"its {wrong[0]} has type {type(found[wrong[0]]).__name__}")
            signature = bytes.fromhex(found.pop("signature"))
            del found["format"]
            if not verify(found["coordinator"], _CONTEXT + _canonical(found), signature):
                raise ValueError("its signature is not valid")
            if not re.fullmatch("[0-9a-f]{32}", found["federation"]) or not 0 < len(found["name"]) <= 200:
                raise ValueError("its name or number is not valid")
            sites = tuple(_member(one) for one in found["sites"])
            _check_distinct(sites)
        except (ValueError, TypeError, AttributeError) as problem:
            raise ValueError(
                f"{where} is not a valid signed federation ({problem}): it was modified or is still being copied; "
                "wait, or ask the coordinator to publish it again"
            ) from None
        return cls(found["federation"], found["name"], found["coordinator"], found["sequence"], sites)

    def site(self, name: str) -> FolderMember | None:
        return next((site for site in self.sites if site.name == name), None)

    def parties(self) -> tuple[PlannedSite, ...]:
        """The sites that can participate in a run."""
        return tuple(PlannedSite(site.name, (site.id,), site.public) for site in self.sites if site.state == "joined")


@dataclass(frozen=True)
class Application:
    """A request of a site to join."""

    name: str
    public: str

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.public)


@dataclass(frozen=True)
class FolderMembership:
    """What a site stores about the federation it joined."""

    federation: str
    name: str  # of the federation
    coordinator: str  # the coordinator's public key, which the site trusts
    site: str
    sequence: int  # of the newest document it has read

    @classmethod
    def read(cls, site_folder: Path) -> FolderMembership:
        path = Path(site_folder) / MEMBERSHIP
        try:
            found = parse_json(path.read_bytes())
            return cls(**{name: found[name] for name in cls.__dataclass_fields__})
        except FileNotFoundError:
            raise FileNotFoundError(
                f"{path} does not exist: this site has not joined a shared folder; run `fedrank deploy join` first"
            ) from None
        except (ValueError, KeyError, TypeError) as problem:
            raise ValueError(f"{path} cannot be read ({problem!r}); restore it from a backup, or join again") from None

    def write(self, site_folder: Path) -> None:
        content = {"format": 1, **asdict(self)}
        write_atomic(Path(site_folder) / MEMBERSHIP, json.dumps(content, indent=1) + "\n", private=True)


def create_folder_federation(shared: Path, home: Path, name: str) -> FolderFederation:
    """Create a federation in a shared folder. Repeated, after a crash or for a new folder, it publishes it again."""
    shared, home = Path(shared), private_folder(home)
    if not 0 < len(name) <= 200 or not name.isprintable():
        raise ValueError(f"{name!r} is not a valid name of a federation; give 1 to 200 printable characters")
    public = read_identity(home).public if os.path.lexists(home / IDENTITY) else new_identity(home)
    if (home / FEDERATION).exists():
        known = read_home(home)
        if known.name != name:
            raise FileExistsError(f"{home} is the home of federation {known.name!r}; use another folder for {name!r}")
    else:
        known = FolderFederation(os.urandom(16).hex(), name, public, 1)
    shared.mkdir(parents=True, exist_ok=True)
    if (shared / FEDERATION).exists():
        published = read_invitation(shared)
        if published.federation != known.federation:
            raise FileExistsError(
                f"{shared} already belongs to federation {published.name!r}; use another shared folder"
            )
    _publish(shared, home, known)
    return known


def read_home(home: Path) -> FolderFederation:
    """The federation of a coordinator's home."""
    path = Path(home) / FEDERATION
    found = FolderFederation.load(_document(path), path)
    if found.coordinator != read_identity(home).public:
        raise ValueError(f"{path} was not signed with the key of {home}; restore both from the same backup")
    return found


def publish(shared: Path, home: Path) -> FolderFederation:
    """Copy the signed federation into the shared folder if its copy is missing or outdated."""
    known = read_home(home)
    try:
        there = _document(Path(shared) / FEDERATION)
    except (OSError, ValueError):
        there = b""
    if there != _document(Path(home) / FEDERATION):
        _publish(Path(shared), Path(home), known)
    return known


def applications(shared: Path, home: Path) -> list[Application]:
    """Sites that want to join and have not been approved."""
    known, ignoring = read_home(home), Ignoring()
    found = []
    for path in looked_at(Path(shared) / JOINING, ignoring):
        if not SITE_NAME.fullmatch(path.name):
            ignoring.count(path, FOREIGN_NAME)
            continue
        address = FileAddress(known.federation, "joining", path.name, COORDINATOR, path.name)
        try:
            public = read_signed(path, address, None, MAX_LETTER).decode("ascii")
        except Unusable as problem:
            ignoring.count(path, problem.reason)
            continue
        site = known.site(path.name)
        if site is None or (site.public, site.state) != (public, "joined"):
            found.append(Application(path.name, public))
    return found


def approve_in_folder(shared: Path, home: Path, name: str, expected: str, id: int | None = None) -> FolderMember:
    """Approve a site if the fingerprint confirmed by telephone matches its request."""
    known = read_home(home)
    waiting = {one.name: one for one in applications(shared, home)}
    if name not in waiting:
        raise ValueError(
            f"{Path(shared) / JOINING} has no request of site {name!r} (requests: {', '.join(waiting) or 'none'})"
        )
    found = waiting[name]
    if not same_fingerprint(found.fingerprint, expected):
        raise ValueError(
            f"site {name!r} uses the key {found.fingerprint}, not {expected}: another party may have written the "
            "request; ask the site for its fingerprint again, by telephone"
        )
    before = known.site(name)
    if before is not None and before.state == "joined":
        raise ValueError(
            f"site {name!r} is already a member with another key, {fingerprint(before.public)}; expel it first"
        )
    taken = {site.id for site in known.sites if site is not before}
    if id is None:
        id = before.id if before is not None else max(taken, default=-1) + 1
    member = FolderMember(name, found.public, id)
    others = tuple(site for site in known.sites if site is not before)
    _check_distinct((*others, member))
    record(home, "approve", site=name, fingerprint=found.fingerprint)
    _publish(Path(shared), Path(home), replace(known, sites=(*others, member)))
    return member


def expel_from_folder(shared: Path, home: Path, name: str, because: str) -> None:
    """Exclude a site: it receives no further requests, and its answers are ignored."""
    _end(Path(shared), Path(home), name, "expelled", because)


def note_departures(shared: Path, home: Path) -> list[str]:
    """Sites that left since the last check; they receive no further requests."""
    known, gone = read_home(home), []
    for site in known.sites:
        path = Path(shared) / LEFT / site.name
        address = FileAddress(known.federation, "left", site.name, COORDINATOR, site.name)
        if site.state != "joined":
            continue
        try:
            because = read_signed(path, address, site.public, MAX_LETTER).decode("utf-8", "replace")
        except (FileNotFoundError, Unusable):
            continue
        _end(Path(shared), Path(home), site.name, "left", because)
        gone.append(site.name)
    return gone


def read_invitation(shared: Path) -> FolderFederation:
    """Read the federation in a shared folder before joining it."""
    path = Path(shared) / FEDERATION
    try:
        return FolderFederation.load(_document(path), path)
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{path} does not exist: this folder has no federation, or it has not been copied yet; wait, or "
            "ask the coordinator"
        ) from None


def join_folder(shared: Path, site_folder: Path, name: str, expected: str) -> str:
    """Request to join the federation whose coordinator gave this fingerprint by telephone.

    Returns the site's own fingerprint, which the coordinator needs in turn. Nothing else is sent.
    """
    shared, site_folder = Path(shared), private_folder(site_folder)
    if not SITE_NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} is not a valid name of a site; use at most 64 letters, digits, - and _ (not - or _ at the ends)"
        )
    there = read_invitation(shared)
    if not same_fingerprint(there.fingerprint, expected):
        raise ValueError(
            f"the federation in {shared} has the fingerprint {there.fingerprint}, not {expected}: it is another "
            "federation; ask the coordinator again for the folder and the fingerprint"
        )
    if (site_folder / MEMBERSHIP).exists():
        before = FolderMembership.read(site_folder)
        if (before.federation, before.site) != (there.federation, name):
            raise FileExistsError(
                f"{site_folder} is site {before.site!r} of federation {before.name!r}; use another folder for "
                f"{name!r} of {there.name!r}"
            )
    key = _own_key(site_folder)
    taken = there.site(name)
    if taken is not None and taken.state == "joined" and taken.public != key.public:
        raise ValueError(f"{there.name!r} already has a site {name!r}; choose another name, or ask the coordinator")
    FolderMembership(there.federation, there.name, there.coordinator, name, there.sequence).write(site_folder)
    address = FileAddress(there.federation, "joining", name, COORDINATOR, name)
    write_signed(own_folder(shared, JOINING) / name, key, address, key.public.encode())
    return fingerprint(key.public)


def leave_folder(shared: Path, site_folder: Path, because: str = "") -> None:
    """Announce that this site no longer participates. Messages that it sent are not recalled."""
    me = FolderMembership.read(site_folder)
    address = FileAddress(me.federation, "left", me.site, COORDINATOR, me.site)
    reason = because.strip().encode()[:MAX_LETTER]
    write_signed(own_folder(Path(shared), LEFT) / me.site, read_identity(site_folder), address, reason)


def membership_state(shared: Path, site_folder: Path) -> str:
    """ "waiting", "joined", "expelled" or "left", from the coordinator's document; an older document is refused."""
    me = FolderMembership.read(site_folder)
    there = read_invitation(shared)
    if (there.federation, there.coordinator) != (me.federation, me.coordinator):
        raise ValueError(
            f"{shared} contains the federation of {there.fingerprint}, but this site joined that of "
            f"{fingerprint(me.coordinator)}: it is another federation; nothing is sent"
        )
    if there.sequence < me.sequence:
        raise ValueError(
            f"{Path(shared) / FEDERATION} is older (change {there.sequence}) than an earlier version (change "
            f"{me.sequence}): it was restored, or the folder has not been copied yet; nothing is sent until it is newer"
        )
    if there.sequence > me.sequence:
        replace(me, sequence=there.sequence).write(site_folder)
    if (Path(shared) / LEFT / me.site).exists():
        return "left"
    site = there.site(me.site)
    if site is None or site.public != read_identity(site_folder).public:
        return "waiting"
    return site.state


def _own_key(folder: Path) -> IdentityKey:
    if not os.path.lexists(folder / IDENTITY):
        new_identity(folder)
    return read_identity(folder)


def _document(path: Path) -> bytes:
    with opened(path) as file:
        content = file.read(MAX_DOCUMENT + 1)
    if len(content) > MAX_DOCUMENT:
        raise ValueError(f"{path} has more than {MAX_DOCUMENT:,} bytes; ask the coordinator to publish it again")
    return content


def _publish(shared: Path, home: Path, federation: FolderFederation) -> None:
    """Write the original first, then its copy: after a crash in between, `publish` copies it."""
    path = home / FEDERATION
    if path.exists():
        before = read_home(home)
        if federation != before:
            federation = replace(federation, sequence=before.sequence + 1)
    content = federation.dump(read_identity(home))
    write_atomic(path, content, private=True)
    write_atomic(shared / FEDERATION, content)


def _end(shared: Path, home: Path, name: str, state: str, because: str) -> None:
    known = read_home(home)
    if known.site(name) is None:
        raise ValueError(
            f"{known.name!r} has no site {name!r}; its sites: {', '.join(one.name for one in known.sites)}"
        )
    record(home, "expel" if state == "expelled" else "leave", site=name, because=because)
    sites = tuple(replace(site, state=state) if site.name == name else site for site in known.sites)
    _publish(shared, home, replace(known, sites=sites))


def _canonical(body: dict[str, Any]) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()


def _member(found: Any) -> FolderMember:
    if not isinstance(found, dict) or set(found) != set(FolderMember.__dataclass_fields__):
        raise ValueError("the entry of a site is not valid")
    member = FolderMember(**found)
    if type(member.id) is not int or member.id < 0 or member.state not in STATES:
        raise ValueError("a site has an invalid id or state")
    if not isinstance(member.name, str) or not SITE_NAME.fullmatch(member.name):
        raise ValueError("a site has an invalid name")
    fingerprint(member.public)
    return member


def _check_distinct(sites: Sequence[FolderMember]) -> None:
    for what, values in (
        ("name", [site.name.casefold() for site in sites]),  # compared as on case-insensitive file systems
        ("id", [site.id for site in sites]),
        ("key", [site.public for site in sites]),
    ):
        if len(set(values)) < len(values):
            raise ValueError(f"two sites would have the same {what}; choose another")
