"""The one sequence at a site, by a kind of contribution that exists in this file only."""

from __future__ import annotations

import numpy as np
import pytest

from fedrank import wire
from fedrank.deploy import protocol
from fedrank.deploy.charging import Charging
from fedrank.deploy.outbox import Outbox
from fedrank.deploy.site import Site
from fedrank.deploy.site_runtime import CheckedRequest, Computed, Contribution, digest_of
from fedrank.deploy.site_updates import UpdateRun
from fedrank.wire import Label, Part, Refused
from tests.deploy.real_trial import LINEAR, NOISE, RealTrial

pytestmark = pytest.mark.usefixtures("unconfirmed")

NUMBER = 7  # in the outbox and the ledger, beyond the rounds of the plan
ROWS = np.zeros(1, np.int64)


class CountQueries(Contribution[UpdateRun]):
    """Adds a number of the coordinator to the number of own queries."""

    kinds = ("count",)
    computed = 0

    def read(self, label, content):
        _, found = wire.unpack(content, Label("count", label.run, label.round), {"add": Part("<i8", 1)})
        if found["add"][0] < 0:
            raise Refused("add must not be negative")
        return CheckedRequest(label, digest_of(content), NUMBER, "the count", ROWS, content=int(found["add"][0]))

    def compute(self, request):
        CountQueries.computed += 1
        total = self.run.clients.clients.data.queries + request.content
        return Computed(self.reply("counted", request.label, total=str(total).encode()))


def ask(trial, add: int) -> bytes:
    return wire.pack(Label("count", trial.plan.run, 0), {"add": np.array([add], "<i8")})


@pytest.fixture
def trial(tmp_path, monkeypatch):
    monkeypatch.setattr(UpdateRun, "handlers", (*UpdateRun.handlers, CountQueries))
    monkeypatch.setattr(CountQueries, "computed", 0)
    return RealTrial(tmp_path, LINEAR + NOISE)


def charges(site, trial) -> int:
    return site._runs[trial.plan.run].charging.ledger.times(NUMBER)


def test_a_new_kind_is_one_class(trial):
    with Site.open(trial.folders["clinic-a"]) as site:
        assert b"say hello first" in site.answer(ask(trial, 1))
        site.answer(trial.hello())
        first = site.answer(ask(trial, 1))
        label = Label("counted", trial.plan.run, 0, 0, site.settings.id)
        assert int(protocol.read(first, label, {"total": Part("|S", 20)})["total"]) > 1
        assert site.answer(ask(trial, 1)) == first
        assert (CountQueries.computed, charges(site, trial)) == (1, 1)
        assert b"the count was already answered for a different request" in site.answer(ask(trial, 2))
        assert b"add must not be negative" in site.answer(ask(trial, -1))
    with Site.open(trial.folders["clinic-a"]) as site:  # as after a restart
        site.answer(trial.hello())
        assert site.answer(ask(trial, 1)) == first
        assert (CountQueries.computed, charges(site, trial)) == (1, 1)


class Killed(BaseException):
    """Ends the process at this point."""


@pytest.mark.parametrize(("where", "again"), [((Outbox, "put"), 2), ((Charging, "charge"), 2)])
def test_a_kill_before_the_outbox_is_written_computes_again(trial, monkeypatch, where, again):
    def kill(*args, **named):
        raise Killed

    with Site.open(trial.folders["clinic-a"]) as site, monkeypatch.context() as patch:
        site.answer(trial.hello())
        patch.setattr(*where, kill)
        with pytest.raises(Killed):
            site.answer(ask(trial, 1))
    with Site.open(trial.folders["clinic-a"]) as site:
        site.answer(trial.hello())
        site.answer(ask(trial, 1))
        assert (CountQueries.computed, charges(site, trial)) == (again, 1)


def test_a_kill_between_outbox_and_ledger_charges_once_and_computes_once(trial, monkeypatch):
    real = Outbox.put

    def put_and_die(self, sent):
        real(self, sent)
        raise Killed

    with Site.open(trial.folders["clinic-a"]) as site, monkeypatch.context() as patch:
        site.answer(trial.hello())
        patch.setattr(Outbox, "put", put_and_die)
        with pytest.raises(Killed):
            site.answer(ask(trial, 1))
        assert charges(site, trial) == 0
    with Site.open(trial.folders["clinic-a"]) as site:
        site.answer(trial.hello())
        site.answer(ask(trial, 1))
        assert (CountQueries.computed, charges(site, trial)) == (1, 1)


def test_a_kind_that_no_run_has_is_refused(trial):
    with Site.open(trial.folders["clinic-a"]) as site:
        site.answer(trial.hello())
        answer = site.answer(protocol.request("forest", trial.plan.run, 1))
        assert b"this run sends model updates and does not support requests of kind 'forest'" in answer
