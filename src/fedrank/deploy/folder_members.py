"""Who belongs to a federation that meets in a shared folder.

The coordinator's home holds the truth; `federation.json` in the shared folder is its signed copy. Somebody who wants to
take part compares the coordinator's fingerprint by telephone, keeps its key, and puts the own one into `joining/`. The
coordinator compares in turn, and approves. Everybody who can read the folder can read all messages: what a site sends
must be protected before it leaves the site.
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
MEMBERSHIP = "folder.json"  # in the folder of a site: which federation it joined, and whom it believes
JOINING, LEFT = "joining", "left"
COORDINATOR = ""  # no site has this name
MAX_DOCUMENT = 4 << 20  # bytes: some 10,000 sites
MAX_LETTER = 4096  # bytes of a public key, or of a reason
STATES = ("joined", "expelled", "left")
SITE_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_-]{0,62}[A-Za-z0-9])?")  # a file name everywhere
_CONTEXT = b"fedrank folder federation 1\n"  # what the signature of the document is for


@dataclass(frozen=True)
class FolderMember:
    """A site of the federation."""

    name: str
    public: str  # its key
    id: int  # of its client in every run
    state: str = "joined"


@dataclass(frozen=True)
class FolderFederation:
    """What `federation.json` says."""

    federation: str  # 32 hexadecimal digits, drawn once
    name: str
    coordinator: str  # public key
    sequence: int  # grows with every change, so that an old copy is known
    sites: tuple[FolderMember, ...] = ()

    @property
    def fingerprint(self) -> str:
        """Of the coordinator's key."""
        return fingerprint(self.coordinator)

    def dump(self, key: IdentityKey) -> bytes:
        body = asdict(self)
        signature = key.sign(_CONTEXT + _canonical(body)).hex()
        return (json.dumps({"format": 1, **body, "signature": signature}, indent=1) + "\n").encode()

    @classmethod
    def load(cls, content: bytes, where: Path) -> FolderFederation:
        """What a document says that fits the key it names; whether that is the coordinator's, a fingerprint tells."""
        try:
            found = parse_json(content)
            kinds = {"federation": str, "name": str, "coordinator": str, "sequence": int, "sites": list}
            if not isinstance(found, dict) or set(found) != {"format", "signature", *kinds} or found["format"] != 1:
                raise ValueError("its keys are others")
            if wrong := [key for key, kind in kinds.items() if type(found[key]) is not kind]:
                raise ValueError(f"its {wrong[0]} is {type(found[wrong[0]]).__name__}")
            signature = bytes.fromhex(found.pop("signature"))
            del found["format"]
            if not verify(found["coordinator"], _CONTEXT + _canonical(found), signature):
                raise ValueError("its signature does not fit")
            if not re.fullmatch("[0-9a-f]{32}", found["federation"]) or not 0 < len(found["name"]) <= 200:
                raise ValueError("its name or number is none")
            sites = tuple(_member(one) for one in found["sites"])
            _check_distinct(sites)
        except (ValueError, TypeError, AttributeError) as problem:
            raise ValueError(
                f"{where} is no signed federation ({problem}): it was changed, or is still being copied; wait, or ask "
                "the coordinator to publish it again"
            ) from None
        return cls(found["federation"], found["name"], found["coordinator"], found["sequence"], sites)

    def site(self, name: str) -> FolderMember | None:
        return next((site for site in self.sites if site.name == name), None)

    def parties(self) -> tuple[PlannedSite, ...]:
        """Who can take part in a run."""
        return tuple(PlannedSite(site.name, (site.id,), site.public) for site in self.sites if site.state == "joined")


@dataclass(frozen=True)
class Application:
    """Somebody who wants to take part."""

    name: str
    public: str

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.public)


@dataclass(frozen=True)
class FolderMembership:
    """What a site keeps of the federation it joined."""

    federation: str
    name: str  # of the federation
    coordinator: str  # public key that it believes
    site: str
    sequence: int  # of the newest document it saw

    @classmethod
    def read(cls, site_folder: Path) -> FolderMembership:
        path = Path(site_folder) / MEMBERSHIP
        try:
            found = parse_json(path.read_bytes())
            return cls(**{name: found[name] for name in cls.__dataclass_fields__})
        except FileNotFoundError:
            raise FileNotFoundError(f"{path} is not there: this site joined no folder; join one first") from None
        except (ValueError, KeyError, TypeError) as problem:
            raise ValueError(f"{path} cannot be read ({problem!r}); restore it from a backup, or join anew") from None

    def write(self, site_folder: Path) -> None:
        content = {"format": 1, **asdict(self)}
        write_atomic(Path(site_folder) / MEMBERSHIP, json.dumps(content, indent=1) + "\n", private=True)


