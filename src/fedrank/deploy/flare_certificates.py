"""What certificates say, and what is wrong with them, before anybody trusts a connection to them.

A process of the engine that holds a wrong certificate tries again for ever and says nothing, so that these are looked
at before it starts.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedrank.deploy.flare_hardening import outdated_classes
from fedrank.files import parse_json

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

ROOT = "rootCA.pem"
SOON = 30  # days before its end from which on a certificate should be renewed
WHOM_TO_ASK = "ask the coordinator"


@dataclass(frozen=True)
class CertificateFacts:
    """One certificate of a kit."""

    path: Path
    subject: str  # common name: of a site, of the server's host, of a person
    organisation: str
    role: str  # as the certificate says: client, server, lead, member, ...
    issuer: str  # name of the federation that issued it
    fingerprint: str
    issuer_fingerprint: str  # of the CA that lies beside it
    not_before: datetime
    not_after: datetime
    host: str  # where its holder connects to, or listens
    port: int

    def days_left(self, now: datetime | None = None) -> int:
        return (self.not_after - (now or datetime.now(UTC))).days


@dataclass(frozen=True)
class KitFinding:
    """Something that keeps a kit from working, and what to do about it."""

    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.what}; {self.remedy}"


class KitError(ValueError):
    """A kit with which nothing can be started. It names everything that is wrong with it."""

    def __init__(self, findings: list[KitFinding]) -> None:
        super().__init__("\n".join(map(str, findings)))
        self.findings = findings


def certificate_fingerprint(certificate: Certificate) -> str:
    """The whole SHA-256 of a certificate, as openssl writes it."""
    from cryptography.hazmat.primitives.hashes import SHA256

    return "SHA256:" + certificate.fingerprint(SHA256()).hex(":").upper()


def same_certificate(one: str, other: str) -> bool:
    """Whether two fingerprints are the same; colons, spaces, capitals and the name of the hash do not matter.

    >>> same_certificate("SHA256:" + "AB:" * 31 + "AB", "ab" * 32)
    True
    >>> same_certificate("", "")
    False
    """
    digits = [_digits(text) for text in (one, other)]
    return len(digits[0]) == 64 and digits[0] == digits[1]


def load_certificate(path: Path) -> Certificate:
    """The certificate in a PEM file; ValueError names the file where it is none."""
    from cryptography.x509 import load_pem_x509_certificate

    try:
        return load_pem_x509_certificate(path.read_bytes())
    except FileNotFoundError:
        raise
    except ValueError as problem:
        raise ValueError(f"{path} is no certificate ({problem}); restore it from a backup") from None


def certificate_facts(kit: Path) -> CertificateFacts:
    """What the certificate of a kit says. Nothing of it is checked: see `kit_problems`."""
    path = certificate_path(kit)
    certificate, root = load_certificate(path), load_certificate(path.parent / ROOT)
    host, port = _endpoint(kit)
    return CertificateFacts(
        path=path,
        subject=_name(certificate.subject, "COMMON_NAME"),
        organisation=_name(certificate.subject, "ORGANIZATION_NAME"),
        role=_name(certificate.subject, "UNSTRUCTURED_NAME"),
        issuer=_name(certificate.issuer, "COMMON_NAME"),
        fingerprint=certificate_fingerprint(certificate),
        issuer_fingerprint=certificate_fingerprint(root),
        not_before=certificate.not_valid_before_utc,
        not_after=certificate.not_valid_after_utc,
        host=host,
        port=port,
    )


def certificate_path(kit: Path) -> Path:
    """Where the certificate of a kit lies."""
    startup = kit / "startup"
    for name in ("server.crt", "client.crt"):
        if (startup / name).exists():
            return startup / name
    raise FileNotFoundError(
        f"{startup} has no certificate, so that {kit} is no kit; make it with `fedrank deploy join`"
    )


def kit_problems(
    kit: Path, fingerprint: str = "", name: str = "", now: datetime | None = None, end: datetime | None = None
) -> list[KitFinding]:
    """Everything that keeps a kit from connecting: files, chain, expiry and clock, key, host, names.

    `fingerprint` and `name` are what the federation's CA and the holder should be, where that is known.
    """
    now = now or datetime.now(UTC)
    try:
        path = certificate_path(kit)
        certificate, root = load_certificate(path), load_certificate(path.parent / ROOT)
        facts = certificate_facts(kit)
    except (OSError, ValueError, KeyError) as problem:
        return [KitFinding(str(problem), "restore the kit from a backup, or join anew")]
    found = _chain(path, certificate, root, fingerprint)
    for whose, which in ((path, certificate), (path.parent / ROOT, root)):
        found += _dates(whose, which, now)
    if end is not None and facts.not_after < end:
        found.append(KitFinding(f"{path} ends on {facts.not_after:%Y-%m-%d}, before {end:%Y-%m-%d}", _renewal(path)))
    found += _key(path, certificate)
    found += _classes(kit)
    if name and facts.subject != name:
        found.append(KitFinding(f"{path} is the certificate of {facts.subject!r}, not of {name!r}", "use your own kit"))
    if facts.role == "server" and facts.host != facts.subject:
        found.append(
            KitFinding(
                f"{path} is for the host {facts.subject!r}, and the kit listens as {facts.host!r}",
                "begin a federation for the new host: sites refuse another name",
            )
        )
    return found


def _classes(kit: Path) -> list[KitFinding]:
    """What is wrong with the classes that a kit allows."""
    try:
        outdated = outdated_classes(kit)
    except ValueError as problem:
        return [KitFinding(str(problem), "restore the kit from a backup, or join anew")]
    if not outdated:
        return []
    says = f"{kit} was made by another version of fedrank: it allows {outdated[0][:100]}, which does not exist here"
    return [KitFinding(says, "run `fedrank deploy renew` in its folder")]


def host_problems(kit: Path) -> list[KitFinding]:
    """Whether the name of the server's host means an address here."""
    import socket

    host, port = _endpoint(kit)
    try:
        socket.getaddrinfo(host, port)
    except OSError as problem:
        return [KitFinding(f"the host {host!r} has no address ({problem})", "check the name, DNS and the network")]
    return []


