"""A federation in a shared folder: signed files, whatever else lies there, and processes that are killed."""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path

import pytest

from fedrank import files, wire
from fedrank.deploy import folder as folder_module
from fedrank.deploy import protocol, site_calls
from fedrank.deploy.backup import backup, restore
from fedrank.deploy.coordinate import coordinate
from fedrank.deploy.folder import FolderSend, RequestName, folder_send, not_approved, read_plans, serve, serve_once
from fedrank.deploy.folder_members import (
    FEDERATION,
    MEMBERSHIP,
    applications,
    approve_in_folder,
    create_folder_federation,
    expel_from_folder,
    join_folder,
    leave_folder,
    membership_state,
    read_home,
    read_invitation,
)
from fedrank.deploy.identity import IdentityKey, fingerprint, new_identity, read_identity
from fedrank.deploy.make_plans import plan_runs
from fedrank.deploy.outbox import Outbox
from fedrank.deploy.signed_files import FileAddress, Ignoring, write_signed
from fedrank.deploy.site_calls import Silent
from fedrank.experiments.spec.source import read_spec
from fedrank.privacy.population import Population
from fedrank.wire import Label, Part
from tests.deploy.commands import CommandFederation
from tests.deploy.trial import Trial, check_equal, spec_of, write_data

RUN = bytes(range(16))
SOON = 20.0  # seconds that nobody waits unless something is broken


class Echo:
    """A site that answers with a digest of the request, and a number that is drawn once for each round, as noise is."""

    def __init__(self, folder: Path, refuses: int = 0) -> None:
        self.folder, self.asked, self.refuses = folder / "sent", [], refuses
        self.folder.mkdir(exist_ok=True)

    def answer(self, content: bytes) -> bytes:
        label = wire.read_label(content)
        self.asked.append((label.kind, label.round, label.attempt))
        if self.refuses:
            self.refuses -= 1
            return protocol.refusal(label, 0, "not today")
        path = self.folder / f"{label.round}-{label.attempt}"
        if not path.exists():
            files.write_atomic(path, hashlib.sha256(content).digest() + os.urandom(8))
        return protocol.reply("echo", label, 0, noise=path.read_bytes())

    def hear(self, content: bytes) -> None:
        self.answer(content)


class Meeting:
    """A coordinator and some sites around one folder."""

    def __init__(self, root: Path, *names: str) -> None:
        self.shared, self.home, self.root = root / "shared", root / "home", root
        create_folder_federation(self.shared, self.home, "friends")
        for name in names:
            self.join(name)

    def join(self, name: str) -> None:
        own = join_folder(self.shared, self.root / name, name, read_invitation(self.shared).fingerprint)
        approve_in_folder(self.shared, self.home, name, own)

    def send(self, every: float = 0.01) -> FolderSend:
        return folder_send(self.shared, self.home, every)

    def echo(self, name: str, refuses: int = 0) -> Echo:
        return Echo(self.root / name, refuses)

    def serve(self, name: str, site: Echo | None = None, ignoring: Ignoring | None = None) -> list:
        return serve_once(self.shared, self.root / name, site or self.echo(name), ignoring)

    def requests(self, name: str) -> list[Path]:
        return sorted((self.shared / "to" / name).iterdir())

    def answers(self, name: str) -> list[Path]:
        return sorted((self.shared / "from" / name).iterdir())


@pytest.fixture
def two(tmp_path):
    return Meeting(tmp_path, "a", "b")


def call(round: int, attempt: int = 0, kind: str = "round", run: bytes = RUN) -> bytes:
    return protocol.request(kind, run, round, attempt, call=f"model {round}".encode())


def noise(content: bytes, round: int, attempt: int = 0) -> bytes:
    _, found = wire.unpack(content, Label("echo", RUN, round, attempt, 0), {"noise": Part("|S", 40)})
    return found["noise"]


def silence(answer: Future[bytes]) -> str:
    with pytest.raises(Silent) as caught:
        answer.result(SOON)
    return str(caught.value)


# Who belongs to it


def test_a_site_joins_by_fingerprints_that_two_people_compared(tmp_path):
    home, shared, site = tmp_path / "home", tmp_path / "shared", tmp_path / "site"
    create_folder_federation(shared, home, "friends")
    told = read_invitation(shared).fingerprint
    assert told == fingerprint(read_identity(home).public)
    own = join_folder(shared, site, "anna", told)
    assert membership_state(shared, site) == "waiting"
    assert serve_once(shared, site, Echo(site)) == []
    said: list[str] = []
    serve(shared, site, 0.01, stop=lambda: bool(said), site=Echo(site), tell=said.append)
    assert said == [not_approved(shared, site)]
    assert f"'anna' with the key {own} is not approved" in said[0]
    assert [(one.name, one.fingerprint) for one in applications(shared, home)] == [("anna", own)]
    approve_in_folder(shared, home, "anna", own.upper())
    assert applications(shared, home) == []
    assert membership_state(shared, site) == "joined"
    assert not_approved(shared, site) == ""
    assert [(party.name, party.clients) for party in read_home(home).parties()] == [("anna", (0,))]
    assert read_home(home) == read_invitation(shared)
    assert (site / MEMBERSHIP).stat().st_mode & 0o777 == 0o600


