"""Facts and problems of certificates, checked before a connection relies on them.

An NVFLARE process with an invalid certificate retries forever without a message, so certificates are checked before it
starts.
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
SOON = 30  # days before expiry from which a certificate should be renewed
WHOM_TO_ASK = "ask the coordinator"


@dataclass(frozen=True)
class CertificateFacts:
    """One certificate of a kit."""

    path: Path
    subject: str  # common name: of a site, the server's host, or a person
    organisation: str
    role: str  # as in the certificate: client, server, lead, member, ...
    issuer: str  # name of the federation that issued it
    fingerprint: str
    issuer_fingerprint: str  # of the CA next to it
    not_before: datetime
    not_after: datetime
    host: str  # where its holder connects to or listens
    port: int

    def days_left(self, now: datetime | None = None) -> int:
        return (self.not_after - (now or datetime.now(UTC))).days


@dataclass(frozen=True)
class KitFinding:
    """A problem that prevents a kit from working, and its remedy."""

    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.what}; {self.remedy}"


class KitError(ValueError):
    """A kit that cannot be started; the message lists all its problems."""

    def __init__(self, findings: list[KitFinding]) -> None:
        super().__init__("\n".join(map(str, findings)))
        self.findings = findings


def certificate_fingerprint(certificate: Certificate) -> str:
    """The full SHA-256 digest of a certificate, in the format of openssl."""
    from cryptography.hazmat.primitives.hashes import SHA256

    return "SHA256:" + certificate.fingerprint(SHA256()).hex(":").upper()


def same_certificate(one: str, other: str) -> bool:
    """Whether two fingerprints are equal, ignoring colons, spaces, case and the name of the hash.

    >>> same_certificate("SHA256:" + "AB:" * 31 + "AB", "ab" * 32)
    True
    >>> same_certificate("", "")
    False
    """
    digits = [_digits(text) for text in (one, other)]
    return len(digits[0]) == 64 and digits[0] == digits[1]


def load_certificate(path: Path) -> Certificate:
    """Load the certificate in a PEM file; ValueError names the file if it is invalid."""
    from cryptography.x509 import load_pem_x509_certificate

    try:
        return load_pem_x509_certificate(path.read_bytes())
    except FileNotFoundError:
        raise
    except ValueError as problem:
        raise ValueError(f"{path} is not a certificate ({problem}); restore it from a backup") from None


def certificate_facts(kit: Path) -> CertificateFacts:
    """Read the certificate of a kit without checking it: see `kit_problems`."""
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
    """The path of a kit's certificate."""
    startup = kit / "startup"
    for name in ("server.crt", "client.crt"):
        if (startup / name).exists():
            return startup / name
    raise FileNotFoundError(
        f"{startup} has no certificate, so {kit} is not a kit; create one with `fedrank deploy join`"
    )


def kit_problems(
    kit: Path, fingerprint: str = "", name: str = "", now: datetime | None = None, end: datetime | None = None
) -> list[KitFinding]:
    """All problems that prevent a kit from connecting: files, chain, expiry and clock, key, host, names.

    `fingerprint` and `name` are the expected values of the federation's CA and of the holder, if known.
    """
    now = now or datetime.now(UTC)
    try:
        path = certificate_path(kit)
        certificate, root = load_certificate(path), load_certificate(path.parent / ROOT)
        facts = certificate_facts(kit)
    except (OSError, ValueError, KeyError) as problem:
        return [KitFinding(str(problem), "restore the kit from a backup, or join again")]
    found = _chain(path, certificate, root, fingerprint)
    for whose, which in ((path, certificate), (path.parent / ROOT, root)):
        found += _dates(whose, which, now)
    if end is not None and facts.not_after < end:
        found.append(KitFinding(f"{path} expires on {facts.not_after:%Y-%m-%d}, before {end:%Y-%m-%d}", _renewal(path)))
    found += _key(path, certificate)
    found += _classes(kit)
    if name and facts.subject != name:
        found.append(
            KitFinding(f"{path} is the certificate of {facts.subject!r}, not of {name!r}", "use the kit of this site")
        )
    if facts.role == "server" and facts.host != facts.subject:
        found.append(
            KitFinding(
                f"{path} is for the host {facts.subject!r}, but the kit listens as {facts.host!r}",
                "create a federation for the new host: sites refuse another name",
            )
        )
    return found


