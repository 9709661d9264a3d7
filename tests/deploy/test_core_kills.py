"""Killed at every write, full disks, damaged files, clocks that jump: nothing is lost, and nothing paid twice."""

from __future__ import annotations

import errno
import gc
import json
import os
import shutil
import threading
import traceback
import warnings
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from fedrank import wire
from fedrank.deploy import site_calls
from fedrank.deploy.backup import backup, restore
from fedrank.deploy.heads import SiteJournal, split
from fedrank.deploy.outbox import Outbox
from fedrank.deploy.settings import read_site
from fedrank.deploy.site import Site
from fedrank.files import Locked
from fedrank.privacy import ledger
from fedrank.privacy.population import RELEASES, Charge
from tests.deploy.log_trial import LogTrial, spec_text
from tests.deploy.real_trial import LINEAR, NOISE, SUM, RealTrial
from tests.deploy.trial import Trial, check_equal, spec_of, write_data

# Files that a process had open when it was killed are closed by nobody.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.usefixtures("unconfirmed"),
]
NEURAL = '[learner]\nname = "pdgd"\nranker = { name = "mlp", hidden = 3 }\n'


@pytest.fixture(autouse=True)
def _what_was_killed_leaves_files_open():
    """Sites and hubs that are killed close nothing; what they left is collected here, and not blamed on later tests."""
    yield
    collect_what_was_killed()


def collect_what_was_killed() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


class Killed(BaseException):
    """The process is gone."""