def test_another_fingerprint_is_somebody_elses_federation(tmp_path):
    create_folder_federation(tmp_path / "shared", tmp_path / "home", "friends")
    with pytest.raises(ValueError, match="it is another federation"):
        join_folder(tmp_path / "shared", tmp_path / "site", "anna", fingerprint("00" * 32))
    assert not (tmp_path / "shared" / "joining").exists()


def test_another_site_fingerprint_is_not_approved(tmp_path):
    meeting = Meeting(tmp_path)
    join_folder(meeting.shared, tmp_path / "anna", "anna", read_invitation(meeting.shared).fingerprint)
    with pytest.raises(ValueError, match="another party may have written the request"):
        approve_in_folder(meeting.shared, meeting.home, "anna", fingerprint("00" * 32))
    with pytest.raises(ValueError, match=r"no request of site 'bert' \(requests: anna"):
        approve_in_folder(meeting.shared, meeting.home, "bert", fingerprint("00" * 32))
    assert read_home(meeting.home).sites == ()


@pytest.mark.parametrize("name", ["", "../a", "a/b", ".a", "-a", "a" * 65, "ä", "a b", "a\n"])
def test_a_name_that_no_file_can_have_is_refused(two, name):
    with pytest.raises(ValueError, match="is not a valid name of a site"):
        join_folder(two.shared, two.root / "other", name, read_invitation(two.shared).fingerprint)


def test_a_name_that_is_taken_is_refused(two):
    told = read_invitation(two.shared).fingerprint
    with pytest.raises(ValueError, match="already has a site 'a'"):
        join_folder(two.shared, two.root / "other", "a", told)
    own = join_folder(two.shared, two.root / "other", "A", told)  # where file systems keep capitals apart
    with pytest.raises(ValueError, match="two sites would have the same name"):
        approve_in_folder(two.shared, two.home, "A", own)


def test_a_folder_belongs_to_one_federation_and_a_site_to_one(two, tmp_path):
    with pytest.raises(FileExistsError, match="belongs to federation 'friends'"):
        create_folder_federation(two.shared, tmp_path / "other home", "others")
    with pytest.raises(FileExistsError, match="is the home of federation 'friends'"):
        create_folder_federation(tmp_path / "elsewhere", two.home, "others")
    create_folder_federation(tmp_path / "elsewhere", tmp_path / "third", "others")
    with pytest.raises(FileExistsError, match="is site 'a' of federation 'friends'"):
        join_folder(tmp_path / "elsewhere", two.root / "a", "a", read_invitation(tmp_path / "elsewhere").fingerprint)


def test_who_leaves_is_asked_no_more_and_the_records_say_so(two):
    leave_folder(two.shared, two.root / "a", "moving away")
    with pytest.raises(ValueError, match="this site left"):
        two.serve("a")
    with two.send() as send:
        assert "does not participate in 'friends': it left" in silence(send("a", call(1), SOON))
    assert '"what": "leave", "site": "a", "because": "moving away"' in (two.home / "records.jsonl").read_text()


def test_who_is_expelled_is_neither_asked_nor_heard(two):
    with two.send() as send:
        silence(send("a", call(1), 0.0))
    expel_from_folder(two.shared, two.home, "a", "sends nonsense")
    with pytest.raises(ValueError, match="this site was expelled"):
        two.serve("a")
    with two.send() as send:
        assert "it was expelled" in silence(send("a", call(1), SOON))
        assert "no site with this name was approved" in silence(send("c", call(1), SOON))


def test_nobody_can_leave_in_anothers_place(two):
    key = read_identity(two.root / "b")
    address = FileAddress(read_home(two.home).federation, "left", "a", "", "a")
    (two.shared / "left").mkdir()
    write_signed(two.shared / "left" / "a", key, address, b"")
    with two.send() as send:
        assert send.federation.site("a").state == "joined"


def test_a_changed_federation_is_believed_by_nobody(two):
    path = two.shared / FEDERATION
    was = path.read_bytes()
    for changed in (was.replace(b'"joined"', b'"left"', 1), was[:-50], b"[" * 5000, b"{}", b"", b"\xff\xfe"):
        path.write_bytes(changed)
        with pytest.raises(ValueError, match="is not a valid signed federation"):
            two.serve("a")
    with two.send():  # the truth lies at home
        assert path.read_bytes() == was