def _classes(kit: Path) -> list[KitFinding]:
    """Problems with the classes that a kit allows."""
    try:
        outdated = outdated_classes(kit)
    except ValueError as problem:
        return [KitFinding(str(problem), "restore the kit from a backup, or join again")]
    if not outdated:
        return []
    says = f"{kit} was created by another version of fedrank: it allows {outdated[0][:100]}, which does not exist"
    return [KitFinding(says, "run `fedrank deploy renew` in its folder")]


def host_problems(kit: Path) -> list[KitFinding]:
    """Problems with resolving the name of the server's host."""
    import socket

    host, port = _endpoint(kit)
    try:
        socket.getaddrinfo(host, port)
    except OSError as problem:
        return [KitFinding(f"the host {host!r} cannot be resolved ({problem})", "check the name, DNS and the network")]
    return []


def _chain(path: Path, certificate: Certificate, root: Certificate, fingerprint: str) -> list[KitFinding]:
    found = []
    if fingerprint and not same_certificate(fingerprint, certificate_fingerprint(root)):
        found.append(
            KitFinding(
                f"{path.parent / ROOT} is the CA of another federation: {certificate_fingerprint(root)} (expected "
                f"{fingerprint})",
                f"{WHOM_TO_ASK} by telephone which one is correct",
            )
        )
    try:
        certificate.verify_directly_issued_by(root)
    except Exception:
        found.append(
            KitFinding(
                f"{path} was not issued by the CA next to it, {_name(root.subject, 'COMMON_NAME')!r}",
                f"{WHOM_TO_ASK} for a certificate of this federation",
            )
        )
    return found


def _dates(path: Path, certificate: Certificate, now: datetime) -> list[KitFinding]:
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now < begins:
        return [
            KitFinding(
                f"{path} is not valid before {begins:%Y-%m-%d %H:%M} UTC, and the clock shows {now:%Y-%m-%d %H:%M}",
                "set the clock, or wait",
            )
        ]
    if now > ends:
        return [KitFinding(f"{path} expired on {ends:%Y-%m-%d %H:%M} UTC", _renewal(path))]
    return []


def _renewal(path: Path) -> str:
    if path.name == ROOT:
        return "create the federation again with `fedrank deploy init`"
    return f"renew it: `fedrank deploy renew`, then {WHOM_TO_ASK} to approve"


def _key(path: Path, certificate: Certificate) -> list[KitFinding]:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

    where = path.with_suffix(".key")
    try:
        mode = stat.S_IMODE(where.stat().st_mode)
        key = load_pem_private_key(where.read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as problem:
        return [KitFinding(f"{where} cannot be read: {problem}", "restore it from a backup, or join again")]
    found = []
    form = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    if key.public_key().public_bytes(*form) != certificate.public_key().public_bytes(*form):
        found.append(
            KitFinding(f"{where} is not the key of {path.name}", "restore both from the same backup, or join again")
        )
    if os.name == "posix" and mode & 0o077:
        found.append(KitFinding(f"{where} can be read by other users (mode {mode:o})", f"chmod 600 {where}"))
    return found


def _endpoint(kit: Path) -> tuple[str, int]:
    """Host and port of the server, from a kit of any type."""
    startup = kit / "startup"
    for name in ("fed_server.json", "fed_client.json", "fed_admin.json"):
        if (startup / name).exists():
            said: Any = parse_json((startup / name).read_bytes())
            if name == "fed_admin.json":
                return str(said["admin"]["host"]), int(said["admin"]["port"])
            host, _, port = str(said["servers"][0]["service"]["target"]).rpartition(":")
            return host, int(port)
    raise FileNotFoundError(
        f"{startup} does not contain the server's address; restore the kit from a backup, or join again"
    )


def _name(name: Any, kind: str) -> str:
    from cryptography.x509.oid import NameOID

    if kind == "UNSTRUCTURED_NAME":  # where NVFLARE writes the role
        found = [part for part in name if part.oid.dotted_string == "1.2.840.113549.1.9.2"]
    else:
        found = name.get_attributes_for_oid(getattr(NameOID, kind))
    return str(found[0].value) if found else ""


def _digits(text: str) -> str:
    text = text.strip().lower().removeprefix("sha256").removeprefix(" fingerprint").lstrip(":= ")
    kept = "".join(letter for letter in text if letter not in " :\t")
    return kept if not set(kept) - set("0123456789abcdef") else ""