# The coordinator's side


def create_folder_federation(shared: Path, home: Path, name: str) -> FolderFederation:
    """Begin a federation in a shared folder. Done again, after a crash or for a new folder, it publishes it again."""
    shared, home = Path(shared), private_folder(home)
    if not 0 < len(name) <= 200 or not name.isprintable():
        raise ValueError(f"{name!r} cannot name a federation; give 1 to 200 printable letters")
    public = read_identity(home).public if os.path.lexists(home / IDENTITY) else new_identity(home)
    if (home / FEDERATION).exists():
        known = read_home(home)
        if known.name != name:
            raise FileExistsError(f"{home} is the home of federation {known.name!r}; give another folder for {name!r}")
    else:
        known = FolderFederation(os.urandom(16).hex(), name, public, 1)
    shared.mkdir(parents=True, exist_ok=True)
    if (shared / FEDERATION).exists():
        there = read_invitation(shared)
        if there.federation != known.federation:
            raise FileExistsError(f"{shared} belongs to federation {there.name!r} already; share another folder")
    _publish(shared, home, known)
    return known


def read_home(home: Path) -> FolderFederation:
    """The federation of a coordinator's home."""
    path = Path(home) / FEDERATION
    found = FolderFederation.load(_document(path), path)
    if found.coordinator != read_identity(home).public:
        raise ValueError(f"{path} was signed with another key than that of {home}; restore both from one backup")
    return found


def publish(shared: Path, home: Path) -> FolderFederation:
    """Put the signed federation into the shared folder where another one lies there, or none."""
    known = read_home(home)
    try:
        there = _document(Path(shared) / FEDERATION)
    except (OSError, ValueError):
        there = b""
    if there != _document(Path(home) / FEDERATION):
        _publish(Path(shared), Path(home), known)
    return known


def applications(shared: Path, home: Path, ignoring: Ignoring | None = None) -> list[Application]:
    """Who wants to take part, and has not been approved."""
    known, ignoring = read_home(home), ignoring or Ignoring()
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


def approve_in_folder(shared: Path, home: Path, name: str, told: str, id: int | None = None) -> FolderMember:
    """Take a site in whose fingerprint, as it was told by telephone, is that of its application."""
    known = read_home(home)
    waiting = {one.name: one for one in applications(shared, home)}
    if name not in waiting:
        raise ValueError(
            f"no site {name!r} waits in {Path(shared) / JOINING}; waiting: {', '.join(waiting) or 'nobody'}"
        )
    found = waiting[name]
    if not same_fingerprint(found.fingerprint, told):
        raise ValueError(
            f"site {name!r} asks with the key {found.fingerprint}, not {told}: somebody else may have put it there; "
            "ask the site for its fingerprint again, by telephone"
        )
    before = known.site(name)
    if before is not None and before.state == "joined":
        raise ValueError(f"site {name!r} takes part with another key, {fingerprint(before.public)}; expel it first")
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
    """Shut a site out: nothing is asked of it any more, and nothing from it is used."""
    _end(Path(shared), Path(home), name, "expelled", because)


def note_departures(shared: Path, home: Path) -> list[str]:
    """Sites that left since the last look; they are asked no more."""
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


# The site's side


def read_invitation(shared: Path) -> FolderFederation:
    """What somebody sees who thinks of joining: which federation, whose, and who takes part."""
    path = Path(shared) / FEDERATION
    try:
        return FolderFederation.load(_document(path), path)
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{path} is not there: nobody began a federation in this folder, or it is not copied yet; wait, or ask"
        ) from None