def test_an_old_federation_that_somebody_put_back_is_refused(two):
    old = (two.shared / FEDERATION).read_bytes()
    two.join("c")
    two.serve("a")
    (two.shared / FEDERATION).write_bytes(old)
    with pytest.raises(ValueError, match="it was restored"):
        two.serve("a")


def test_another_coordinator_in_the_same_folder_is_not_obeyed(two, tmp_path):
    create_folder_federation(tmp_path / "other", tmp_path / "other home", "friends")
    os.replace(tmp_path / "other" / FEDERATION, two.shared / FEDERATION)
    with pytest.raises(ValueError, match="nothing is sent"):
        two.serve("a")


# Requests and answers


def test_requests_go_and_answers_come(two):
    with two.send() as send:
        answers = {site: send(site, call(1), SOON) for site in ("a", "b")}
        assert [(one.round, one.kind, one.refused) for one in two.serve("a")] == [(1, "round", "")]
        two.serve("b")
        came = {site: noise(answer.result(SOON), 1) for site, answer in answers.items()}
        assert all(one.startswith(hashlib.sha256(call(1)).digest()) for one in came.values())
        assert came["a"] != came["b"]
        assert send.ignored == {}


def test_a_site_answers_a_request_once(two):
    with two.send() as send:
        send("a", call(1), SOON)
        site = two.echo("a")
        assert len(two.serve("a", site)) == 1
        assert two.serve("a", site) == []
        assert site.asked == [("round", 1, 0)]


def test_an_answer_that_comes_late_is_used_when_the_same_is_asked_again(two):
    with two.send() as send:
        assert "has not answered round 1 within 0 s; its request stays open" in silence(send("a", call(1), 0.0))
        two.serve("a")
        later = send("a", call(1), SOON)
        assert later.done()
        first = later.result()
    with two.send() as send:  # and by a coordinator that was started again
        assert send("a", call(1), SOON).result(0) == first


def test_what_was_answered_while_nobody_waited_is_found(two):
    with two.send() as send:
        send("a", call(1), SOON)
    two.serve("a")
    with two.send() as send:
        assert noise(send("a", call(1), SOON).result(0), 1)


def test_an_answer_that_was_lost_comes_again_with_the_same_bytes(two):
    with two.send() as send:
        answer = send("a", call(1), SOON)
        two.serve("a")
        first = answer.result(SOON)
        for path in (*two.answers("a"), *two.requests("a")):
            path.unlink()
        again = send("a", call(1), SOON)
        two.serve("a")
        assert again.result(SOON) == first


def test_what_was_refused_is_asked_afresh(two):
    site = two.echo("a", refuses=1)
    with two.send() as send:
        first = send("a", call(1), SOON)
        assert [bool(one.refused) for one in two.serve("a", site)] == [True]
        assert wire.read_label(first.result(SOON)).kind == "refused"
        second = send("a", call(1), SOON)
        assert not second.done()
        two.serve("a", site)
        assert noise(second.result(SOON), 1)
        assert len(two.requests("a")) == 1


def test_what_was_withdrawn_is_asked_afresh(two):
    """A hello must say how things are now, although its old answer still lies there."""
    site = two.echo("a")
    with two.send() as send:
        first = send("a", call(1), SOON)
        two.serve("a", site)
        first.result(SOON)
        silence(send("a", call(2), 0.0))
        again = send("a", call(1), SOON)
        assert not again.done()
        two.serve("a", site)
        assert again.result(SOON)
        assert site.asked == [("round", 1, 0), ("round", 1, 0)]  # the second round was withdrawn


def test_a_request_nobody_waits_for_is_withdrawn_and_its_answer_removed(two):
    site = two.echo("a")
    with two.send() as send:
        silence(send("a", call(1), 0.0))
        two.serve("a", site)
        send("a", call(2), SOON)
        assert [RequestName.read(path.name).round for path in two.requests("a")] == [2]
        two.serve("a", site)
        assert [RequestName.read(path.name).round for path in two.answers("a")] == [2]


def test_requests_of_another_run_are_withdrawn(two):
    with two.send() as send:
        silence(send("b", call(1, run=bytes(16)), 0.0))
        send("a", call(1), SOON)
        assert two.requests("b") == []
        assert len(two.requests("a")) == 1


def test_what_somebody_still_waits_for_is_not_withdrawn(two):
    with two.send() as send:
        slow = send("b", call(1), SOON)
        send("a", call(2), SOON)
        two.serve("b")
        assert noise(slow.result(SOON), 1)


def test_a_cancelled_request_is_withdrawn(two):
    with two.send() as send:
        answer = send("a", call(1), SOON)
        assert answer.cancel()
        for _ in range(500):
            if not two.requests("a"):
                break
            threading.Event().wait(0.01)
        assert two.requests("a") == []


