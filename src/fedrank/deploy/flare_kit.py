"""Kits: membership of a federation, with keys that are created where they stay.

    coordinator  init -> invitations           approve: show, compare, sign         invite, expel, renew
    site                 join (creates keys)               join (creates its folder)   renew, leave

Certificates come from the NVFLARE commands `nvflare cert` and `nvflare package`. The coordinator holds the CA, so sites
identify each other by a second key (`fedrank.deploy.identity`), whose fingerprint they compare by telephone.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from fedrank.deploy.flare_certificates import (
    ROOT,
    CertificateFacts,
    KitError,
    KitFinding,
    certificate_facts,
    certificate_fingerprint,
    kit_problems,
    same_certificate,
)
from fedrank.deploy.flare_commands import engine_commands, nvflare
from fedrank.deploy.flare_hardening import harden, rename_classes, strip
from fedrank.deploy.identity import IDENTITY, fingerprint, new_identity, read_identity, verify
from fedrank.deploy.records import record
from fedrank.deploy.settings import FEDERATION, FederationFile, SiteEntry, write_template
from fedrank.files import locked, opened, parse_json, private_folder, write_atomic

CA, KIT, ADMIN, INVITATIONS, SITES = "ca", "kit", "admin", "invitations", "sites.json"
REQUEST, INVITATION, PROFILE, PEOPLE = "request", "invitation.json", "profile.yml", "people"
COORDINATOR = "coordinator@fedrank.deploy"  # NVFLARE's name of the coordinator, which must be an e-mail address
ORGANISATION = "coordinator"
CERTIFICATE, APPLICATION, SIGNATURE = "certificate.zip", "application.json", "application.sig"  # in a request
LARGEST = 1 << 20  # maximum size of a request, and of each file in it, in bytes
CA_DAYS, DAYS = 3650, 1095  # validity of certificates


@dataclass(frozen=True)
class Invitation:
    """An invitation from the coordinator to a site. It is not secret; its fingerprint is compared by telephone."""

    federation: str
    name: str
    organisation: str
    id: int
    host: str
    port: int
    fingerprint: str  # of the federation's CA

    @classmethod
    def read(cls, path: Path) -> Invitation:
        with opened(path) as file:
            content = file.read(LARGEST)
        try:
            return cls(**parse_json(content))
        except (ValueError, TypeError) as problem:
            raise ValueError(f"{path} is not an invitation ({problem}); ask the coordinator for it again") from None


@dataclass(frozen=True)
class Member:
    """A site in the coordinator's member list."""

    name: str
    organisation: str
    id: int
    state: str = "invited"  # invited, joined, expelled or left
    identity: str = ""  # public key, in hex
    certificate: str = ""  # fingerprint
    until: str = ""  # expiry of the certificate, ISO 8601


@dataclass(frozen=True)
class Applicant:
    """What a coordinator sees before approving a request."""

    path: Path  # of the request
    name: str
    organisation: str
    id: int
    identity: str  # public key, in hex
    fingerprint: str  # of that key, to be compared by telephone
    renewal: bool  # whether the site is already a member and renews its certificate


@dataclass(frozen=True)
class Founded:
    """A new federation."""

    home: Path
    fingerprint: str  # of the CA, to be compared by telephone
    invitations: tuple[Path, ...]


def init(home: Path, federation: FederationFile, text: str | None = None) -> Founded:
    """Create a federation: its CA, the kits of its server, coordinator and people, and an invitation for each site.

    `text` is the `federation.toml` to store with them.
    """
    home = Path(home).absolute()
    if (home / CA).exists():
        raise FileExistsError(f"{home / CA} already exists, and a new CA would exclude every site; use another --home")
    for person in federation.people:
        if person.role == "project_admin":
            raise ValueError(
                f"people: {person.name!r} has the role project_admin, for which NVFLARE issues no certificate; use "
                "lead, which has the same rights here"
            )
    private_folder(home)
    with engine_commands(home):
        return _init(home, federation, text)


