"""Old copies, deleted and exchanged files of a site: no answered round gets fresh noise, and no charge is lost."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from fedrank import wire
from fedrank.cli import app
from fedrank.deploy import heads, protocol
from fedrank.deploy.backup import backup, restore
from fedrank.deploy.check import _journal
from fedrank.deploy.heads import MAX_HEADS, Head, Seen, SiteJournal, Statement, Witness, new_nonce, split
from fedrank.deploy.identity import new_identity, read_identity
from fedrank.deploy.settings import read_site
from fedrank.deploy.site import Site
from fedrank.wire import Refused
from tests.deploy.fake_sites import calls_to
from tests.deploy.plans import made_plan
from tests.deploy.real_trial import LINEAR, NOISE, SUM, RealTrial

NAME = "clinic-b"
alone = pytest.mark.usefixtures("unconfirmed")


class History:
    """A run of three rounds with the requests to one site, its answers, and a copy of its folder after round 1."""

    def __init__(self, folder: Path, text: str = LINEAR + NOISE) -> None:
        self.trial = RealTrial(folder, text, rounds=3)
        self.home, self.old = self.trial.folders[NAME], folder / "old"
        self.second = SiteJournal(self.home, read_site(self.home)).second
        self.asked: dict[bytes, bytes] = {}

        def listen(name, request, answer):
            label = wire.read_label(request)
            if name == NAME and label.round == 2 and not self.old.exists():
                shutil.copytree(self.home, self.old)
                shutil.copy(self.second, folder / "old.heads")
            found = answer()
            if name == NAME and label.kind == "round":
                self.asked[request] = found
            return found

        assert self.trial.run(listen) == "finished"
        self.old_second = folder / "old.heads"
        self.witness = Witness(self.trial.task.folder / "heads.txt")
        shutil.copytree(self.home, folder / "new")
        shutil.copy(self.second, folder / "new.heads")
        self.folder = folder

    def reset(self) -> None:
        shutil.rmtree(self.home)
        shutil.copytree(self.folder / "new", self.home)
        shutil.copy(self.folder / "new.heads", self.second)

    def ask(self, content: bytes, informed: bool) -> bytes:
        """The answer of the site to a request after hello; an honest coordinator adds the heads that it holds."""
        with Site.open(self.home) as site:
            first = self.ask_open(site, self.trial.hello(), informed)
            return first if content == self.trial.hello() else self.ask_open(site, content, informed)

    def ask_open(self, site: Site, content: bytes, informed: bool) -> bytes:
        found = self.witness.of([read_identity(self.folder / "new").public]) if informed else []
        return split(site.answer(Seen(new_nonce(), tuple(found)).behind(content)))[0]

    def check(self, informed: bool) -> None:
        """Answered rounds get the same bytes or a refusal; other requests for them are refused."""
        with Site.open(self.home) as site:
            hello = self.ask_open(site, self.trial.hello(), informed)
            for request, answer in self.asked.items():
                found = self.ask_open(site, request, informed)
                assert found == answer or kind(found) == "refused"
            last = list(self.asked)[-1]
            parts = {"call": wire.Part("|S", 9_999), "asked": wire.Part("|S", 999)}
            changed = wire.unpack(last, wire.read_label(last), parts)[1]
            other = wire.pack(wire.read_label(last), changed | {"asked": changed["asked"][:-1] + b"\1"})
            assert kind(self.ask_open(site, other, informed)) == "refused"
        if kind(hello) == "facts":
            assert self.trial.paid(NAME) >= 3


def kind(answer: bytes) -> str:
    return wire.read_label(answer).kind


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return History(tmp_path_factory.mktemp("heads"))


@pytest.fixture
def history(made):
    made.reset()
    return made


def files(folder: Path) -> list[str]:
    found = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    return sorted(name for name in found if not name.endswith("lock") and name != "train.txt")


def deleted(history: History, name: str) -> None:
    (history.home / name).unlink()


def emptied(history: History, name: str) -> None:
    (history.home / name).write_bytes(b"")


def truncated(history: History, name: str) -> None:
    path = history.home / name
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def aged(history: History, name: str) -> None:
    if (history.old / name).exists():
        shutil.copy(history.old / name, history.home / name)
    else:
        deleted(history, name)


def swapped(history: History, name: str) -> None:
    other = history.trial.folders["clinic-a"] / name
    if other.exists():
        shutil.copy(other, history.home / name)


def stated(history: History, challenge: bytes, withheld: bool) -> tuple[Statement, ...]:
    """What the other sites say about the site, to a coordinator that sends them no head or all."""
    found: list[Statement] = []
    for name in ("clinic-a", "clinic-c"):
        with Site.open(history.trial.folders[name]) as site:
            site.answer(history.trial.hello())
            known = () if withheld else tuple(history.witness.heads.values())
            seen = Seen(new_nonce(), known, ((20, challenge),))
            found += split(site.answer(seen.behind(protocol.request("witness", history.trial.plan.run))))[1].statements
    return tuple(found)


def test_a_coordinator_that_withholds_heads_gets_nothing_from_an_old_copy(history):
    """Home and second place were put back; the other sites know better, and the site asks for their signatures."""
    shutil.rmtree(history.home)
    shutil.copytree(history.old, history.home)
    shutil.copy(history.old_second, history.second)
    request = list(history.asked)[-1]
    with Site.open(history.home) as site:

        def ask(*statements: Statement) -> bytes:
            return site.answer(Seen(new_nonce(), (), (), statements).behind(request))

        first = split(site.answer(Seen(new_nonce(), ()).behind(history.trial.hello())))
        assert kind(first[0]) == "facts"
        [(id, challenge)] = first[1].challenges
        assert id == 20
        assert protocol.NOT_CONFIRMED.encode() in ask()
        other = stated(history, new_nonce(), withheld=True)  # of another start of the site
        assert {one.head.counter for one in other} == {4}
        assert b"has 2 entries, but the coordinator or another site has seen 4" in ask(*other)
        for old in (replace(one, head=site.journal.head) for one in stated(history, challenge, withheld=True)):
            assert protocol.NOT_CONFIRMED.encode() in ask(old)  # not signed
            key = read_identity(history.home)
            assert protocol.NOT_CONFIRMED.encode() in ask(replace(old, witness=20).sign(key))  # its own word
            assert protocol.NOT_CONFIRMED.encode() in ask(replace(old, witness=99).sign(key))  # not in the plan
        assert b"has seen 4" in ask(*stated(history, challenge, withheld=True))
        assert protocol.NOT_CONFIRMED.encode() in ask()


def test_the_newest_copy_needs_one_honest_site(history):
    with Site.open(history.home) as site:
        [(_, challenge)] = split(site.answer(Seen(new_nonce(), ()).behind(history.trial.hello())))[1].challenges
        last, answer = list(history.asked.items())[-1]
        statement, _ = stated(history, challenge, withheld=False)
        assert split(site.answer(Seen(new_nonce(), (), (), (statement,)).behind(last)))[0] == answer
        assert split(site.answer(Seen(new_nonce(), ()).behind(last)))[0] == answer  # until it has sent more
        for number in range(heads.MAX_LAG + 1):
            assert split(site.answer(Seen(new_nonce(), ()).behind(last)))[0] == answer
            site.journal.note(b"\1" * 16, "sent", number)
        assert protocol.NOT_CONFIRMED.encode() in site.answer(Seen(new_nonce(), ()).behind(last))


@alone
@pytest.mark.parametrize("damage", [deleted, emptied, truncated, aged, swapped])
@pytest.mark.parametrize("informed", [True, False], ids=["coordinator", "second place"])
def test_no_damaged_file_leads_to_fresh_noise(history, damage, informed):
    """While either the second place or the coordinator is honest."""
    names = files(history.home)
    assert {"journal.log", "identity.key", "site.toml"} < set(names)
    assert any(name.startswith("outbox/") for name in names)
    assert any(name.startswith("people/") for name in names)
    for name in names:
        if name == "site.toml" and damage is not aged:
            continue  # the site cannot be opened
        history.reset()
        damage(history, name)
        if informed:
            history.second.unlink()
        history.check(informed)


@alone
@pytest.mark.parametrize(
    "part", ["people", "outbox", "people outbox journal.log", "people outbox journal.log heads.txt"]
)
@pytest.mark.parametrize("informed", [True, False], ids=["coordinator", "second place"])
def test_deleted_folders_give_no_budget_back(history, part, informed):
    for name in part.split():
        path = history.home / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    if informed:
        history.second.unlink()
    assert kind(history.ask(history.trial.hello(), informed)) == "refused"
    history.check(informed)


@alone
def test_a_copy_that_was_put_back_is_refused_by_each_witness(history):
    shutil.rmtree(history.home)
    shutil.copytree(history.old, history.home)
    answer = history.ask(history.trial.hello(), informed=False)
    assert b"has 2 entries, but the second place of this site has seen 4" in answer
    assert b"fedrank deploy restore" in answer
    shutil.copy(history.old_second, history.second)  # a snapshot of the whole machine
    assert b"the coordinator or another site has seen 4" in history.ask(history.trial.hello(), informed=True)
    assert _journal(history.home, read_site(history.home)).state == "fine"  # no witness is asked here


@alone
@pytest.mark.parametrize("informed", [True, False], ids=["coordinator", "second place"])
def test_parts_of_an_old_copy_are_no_way_around_a_witness(history, informed):
    """Every mixture of old and new parts of the folder: ledgers, messages, journal, heads of others, result."""
    parts = ("people", "outbox", "journal.log", "heads.txt", "models")
    for mixture in range(1, 2 ** len(parts)):
        history.reset()
        for place, name in enumerate(parts):
            if mixture >> place & 1:
                path, old = history.home / name, history.old / name
                shutil.rmtree(path) if path.is_dir() else path.unlink()
                if old.exists():
                    (shutil.copytree if old.is_dir() else shutil.copy)(old, path)
        if informed:
            shutil.copy(history.old_second, history.second)
        history.check(informed)


@pytest.mark.parametrize("old", [False, True], ids=["newest folder", "old folder"])
def test_an_empty_second_place_is_as_good_as_none(history, old):
    if old:
        shutil.rmtree(history.home)
        shutil.copytree(history.old, history.home)
    history.second.write_bytes(b"")
    assert b"is missing or empty, and no witness confirms" in history.ask(history.trial.hello(), informed=False)
    history.second.write_bytes(b"")
    answer = history.ask(history.trial.hello(), informed=True)
    assert kind(answer) == ("refused" if old else "facts")


def test_the_cheaper_terms_of_another_run_are_noticed(history):
    """The number of charges stays the same, but each would cost less."""
    [terms] = history.home.glob("people/*/ledger/terms.json")
    other = json.loads(terms.read_text()) | {"spec": "ab" * 16}
    terms.write_text(json.dumps(other))
    answer = history.ask(history.trial.hello(), informed=True)
    assert b"the ledger of this site is damaged" in answer
    assert "terms.json belongs to run abababababab" in (history.home / "site.log").read_text()


def test_another_site_remembers_what_a_coordinator_has_lost(history):
    shutil.rmtree(history.home)
    shutil.copytree(history.old, history.home)
    shutil.copy(history.old_second, history.second)
    (history.trial.task.folder / "heads.txt").unlink()
    shutil.rmtree(history.folder / "again", ignore_errors=True)
    trial, said = history.trial, []
    folder = trial.task.folder

    def listen(name, request, answer):
        found = answer()
        if name == NAME and kind(found) == "refused":
            said.append(found)
        assert name != NAME or wire.read_label(request).kind != "round" or kind(found) == "refused"
        return found

    for file in ("run.json", "rounds.csv", "model.json"):
        (folder / file).unlink(missing_ok=True)
    shutil.rmtree(folder)
    trial.run(listen, stop=lambda: len(said) > 2)
    assert b"has 2 entries, but the coordinator or another site has seen 4" in said[0]


def test_a_second_copy_at_work_is_a_conflict(history):
    journal = SiteJournal(history.home, read_site(history.home))
    other = SiteJournal(history.home, read_site(history.home))
    other.note(b"\1" * 16, "sent", 1)
    shutil.copy(history.folder / "new" / "journal.log", journal.path)
    shutil.copy(history.folder / "new.heads", journal.second)
    journal = SiteJournal(history.home, read_site(history.home))
    journal.note(b"\2" * 16, "sent", 1)
    with pytest.raises(heads.RolledBack, match="two copies"):
        journal.check(heads.Seen(new_nonce(), (other.head,)))


def test_a_lost_second_place_needs_a_witness_or_an_officer(history):
    history.second.unlink()
    assert b"--confirm-head" in history.ask(history.trial.hello(), informed=False)
    line = _journal(history.home, read_site(history.home))
    assert (line.state, "no witness confirms" in line.said) == ("wrong", True)
    assert kind(history.ask(history.trial.hello(), informed=True)) == "facts"
    assert history.second.exists()
    history.second.unlink()
    heads.confirm(history.home)
    assert "an officer confirmed the journal with 4 entries" in (history.home / "site.log").read_text()
    assert kind(history.ask(history.trial.hello(), informed=False)) == "facts"
    line = _journal(history.home, read_site(history.home))
    assert (line.state, line.said.startswith("4 entries; second place: ")) == ("fine", True)
    assert "heads of 2 other sites" in line.said


@alone
def test_an_older_version_is_upgraded_once(history):
    (history.home / "journal.log").unlink()
    history.second.unlink()
    assert b"fedrank privacy ledger HOME --upgrade" in history.ask(history.trial.hello(), informed=False)
    assert "5 entries" in CliRunner().invoke(app, ["privacy", "ledger", str(history.home), "--upgrade"]).output
    history.check(informed=False)
    for request, answer in history.asked.items():
        assert history.ask(request, informed=False) == answer
    with pytest.raises(ValueError, match="already has a journal"):
        heads.upgrade(history.home)
    assert kind(history.ask(history.trial.hello(), informed=True)) == "refused"  # the witness knows the deleted one


@pytest.mark.parametrize("text", [LINEAR + NOISE, LINEAR + SUM], ids=["open", "secure"])
def test_a_restored_site_continues_after_what_it_sent(tmp_path, text):
    """The journal's head names the last round, so a coordinator cannot ask for it again by reporting fewer rounds."""
    trial = RealTrial(tmp_path, text, rounds=3)
    home = trial.folders[NAME]
    stop = []

    def until(last):
        def listen(name, request, answer):
            stop.append(wire.read_label(request).round > last)
            if stop[-1]:
                raise TimeoutError("not yet")
            return answer()

        stop.clear()
        assert trial.run(listen, stop=lambda: any(stop)) == "interrupted"

    until(1)
    backup(home, tmp_path / "backup")
    train = (home / "train.txt").read_bytes()
    until(2)
    shutil.rmtree(home)
    restore(tmp_path / "backup", home)
    (home / "train.txt").write_bytes(train)
    with Site.open(home) as site:
        assert kind(site.answer(trial.hello(over=0))) == "facts"  # the second place names round 2
    assert trial.paid(NAME) == 2
    journal = SiteJournal(home, read_site(home))
    assert [entry.kind for entry in journal.entries] == ["begun", "sent", "restored", "over"]
    assert trial.run() == "finished"
    assert trial.paid(NAME) >= 3