@pytest.mark.usefixtures("impatient")
def test_one_coordinator_at_a_time(two):
    with two.send(), pytest.raises(files.Locked, match=f"process {os.getpid()}"):
        two.send()
    two.send().close()


def test_a_coordinator_that_stops_waiting_says_so(two):
    with two.send() as send:
        answer = send("a", call(1), SOON)
    assert "stopped waiting" in silence(answer)


@pytest.mark.parametrize("kind", ["partners", *protocol.PHASES])
def test_a_secure_sum_is_refused_by_name(two, kind):
    with two.send() as send:
        assert "secure aggregation needs all sites online" in silence(send("a", call(1, kind=kind), SOON))
    assert not (two.shared / "to").exists()


def test_sites_come_and_go_while_rounds_go_on(two):
    """Two sites that look on their own, three rounds, and a share that is away for a while."""
    stop, said = threading.Event(), []
    threads = [
        threading.Thread(
            target=serve,
            args=(two.shared, two.root / name, 0.01, stop.is_set, two.echo(name), said.append),
        )
        for name in ("a", "b")
    ]
    for thread in threads:
        thread.start()
    try:
        with two.send() as send:
            for round in range(1, 4):
                answers = [send(name, call(round), SOON) for name in ("a", "b")]
                assert all(noise(answer.result(SOON), round) for answer in answers)
                if round == 2:
                    os.rename(two.shared, two.root / "away")
                    while not any("does not exist" in line for line in list(said)):
                        threading.Event().wait(0.01)
                    os.rename(two.root / "away", two.shared)
    finally:
        stop.set()
        for thread in threads:
            thread.join()


# What else may lie there


def signed(two: Meeting, **changes: str) -> bytes:
    """An answer of site a to the request that is open, with something wrong."""
    name = two.requests("a")[0].name
    values = {
        "federation": read_home(two.home).federation,
        "kind": "answer",
        "sender": "a",
        "receiver": "",
        "name": name,
    }
    key = read_identity(two.root / changes.pop("key", "a"))
    content = protocol.reply("echo", Label("round", RUN, 1), 0, noise=b"forged")
    path = two.root / "made"
    write_signed(path, key, FileAddress(**values | changes), content)
    return path.read_bytes()


BAD_ANSWERS = {
    "empty": (lambda two: b"", "incomplete"),
    "zeros, as some programs write first": (lambda two: bytes(5000), "incomplete"),
    "half of it": (lambda two: signed(two)[:-20], "incomplete"),
    "its first bytes": (lambda two: signed(two)[:30], "incomplete"),
    "more behind it": (lambda two: signed(two) + b"x", "not a message of fedrank"),
    "something else": (lambda two: b"%PDF-1.7" + bytes(500), "not a message of fedrank"),
    "one bit of it": (lambda two: signed(two)[:-1] + bytes([signed(two)[-1] ^ 1]), "not signed by its sender"),
    "one bit of the signature": (lambda two: signed(two)[:20] + b"\0\0" + signed(two)[22:], "not signed by its sender"),
    "signed by another site": (lambda two: signed(two, key="b"), "not signed by its sender"),
    "signed by the coordinator": (lambda two: signed(two, key="home"), "not signed by its sender"),
    "of another federation": (lambda two: signed(two, federation="0" * 32), "has another address"),
    "of another name": (lambda two: signed(two, name=str(RequestName.of(call(7)))), "has another address"),
    "for another": (lambda two: signed(two, receiver="b"), "has another address"),
    "of another kind": (lambda two: signed(two, kind="request"), "has another address"),
    "a length beyond everything": (
        lambda two: signed(two)[:80] + b"\xff" * 12 + signed(two)[92:],
        "too large",
    ),
}


@pytest.mark.parametrize("what", BAD_ANSWERS)
def test_bad_answers_are_ignored_counted_and_the_right_one_still_used(two, what):
    make, reason = BAD_ANSWERS[what]
    with two.send() as send:
        answer = send("a", call(1), SOON)
        name = two.requests("a")[0].name
        (two.root / "bad").write_bytes(make(two))
        os.replace(two.root / "bad", two.shared / "from" / "a" / name)
        while not send.ignored:
            threading.Event().wait(0.01)
        assert not answer.done()
        assert [*send.ignored.values()] == [1]
        assert next(iter(send.ignored)).startswith(reason)
        two.serve("a")
        assert b"forged" not in noise(answer.result(SOON), 1)


