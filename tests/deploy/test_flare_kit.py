"""Kits of the engine: keys that never leave, requests that are refused, certificates that are looked at."""

from __future__ import annotations

import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import zipfile
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

pytest.importorskip("nvflare", reason="kits need the extra fedrank[deploy]")

from fedrank.deploy import flare_kit as kits
from fedrank.deploy.flare_certificates import KitError, certificate_facts, kit_problems
from fedrank.deploy.flare_commands import engine_commands
from fedrank.deploy.flare_hardening import EXECUTOR, MAX_MESSAGE, RIGHTS, ROLES
from fedrank.deploy.flare_processes import look_before, serve, warm_up_in_child
from fedrank.deploy.identity import IDENTITY
from fedrank.deploy.records import RECORDS
from fedrank.deploy.settings import FederationFile, Person, SiteEntry, read_site
from fedrank.experiments.spec.experiment import SpecError

pytestmark = pytest.mark.process

PRIVATE = b"PRIVATE KEY"
ANNA = Person("anna@clinic.org", "clinic", "member")


def made(folder, name="clinics", sites=2):
    entries = tuple(SiteEntry(f"clinic-{id}", f"Clinic_{id}", id) for id in range(sites))
    return kits.init(folder, FederationFile(name, "localhost", 8002, entries, (ANNA,)), 'name = "clinics"\n')


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A federation with two sites, the first of which has joined, the second asked; nobody changes it."""
    root = tmp_path_factory.mktemp("kits")
    with engine_commands(root):
        founded = made(root / "hub")
        first, second = (kits.request(path, root / path.stem) for path in founded.invitations)
        applicant = kits.approve(first, founded.home)
        signed = kits.sign(applicant, founded.home)
        inside = sorted(path.name for path in (root / "clinic-0" / "request").iterdir())
        kits.join(signed, root / "clinic-0", founded.fingerprint)
    return root, founded, {"first": first, "second": second, "signed": signed, "applicant": applicant, "inside": inside}


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory):
    """Another federation of three sites with the same names, which have all asked to join."""
    root = tmp_path_factory.mktemp("elsewhere")
    with engine_commands(root):
        founded = made(root / "hub", sites=3)
        asked = [kits.request(path, root / path.stem) for path in founded.invitations]
    return root, founded, asked


@pytest.fixture
def copied(begun, tmp_path):
    """The same, to be changed."""
    root, founded, files = begun
    shutil.copytree(root, tmp_path / "copy")
    moved = {
        name: tmp_path / "copy" / path.relative_to(root) for name, path in files.items() if hasattr(path, "parent")
    }
    return tmp_path / "copy", founded, moved


def everything_in(path):
    """The bytes of a zip file's members, and of those that are zip files themselves."""
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            content = archive.read(name)
            yield content
            if name.endswith(".zip"):
                inner = path.with_name("inner.zip")
                inner.write_bytes(content)
                yield from everything_in(inner)
                inner.unlink()


def test_keys_are_made_where_they_stay(begun):
    root, _, files = begun
    assert "clinic-0.key" in files["inside"]
    for path in (files["first"], files["second"], files["signed"]):
        assert not any(PRIVATE in content for content in everything_in(path))
    secret = (root / "clinic-0" / IDENTITY).read_text().split()[1]
    site_key = (root / "clinic-0" / "kit" / "startup" / "client.key").read_bytes()
    for path in (root / "hub").rglob("*"):
        if path.is_file():
            assert site_key not in path.read_bytes()
            assert secret.encode() not in path.read_bytes()
    assert [path for path in (root / "clinic-0").rglob("*.key") if "kit" not in path.parts] == [
        root / "clinic-0" / IDENTITY
    ]


def test_what_a_coordinator_sees_and_keeps(begun):
    _, founded, files = begun
    applicant = files["applicant"]
    assert (applicant.name, applicant.organisation, applicant.id) == ("clinic-0", "Clinic_0", 0)
    assert applicant.fingerprint.startswith("SHA256:")
    members = kits.read_members(founded.home)
    assert [(member.state, member.id) for member in members.values()] == [("joined", 0), ("invited", 1)]
    assert members["clinic-0"].identity == applicant.identity
    (line,) = (founded.home / RECORDS).read_text().splitlines()
    assert json.loads(line)["what"] == "approve"
    assert (founded.home / "people" / ANNA.name / "startup" / "client.key").exists()