def _init(home: Path, federation: FederationFile, text: str | None) -> Founded:
    server = {"host": federation.host, "fed_learn_port": federation.port, "admin_port": federation.port}
    profile = {"name": federation.name, "scheme": "grpc", "connection_security": "mtls", "server": server}
    write_atomic(home / PROFILE, json.dumps(profile, indent=2))  # JSON is YAML
    nvflare(home, "cert", "init", "--profile", home / PROFILE, "-o", home / CA, "--valid-days", str(CA_DAYS))
    if text is not None:
        write_atomic(home / FEDERATION, text, private=True)
    _write_members(home, [Member(site.name, site.organisation, site.id) for site in federation.sites])
    own = [
        (KIT, {"name": federation.host, "org": ORGANISATION, "type": "server"}),
        (ADMIN, {"name": COORDINATOR, "org": ORGANISATION, "type": "admin", "role": "lead"}),
    ]
    own += [
        (
            f"{PEOPLE}/{person.name}",
            {"name": person.name, "org": person.organisation, "type": "admin", "role": person.role},
        )
        for person in federation.people
    ]
    _own_kits(home, own)
    return Founded(home, ca_fingerprint(home), tuple(_invitation(home, site) for site in federation.sites))


def invite(home: Path, site: SiteEntry) -> Path:
    """Invite another site; return the path of its invitation."""
    with _members(home) as members:
        for other in members.values():
            for what in ("name", "id"):
                if str(getattr(other, what)).lower() == str(getattr(site, what)).lower():
                    raise ValueError(
                        f"{what} {getattr(site, what)!r} belongs to a site that is already {other.state}, and their "
                        "messages could not be distinguished; choose another"
                    )
        members[site.name] = Member(site.name, site.organisation, site.id)
        record(home, "invite", who=site.name)
    return _invitation(home, site)


def request(invitation: Path, folder: Path) -> Path:
    """Create a site's keys in its folder, and a request without the keys; return the path of the request."""
    invited = Invitation.read(Path(invitation))
    folder = private_folder(Path(folder).absolute())
    if (folder / KIT).exists():
        raise FileExistsError(
            f"{folder / KIT} already exists: the site has joined; use `fedrank deploy renew` to renew its certificate"
        )
    if (folder / REQUEST).exists():
        raise FileExistsError(
            f"{folder / REQUEST} already exists: keys were created before; send {invited.name}.request.zip, or use "
            "another folder"
        )
    if not (folder / IDENTITY).exists():
        new_identity(folder)
    write_atomic(folder / INVITATION, json.dumps(asdict(invited), indent=2) + "\n", private=True)
    return _request(folder, invited, renewal=False)


def renew(folder: Path) -> Path:
    """Request a new certificate with a new key for a member site; it is approved and joined like the first one.

    In a coordinator's home: renew the certificates of the server and the coordinator, and return the home. A kit of an
    earlier version of fedrank gets the class names of this version.
    """
    folder = Path(folder).absolute()
    rename_classes(folder / KIT)
    if (folder / CA).exists():
        return _renew_own(folder)
    invited = Invitation.read(folder / INVITATION)
    shutil.rmtree(folder / REQUEST, ignore_errors=True)  # of a renewal that was not approved
    return _request(folder, invited, renewal=True)