def test_an_answer_overwritten_by_that_of_another_site_is_ignored_by_name_and_comes_again(two):
    with two.send() as send:
        for site in "ab":
            silence(send(site, call(1), 0.0))
    two.serve("a")
    two.serve("b")  # both answered while nobody waited
    [own], [other] = two.answers("a"), two.answers("b")
    written = own.read_bytes()
    shutil.copy(other, own)
    with two.send() as send:
        said = silence(send("a", call(1), 0.0))
        assert "the file at the place of its answer is ignored: not signed by its sender" in said
        answer = send("a", call(1), SOON)
        echo = two.echo("a")
        assert [one.round for one in two.serve("a", echo)] == [1]
        assert own.read_bytes() == written  # the same bytes: no noise is drawn again
        assert noise(answer.result(SOON), 1) == echo.folder.joinpath("1-0").read_bytes()
        assert noise(send("b", call(1), SOON).result(SOON), 1) != noise(answer.result(SOON), 1)


@pytest.mark.long
def test_overwritten_answers_cost_a_run_nothing(tmp_path):
    """Answers are replaced by those of another site during a run: each site writes its own again, charged once."""
    trial = FolderTrial(tmp_path, LINEAR + NOISE)
    done, over = set(), threading.Event()

    def overwrite() -> None:
        while not over.wait(0.002):
            for path in (trial.shared / "from" / "site-0").glob("*-0"):
                other = trial.shared / "from" / "site-1" / path.name
                if path.name not in done and other.exists():
                    done.add(path.name)
                    with suppress(FileNotFoundError):
                        shutil.copy(other, path)

    meddler = threading.Thread(target=overwrite)
    meddler.start()
    try:
        with suppress(AssertionError):  # the coordinator may have counted an ignored file
            trial.by_folder()
    finally:
        over.set()
        meddler.join()
    assert '"finished"' in (trial.task.folder / "run.json").read_text()
    [account] = Population.read(trial.folders["site-0"] / "people").accounts()
    assert (account.rounds, account.lost) == (5, 0)


def test_nonsense_that_a_site_signed_is_what_it_said_and_it_is_asked_afresh(two):
    class Mad(Echo):
        def answer(self, content: bytes) -> bytes:
            return b"nonsense"

    with two.send() as send:
        first = send("a", call(1), SOON)
        two.serve("a", Mad(two.root / "a"))
        assert first.result(SOON) == b"nonsense"
        second = send("a", call(1), SOON)
        two.serve("a")
        assert noise(second.result(SOON), 1)


def test_a_file_of_300_megabytes_is_not_read(two):
    with two.send() as send:
        answer = send("a", call(1), SOON)
        with open(two.root / "large", "wb") as file:
            file.truncate(300 << 20)
        os.replace(two.root / "large", two.shared / "from" / "a" / two.requests("a")[0].name)
        while not send.ignored:
            threading.Event().wait(0.01)
        assert not answer.done()
        assert send.ignored == {"too large": 1}


@pytest.mark.parametrize("make", ["link", "pipe", "folder"])
def test_what_is_no_file_is_ignored(two, make):
    with two.send() as send:
        answer = send("a", call(1), SOON)
        path = two.shared / "from" / "a" / two.requests("a")[0].name
        if make == "link":
            (two.root / "made").write_bytes(signed(two))
            path.symlink_to(two.root / "made")
        elif make == "pipe":
            os.mkfifo(path)
        else:
            path.mkdir()
        while not send.ignored:
            threading.Event().wait(0.01)
        assert not answer.done()
        assert send.ignored == {"not a regular file": 1}


def test_a_request_in_a_bad_state_is_not_answered(two):
    site, ignoring = two.echo("a"), Ignoring()
    with two.send() as send:
        send("a", call(1), SOON)
    good = two.requests("a")[0]
    content = good.read_bytes()
    good.unlink()
    folder = two.shared / "to" / "a"
    stranger = IdentityKey(b"s" * 32)
    address = FileAddress(read_home(two.home).federation, "request", "", "a", good.name)
    bad = {
        f"{good.name} (1)": content,
        f"{good.name}.sync-conflict-20250101": content,
        f".{good.name}.99.part": content[:50],
        "desktop.ini": b"[]",
        str(RequestName.of(call(2))): content,  # a replay under another name
        good.name: content[:-1],
    }
    for name, bytes_ in bad.items():
        (folder / name).write_bytes(bytes_)
    (folder / "..evil").mkdir()
    assert two.serve("a", site, ignoring) == []
    assert site.asked == []
    assert ignoring.reasons == {
        "a conflict copy": 2,
        "an unknown name": 2,
        "has another address": 1,
        "incomplete: still being copied, or truncated": 1,
    }
    write_signed(good, stranger, address, call(1))
    assert two.serve("a", site, ignoring) == []
    assert ignoring.reasons["not signed by its sender"] == 1
    good.write_bytes(content)  # the program that copies it is done
    assert len(two.serve("a", site, ignoring)) == 1