def test_a_site_folder_is_for_its_owner_and_can_be_filled_in(begun):
    root, _, _ = begun
    site = root / "clinic-0"
    for path in (site, *site.rglob("*")):
        if not path.name.endswith((".request.zip",)):
            assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    with pytest.raises(SpecError, match="letor"):  # nothing else is missing
        read_site(site)
    facts = certificate_facts(site / "kit")
    assert (facts.subject, facts.organisation, facts.host, facts.port) == ("clinic-0", "Clinic_0", "localhost", 8002)
    assert facts.days_left() > 1000
    look_before(site)


def test_a_site_is_closed(begun):
    root, _, _ = begun
    local = root / "clinic-0" / "kit" / "local"
    resources = json.loads((local / "resources.json").read_text())
    assert resources["class_allow_list"] == [EXECUTOR]
    assert resources["class_list_enforcement_mode"] == "enforce"
    assert resources["allow_log_streaming"] is False
    assert "log" not in "".join(one["id"] for one in resources["components"])
    rights = json.loads((local / "authorization.json").read_text())["permissions"]
    assert set(rights) == set(ROLES)
    for role, allowed in rights.items():
        assert set(allowed) == set(RIGHTS)
        assert {right for right, who in allowed.items() if who != "none"} <= {"submit_job"}, role
    limits = json.loads((local / "comm_config.json").read_text())
    assert limits["streaming_max_blob_size"] == MAX_MESSAGE
    assert not list((root / "clinic-0" / "kit").rglob("*.sh"))
    server = json.loads((root / "hub" / "kit" / "local" / "resources.json").read_text())
    assert "/tmp/nvflare" not in json.dumps(server)


def test_strangers_and_second_requests_are_refused(copied, elsewhere):
    root, _, files = copied
    stranger = elsewhere[2][2]
    with pytest.raises(ValueError, match="site 'clinic-2' was not invited"):
        kits.approve(stranger, root / "hub")
    with pytest.raises(ValueError, match="has joined already"):
        kits.approve(files["first"], root / "hub")
    kits.expel(root / "hub", "clinic-1", why="test")
    with pytest.raises(ValueError, match="has been expelled"):
        kits.approve(files["second"], root / "hub")
    with pytest.raises(ValueError, match="expelled already"):
        kits.leave(root / "hub", "clinic-1")
    disabled = json.loads((root / "hub" / "kit" / "disabled_clients.json").read_text())
    assert disabled == {"disabled_clients": ["clinic-1"]}


def test_a_request_for_another_name_is_refused(copied, elsewhere):
    """Signed by the site that was invited, with a certificate's request of another name in it."""
    root = copied[0]
    site = root / "clinic-1"
    invited = kits.Invitation.read(site / kits.INVITATION)
    borrowed = (elsewhere[0] / "clinic-0" / "request" / "clinic-0.request.zip").read_bytes()
    forged = kits._packed(site, invited, borrowed, renewal=False)
    with pytest.raises(ValueError, match="for a certificate of 'clinic-0'"):
        kits.approve(forged, root / "hub")