def approve(path: Path, home: Path) -> Applicant:
    """Read a request, to be shown, compared by telephone, and signed with `sign`."""
    path, home = Path(path).absolute(), Path(home).absolute()
    said, certificate = _read_request(path)
    members = read_members(home)
    name, renewal = said["name"], said["renewal"]
    if name not in members:
        raise ValueError(f"{path}: site {name!r} was not invited; invite it first with `fedrank deploy invite`")
    member = members[name]
    asked = _common_name(certificate)
    if asked != name:
        raise ValueError(
            f"{path} is the request of {name!r} for a certificate of {asked!r}; refuse it and ask the site"
        )
    if said["federation"] != _profile(home)["name"]:
        raise ValueError(f"{path} is for federation {said['federation']!r}, not for this one; refuse it")
    if (said["organisation"], said["id"]) != (member.organisation, member.id):
        raise ValueError(
            f"{path} has organisation {said['organisation']!r} and id {said['id']}, but {name!r} was invited with "
            f"{member.organisation!r} and {member.id}; send the invitation again"
        )
    if member.state == "joined" and not renewal:
        raise ValueError(f"{path}: {name!r} has joined already; if it lost its keys, expel it and invite it again")
    if member.state in ("expelled", "left"):
        raise ValueError(f"{path}: {name!r} has {_gone(member.state)}; invite it again with another name and id")
    if renewal and member.identity != said["identity"]:
        raise ValueError(f"{path} is not signed with the known key of {name!r}; refuse it and ask the site")
    return Applicant(
        path, name, member.organisation, member.id, said["identity"], fingerprint(said["identity"]), renewal
    )


def sign(applicant: Applicant, home: Path, days: int = DAYS) -> Path:
    """Sign the certificate of a site after the comparison; return the path of the file to send back."""
    home = Path(home).absolute()
    with _members(home) as members:
        again = approve(applicant.path, home)  # the file may have changed since it was shown
        if again != applicant:
            raise ValueError(f"{applicant.path} has changed since it was shown; review it again")
        out = applicant.path.parent / f"{applicant.name}.signed.zip"
        with tempfile.TemporaryDirectory(dir=home) as inside:
            inner = Path(inside) / f"{applicant.name}.request.zip"
            inner.write_bytes(_read_request(applicant.path)[1])
            said = nvflare(home, *_approve(home, inner, out, days))
        with zipfile.ZipFile(out) as signed:
            certificate = _load(signed.read(f"{applicant.name}.crt"))
        members[applicant.name] = replace(
            members[applicant.name],
            state="joined",
            identity=applicant.identity,
            certificate=certificate_fingerprint(certificate),
            until=certificate.not_valid_after_utc.isoformat(),
        )
        what = "renew" if applicant.renewal else "approve"
        record(home, what, who=applicant.name, key=applicant.fingerprint, request=said["request_id"])
    return out


def join(signed: Path, folder: Path, expected: str) -> Path:
    """Create the site's folder from a signed certificate; `expected` is the CA's fingerprint, confirmed by telephone.

    After a renewal, replace the certificate and its key.
    """
    signed, folder = Path(signed).absolute(), Path(folder).absolute()
    if not (folder / REQUEST).is_dir():
        raise FileNotFoundError(
            f"{folder / REQUEST} does not exist, so the key of this certificate is missing; join in the folder of the "
            "request"
        )
    invited = Invitation.read(folder / INVITATION)
    try:
        with opened(signed) as file, zipfile.ZipFile(file) as content:
            if content.getinfo(ROOT).file_size > LARGEST:
                raise ValueError(f"its {ROOT} is larger than {LARGEST:,} bytes")
            root = certificate_fingerprint(_load(content.read(ROOT)))
    except (zipfile.BadZipFile, KeyError, ValueError) as problem:
        raise ValueError(
            f"{signed} is not a signed certificate ({problem}); ask the coordinator for it again"
        ) from None
    for who, theirs in (("you gave", expected), ("the invitation has", invited.fingerprint)):
        if not same_certificate(theirs, root):
            raise ValueError(
                f"{signed} belongs to another federation: its CA is {root}, but {who} {theirs}; do not join, "
                "and ask the coordinator by telephone"
            )
    with tempfile.TemporaryDirectory(dir=folder) as inside:
        made = _package(folder, signed, folder / REQUEST, root, Path(inside), invited.federation, invited.name)
        if (problems := kit_problems(made, fingerprint=root, name=invited.name)) or (
            problems := _other_server(made, invited)
        ):
            raise KitError(problems)
        if (folder / KIT).exists():
            _exchange(made, folder / KIT)
        else:
            harden(made)
            close(made)
            os.replace(made, folder / KIT)
    shutil.rmtree(folder / REQUEST)  # contains a second copy of the key
    write_template(folder, invited.name, invited.id, invited.federation)
    return folder