def test_a_coordinator_cannot_name_one_request_and_ask_another(two):
    """The name holds the digest, by which an answer belongs to one request alone."""
    site, ignoring = two.echo("a"), Ignoring()
    name = RequestName.of(call(1))
    address = FileAddress(read_home(two.home).federation, "request", "", "a", str(name))
    (two.shared / "to" / "a").mkdir(parents=True)
    write_signed(two.shared / "to" / "a" / str(name), read_identity(two.home), address, call(2))
    assert two.serve("a", site, ignoring) == []
    assert ignoring.reasons == {"its name does not match its content": 1}


def test_a_request_to_another_site_is_not_answered(two):
    site, ignoring = two.echo("b"), Ignoring()
    with two.send() as send:
        send("a", call(1), SOON)
    (two.shared / "to" / "b").mkdir()
    os.replace(two.requests("a")[0], two.shared / "to" / "b" / two.requests("a")[0].name)
    assert two.serve("b", site, ignoring) == []
    assert ignoring.reasons == {"has another address": 1}


def test_a_link_in_the_place_of_a_folder_is_not_written_through(two):
    (two.shared / "to").mkdir()
    (two.shared / "to" / "a").symlink_to(two.home)
    with (
        two.send() as send,
        pytest.raises(ValueError, match="is a symbolic link and could redirect what is written there"),
    ):
        send("a", call(1), SOON)
    assert not any(RequestName.read(path.name) for path in two.home.iterdir())


def test_a_flood_of_files_is_looked_at_in_part(two, monkeypatch):
    monkeypatch.setattr("fedrank.deploy.signed_files.MAX_FILES", 20)
    folder = two.shared / "to" / "a"
    folder.mkdir(parents=True)
    for number in range(50):
        (folder / f"junk {number}").touch()
    ignoring = Ignoring()
    two.serve("a", ignoring=ignoring)
    assert sum(ignoring.reasons.values()) <= 21
    assert any("files in one folder" in reason for reason in ignoring.reasons)


@pytest.mark.parametrize("name", ["x", "0-1-2", f"{'0' * 32}-01-0-{'0' * 32}-0", f"{'0' * 32}-1-0-{'0' * 32}", ""])
def test_names_are_read_as_they_are_written_or_not_at_all(name):
    assert RequestName.read(name) is None
    good = str(RequestName.of(call(3, 2), 5))
    assert str(RequestName.read(good)) == good


# Killed


class Killed(BaseException):
    """As kill -9: nothing is done after it, not even tidying up."""


def killed_at(monkeypatch: pytest.MonkeyPatch, step: int) -> list[int]:
    """From now on the process dies before the given write, of those that reach the disk."""
    count = [0]

    def dying(function):
        def call(*args, **kwargs):
            count[0] += 1
            if count[0] >= step:
                raise Killed
            return function(*args, **kwargs)

        return call

    for name in ("fsync", "replace", "link"):
        monkeypatch.setattr(files.os, name, dying(getattr(os, name)))
    monkeypatch.setattr(files.Path, "unlink", dying(Path.unlink))
    return count


def through_kills(monkeypatch, step, work):
    """Do something in a process that is killed at one step, then in one that is not."""
    with monkeypatch.context() as patched:
        count = killed_at(patched, step)
        try:
            work()
        except Killed:
            pass
        else:
            return count[0] >= step
    work()
    return True


@pytest.mark.long
def test_a_site_killed_at_every_write_loses_nothing_and_sends_the_same(tmp_path, monkeypatch):
    step, died = 1, True
    while died:
        two = Meeting(tmp_path / str(step), "a")
        with two.send() as send:
            first = send("a", call(1), SOON)
            died = through_kills(monkeypatch, step, lambda two=two: two.serve("a"))
            content = first.result(SOON)
            again = send("a", call(1), SOON).result(SOON)
            assert content == again
            sent = (two.root / "a" / "sent" / "1-0").read_bytes()
            assert noise(content, 1) == sent
            assert send.ignored == {}
        step += 1
    assert step > 8


@pytest.mark.long
def test_a_coordinator_killed_at_every_write_loses_nothing(tmp_path, monkeypatch):
    step, died = 1, True
    while died:
        two = Meeting(tmp_path / str(step), "a")
        with two.send() as send:
            silence(send("a", call(1), 0.0))
        two.serve("a")
        sent = (two.root / "a" / "sent" / "1-0").read_bytes()

        def ask(two: Meeting = two, sent: bytes = sent) -> None:
            with two.send() as send:
                answer = send("a", call(1), SOON)
                if not answer.done():  # withdrawn before it was killed
                    two.serve("a")
                assert noise(answer.result(SOON), 1) == sent
                send("a", call(2), SOON)

        died = through_kills(monkeypatch, step, ask)
        two.serve("a")
        with two.send() as send:
            assert noise(send("a", call(2), SOON).result(0), 2)
            assert send.ignored == {}
        step += 1
    assert step > 3


