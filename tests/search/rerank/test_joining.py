"""Tenants learn together through `fedrank deploy`: their feedback is a click log, and the model is tried at each."""

from __future__ import annotations

import json
import re
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import fedrank as fr
from fedrank.cli import main
from fedrank.data.feature_sets import feature_facts
from fedrank.deploy import site_calls
from fedrank.deploy.coordinate import coordinate
from fedrank.deploy.folder import folder_send, serve_once
from fedrank.deploy.folder_members import read_home
from fedrank.deploy.make_plans import plan_runs
from fedrank.experiments.spec.source import read_spec
from fedrank.privacy.population import Population
from fedrank.search.rerank import Reranker
from fedrank.search.rerank.joining import TENANT, try_model, write_log
from fedrank.search.rerank.passages import OWN
from fedrank.search.rerank.store import RerankError
from tests.deploy.commands import CommandFederation

TWO_DAYS_AGO = -2 * 86_400.0  # later than what the retention period deletes
TUTORIAL = Path(__file__).parents[3].joinpath("docs", "tutorials", "rerank.md").read_text("utf-8")
SITE, SPEC = re.findall(r"^```toml\n(.*?)^```$", TUTORIAL, re.M | re.S)


def use(folder: Path, seed: int, requests: int = 120, useful: bool = True) -> None:
    """Twenty people and some without a name use the passages with the largest signal, if it is useful."""
    rng, now = np.random.default_rng(seed), [time.time() + TWO_DAYS_AGO]
    folder.mkdir(parents=True)
    (folder / "rerank.key").write_bytes(bytes([seed]) * 32)
    with Reranker(folder, refits=False, clock=lambda: now[0]) as reranker:
        for number in range(requests):
            texts = [f"word{number} passage {seed} {number} {index}" for index in range(10)]
            own = rng.normal(size=10)
            user = None if number % 5 == 0 else f"person {number % 20}"
            answer = reranker.rerank(f"word{number} query", texts, 6, signals={"own": own.tolist()}, user=user)
            used = max(answer.indices, key=lambda index: own[index]) if useful else answer.indices[number % 6]
            reranker.feedback(answer.id, {used: "cited"})
            now[0] += 600.0


@pytest.fixture
def fedrank(monkeypatch, capsys):
    def call(*words):
        monkeypatch.setattr("sys.argv", ["fedrank", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    return call


def test_the_log_has_what_was_shown_and_used_but_no_text(tmp_path):
    use(tmp_path / "shop", 1, requests=30)
    with Reranker(tmp_path / "shop") as reranker:
        log = write_log(reranker, tmp_path / "log")
        given = reranker.lists_with_feedback()
    assert (len(log), len(log.users), log.feature_names) == (30, 17, (*OWN, "own"))
    assert log.facts["settings"]["features"] == "rerank-1:own"
    assert feature_facts("rerank-1:own").names == log.feature_names
    assert feature_facts("rerank-1").names == OWN
    one, used = given[7]
    place = int(np.flatnonzero(np.asarray(log.time) == int(one.time))[0])
    shown = np.asarray(log.lists)[place]
    np.testing.assert_array_equal(np.asarray(log.features)[shown[shown >= 0]], one.features[one.shown])
    clicked = np.asarray(log.clicks)[place][: len(one.shown)] > 0
    assert {int(index) for index in one.shown[clicked]} == used
    assert TENANT in log.users
    stored = b"".join(path.read_bytes() for path in (tmp_path / "log").rglob("*") if path.is_file())
    for text in (b"passage", b"word7", b"person"):
        assert text not in stored.replace(b'"person"', b"")


def test_nothing_to_write_and_models_that_do_not_fit(tmp_path, fedrank):
    with Reranker(tmp_path / "empty") as reranker:
        with pytest.raises(RerankError, match="no request with feedback yet"):
            write_log(reranker, tmp_path / "log")
        assert not (tmp_path / "log").exists()
        for names, how, message in (
            ((*OWN, "own"), "none", "not enough feedback to compare"),
            ((*OWN, "own"), "query", "is not a model of the features rerank-1"),
            (("bm25", "rank", "centroid", "own"), "none", "is not a model of the features rerank-1"),
        ):
            model = fr.Model(fr.rankers.Linear(), np.ones(4), features=4, normalised=how, feature_names=names)
            fr.save_model(model, tmp_path / "model.json")
            with pytest.raises(RerankError, match=message):
                try_model(reranker, tmp_path / "model.json")
        assert reranker.status().on_trial is None
    code, _, err = fedrank("rerank", "join", "shop", "--folder", tmp_path)
    assert (code, "give either --log" in err) == (2, True)


@pytest.mark.long
def test_three_tenants_learn_together(tmp_path, fedrank, monkeypatch):
    made = CommandFederation(tmp_path, min_sites=3)
    made.spec.write_text(SPEC.replace("noise = 4.0", "noise = 0.5"))  # noise comes from the system's secure source
    tenants = tmp_path / "server" / "tenants"
    server = ("--folder", tmp_path / "server")
    for id, name in enumerate(made.names):
        use(tenants / name, id, useful=id < 2)  # the third has other readers
        code, out, _ = fedrank("rerank", "join", name, "--log", made.home(name) / "feedback", *server)
        assert (code, 'features = "rerank-1:own"' in out) == (0, True)
        site = (
            SITE.replace('"shop"', f'"{name}"').replace('"shops"', '"clinics"').replace("id         = 0", f"id = {id}")
        )
        (made.home(name) / "site.toml").write_text(site.replace("../", "").replace("= 8.0", "= 100000.0"))
        made.fedrank("accept", "my.toml", "--home", name, "--yes")
    monkeypatch.setenv("XDG_STATE_HOME", made.environment["XDG_STATE_HOME"])
    monkeypatch.setattr(site_calls, "PAUSE", 0.01)
    [(task, plan)] = plan_runs(read_spec(made.spec), "my", made.hub / "runs", read_home(made.hub).parties(), "clinics")
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.05):
            for name in made.names:
                serve_once(tmp_path / "shared", made.home(name))

    sites = threading.Thread(target=look)
    sites.start()
    try:
        with folder_send(tmp_path / "shared", made.hub, 0.01) as send:
            assert coordinate(task, plan, send, patience=60, home=made.hub) == "finished"
    finally:
        over.set()
        sites.join()
    for name in made.names:
        [account] = Population.read(made.home(name) / "people").accounts()
        assert account.rounds == 4
    received = {name: next((made.home(name) / "models").glob("*/model.json")) for name in made.names}
    for name in made.names[:2]:
        code, out, err = fedrank("rerank", "join", name, "--model", received[name], *server)
        assert (code, "on trial" in out) == (0, True), err
        told = json.loads(fedrank("rerank", "status", name, "--json", *server)[1])
        assert told["on_trial"]["own"] == pytest.approx(told["on_trial"]["rank"])  # the largest
        assert told["mode"] == "start"
        assert "(on trial: +" in fedrank("rerank", "status", name, *server)[1]
    code, _, err = fedrank("rerank", "join", made.names[2], "--model", received[made.names[2]], *server)
    assert (code, "does not predict the tenant's own feedback" in err) == (2, True)