def _chain(path: Path, certificate: Certificate, root: Certificate, fingerprint: str) -> list[KitFinding]:
    found = []
    if fingerprint and not same_certificate(fingerprint, certificate_fingerprint(root)):
        found.append(
            KitFinding(
                f"{path.parent / ROOT} is the CA of somebody else's federation: {certificate_fingerprint(root)}, and "
                f"{fingerprint} was expected",
                f"{WHOM_TO_ASK} by telephone which is right",
            )
        )
    try:
        certificate.verify_directly_issued_by(root)
    except Exception:
        found.append(
            KitFinding(
                f"{path} was not issued by the CA beside it, {_name(root.subject, 'COMMON_NAME')!r}",
                f"{WHOM_TO_ASK} for a certificate of this federation",
            )
        )
    return found


def _dates(path: Path, certificate: Certificate, now: datetime) -> list[KitFinding]:
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now < begins:
        return [
            KitFinding(
                f"{path} is not valid before {begins:%Y-%m-%d %H:%M} UTC, and the clock here says {now:%Y-%m-%d %H:%M}",
                "set the clock, or wait",
            )
        ]
    if now > ends:
        return [KitFinding(f"{path} was valid until {ends:%Y-%m-%d %H:%M} UTC", _renewal(path))]
    return []


def _renewal(path: Path) -> str:
    if path.name == ROOT:
        return "the federation has to begin anew with `fedrank deploy init`"
    return f"renew it: `fedrank deploy renew`, then {WHOM_TO_ASK} to approve"


def _key(path: Path, certificate: Certificate) -> list[KitFinding]:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

    where = path.with_suffix(".key")
    try:
        mode = stat.S_IMODE(where.stat().st_mode)
        key = load_pem_private_key(where.read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as problem:
        return [KitFinding(f"{where} cannot be read: {problem}", "restore it from a backup, or join anew")]
    found = []
    form = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    if key.public_key().public_bytes(*form) != certificate.public_key().public_bytes(*form):
        found.append(KitFinding(f"{where} is not the key of {path.name}", "restore both from one backup, or join anew"))
    if os.name == "posix" and mode & 0o077:
        found.append(KitFinding(f"{where} can be read by others (mode {mode:o})", f"chmod 600 {where}"))
    return found


def _endpoint(kit: Path) -> tuple[str, int]:
    """Host and port of the server, as a kit of any kind says."""
    startup = kit / "startup"
    for name in ("fed_server.json", "fed_client.json", "fed_admin.json"):
        if (startup / name).exists():
            said: Any = parse_json((startup / name).read_bytes())
            if name == "fed_admin.json":
                return str(said["admin"]["host"]), int(said["admin"]["port"])
            host, _, port = str(said["servers"][0]["service"]["target"]).rpartition(":")
            return host, int(port)
    raise FileNotFoundError(f"{startup} does not say where the server is; restore the kit from a backup, or join anew")


def _name(name: Any, kind: str) -> str:
    from cryptography.x509.oid import NameOID

    if kind == "UNSTRUCTURED_NAME":  # where the engine writes the role
        found = [part for part in name if part.oid.dotted_string == "1.2.840.113549.1.9.2"]
    else:
        found = name.get_attributes_for_oid(getattr(NameOID, kind))
    return str(found[0].value) if found else ""


def _digits(text: str) -> str:
    text = text.strip().lower().removeprefix("sha256").removeprefix(" fingerprint").lstrip(":= ")
    kept = "".join(letter for letter in text if letter not in " :\t")
    return kept if not set(kept) - set("0123456789abcdef") else ""