@pytest.mark.parametrize("member", [kits.CERTIFICATE, kits.APPLICATION, kits.SIGNATURE])
def test_a_request_that_was_changed_is_refused(copied, tmp_path, member):
    _, founded, files = copied
    changed = tmp_path / "changed.zip"
    with zipfile.ZipFile(files["second"]) as old, zipfile.ZipFile(changed, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            new.writestr(name, content if name != member else content.replace(content[-9:-7], b"00"))
    with pytest.raises(ValueError, match=r"changed\.zip"):
        kits.approve(changed, founded.home)


def test_what_is_no_request_is_refused(begun, tmp_path):
    _, founded, _ = begun
    (tmp_path / "text.zip").write_text("hello")
    with pytest.raises(ValueError, match="is not a request"):
        kits.approve(tmp_path / "text.zip", founded.home)


@pytest.mark.process
def test_somebody_elses_federation(copied, elsewhere):
    root, founded, _ = copied
    there, other, asked = elsewhere
    signed = kits.sign(kits.approve(asked[1], other.home), other.home)
    for folder, told in (
        (there / "clinic-1", founded.fingerprint),
        (there / "clinic-1", "SHA256:00"),
        (root / "clinic-1", other.fingerprint),  # whose invitation names another CA
    ):
        with pytest.raises(ValueError, match="belongs to another federation"):
            kits.join(signed, folder, told)
        assert not (folder / "kit").exists()


def test_joining_needs_the_key_of_the_request(begun, tmp_path):
    _, founded, files = begun
    with pytest.raises(FileNotFoundError, match="the key of this certificate"):
        kits.join(files["signed"], tmp_path, founded.fingerprint)


def test_a_second_beginning_is_refused(begun):
    root, founded, _ = begun
    with pytest.raises(FileExistsError, match="exclude every site"):
        made(founded.home)
    with pytest.raises(FileExistsError, match="the site has joined"):
        kits.request(founded.invitations[0], root / "clinic-0")
    with pytest.raises(FileExistsError, match="keys were created before"):
        kits.request(founded.invitations[1], root / "clinic-1")


def test_one_more_site(copied):
    root, _, _ = copied
    with pytest.raises(ValueError, match="name 'Clinic-0' belongs to"):
        kits.invite(root / "hub", SiteEntry("Clinic-0", "Other", 7))
    with pytest.raises(ValueError, match="id 1 belongs to"):
        kits.invite(root / "hub", SiteEntry("clinic-7", "Other", 1))
    invited = kits.Invitation.read(kits.invite(root / "hub", SiteEntry("clinic-7", "Other", 7)))
    assert (invited.name, invited.id, invited.host, invited.port) == ("clinic-7", 7, "localhost", 8002)
    assert invited.fingerprint == kits.ca_fingerprint(root / "hub")


@pytest.mark.process
def test_a_renewal_exchanges_the_key_and_needs_the_same_identity(copied):
    root, founded, _ = copied
    site = root / "clinic-0"
    before = certificate_facts(site / "kit").fingerprint
    with engine_commands(root):
        asked = kits.renew(site)
        applicant = kits.approve(asked, root / "hub")
        assert applicant.renewal
        kits.join(kits.sign(applicant, root / "hub"), site, founded.fingerprint)
        assert certificate_facts(site / "kit").fingerprint != before
        assert not kit_problems(site / "kit", founded.fingerprint, "clinic-0")
        (site / IDENTITY).unlink()
        kits.new_identity(site)
        with pytest.raises(ValueError, match="not signed with the known key of"):
            kits.approve(kits.renew(site), root / "hub")
        server = certificate_facts(root / "hub" / "kit").fingerprint
        key = (root / "hub/kit/startup/server.key").read_bytes()
        kits.renew(root / "hub")
        assert (root / "hub/kit/startup/server.key").read_bytes() == key, "sites that run would not be known any more"
        assert certificate_facts(root / "hub" / "kit").fingerprint != server
        assert not kit_problems(root / "hub" / "kit", founded.fingerprint, "localhost")
    records = [json.loads(line)["what"] for line in (root / "hub" / RECORDS).read_text().splitlines()]
    assert records == ["approve", "renew", "renew", "renew"]


def expire(certificate, ca):
    """The same certificate, signed again by the CA, but expired since yesterday."""
    old = x509.load_pem_x509_certificate(certificate.read_bytes())
    root = x509.load_pem_x509_certificate((ca / "rootCA.pem").read_bytes())
    key = serialization.load_pem_private_key((ca / "rootCA.key").read_bytes(), None)
    made = x509.CertificateBuilder(root.subject, old.subject, old.public_key(), old.serial_number)
    now = datetime.now(UTC)
    made = made.not_valid_before(now - timedelta(days=9)).not_valid_after(now - timedelta(days=1))
    for one in old.extensions:
        made = made.add_extension(one.value, one.critical)
    certificate.write_bytes(made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))