def expel(home: Path, name: str, why: str = "") -> Member:
    """Exclude a site: a running server is restarted and refuses it from then on."""
    return _go(home, name, "expelled", why)


def leave(home: Path, name: str, why: str = "") -> Member:
    """Record that a site left voluntarily; like an expelled site, it can no longer connect."""
    return _go(home, name, "left", why)


def read_members(home: Path) -> dict[str, Member]:
    """The sites of a federation, by name."""
    try:
        with opened(Path(home) / SITES) as file:
            return {name: Member(**values) for name, values in parse_json(file.read()).items()}
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{home} is not a coordinator's home: it has no {SITES}; create one with `fedrank deploy init`"
        ) from None


def ca_fingerprint(home: Path) -> str:
    """The fingerprint of the CA, which sites compare by telephone before they join."""
    return certificate_fingerprint(_load((Path(home) / CA / ROOT).read_bytes()))


def kits(folder: Path) -> dict[str, CertificateFacts]:
    """Certificates in a coordinator's home or a site's folder."""
    folder = Path(folder)
    return {name: certificate_facts(folder / name) for name in (KIT, ADMIN) if (folder / name).exists()}


def folder_problems(folder: Path, now: datetime | None = None) -> list[KitFinding]:
    """Problems with the kit of a coordinator's home or a site's folder."""
    if (folder / CA).exists():
        return kit_problems(folder / KIT, fingerprint=ca_fingerprint(folder), now=now)
    invited = Invitation.read(folder / INVITATION)
    return kit_problems(folder / KIT, fingerprint=invited.fingerprint, name=invited.name, now=now)


def close(kit: Path) -> None:
    """Make a kit readable only by its owner."""
    for path, _, files in os.walk(kit):
        os.chmod(path, 0o700)
        for name in files:
            os.chmod(os.path.join(path, name), 0o600)


def _own_kits(home: Path, who: Iterable[tuple[str, dict[str, Any]]]) -> None:
    """Kits of the coordinator's own machine, whose keys stay there."""
    profile, root = _profile(home), ca_fingerprint(home)
    for place, participant in who:
        with tempfile.TemporaryDirectory(dir=home) as inside:
            asked, name = Path(inside) / "request", participant["name"]
            ports = {"fed_learn_port": profile["server"]["fed_learn_port"]} if participant["type"] == "server" else {}
            _ask(home, profile["name"], participant | ports, asked, Path(inside))
            signed = asked / f"{name}.signed.zip"
            nvflare(home, *_approve(home, asked / f"{name}.request.zip", signed, DAYS))
            made = _package(home, signed, asked, root, Path(inside), profile["name"], name)
            if (home / place).exists():
                _exchange(made, home / place)
                continue
            if participant["type"] == "server":
                _write_disabled(made, [])
                harden(_settled(made, home / place))
            else:
                strip(_settled(made, home / place))
        close(home / place)


def _settled(made: Path, place: Path) -> Path:
    place.parent.mkdir(parents=True, exist_ok=True)
    os.replace(made, place)
    return place


def _renew_own(home: Path) -> Path:
    facts = certificate_facts(home / ADMIN)
    participant = {"name": facts.subject, "org": facts.organisation, "type": "admin", "role": "lead"}
    _own_kits(home, [(ADMIN, participant)])
    record(home, "renew", who=facts.subject)
    _prolong(home)
    record(home, "renew", who=certificate_facts(home / KIT).subject)
    return home