@pytest.mark.long
def test_joining_and_approving_survive_being_killed_at_every_write(tmp_path, monkeypatch):
    step, died = 1, True
    while died:
        root = tmp_path / str(step)
        shared, home, site = root / "shared", root / "home", root / "site"

        def begin(shared=shared, home=home, site=site) -> None:
            told = create_folder_federation(shared, home, "friends").fingerprint
            own = join_folder(shared, site, "anna", told)
            if applications(shared, home):
                approve_in_folder(shared, home, "anna", own)

        died = through_kills(monkeypatch, step, begin)
        assert membership_state(shared, site) == "joined"
        assert read_home(home) == read_invitation(shared)
        step += 1
    assert step > 15


def test_the_module_says_what_lies_where():
    assert all(name in folder_module.__doc__ for name in ("federation.json", "joining/", "plans/", "to/", "from/"))


def test_an_identity_that_is_there_is_used(tmp_path):
    public = new_identity(tmp_path / "home")
    assert create_folder_federation(tmp_path / "shared", tmp_path / "home", "friends").coordinator == public


# A real run


LINEAR = '[learner]\nname = "pdgd"\n'
NOISE = '[mechanism]\nname = "gaussian"\nclip = 0.5\nnoise = 1.0\n'


class FolderTrial(Trial):
    """A trial whose sites meet the coordinator in a folder, each opened anew for every look."""

    def __init__(self, folder: Path, text: str, clients: str = "count = 6\ninteractions = [2, 3]") -> None:
        write_data(folder)
        super().__init__(folder, spec_of(folder, text, rounds=5, clients=clients))
        self.shared, self.home = folder / "shared", folder / "home"
        told = create_folder_federation(self.shared, self.home, "trial").fingerprint
        for name, where in self.folders.items():
            approve_in_folder(self.shared, self.home, name, join_folder(self.shared, where, name, told))

    def by_folder(self, stop=lambda: False, patience: float = SOON) -> str:
        over = threading.Event()

        def look(where: Path) -> None:
            while not over.wait(0.01):
                serve_once(self.shared, where)

        threads = [threading.Thread(target=look, args=(where,)) for where in self.folders.values()]
        for thread in threads:
            thread.start()
        try:
            with folder_send(self.shared, self.home, 0.01) as send:
                found = coordinate(self.task, self.plan, send, stop=stop, patience=patience)
                assert send.ignored == {}
                return found
        finally:
            over.set()
            for thread in threads:
                thread.join()


def test_a_run_through_a_folder_comes_to_what_a_simulation_comes_to(tmp_path):
    trial = FolderTrial(tmp_path, LINEAR)
    assert trial.by_folder() == "finished", (trial.task.folder / "run.json").read_text()
    check_equal(trial.task.folder, trial.simulated())
    assert [plan.digest for plan in read_plans(trial.shared, trial.folders["site-0"])] == [trial.plan.digest]
    for where in trial.folders.values():
        kept = where / "models" / trial.plan.digest[:16] / "model.json"
        assert kept.read_bytes() == (trial.task.folder / "model.json").read_bytes()


@pytest.mark.long
def test_an_answer_of_a_real_site_that_comes_after_the_patience_is_used(tmp_path, monkeypatch):
    """Its head answers an earlier request with the same bytes; sites must not be excluded for that."""
    made = CommandFederation(tmp_path, rounds=2)
    monkeypatch.setenv("XDG_STATE_HOME", made.environment["XDG_STATE_HOME"])
    monkeypatch.setattr(site_calls, "PAUSE", 0.01)
    parties = read_home(made.hub).parties()
    [(task, plan)] = plan_runs(read_spec(made.spec), "my", made.hub / "runs", parties, "clinics")
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.5):
            for name in made.names:
                serve_once(tmp_path / "shared", made.home(name))

    slow = threading.Thread(target=look)
    slow.start()
    try:
        with folder_send(tmp_path / "shared", made.hub, 0.01) as send:
            assert coordinate(task, plan, send, patience=0.2, home=made.hub) == "finished"
    finally:
        over.set()
        slow.join()
    assert "has not answered round 1 within 0.2 s" in (task.folder / "sites.csv").read_text()
    assert not (task.folder / "left-out.json").exists()
    for name in made.names:
        [account] = Population.read(made.home(name) / "people").accounts()
        assert account.rounds == 2


@pytest.mark.parametrize("people", ["count = 6", "count = 3\npeople = 5"])
def test_a_dealt_schedule_through_a_folder_comes_to_what_a_simulation_comes_to(tmp_path, people):
    trial = FolderTrial(tmp_path, LINEAR, f'{people}\nschedule = "dealt"')
    assert trial.by_folder() == "finished", (trial.task.folder / "run.json").read_text()
    check_equal(trial.task.folder, trial.simulated())