def test_an_expired_certificate_is_renewed_like_one_that_is_valid(copied):
    root, founded, _ = copied
    site, hub = root / "clinic-0", root / "hub"
    for path in (site / "kit/startup/client.crt", hub / "kit/startup/server.crt", hub / "admin/startup/client.crt"):
        expire(path, hub / "ca")
    for folder in (site, hub):
        with pytest.raises(KitError, match=r"(?s)expired on .*`fedrank deploy renew"):
            serve(folder)
    with engine_commands(root):
        kits.join(kits.sign(kits.approve(kits.renew(site), hub), hub), site, founded.fingerprint)
        kits.renew(hub)
    for folder in (site, hub):
        look_before(folder)
    assert not kit_problems(hub / "admin", founded.fingerprint)


def test_certificates_are_looked_at_before_anything_starts(copied):
    root, founded, _ = copied
    site, startup = root / "clinic-0", root / "clinic-0" / "kit" / "startup"
    now = datetime.now(UTC)

    def problems(**more):
        return "\n".join(map(str, kit_problems(site / "kit", founded.fingerprint, "clinic-0", **more)))

    assert problems() == ""
    assert "expired on" in problems(now=now + timedelta(days=2000))
    assert "set the clock" in problems(now=now - timedelta(days=2))
    assert "create the federation again" in problems(now=now + timedelta(days=4000))
    assert "not of 'clinic-9'" in "".join(map(str, kit_problems(site / "kit", name="clinic-9")))
    os.chmod(startup / "client.key", 0o644)
    assert "can be read by other users" in problems()
    shutil.copy(root / "hub" / "admin" / "startup" / "client.key", startup / "client.key")
    assert "is not the key of client.crt" in problems()
    with pytest.raises(KitError, match=r"is not the key of client\.crt"):
        serve(site)
    (startup / "client.key").unlink()
    assert "cannot be read" in problems()


def test_a_port_that_another_program_uses_is_named_before_the_server_starts(copied):
    home = copied[0] / "hub"
    with socket.socket() as other:
        other.bind(("", certificate_facts(home / "kit").port))
        other.listen()
        with pytest.raises(KitError, match=r"port \d+ cannot be used .*stop the process that uses it"):
            serve(home)


def test_a_wrong_ca_is_named_before_a_process_would_try_for_ever(copied, elsewhere):
    root = copied[0]
    shutil.copy(elsewhere[1].home / "ca" / "rootCA.pem", root / "clinic-0" / "kit" / "startup" / "rootCA.pem")
    with pytest.raises(KitError, match=r"(?s)another federation.*was not issued by the CA next to it"):
        serve(root / "clinic-0")


def test_a_certificate_that_unpacks_to_too_much_is_not_unpacked(tmp_path):
    (tmp_path / kits.REQUEST).mkdir()
    invited = kits.Invitation("trial", "clinic-0", "Clinic", 0, "localhost", 8002, "SHA256:00")
    (tmp_path / kits.INVITATION).write_text(json.dumps(vars(invited)))
    with zipfile.ZipFile(tmp_path / "signed.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(kits.ROOT, b"\0" * (kits.LARGEST + 1))
    with pytest.raises(ValueError, match=r"is not a signed certificate .*larger than 1,048,576 bytes"):
        kits.join(tmp_path / "signed.zip", tmp_path, "SHA256:00")


def test_a_process_that_only_watches_another_does_not_load_the_compiler(begun, tmp_path, monkeypatch):
    code = (
        "import sys, threading; from pathlib import Path; from fedrank.deploy import flare_processes as p\n"
        "p.Running.start = lambda self: p.child_environment(Path(sys.argv[1]))\n"
        "stop = threading.Event(); stop.set()\n"
        "p.serve(Path(sys.argv[2]), stop=stop)\n"
        "print(sorted({'numba', 'llvmlite'} & set(sys.modules)))"
    )
    words = [sys.executable, "-c", code, str(tmp_path), str(begun[0] / "clinic-0")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("[]\n", 0), done.stderr
    ended, run = [], subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda *words, **how: ended.append(run(*words, **how)))
    warm_up_in_child(["pdgd"])
    assert [one.returncode for one in ended] == [0]