class Fate:
    """Ends one thread at its k-th step towards the disk: nothing is written from then on. Or lets that step fail."""

    def __init__(self, monkeypatch) -> None:
        self.at, self.steps, self.error, self.dead = 0, 0, None, False
        self.thread: int | None = None
        monkeypatch.setattr(os, "fsync", lambda handle: None)  # in the memory of the system all is safe from a kill
        for name in ("fsync", "replace", "link", "mkdir"):
            monkeypatch.setattr(os, name, self._guarded(getattr(os, name)))
        monkeypatch.setattr(Path, "unlink", self._guarded(Path.unlink, counts=False))
        monkeypatch.setattr(ledger, "_write", self._torn(ledger._write))

    def _step(self) -> bool:
        """Whether it ends here."""
        if not self.at or threading.get_ident() != self.thread:
            return False
        self.steps += 1
        return self.steps == self.at

    def _end(self) -> None:
        if self.error is not None:
            raise OSError(self.error, os.strerror(self.error))
        self.dead = True
        raise Killed

    def _guarded(self, real, counts=True):
        def guarded(*args, **kwargs):
            if self.dead and threading.get_ident() == self.thread:
                raise Killed
            if counts and self._step():
                self._end()
            return real(*args, **kwargs)

        return guarded

    def _torn(self, real):
        def torn(file, content):
            if self._step():
                real(file, bytes(content)[: len(content) // 2])
                self._end()
            real(file, content)

        return torn

    @contextmanager
    def from_now_on(self, at: int, error: int | None = None):
        self.at, self.steps, self.error, self.dead, self.thread = at, 0, error, False, threading.get_ident()
        try:
            yield
        finally:
            self.at, self.dead = 0, False


@pytest.fixture
def fate(monkeypatch):
    monkeypatch.setattr(site_calls, "PAUSE", 0.01)
    return Fate(monkeypatch)


def recorded(trial, name: str) -> list[bytes]:
    """What a site is asked in a whole run."""
    requests = []

    def listen(site, request, answer):
        if site == name:
            requests.append(request)
        return answer() if callable(answer) else answer

    assert trial.run(listen) == "finished"
    return requests


def without_own_sums(request: bytes) -> bytes:
    """Propensities without the sums of north, whose noise is new each time and which accepts only its own ones."""
    content, seen = split(request)
    label = wire.read_label(content)
    if label.kind != "propensities":
        return request
    _, found = wire.unpack(content, label, {"sums": wire.Part("|S", 1 << 16)})
    sums = {name: one for name, one in json.loads(found["sums"]).items() if name != "north"}
    content = wire.pack(label, {"sums": json.dumps(sums).encode()})
    return content if seen is None else seen.behind(content)


def fresh(folder: Path) -> None:
    """A site's folder as it was before its first run."""
    for name in ("outbox", "people", "models", "deals"):
        shutil.rmtree(folder / name, ignore_errors=True)
    for name in ("journal.log", "heads.txt"):
        (folder / name).unlink(missing_ok=True)
    if not (settings := read_site(folder)).simulated:
        SiteJournal(folder, settings).second.unlink(missing_ok=True)


def killed_at(fate: Fate, folder: Path, requests: list[bytes], at: int) -> tuple[dict[bytes, set[bytes]], bool]:
    """Ask a site that is killed once; all that left it by request, and whether it was killed."""
    left: dict[bytes, set[bytes]] = {request: set() for request in requests}
    site, killed, place = Site.open(folder), False, 0
    try:
        with fate.from_now_on(at):
            while place < len(requests) and not killed:
                try:
                    left[requests[place]].add(site.answer(requests[place]))
                    place += 1
                except Killed:
                    killed = True
        if killed:
            site.close()
            site = Site.open(folder)
            site.answer(requests[0])  # hello
            place = max(place - 1, 0)  # what was sent may have been lost on the way
        for request in requests[place:]:
            left[request].add(site.answer(request))
    finally:
        site.close()
    return left, killed


@pytest.mark.long
@pytest.mark.parametrize("text", [LINEAR, NEURAL + '[local]\nname = "scaffold"\n'])
def test_a_site_killed_at_every_write_sends_the_same_bytes(tmp_path, fate, text):
    write_data(tmp_path)
    trial = Trial(tmp_path, spec_of(tmp_path, text, rounds=3))
    requests = recorded(trial, "site-1")
    folder = trial.folders["site-1"]
    rounds = [request for request in requests if wire.read_label(request).kind == "round"]
    fresh(folder)
    expected, _ = killed_at(fate, folder, requests, 0)
    at, killed = 1, True
    while killed:
        fresh(folder)
        found, killed = killed_at(fate, folder, requests, at)
        assert {one: found[one] for one in rounds} == {one: expected[one] for one in rounds}, at
        at += 1
    assert at > 10


@pytest.mark.long
def test_a_site_killed_at_every_write_is_charged_once_and_draws_one_noise(tmp_path, fate):
    trial = RealTrial(tmp_path, LINEAR + NOISE, rounds=3)
    requests = recorded(trial, "clinic-b")
    folder = trial.folders["clinic-b"]
    rounds = [request for request in requests if wire.read_label(request).kind == "round"]
    at, killed = 1, True
    while killed:
        fresh(folder)
        found, killed = killed_at(fate, folder, requests, at)
        for request in rounds:
            assert len(found[request]) == 1, at
            assert wire.read_label(next(iter(found[request]))).kind == "answers"
        assert trial.paid("clinic-b") == 3, at
        at += 1
    assert at > 20


@pytest.mark.long
def test_a_site_killed_at_every_write_of_a_run_with_releases_charges_each_once(tmp_path, fate):
    """Propensities, a round, quality and the gate: what left is one message each, and the decision is there."""
    trial = LogTrial(tmp_path, spec_text(rounds=1, more="[privacy]\nrelease_noise = 0.05\n[gate]\n"))
    requests = [without_own_sums(request) for request in recorded(trial, "north")]
    folder = trial.folders["north"]
    kinds = ("propensity", "round", "quality", "gate")
    sent = [request for request in requests if wire.read_label(request).kind in kinds]
    assert {wire.read_label(request).kind for request in sent} == set(kinds)
    at, killed = 1, True
    while killed:
        fresh(folder)
        found, killed = killed_at(fate, folder, requests, at)
        for request in sent:
            assert len(found[request]) == 1, (at, wire.read_label(request).kind)
            assert wire.read_label(next(iter(found[request]))).kind in ("facts", "answers"), at
        released = Charge.read_all(folder / "people" / trial.plan.digest[:32] / RELEASES)
        assert sorted((one.key, one.times) for one in released) == [("gate", 1), ("propensity", 1), ("quality", 1)], at
        assert trial.paid("north") == 1, at
        [decision] = folder.glob("models/*/gate.json")
        assert len(list(decision.parent.glob("model*.json"))) == 1, at
        at += 1
    print(f"{at - 2} kills")
    assert at > 30


@pytest.mark.long
def test_a_coordinator_killed_at_every_write_of_a_run_with_releases_asks_for_each_once(tmp_path, fate):
    trial = LogTrial(tmp_path, spec_text(rounds=1, more="[privacy]\nrelease_noise = 0.05\n[gate]\n"))
    at, killed = 1, True
    while killed:
        killed = False
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        for folder in trial.folders.values():
            fresh(folder)
        with fate.from_now_on(at):
            try:
                trial.run()
            except Killed:
                killed = True
        if killed:
            assert trial.run() == "finished", at
        for name, folder in trial.folders.items():
            released = Charge.read_all(folder / "people" / trial.plan.digest[:32] / RELEASES)
            assert sorted((one.key, one.times) for one in released) == [("gate", 1), ("propensity", 1), ("quality", 1)]
            assert trial.paid(name) == 1, at
        card = json.loads((trial.task.folder / "privacy.json").read_text())
        assert len(card["deployment"]["releases"]) == 3
        at += 1
    print(f"{at - 2} kills")
    assert at > 15


class Mortal:
    """A site that is killed once at a step of its own, and started again by somebody who looks after it."""

    def __init__(self, fate: Fate, folder: Path, at: int) -> None:
        self.fate, self.folder, self.at, self.killed = fate, folder, at, False
        self.site = Site.open(folder)

    def answer(self, content: bytes) -> bytes:
        if self.killed:
            return self.site.answer(content)
        try:
            with self.fate.from_now_on(self.at):
                answer = self.site.answer(content)
                self.at -= self.fate.steps
                return answer
        except Killed as killed:
            traceback.clear_frames(killed.__traceback__)
            collect_what_was_killed()  # a kill also ends the locks of a process
            self.killed = True
            self.site.close()
            self.site = Site.open(self.folder)
            raise TimeoutError("it was killed") from None


@pytest.mark.long
def test_a_secure_sum_whose_site_is_killed_at_every_write_is_tried_again(tmp_path, fate):
    """Each try draws anew and is paid for; the model is what the outboxes add up to."""
    trial = RealTrial(tmp_path, LINEAR + SUM, rounds=1)
    mechanism = trial.task.experiment.mechanism
    at, killed, tried_again = 1, True, 0
    while killed:
        for folder in trial.folders.values():
            fresh(folder)
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        mortal = Mortal(fate, trial.folders["clinic-b"], at)
        others = {name: Site.open(trial.folders[name]) for name in ("clinic-a", "clinic-c")}
        try:
            answering = {name: site.answer for name, site in others.items()} | {"clinic-b": mortal.answer}
            assert trial.run_with(answering) == "finished", (trial.task.folder / "run.json").read_text()
        finally:
            mortal.site.close()
            for site in others.values():
                site.close()
        killed, at = mortal.killed, at + 1
        total = np.zeros(trial.plan.sent)
        for round in (1,):
            sent = [trial.outbox(name).get(round) for name in trial.names]
            assert len({one.attempt for one in sent}) == 1
            total += sum(np.frombuffer(one.values, "<i8") for one in sent) * mechanism.step(3) / 3
        weights = json.loads((trial.task.folder / "model.json").read_text())["weights"]
        assert np.allclose(weights, total, atol=1e-9)
        card = json.loads((trial.task.folder / "privacy.json").read_text())
        paid = [trial.paid(name) for name in trial.names]
        files = [len(list(trial.outbox(name).folder.glob("0*"))) for name in trial.names]
        assert files[0] == paid[0]
        assert files[2] == paid[2]
        assert paid[1] in (files[1], files[1] - 1)  # written, and killed before it was charged: it never left
        assert card["participations_charged"] >= max(paid) >= 1
        tried_again += max(paid) > 1
    assert tried_again > 3


@pytest.mark.long
def test_a_coordinator_killed_at_every_write_goes_on(tmp_path, fate):
    write_data(tmp_path)
    trial = Trial(tmp_path, spec_of(tmp_path, LINEAR, rounds=2))
    simulated = trial.simulated()
    at, killed = 1, True
    while killed:
        killed = False
        shutil.rmtree(tmp_path / "sites-run", ignore_errors=True)
        for folder in trial.folders.values():
            fresh(folder)
        with fate.from_now_on(at):
            try:
                trial.run()
            except Killed:
                killed = True
        if killed:
            assert trial.run() == "finished"
        check_equal(trial.task.folder, simulated)
        lines = (trial.task.folder / "sites.csv").read_text().splitlines()
        assert lines[0] == "round,site,seconds,bytes_down,bytes_up,refused"
        assert all(line.count(",") == 5 and line.endswith(",") for line in lines[1:]), lines
        at += 1
    assert at > 15


@pytest.mark.long
def test_a_coordinator_of_a_secure_sum_killed_at_every_write_counts_every_try(tmp_path, fate):
    trial = RealTrial(tmp_path, LINEAR + SUM, rounds=1)
    at, killed, more = 1, True, 0
    while killed:
        killed = False
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        for folder in trial.folders.values():
            fresh(folder)
        with fate.from_now_on(at):
            try:
                trial.run()
            except Killed:
                killed = True
        if killed:
            assert trial.run() == "finished"
        card = json.loads((trial.task.folder / "privacy.json").read_text())
        assert card["participations_charged"] >= max(trial.paid(name) for name in trial.names) >= 1, at
        more += card["participations_charged"] > 1
        at += 1
    assert more > 1


class Masks:
    """Counts the masked messages that left each site, by round, and the updates that left in the open."""

    with_heads = True

    def __init__(self) -> None:
        self.left: dict[tuple[str, int], set[bytes]] = {}

    def __call__(self, name, content, answer):
        whole = answer()
        label, found = wire.read_label(content), wire.read_label(whole)
        if label.kind in ("mask", "round") and found.kind in ("letters", "answers"):
            self.left.setdefault((name, label.round), set()).add(split(whole)[0])
        return whole


def dealt_trial(folder: Path, text: str, rounds: int = 2) -> RealTrial:
    people = {name: {"person": '"patient"'} for name in ("clinic-a", "clinic-b", "clinic-c")}
    clients = 'interactions = 1\npeople = 15\nschedule = "dealt"'
    return RealTrial(folder, text + 'unit = "person"\n', rounds=rounds, clients=clients, data=people)


def check_once(trial: RealTrial, masks: Masks, at: int) -> None:
    """No site sent two messages in a round, and its list is one list."""
    assert all(len(sent) == 1 for sent in masks.left.values()), at
    for name in trial.names:
        rounds = [path.name[:8] for path in trial.outbox(name).folder.glob("0*-0*")]
        assert len(set(rounds)) == len(rounds), at
        assert trial.paid(name) <= 2, at
        [path] = (trial.folders[name] / "deals").glob("*.json")
        assert sorted(np.bincount(json.loads(path.read_text())["round_of_each"])) == [0, 6, 6]
    card = json.loads((trial.task.folder / "privacy.json").read_text())
    assert card["participations_charged"] == 1


@pytest.mark.long
@pytest.mark.parametrize("text", [LINEAR + NOISE, LINEAR + SUM])
def test_a_dealt_schedule_whose_site_is_killed_at_every_write_gives_nobody_a_second_turn(tmp_path, fate, text):
    trial = dealt_trial(tmp_path, text)
    at, killed, lost = 1, True, 0
    while killed:
        for folder in trial.folders.values():
            fresh(folder)
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        mortal = Mortal(fate, trial.folders["clinic-b"], at)
        others = {name: Site.open(trial.folders[name]) for name in ("clinic-a", "clinic-c")}
        masks = Masks()
        try:
            answering = {name: site.answer for name, site in others.items()} | {"clinic-b": mortal.answer}
            assert trial.run_with(answering, masks) == "finished", (trial.task.folder / "run.json").read_text()
        finally:
            mortal.site.close()
            for site in others.values():
                site.close()
        killed, at = mortal.killed, at + 1
        check_once(trial, masks, at)
        lost += len(masks.left) < 6
    print(f"{at - 2} kills, a message was lost in {lost} of them")
    assert at > 30


@pytest.mark.long
def test_a_dealt_schedule_whose_coordinator_is_killed_at_every_write_gives_nobody_a_second_turn(tmp_path, fate):
    trial = dealt_trial(tmp_path, LINEAR + SUM)
    at, killed = 1, True
    while killed:
        killed, masks = False, Masks()
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        for folder in trial.folders.values():
            fresh(folder)
        with fate.from_now_on(at):
            try:
                trial.run(masks)
            except Killed:
                killed = True
        if killed:
            assert trial.run(masks) == "finished"
        check_once(trial, masks, at)
        at += 1
    print(f"{at - 2} kills")
    assert at > 15


@pytest.mark.long
@pytest.mark.parametrize(
    ("error", "word"), [(errno.ENOSPC, b"disk of this site is full"), (errno.EROFS, b"cannot write")]
)
def test_a_disk_that_takes_nothing_lets_nothing_leave(tmp_path, fate, error, word):
    """And when there is room again the site goes on, with the same noise and no second charge."""
    trial = RealTrial(tmp_path, LINEAR + NOISE, rounds=2)
    requests = recorded(trial, "clinic-b")
    folder = trial.folders["clinic-b"]
    at, reached, refusals = 1, True, 0
    while reached:
        fresh(folder)
        left: dict[bytes, list[bytes]] = {request: [] for request in requests}
        with Site.open(folder) as site, fate.from_now_on(at, error):
            for request in requests:
                answer = site.answer(request)
                if wire.read_label(answer).kind == "refused":
                    assert word in answer, answer
                    refusals += 1
                    site.answer(requests[0])  # hello
                    answer = site.answer(request)
                left[request] += [answer, site.answer(request)]
            reached = fate.steps >= at
        for request, answers in left.items():
            if wire.read_label(request).kind == "round":
                assert wire.read_label(answers[0]).kind == "answers", answers
                assert answers[0] == answers[1]
        assert trial.paid("clinic-b") == 2, at
        at += 1
    assert refusals > 10


@pytest.mark.long
def test_a_damaged_ledger_lets_nothing_leave(tmp_path):
    trial = RealTrial(tmp_path, LINEAR + NOISE, rounds=2)
    requests = recorded(trial, "clinic-b")
    path = next(trial.folders["clinic-b"].glob("people/*/ledger/participants.log"))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with Site.open(trial.folders["clinic-b"]) as site:
        for request in requests:
            answer = site.answer(request)
            assert wire.read_label(answer).kind == "refused"
            assert b"ledger of this site is damaged" in answer or b"say hello first" in answer
            assert str(tmp_path).encode() not in answer
    assert "participants.log" in (trial.folders["clinic-b"] / "site.log").read_text()


@pytest.mark.long
def test_a_damaged_outbox_is_named_and_not_replaced(tmp_path):
    trial = RealTrial(tmp_path, LINEAR + NOISE, rounds=2)
    requests = recorded(trial, "clinic-b")
    [first, _] = [request for request in requests if wire.read_label(request).kind == "round"]
    path = sorted(trial.outbox("clinic-b").folder.iterdir())[0]
    content = bytearray(path.read_bytes())
    content[-20] ^= 1
    path.write_bytes(content)
    with Site.open(trial.folders["clinic-b"]) as site:
        assert wire.read_label(site.answer(trial.hello())).kind == "facts"
        answer = site.answer(first)
    assert b"the outbox of this site cannot be read" in answer
    assert path.read_bytes() == bytes(content)
    assert path.name in (trial.folders["clinic-b"] / "site.log").read_text()


@pytest.mark.long
def test_a_lost_outbox_is_no_way_to_a_second_noise(tmp_path):
    trial = RealTrial(tmp_path, LINEAR + NOISE, rounds=3)
    requests = recorded(trial, "clinic-b")
    rounds = [request for request in requests if wire.read_label(request).kind == "round"]
    shutil.rmtree(trial.outbox("clinic-b").folder)
    with Site.open(trial.folders["clinic-b"]) as site:
        assert b"3 messages that this site sent are missing in its outbox" in site.answer(trial.hello())
        for request in rounds:
            assert wire.read_label(site.answer(request)).kind == "refused"
    assert trial.paid("clinic-b") == 3


@pytest.mark.long
def test_a_second_site_is_told_who_holds_the_lock(tmp_path):
    trial = RealTrial(tmp_path)
    with (
        Site.open(trial.folders["clinic-a"]),
        pytest.raises(Locked, match=f"site 'clinic-a' is in use by process {os.getpid()}"),
    ):
        Site.open(trial.folders["clinic-a"])


@pytest.mark.long
def test_a_clock_that_jumps_back_changes_nothing(tmp_path, monkeypatch):
    write_data(tmp_path)
    trial = Trial(tmp_path, spec_of(tmp_path, LINEAR, rounds=3))
    simulated = trial.simulated()
    clock = iter(range(2_000_000_000, 0, -86_400))
    monkeypatch.setattr("time.time", lambda: float(next(clock)))
    assert trial.run() == "finished"
    check_equal(trial.task.folder, simulated)


@pytest.mark.long
def test_torn_books_of_a_coordinator_are_mended(tmp_path):
    write_data(tmp_path)
    trial = Trial(tmp_path, spec_of(tmp_path, LINEAR, rounds=4))
    seen = []
    trial.run(lambda site, request, answer: seen.append(site) or answer, stop=lambda: len(seen) > 8)
    path = trial.task.folder / "sites.csv"
    path.write_text(path.read_text() + "2,site-0,0.0")
    assert trial.run() == "finished"
    assert all(line.count(",") == 5 for line in path.read_text().splitlines())


@pytest.mark.long
def test_attempts_that_cannot_be_read_are_named(tmp_path):
    trial = RealTrial(tmp_path, LINEAR + SUM, rounds=2)
    trial.task.folder.mkdir(parents=True)
    (trial.task.folder / "attempts.json").write_text('{"1": "x"}')
    assert trial.run() == "failed"
    assert "attempts.json" in (trial.task.folder / "run.json").read_text()


@pytest.mark.long
def test_an_outbox_reads_what_it_wrote(tmp_path):
    trial = RealTrial(tmp_path, LINEAR + NOISE, rounds=2)
    assert trial.run() == "finished"
    again = Outbox(trial.outbox("clinic-a").folder, trial.plan.run)
    assert (len(again), again.last) == (2, 2)
    assert again.get(1).answer == trial.outbox("clinic-a").get(1).answer


@pytest.mark.long
def test_a_site_that_came_back_from_a_backup_answers_no_round_anew(tmp_path):
    """What it sent since is not known any more: rounds that are over count as charged, and it goes on after them."""
    trial = RealTrial(tmp_path, LINEAR + NOISE, rounds=6)
    folder = trial.folders["clinic-b"]
    shutil.copy(folder / "train.txt", tmp_path / "clinic-b.txt")  # data are backed up by whoever has them

    def until(last: int) -> None:
        over = []

        def listen(name, request, answer):
            over.append(wire.read_label(request).round > last)
            if over[-1]:
                raise TimeoutError("not yet")
            return answer()

        assert trial.run(listen, stop=lambda: any(over)) == "interrupted"

    until(2)
    backup(folder, tmp_path / "backup")
    until(4)
    sent = {round: trial.outbox("clinic-b").get(round).answer for round in (1, 2, 3, 4)}
    shutil.rmtree(folder)
    restore(tmp_path / "backup", folder)
    shutil.copy(tmp_path / "clinic-b.txt", folder / "train.txt")
    assert trial.run() == "finished"
    outbox = trial.outbox("clinic-b")
    assert {round: outbox.get(round) is not None for round in range(1, 7)} == {
        1: True, 2: True, 3: False, 4: False, 5: True, 6: True,
    }  # fmt: skip
    assert outbox.get(2).answer == sent[2]
    assert trial.paid("clinic-b") == 7  # six rounds, and the fifth once more, of which something may have left


@pytest.mark.long
def test_a_dealt_schedule_at_a_site_from_a_backup_gives_nobody_a_second_turn(tmp_path, monkeypatch):
    """Of round 5 something may have left, so its people do not take part; those of round 6 do."""
    monkeypatch.setattr(site_calls, "PAUSE", 0.01)
    trial = dealt_trial(tmp_path, LINEAR + NOISE, rounds=6)
    folder, masks = trial.folders["clinic-b"], Masks()
    shutil.copy(folder / "train.txt", tmp_path / "clinic-b.txt")

    def until(last: int) -> None:
        over = []

        def listen(name, content, answer):
            over.append(wire.read_label(content).round > last)
            if over[-1]:
                raise TimeoutError("not yet")
            return masks(name, content, answer)

        listen.with_heads = True
        assert trial.run(listen, stop=lambda: any(over)) == "interrupted"

    until(2)
    backup(folder, tmp_path / "backup")
    [before] = (folder / "deals").glob("*.json")
    dealt = before.read_text()
    until(4)
    shutil.rmtree(folder)
    restore(tmp_path / "backup", folder)
    shutil.copy(tmp_path / "clinic-b.txt", folder / "train.txt")
    assert trial.run(masks) == "finished"
    assert before.read_text() == dealt
    assert {round for name, round in masks.left if name == "clinic-b"} == {1, 2, 3, 4, 6}
    assert {round for name, round in masks.left if name == "clinic-a"} == {1, 2, 3, 4, 5, 6}
    assert all(len(sent) == 1 for sent in masks.left.values())