def join_folder(shared: Path, site_folder: Path, name: str, told: str) -> str:
    """Ask to take part, under a name, in the federation whose coordinator told this fingerprint by telephone.

    Returns the own fingerprint, which the coordinator has to be told in turn. Nothing else leaves.
    """
    shared, site_folder = Path(shared), private_folder(site_folder)
    if not SITE_NAME.fullmatch(name):
        raise ValueError(f"{name!r} cannot name a site; use letters, digits, - and _, at most 64, not at the ends")
    there = read_invitation(shared)
    if not same_fingerprint(there.fingerprint, told):
        raise ValueError(
            f"the federation in {shared} has the fingerprint {there.fingerprint}, not {told}: it is somebody else's "
            "federation; ask the coordinator for the folder and the fingerprint again"
        )
    if (site_folder / MEMBERSHIP).exists():
        before = FolderMembership.read(site_folder)
        if (before.federation, before.site) != (there.federation, name):
            raise FileExistsError(
                f"{site_folder} is site {before.site!r} of federation {before.name!r}; give another folder for "
                f"{name!r} of {there.name!r}"
            )
    key = _own_key(site_folder)
    taken = there.site(name)
    if taken is not None and taken.state == "joined" and taken.public != key.public:
        raise ValueError(f"{there.name!r} has another site {name!r}; choose another name, or ask the coordinator")
    FolderMembership(there.federation, there.name, there.coordinator, name, there.sequence).write(site_folder)
    address = FileAddress(there.federation, "joining", name, COORDINATOR, name)
    write_signed(own_folder(shared, JOINING) / name, key, address, key.public.encode())
    return fingerprint(key.public)


def leave_folder(shared: Path, site_folder: Path, because: str = "") -> None:
    """Say that this site takes no further part. What it sent stays with those who have it."""
    me = FolderMembership.read(site_folder)
    address = FileAddress(me.federation, "left", me.site, COORDINATOR, me.site)
    reason = because.strip().encode()[:MAX_LETTER]
    write_signed(own_folder(Path(shared), LEFT) / me.site, read_identity(site_folder), address, reason)


def membership_state(shared: Path, site_folder: Path) -> str:
    """ "waiting", "joined", "expelled" or "left", as the coordinator says; an older word than was heard is refused."""
    me = FolderMembership.read(site_folder)
    there = read_invitation(shared)
    if (there.federation, there.coordinator) != (me.federation, me.coordinator):
        raise ValueError(
            f"{shared} holds the federation of {there.fingerprint}, and this site joined that of "
            f"{fingerprint(me.coordinator)}: it is somebody else's federation; nothing is sent there"
        )
    if there.sequence < me.sequence:
        raise ValueError(
            f"{Path(shared) / FEDERATION} is older (change {there.sequence}) than one that was there before (change "
            f"{me.sequence}): somebody put it back, or the folder is not copied yet; nothing is sent until it is newer"
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
        raise ValueError(f"{path} has more than {MAX_DOCUMENT:,} bytes, too many for a federation; ask for it again")
    return content


def _publish(shared: Path, home: Path, federation: FolderFederation) -> None:
    """The truth first, its copy then: after a crash in between, `publish` copies it."""
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
        raise ValueError(f"no site {name!r} in {known.name!r}; its sites: {', '.join(one.name for one in known.sites)}")
    record(home, "expel" if state == "expelled" else "leave", site=name, because=because)
    sites = tuple(replace(site, state=state) if site.name == name else site for site in known.sites)
    _publish(shared, home, replace(known, sites=sites))


def _canonical(body: dict[str, Any]) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()


def _member(found: Any) -> FolderMember:
    if not isinstance(found, dict) or set(found) != set(FolderMember.__dataclass_fields__):
        raise ValueError("one of its sites is none")
    member = FolderMember(**found)
    if type(member.id) is not int or member.id < 0 or member.state not in STATES:
        raise ValueError("one of its sites has an id or a state that is none")
    if not isinstance(member.name, str) or not SITE_NAME.fullmatch(member.name):
        raise ValueError("one of its sites has a name that is none")
    fingerprint(member.public)
    return member


def _check_distinct(sites: Sequence[FolderMember]) -> None:
    for what, values in (
        ("name", [site.name.casefold() for site in sites]),  # as file systems see them
        ("id", [site.id for site in sites]),
        ("key", [site.public for site in sites]),
    ):
        if len(set(values)) < len(values):
            raise ValueError(f"two sites would have one {what}; choose another")