@alone
def test_a_message_that_a_restored_site_still_has_counts_one_charge(history):
    """Round 2 is charged as over; the stored message that is sent again has no charge besides."""
    trial, home = history.trial, history.home
    shutil.rmtree(home)
    shutil.copytree(history.old, home)
    backup(home, home.parent / "backup")
    shutil.rmtree(home)
    restore(home.parent / "backup", home)
    shutil.copy(history.folder / "new" / "train.txt", home / "train.txt")
    shutil.rmtree(home / "outbox")
    shutil.copytree(history.folder / "new" / "outbox", home / "outbox")
    with Site.open(home) as site:
        assert kind(history.ask_open(site, trial.hello(), informed=True)) == "facts"
        for request, answer in history.asked.items():
            assert history.ask_open(site, request, informed=True) == answer
    with Site.open(home) as site:  # refused if the journal counts more charges than the ledger
        assert kind(history.ask_open(site, trial.hello(), informed=True)) == "facts"
        assert site.journal.charged[trial.plan.run.hex()] <= trial.paid(NAME)


def test_heads_that_are_forged_or_replayed_are_refused(history, tmp_path):
    own = history.witness.of([read_identity(history.home).public])[0]
    new_identity(tmp_path / "other")
    key = read_identity(tmp_path / "other")
    for head in (replace(own, counter=99), replace(own, counter=99).sign(key), replace(own, number=2)):
        with Site.open(history.home) as site:
            answer = site.answer(Seen(new_nonce(), (head,)).behind(history.trial.hello()))
        assert b"head of this site that the site did not sign" in answer
    witness = Witness(tmp_path / "heads.txt")
    keys = {own.site: read_identity(history.home).public}
    witness.keep([own], keys, own.site)
    assert not witness.path.exists()
    witness.write()
    mine = read_identity(history.home)
    for forged in (replace(own, counter=99), replace(own, nonce=new_nonce(), signature=bytes(64))):
        with pytest.raises(Refused, match="is not signed by this site"):
            witness.keep([forged], keys, own.site)
    with pytest.raises(Refused, match="answers from an old copy"):
        witness.keep([replace(own, counter=1).sign(mine)], keys, own.site)
    with pytest.raises(Refused, match="answers from an old copy"):
        witness.keep([replace(own, hash=bytes(32)).sign(mine)], keys, own.site)
    witness.keep([replace(own, counter=1)], keys, own.site + 1)  # an old one from another site is ignored
    witness.write()
    assert Witness(tmp_path / "heads.txt").heads == {keys[own.site]: own}