def _prolong(home: Path) -> None:
    """Issue a new certificate for the server's existing key.

    With this key the server signs the tokens that its sites show at every heartbeat. With another key it would refuse
    them, and every site would have to be restarted.
    """
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
    from cryptography.x509 import CertificateBuilder, random_serial_number

    path = home / KIT / "startup" / "server.crt"
    old, root = _load(path.read_bytes()), _load((home / CA / ROOT).read_bytes())
    until = min(datetime.now(UTC) + timedelta(days=DAYS), root.not_valid_after_utc)
    made = CertificateBuilder(old.issuer, old.subject, old.public_key(), random_serial_number())
    made = made.not_valid_before(old.not_valid_before_utc).not_valid_after(until)
    for one in old.extensions:
        made = made.add_extension(one.value, one.critical)
    signing: Any = load_pem_private_key((home / CA / "rootCA.key").read_bytes(), None)
    write_atomic(path, made.sign(signing, SHA256()).public_bytes(Encoding.PEM), private=True)


def _exchange(made: Path, kit: Path) -> None:
    """Replace a certificate and its key, both or neither."""
    for path in sorted((made / "startup").iterdir(), key=lambda path: path.suffix == ".crt"):
        if path.suffix in (".key", ".crt"):
            write_atomic(kit / "startup" / path.name, path.read_bytes(), private=True)


def _request(folder: Path, invited: Invitation, renewal: bool) -> Path:
    participant = {"name": invited.name, "org": invited.organisation, "type": "client"}
    with tempfile.TemporaryDirectory(dir=folder) as inside:
        asked = Path(inside) / REQUEST
        _ask(folder, invited.federation, participant, asked, Path(inside))
        os.replace(asked, folder / REQUEST)
    close(folder / REQUEST)
    return _packed(folder, invited, (folder / REQUEST / f"{invited.name}.request.zip").read_bytes(), renewal)


def _packed(folder: Path, invited: Invitation, certificate: bytes, renewal: bool) -> Path:
    """A request: NVFLARE's request, the site's statement, and its signature of both."""
    key = read_identity(folder)
    said = {
        "federation": invited.federation,
        "name": invited.name,
        "organisation": invited.organisation,
        "id": invited.id,
        "identity": key.public,
        "renewal": renewal,
        "certificate": hashlib.sha256(certificate).hexdigest(),
    }
    application = json.dumps(said, sort_keys=True).encode()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr(CERTIFICATE, certificate)
        archive.writestr(APPLICATION, application)
        archive.writestr(SIGNATURE, key.sign(application))
    out = folder / f"{invited.name}.request.zip"
    write_atomic(out, packed.getvalue())
    return out


def _read_request(path: Path) -> tuple[dict[str, Any], bytes]:
    """Read a request: the site's statement, signed with the key it names, and NVFLARE's request."""
    again = "ask the site for it again"
    kinds = {"federation": str, "name": str, "organisation": str, "id": int, "identity": str, "renewal": bool}
    try:
        with opened(path) as file, zipfile.ZipFile(file) as archive:
            names = (CERTIFICATE, APPLICATION, SIGNATURE)
            if sorted(archive.namelist()) != sorted(names):
                raise ValueError(f"it must contain {', '.join(names)}")
            if max(archive.getinfo(name).file_size for name in names) > LARGEST:
                raise ValueError("it is too large")
            certificate, application, signature = (archive.read(name) for name in names)
        said = parse_json(application)
        if not isinstance(said, dict) or set(said) != {*kinds, "certificate"}:
            raise ValueError("its keys are not the expected ones")
        if any(type(said[key]) is not kind for key, kind in kinds.items()):
            raise ValueError("its values have unexpected types")
    except (zipfile.BadZipFile, ValueError, EOFError, RuntimeError, NotImplementedError) as problem:
        raise ValueError(f"{path} is not a request of a site ({problem}); {again}") from None
    if not verify(said["identity"], application, signature):
        raise ValueError(f"{path} is not signed with the key that it names; {again}")
    if said["certificate"] != hashlib.sha256(certificate).hexdigest():
        raise ValueError(f"{path} contains a different certificate request than the one that was signed; {again}")
    return said, certificate