@pytest.mark.long
def test_a_run_that_is_stopped_after_every_round_goes_on_where_it_was(tmp_path):
    trial = FolderTrial(tmp_path, LINEAR)

    def rounds() -> int:
        path = trial.task.folder / "sites.csv"
        return path.read_text().count("\n") // 3 if path.exists() else 0  # three sites a round

    states = []
    while not states or states[-1] != "finished":
        before = rounds()
        states.append(trial.by_folder(lambda before=before: before < 4 and rounds() > before))
        assert len(states) < 10
    assert states == ["interrupted"] * 4 + ["finished"]
    check_equal(trial.task.folder, trial.simulated())


@pytest.mark.long
def test_noise_on_the_client_is_drawn_and_charged_once_however_often_it_is_asked_for(tmp_path):
    trial = FolderTrial(tmp_path, LINEAR + NOISE)
    assert trial.by_folder() == "finished", (trial.task.folder / "run.json").read_text()
    for where in trial.folders.values():
        [account] = Population.read(where / "people").accounts()
        assert (account.rounds, account.lost) == (5, 0)


@pytest.mark.long
def test_a_site_that_came_back_from_a_backup_sends_no_second_noise_for_rounds_that_are_over(tmp_path):
    trial = FolderTrial(tmp_path, LINEAR + NOISE)
    where = trial.folders["site-0"]

    def go_on(until: int) -> str:
        path = trial.task.folder / "sites.csv"
        return trial.by_folder(lambda: path.exists() and path.read_text().count("\n") // 3 >= until)

    assert go_on(2) == "interrupted"
    backup(where, tmp_path / "old.backup")
    assert go_on(4) == "interrupted"
    shutil.rmtree(where)
    restore(tmp_path / "old.backup", where)
    assert go_on(99) == "finished", (trial.task.folder / "run.json").read_text()
    outbox = Outbox(where / "outbox" / trial.plan.run.hex(), trial.plan.run)
    assert [round for round in range(1, 6) if outbox.get(round) is not None] == [1, 2, 5]
    [account] = Population.read(where / "people").accounts()
    assert account.rounds == 6  # all five, and the one under way once more


def test_a_site_that_came_back_hears_from_a_request_what_is_over(tmp_path):
    """It was not there when the coordinator said hello, and hears no other one."""
    trial = FolderTrial(tmp_path, LINEAR + NOISE)
    where, site = trial.folders["site-0"], Echo(tmp_path)
    with folder_send(trial.shared, trial.home, 0.01) as send:
        silence(send("site-0", protocol.request("hello", trial.plan.run, plan=trial.plan.dump()), 0.0))
        silence(send("site-0", call(4, run=trial.plan.run), 0.0))
    serve_once(trial.shared, where, site)
    assert site.asked == [("hello", 0, 0), ("round", 4, 0)]
    backup(where, tmp_path / "b.tar")
    restore(tmp_path / "b.tar", where)
    for path in (trial.shared / "from" / "site-0").iterdir():
        path.unlink()
    site = Echo(tmp_path)
    serve_once(trial.shared, where, site)
    assert site.asked == [("hello", 3, 0), ("round", 4, 0)]


def test_a_plan_that_needs_everybody_online_is_refused_by_name(tmp_path):
    trial = FolderTrial(
        tmp_path, LINEAR + NOISE + 'placement = { name = "secure-aggregation", honest = 0.5, colluding = 0.0 }\n'
    )
    assert trial.by_folder() == "failed"
    assert "it needs all sites online at once" in (trial.task.folder / "run.json").read_text()
    assert not (trial.shared / "to").exists()


def test_a_plan_that_adds_noise_at_the_server_is_refused_by_name(tmp_path):
    trial = FolderTrial(tmp_path, LINEAR + NOISE + 'placement = { name = "server" }\n')
    assert trial.by_folder() == "failed"
    assert "every reader of the folder can read every message" in (trial.task.folder / "run.json").read_text()


def test_the_requests_of_all_sites_are_listed_once_per_round(tmp_path, monkeypatch):
    names = [f"site-{number}" for number in range(6)]
    meeting, listed = Meeting(tmp_path, *names), []
    real = FolderSend._names
    monkeypatch.setattr(
        FolderSend, "_names", lambda self, where, site: listed.append((where, site)) or real(self, where, site)
    )
    with meeting.send() as send:
        for round in (1, 2):
            asked = [send(name, call(round), 60.0) for name in names]
            assert [path.name.split("-")[1] for name in names for path in meeting.requests(name)] == [str(round)] * 6
            sweeps = sum(where == "to" for where, _ in listed) - 6  # without the look for earlier names of each request
            assert sweeps == 6 + 5, "linear in the number of sites"
            listed.clear()
            for one in asked:
                one.cancel()
