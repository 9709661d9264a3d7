"""Backups: what comes back, what never gets less, and archives from anybody."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest

from fedrank import files
from fedrank.deploy.archive import MANIFEST
from fedrank.deploy.backup import (
    RESTORED,
    RestoreMark,
    backup,
    record_completed_round,
    restore,
)
from fedrank.deploy.identity import new_identity, read_identity
from fedrank.deploy.outbox import Outbox, Sent
from fedrank.privacy.accounting import GaussianEvent
from fedrank.privacy.guarantees import Guarantee
from fedrank.privacy.ledger import Charges
from fedrank.privacy.population import LedgerTerms, Population, open_ledger, spent_together

RUN = bytes(range(16))
HERE = f"people/{RUN.hex()}/ledger"
PEOPLE = 3


def terms(noise: float = 2.0) -> LedgerTerms:
    guarantee = Guarantee("server", GaussianEvent(noise), "noise is added at the site")
    return LedgerTerms(PEOPLE, 1e-5, (guarantee,), RUN.hex())


def charge(folder: Path, rounds: range, noise: float = 2.0) -> None:
    Population.open(folder / "people", PEOPLE, 1e-5, 1e6)
    with open_ledger(folder / HERE, terms(noise)) as ledger:
        for round in rounds:
            ledger.reserve({round: np.arange(PEOPLE)})


def send(folder: Path, round: int) -> None:
    empty = np.zeros(0)
    Outbox(folder / "outbox" / RUN.hex(), RUN).put(Sent(round, 0, bytes(32), b"answer %d" % round, b"", empty))


def work(folder: Path, rounds: range) -> None:
    """What a site leaves behind of some rounds."""
    charge(folder, rounds)
    for round in rounds:
        send(folder, round)


def charged(folder: Path, where: str = HERE) -> int:
    return Charges.read(folder / where, PEOPLE).rounds


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in (RESTORED, "lock")
    }


@pytest.fixture
def site(tmp_path):
    folder = tmp_path / "site"
    new_identity(folder)
    for name, text in {
        "site.toml": "name = 'a'\n",
        "seed": "7\n",
        "partners.json": "{}",
        "left.jsonl": "{}\n",
        "accepted/ab12.json": "{}",
        "kit/startup/client.key": "secret",
        "kit/local/resources.json": "{}",
        "models/abc/model.json": "{}",
    }.items():
        files.write_atomic(folder / name, text, private=True)
    work(folder, range(1, 4))
    return folder


def test_a_site_comes_back_as_it_was(site, tmp_path):
    made = backup(site, tmp_path / "b.tar")
    assert (made.kind, made.working) == ("site", False)
    assert (tmp_path / "b.tar").stat().st_mode & 0o777 == 0o600
    done = restore(tmp_path / "b.tar", tmp_path / "new")
    assert contents(tmp_path / "new") == contents(site)
    assert done.kept == ()
    assert len(done.restored) + 3 == made.files  # and one ledger of three files
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "new").rglob("*") if path.is_file()} == {0o600}
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "new").rglob("*") if path.is_dir()} == {0o700}
    assert read_identity(tmp_path / "new").public == read_identity(site).public
    assert Outbox(tmp_path / "new" / "outbox" / RUN.hex(), RUN).get(3).answer == b"answer 3"


def test_what_others_leave_in_a_folder_is_not_copied(site, tmp_path):
    before = contents(site)
    for name in ("site.log", "status.json", "lock", "kit/jobs/job.zip", "outbox/x.part", ".engine/notes", "notes.txt"):
        (site / name).parent.mkdir(exist_ok=True, parents=True)
        (site / name).write_text("x")
    (site / "models" / "link.json").symlink_to("/etc/hostname")
    os.mkfifo(site / "models" / "pipe")
    backup(site, tmp_path / "b.tar")
    with tarfile.open(tmp_path / "b.tar") as archive:
        names = archive.getnames()
    assert set(names) == {*before, MANIFEST}
    assert names[-1] == MANIFEST


def test_a_coordinators_home_comes_back_with_its_ca_and_the_ledgers_of_its_runs(tmp_path):
    home = tmp_path / "home"
    new_identity(home)
    for name in (
        "federation.toml",
        "ca/rootCA.key",
        "sites.json",
        "admin/startup/a.key",
        "people/a@b.org/startup/k.crt",
    ):
        files.write_atomic(home / name, name, private=True)
    work(home / "runs" / "populations" / "clinic", range(1, 4))
    (home / "runs" / "first").mkdir()
    (home / "runs" / "first" / "rounds.csv").write_text("round\n")
    backup(home, tmp_path / "b.tar")
    restore(tmp_path / "b.tar", tmp_path / "new")
    missing = set(contents(home)) - set(contents(tmp_path / "new"))
    assert missing == {"runs/first/rounds.csv", *(f for f in contents(home) if "/outbox/" in f)}
    assert charged(tmp_path / "new" / "runs" / "populations" / "clinic") == 3


def test_a_backup_replaces_no_other_and_a_folder_must_be_one(site, tmp_path):
    backup(site, tmp_path / "b.tar")
    with pytest.raises(FileExistsError, match="already exists"):
        backup(site, tmp_path / "b.tar")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="looks like neither"):
        backup(tmp_path / "empty", tmp_path / "c.tar")
    (tmp_path / "empty" / "letters.txt").touch()
    with pytest.raises(ValueError, match="looks like neither"):
        restore(tmp_path / "b.tar", tmp_path / "empty")
    (site / "federation.toml").touch()
    with pytest.raises(ValueError, match="looks like both"):
        backup(site, tmp_path / "c.tar")
    assert not (tmp_path / "c.tar").exists()


def test_a_site_at_work_is_copied_without_its_lock_and_the_copy_never_says_too_little(site, tmp_path, monkeypatch):
    """Between any two files of the copy the site sends one more round."""
    rounds = iter(range(4, 400))
    real = files.opened

    def busy(path):
        work(site, range(number := next(rounds), number + 1))
        return real(path)

    with files.locked(site / "lock", "the site"):
        monkeypatch.setattr("fedrank.deploy.archive.opened", busy)
        made = backup(site, tmp_path / "b.tar")
        monkeypatch.undo()
    assert made.working
    restore(tmp_path / "b.tar", tmp_path / "new")
    sent = Outbox(tmp_path / "new" / "outbox" / RUN.hex(), RUN)
    assert charged(tmp_path / "new") >= sent.last >= 3


# A ledger never forgets


def test_a_ledger_that_says_more_than_the_backup_stays(site, tmp_path):
    backup(site, tmp_path / "b.tar")
    work(site, range(4, 9))
    before = contents(site)
    done = restore(tmp_path / "b.tar", site)
    assert contents(site) == before
    assert charged(site) == 8
    assert (done.restored, done.kept, done.ledgers) == ((), (), ())


def test_a_ledger_that_says_less_than_the_backup_grows(site, tmp_path):
    old = (site / HERE / "participants.log").read_bytes()
    work(site, range(4, 9))
    backup(site, tmp_path / "b.tar")
    (site / HERE / "participants.log").write_bytes(old)
    (site / "outbox" / RUN.hex() / "00000006-0000").unlink()
    done = restore(tmp_path / "b.tar", site)
    assert charged(site) == 8
    assert done.ledgers == (f"{HERE}: recorded less than its copy, which was restored",)
    assert done.restored == (f"outbox/{RUN.hex()}/00000006-0000",)


def test_two_histories_of_one_ledger_both_count(site, tmp_path):
    """Restored from an old backup, went on, and restored from a newer one of before."""
    backup(site, tmp_path / "old.tar")
    work(site, range(4, 9))
    backup(site, tmp_path / "newer.tar")
    restore(tmp_path / "old.tar", tmp_path / "again")
    charge(tmp_path / "again", range(20, 22))
    for _ in range(2):  # the second time there is nothing left to do
        done = restore(tmp_path / "newer.tar", tmp_path / "again")
        accounts = Population.read(tmp_path / "again" / "people").accounts()
        assert sorted(account.rounds for account in accounts) == [5, 8]
    assert done.ledgers == ()
    alone = spent_together(Population.read(site / "people").accounts(), 1e-5)["server"]
    assert spent_together(accounts, 1e-5)["server"] > alone


def test_ledgers_of_different_prices_both_count(site, tmp_path):
    backup(site, tmp_path / "b.tar")
    shutil.rmtree(site / HERE)
    charge(site, range(1, 2), noise=5.0)
    restore(tmp_path / "b.tar", site)
    assert sorted(account.rounds for account in Population.read(site / "people").accounts()) == [1, 3]


def test_a_damaged_ledger_comes_back_and_the_damaged_one_is_kept(site, tmp_path):
    backup(site, tmp_path / "b.tar")
    path = site / HERE / "participants.log"
    content = bytearray(path.read_bytes())
    content[40] ^= 1
    path.write_bytes(content)
    done = restore(tmp_path / "b.tar", site)
    assert charged(site) == 3
    assert "was damaged; its copy was restored" in done.ledgers[0]
    assert (site / "people" / RUN.hex() / "damaged-ledger-1" / "participants.log").read_bytes() == content
    assert len(Population.read(site / "people").accounts()) == 1


@pytest.mark.parametrize("content", [None, b"", b"[]"])
def test_lost_prices_come_back_under_charges_that_stay(site, tmp_path, content):
    backup(site, tmp_path / "b.tar")
    work(site, range(4, 6))
    (site / HERE / "terms.json").unlink()
    if content is not None:
        (site / HERE / "terms.json").write_bytes(content)
    done = restore(tmp_path / "b.tar", site)
    assert charged(site) == 5
    assert done.ledgers == (f"{HERE}: had lost the cost of its charges, which was restored",)


def test_a_damaged_message_of_the_outbox_comes_back_and_a_sound_one_stays(site, tmp_path):
    backup(site, tmp_path / "b.tar")
    folder = site / "outbox" / RUN.hex()
    (folder / "00000001-0000").write_bytes(b"half")
    send(site, 2)
    other = Sent(3, 0, bytes(32), b"another answer", b"", np.zeros(0))
    Outbox(folder, RUN).put(other)
    done = restore(tmp_path / "b.tar", site)
    assert done.restored == (f"outbox/{RUN.hex()}/00000001-0000",)
    assert done.kept == (f"outbox/{RUN.hex()}/00000003-0000",)
    assert [Outbox(folder, RUN).get(round).answer for round in (1, 3)] == [b"answer 1", b"another answer"]


def test_settings_that_are_there_stay_and_are_named(site, tmp_path):
    backup(site, tmp_path / "b.tar")
    (site / "site.toml").write_text("name = 'changed'\n")
    (site / "seed").unlink()
    done = restore(tmp_path / "b.tar", site)
    assert (site / "site.toml").read_text() == "name = 'changed'\n"
    assert (done.kept, done.restored) == (("site.toml",), ("seed",))


def test_somebody_elses_backup_is_refused(site, tmp_path):
    backup(site, tmp_path / "b.tar")
    new_identity(tmp_path / "other")
    (tmp_path / "other" / "site.toml").touch()
    with pytest.raises(ValueError, match="belongs to another site"):
        restore(tmp_path / "b.tar", tmp_path / "other")
    assert not (tmp_path / "other" / RESTORED).exists()
    home = tmp_path / "home"
    files.write_atomic(home / "federation.toml", "")
    with pytest.raises(ValueError, match=r"is the folder of a home, but .* is a backup of a site"):
        restore(tmp_path / "b.tar", home)


@pytest.mark.parametrize("name", ["lock", "start.lock", "run.lock", "folder.lock"])
@pytest.mark.usefixtures("impatient")
def test_a_folder_somebody_works_in_is_not_restored(site, tmp_path, name):
    backup(site, tmp_path / "b.tar")
    with files.locked(site / name, "the site"), pytest.raises(files.Locked, match=f"process {os.getpid()}"):
        restore(tmp_path / "b.tar", site)
    assert not (site / RESTORED).exists()


# What a restored site may answer


def test_a_restored_site_answers_nothing_before_it_was_told_and_never_an_old_round_anew(site, tmp_path):
    assert RestoreMark.read(site) is None
    assert record_completed_round(site, RUN.hex(), 9) is None
    backup(site, tmp_path / "b.tar")
    work(site, range(4, 9))
    restore(tmp_path / "b.tar", tmp_path / "new")
    run = RUN.hex()
    mark = RestoreMark.read(tmp_path / "new")
    assert "number of completed rounds" in mark.objection(run, 4)
    assert record_completed_round(tmp_path / "new", run, 8).completed_rounds == {run: 8}
    record_completed_round(tmp_path / "new", run, 5)  # nobody can lower it
    mark = RestoreMark.read(tmp_path / "new")
    assert "it participates again from round 9" in mark.objection(run, 8)
    assert mark.objection(run, 9) is None
    assert mark.repeats(run, 9)
    assert not mark.repeats(run, 10)
    assert "asynchronous" in mark.objection(run, 9, synchronous=False)
    assert mark.objection("00" * 16, 1) is not None


def test_a_site_restored_twice_has_to_be_told_twice(site, tmp_path):
    backup(site, tmp_path / "b.tar")
    restore(tmp_path / "b.tar", tmp_path / "new")
    record_completed_round(tmp_path / "new", RUN.hex(), 8)
    backup(tmp_path / "new", tmp_path / "c.tar")
    restore(tmp_path / "c.tar", tmp_path / "third")
    assert RestoreMark.read(tmp_path / "third").completed_rounds == {}
    restore(tmp_path / "b.tar", tmp_path / "new")
    assert RestoreMark.read(tmp_path / "new").completed_rounds == {}


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"at": 1, "backup": 2, "complete": 3, "told": {"a": "b"}}'])
def test_a_damaged_mark_is_no_permission(site, content):
    (site / RESTORED).write_bytes(content)
    with pytest.raises(ValueError, match="what was sent before the restoration is unknown"):
        RestoreMark.read(site)


class Killed(BaseException):
    """As kill -9: nothing is done after it, not even tidying up."""


@pytest.mark.long
def test_a_restore_killed_at_every_step_leaves_a_site_that_answers_nothing(site, tmp_path, monkeypatch):
    for name in ("kit", "models", "accepted"):  # fewer steps
        shutil.rmtree(site / name)
    backup(site, tmp_path / "b.tar")
    work(site, range(4, 6))
    (site / "seed").unlink()
    (site / "outbox" / RUN.hex() / "00000002-0000").unlink()
    (site / HERE / "participants.log").write_bytes(b"")
    real, step, finished = os.replace, 1, False
    saved = tmp_path / "saved.tar"
    with tarfile.open(saved, "w") as archive:
        archive.add(site, "site")
    while not finished:
        root = tmp_path / str(step)
        with tarfile.open(saved) as archive:
            archive.extractall(root, filter="fully_trusted")
        calls = [0]

        def dying(*args, calls=calls, step=step):
            calls[0] += 1
            if calls[0] >= step:
                raise Killed
            real(*args)

        with monkeypatch.context() as patched:
            patched.setattr(os, "replace", dying)
            try:
                restore(tmp_path / "b.tar", root / "site")
                finished = True
            except Killed:
                mark = RestoreMark.read(root / "site")
                assert mark is None or not mark.complete
                if mark is not None:
                    assert "restoring a backup was interrupted" in mark.objection(RUN.hex(), 100)
                    with pytest.raises(ValueError, match="was restored only partially"):
                        backup(root / "site", tmp_path / f"{step}.tar")
                else:
                    assert contents(root / "site") == contents(site) or (root / "site" / ".restoring").exists()
        restore(tmp_path / "b.tar", root / "site")
        assert charged(root / "site") == 3
        assert RestoreMark.read(root / "site").complete
        assert (root / "site" / "seed").read_text() == "7\n"
        assert not (root / "site" / ".restoring").exists()
        step += 1
    assert step > 15


# Archives from anybody


def forged(path: Path, members: list[tuple[tarfile.TarInfo, bytes]], kind: str = "site", listed: object = None) -> Path:
    """An archive with a list that fits, unless one is given."""
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as archive:
        for info, content in members:
            archive.addfile(info, io.BytesIO(content))
        rows = {i.name: {"size": len(c), "sha256": hashlib.sha256(c).hexdigest()} for i, c in members}
        text = json.dumps({"format": 1, "kind": kind, "made": "today", "files": rows} if listed is None else listed)
        info = tarfile.TarInfo(MANIFEST)
        info.size = len(text)
        archive.addfile(info, io.BytesIO(text.encode()))
    return path


def member(name: str, content: bytes = b"x", type: bytes = tarfile.REGTYPE, link: str = "") -> tuple:
    info = tarfile.TarInfo(name)
    info.size, info.type, info.linkname = len(content), type, link
    return info, content


@pytest.mark.parametrize(
    "name",
    [
        "../identity.key",
        "/etc/passwd",
        "kit/../../x",
        "kit/startup/../../../x",
        "outbox//x",
        "outbox/./x",
        "outbox/",
        "C:/x",
        "outbox\\x",
        "site.log",
        "people/lock",
        ".ssh/authorized_keys",
        "kit/.profile",
        "kit/jobs/x",
        "runs/first/model.json",
        "outbox/" + "a/" * 20 + "b",
        "outbox/ä",
        "outbox/a\nb",
        "people/x/ledger/x.part",
        "ca/rootCA.key",
    ],
)
def test_unknown_names_are_refused_and_nothing_is_written(tmp_path, name):
    archive = forged(tmp_path / "b.tar", [member("site.toml"), member(name)])
    with pytest.raises(ValueError, match="nothing was restored"):
        restore(archive, tmp_path / "inside" / "site")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["b.tar"]


@pytest.mark.parametrize(
    "type",
    [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE, b"S", b"x"],
)
def test_anything_but_plain_files_is_refused(tmp_path, type):
    archive = forged(tmp_path / "b.tar", [member("site.toml"), member("outbox/x", b"", type, "/etc/passwd")])
    with pytest.raises(ValueError, match="not a regular file"):
        restore(archive, tmp_path / "site")
    assert not (tmp_path / "site").exists()


def test_two_files_of_one_name_and_a_file_that_is_a_folder_are_refused(tmp_path):
    twice = forged(tmp_path / "b.tar", [member("site.toml"), member("site.toml")])
    with pytest.raises(ValueError, match="two files have the same name"):
        restore(twice, tmp_path / "site")
    both = forged(tmp_path / "c.tar", [member("outbox/x"), member("outbox/x/y")])
    with pytest.raises(ValueError, match="is both a file and a folder"):
        restore(both, tmp_path / "site")


@pytest.mark.parametrize(
    "listed",
    [
        [],
        {},
        {"format": 2, "kind": "site", "files": {}},
        {"format": 1, "kind": "../x", "files": {"site.toml": {}}},
        {"format": 1, "kind": "site", "files": {}},
        {"format": 1, "kind": "site", "files": {"site.toml": 7}},
        {"format": 1, "kind": "site", "files": {"site.toml": {"size": 2, "sha256": ""}}},
        {"format": 1, "kind": "site", "files": {"site.toml": {"size": 1, "sha256": "0" * 64}}},
    ],
)
def test_a_list_that_does_not_fit_is_refused(tmp_path, listed):
    archive = forged(tmp_path / "b.tar", [member("site.toml")], listed=listed)
    with pytest.raises(ValueError, match="nothing was restored"):
        restore(archive, tmp_path / "site")
    assert not (tmp_path / "site" / "site.toml").exists()


def test_a_promised_size_beyond_the_file_is_refused(tmp_path):
    info = tarfile.TarInfo("site.toml")
    info.size = 1 << 40
    (tmp_path / "b.tar").write_bytes(info.tobuf(tarfile.GNU_FORMAT) + bytes(1024))
    with pytest.raises(ValueError, match="1,099,511,627,776 bytes"):
        restore(tmp_path / "b.tar", tmp_path / "site")


@pytest.mark.parametrize("content", [b"", b"x", bytes(10240), b"\x1f\x8b\x08" + bytes(600), b"PK\x03\x04" + bytes(600)])
def test_what_is_no_archive_is_refused(tmp_path, content):
    (tmp_path / "b.tar").write_bytes(content)
    with pytest.raises(ValueError, match="cannot be used as a backup"):
        restore(tmp_path / "b.tar", tmp_path / "site")


def test_every_damaged_byte_is_found(site, tmp_path):
    backup(site, tmp_path / "b.tar")
    content = (tmp_path / "b.tar").read_bytes()
    for place in range(0, len(content), 2503):
        changed = bytearray(content)
        changed[place] ^= 0x20
        (tmp_path / "c.tar").write_bytes(changed)
        try:
            restore(tmp_path / "c.tar", tmp_path / "new")
        except ValueError:
            assert not (tmp_path / "new" / "site.toml").exists()
            continue
        assert contents(tmp_path / "new") == contents(site)  # padding
        shutil.rmtree(tmp_path / "new")


def test_a_ledger_in_a_backup_that_is_none_is_refused(tmp_path):
    archive = forged(tmp_path / "b.tar", [member("site.toml"), member(f"{HERE}/participants.log", b"nonsense")])
    with pytest.raises(ValueError, match="is damaged; nothing was restored"):
        restore(archive, tmp_path / "site")
    assert not (tmp_path / "site" / RESTORED).exists()