def _common_name(request_zip: bytes) -> str:
    """The common name in a certificate signing request."""
    from cryptography.x509 import load_pem_x509_csr
    from cryptography.x509.oid import NameOID

    with zipfile.ZipFile(io.BytesIO(request_zip)) as archive:
        names = [name for name in archive.namelist() if name.endswith(".csr")]
        if len(names) != 1 or archive.getinfo(names[0]).file_size > LARGEST:
            raise ValueError("the request contains no certificate signing request; ask the site for it again")
        asked = load_pem_x509_csr(archive.read(names[0]))
    return str(asked.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)


def _other_server(kit: Path, invited: Invitation) -> list[KitFinding]:
    facts = certificate_facts(kit)
    if (facts.host, facts.port) == (invited.host, invited.port):
        return []
    return [
        KitFinding(
            f"the certificate is for the server {facts.host}:{facts.port}, but the invitation is for "
            f"{invited.host}:{invited.port}",
            "ask the coordinator for a new invitation",
        )
    ]


def _ask(home: Path, federation: str, participant: dict[str, Any], out: Path, inside: Path) -> None:
    described = inside / "participant.yml"
    described.write_text(json.dumps({"name": federation, "participants": [participant]}))
    nvflare(home, "cert", "request", "-p", described, "--out", out)


def _approve(home: Path, asked: Path, out: Path, days: int) -> list[str | Path]:
    words: list[str | Path] = ["cert", "approve", asked, "-c", home / CA, "--profile", home / PROFILE, "--out", out]
    return [*words, "--valid-days", str(days), "--force"]


def _package(home: Path, signed: Path, asked: Path, root: str, inside: Path, federation: str, name: str) -> Path:
    work = inside / "work"
    nvflare(home, "package", signed, "-w", work, "--request-dir", asked, "--fingerprint", root)
    (made,) = work.glob(f"{federation}/prod_*/{name}")
    return made


def _invitation(home: Path, site: SiteEntry) -> Path:
    profile = _profile(home)
    server = profile["server"]
    invited = Invitation(
        profile["name"],
        site.name,
        site.organisation,
        site.id,
        server["host"],
        server["fed_learn_port"],
        ca_fingerprint(home),
    )
    path = home / INVITATIONS / f"{site.name}.json"
    write_atomic(path, json.dumps(asdict(invited), indent=2) + "\n")
    return path


def _go(home: Path, name: str, state: str, why: str) -> Member:
    home = Path(home).absolute()
    with _members(home) as members:
        if name not in members:
            raise ValueError(f"this federation has no site {name!r} (known: {', '.join(members)})")
        if members[name].state in ("expelled", "left"):
            raise ValueError(f"{name!r} has {_gone(members[name].state)} already")
        members[name] = replace(members[name], state=state)
        record(home, "expel" if state == "expelled" else "leave", who=name, why=why)
        _write_disabled(home / KIT, [one.name for one in members.values() if one.state in ("expelled", "left")])
        return members[name]


def _gone(state: str) -> str:
    return "been expelled" if state == "expelled" else state


def _write_disabled(kit: Path, names: Sequence[str]) -> None:
    """Write the sites that the server refuses; it reads them when it starts."""
    content = json.dumps({"disabled_clients": sorted(names)}, indent=2)
    write_atomic(kit / "disabled_clients.json", content, private=True)


@contextmanager
def _members(home: Path) -> Iterator[dict[str, Member]]:
    """The sites of a federation, for modification; changes are written at the end."""
    home = Path(home)
    with locked(home / f"{SITES}.lock", str(home / SITES)):
        members = read_members(home)
        yield members
        _write_members(home, members.values())


def _write_members(home: Path, members: Iterable[Member]) -> None:
    content = json.dumps({member.name: asdict(member) for member in members}, indent=2)
    write_atomic(home / SITES, content + "\n", private=True)


def _profile(home: Path) -> dict[str, Any]:
    found: dict[str, Any] = parse_json((home / PROFILE).read_bytes())
    return found


def _load(content: bytes) -> Any:
    from cryptography.x509 import load_pem_x509_certificate

    return load_pem_x509_certificate(content)