def test_a_coordinator_refuses_the_head_of_another_request(tmp_path):
    trial, earlier = RealTrial(tmp_path, LINEAR, rounds=2), []

    def replaying(content: bytes, site: Site) -> bytes:
        answer, seen = split(site.answer(content))
        if wire.read_label(content).kind == "round":
            earlier.append(seen)
            return earlier[0].behind(answer)
        return seen.behind(answer)

    sites = {name: Site.open(folder) for name, folder in trial.folders.items()}
    try:
        answering = {name: site.answer for name, site in sites.items()}
        answering[NAME] = lambda content: replaying(content, sites[NAME])
        assert trial.run_with(answering) == "finished"
    finally:
        for site in sites.values():
            site.close()
    assert "belongs to another request" in (trial.task.folder / "sites.csv").read_text()


class Killed(BaseException):
    """The process is gone."""


@alone
@pytest.mark.parametrize("torn", [False, True])
def test_a_kill_at_every_write_of_the_journal_charges_once(history, monkeypatch, torn):
    real, at = heads._append, 0
    killed = True
    while killed:
        at, calls, killed = at + 1, [], False
        shutil.rmtree(history.home)
        shutil.copytree(history.old, history.home)
        for name in ("people", "outbox"):
            shutil.rmtree(history.home / name)
        (history.home / "journal.log").unlink()
        history.second.unlink(missing_ok=True)

        def dying(path, line, end=None, calls=calls, at=at):
            calls.append(path)
            if len(calls) == at:
                if torn:
                    real(path, line[: len(line) // 2], end)
                raise Killed
            real(path, line, end)

        answers = {}
        monkeypatch.setattr(heads, "_append", dying)
        for request in history.asked:
            try:
                answers[request] = history.ask(request, informed=False)
            except Killed:
                killed = True
                answers[request] = history.ask(request, informed=False)
            assert kind(answers[request]) == "answers", answers[request]
        monkeypatch.setattr(heads, "_append", real)
        assert {request: history.ask(request, informed=False) for request in history.asked} == answers
        assert history.trial.paid(NAME) == 3
        assert len(SiteJournal(history.home, read_site(history.home)).entries) == 4
    assert at > 6


def test_heads_travel_behind_a_message():
    head = Head(1, 2, b"h" * 32, b"r" * 16, 3)
    statement = Statement(4, b"c" * 16, head, b"s" * 64)
    whole = Seen(b"n" * 16, (head, head), ((4, b"c" * 16), (5, b"d" * 16)), (statement, statement))
    for seen in (whole, Seen(b"n" * 16, (head,)), Seen(b"n" * 16, (), (), (statement,)), Seen(b"n" * 16, ())):
        assert split(seen.behind(b"content")) == (b"content", seen)
    assert split(b"content") == (b"content", None)
    with pytest.raises(Refused, match="declares 9 heads"):
        split(b"content" + heads._END.pack(bytes(16), 9, 0, 0, heads.MAGIC))


def test_a_few_sites_sign_each_head_and_all_where_that_is_not_enough(tmp_path):
    """A ring, so no message grows with the number of sites; a request for statements goes around all."""
    plan, sent = made_plan(4, identities=["ab" * 32, "cd" * 32, "ef" * 32, "01" * 32]), []

    def answer(name, content, label):
        sent.append(split(content)[1])

    calls = calls_to(plan, answer, witness=Witness(tmp_path / "heads.txt"))
    calls._challenges = {id: bytes([id]) * 16 for id in range(4)}
    head = Head(1, 5, bytes(32), bytes(16), 1)
    made = {2: Statement(2, b"\1" * 16, head), 3: Statement(3, rb"\9" * 16, head)}
    calls._statements[1] = made
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedrank.deploy.site_calls.WITNESSES", 2)
        for name, kind in (("clinic-b", "round"), ("clinic-d", "round"), ("clinic-b", "witness")):
            calls.request(name, protocol.request(kind, plan.run))
        patch.setattr("fedrank.deploy.site_calls.MAX_WITNESSES", 1)
        calls.request("clinic-b", protocol.request("witness", plan.run))
    assert [[id for id, _ in seen.challenges] for seen in sent] == [[2, 3], [0, 1], [2, 3, 0], [2]]
    assert [seen.statements for seen in sent] == [(made[2],), (), (made[2],), (made[2],)]  # not of an earlier start


def test_a_site_cannot_stop_another_by_a_false_statement(tmp_path):
    """A statement with a head that its site did not sign would be refused by that site, so it is not passed on."""
    trial = RealTrial(tmp_path, LINEAR, rounds=2)

    def lying(name, content, answer):
        found, seen = split(answer())
        if name != "clinic-a" or seen is None:
            return found if seen is None else seen.behind(found)
        key = read_identity(trial.folders[name])
        false = [replace(one, head=replace(one.head, counter=99)).sign(key) for one in seen.statements]
        unsigned = [replace(one, signature=bytes(64)) for one in seen.statements]
        return seen._replace(statements=(*false, *unsigned)).behind(found)

    lying.with_heads = True
    assert trial.run(lying) == "finished"
    assert "did not sign" not in (trial.task.folder / "sites.csv").read_text()


def test_the_second_place_of_windows(tmp_path, monkeypatch):
    """It has no user data base; its folder for state is in the environment, or named by the site."""
    monkeypatch.setattr(heads, "sys", SimpleNamespace(platform="win32"))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path))
    unnamed = SimpleNamespace(second_place="")
    assert heads.second_place(tmp_path / "site", unnamed) == tmp_path / "fedrank" / "heads"
    monkeypatch.delenv("LOCALAPPDATA")
    with pytest.raises(ValueError, match=r"set second_place in site\.toml"):
        heads.second_place(tmp_path / "site", unnamed)


def test_a_file_with_as_many_heads_as_are_stored_is_read(tmp_path):
    witness = Witness(tmp_path / "heads.txt")
    heads = {f"{number:064x}": Head(number, 1, bytes(32), bytes(16), 0) for number in range(2 * MAX_HEADS)}
    witness.heads, witness._unwritten = heads, True
    witness.write()
    assert Witness(tmp_path / "heads.txt").heads == heads
