"""Metrics and the page of a coordinator and a site, from the files that `status` reads."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from fedrank.cli import main
from fedrank.deploy.metrics import exposition, make_app
from fedrank.deploy.records import event_printer
from fedrank.deploy.settings import site_template
from fedrank.deploy.status import DeploymentStatus, SiteLine
from fedrank.web.access import Access
from tests.deploy.test_status import NOW, SITES, found, home  # noqa: F401

SAMPLE = re.compile(r'([a-z_]+)\{((?:[a-z]+="(?:[^"\\\n]|\\["\\n])*",?)+)\} (\S+)')


def samples(text):
    """Values by name and labels, of a text that has the exposition format."""
    values, described, last = {}, {}, ""
    for line in text.splitlines():
        if line.startswith("# "):
            word, name, rest = line[2:].split(" ", 2)
            described.setdefault(name, []).append(word)
            assert rest
            continue
        matched = SAMPLE.fullmatch(line)
        assert matched, line
        name, labels, value = matched.groups()
        assert described[name] == ["HELP", "TYPE"]
        assert name == last or name not in {key[0] for key in values}  # samples of a metric are together
        last = name
        pairs = frozenset(re.findall(r'([a-z]+)="((?:[^"\\]|\\.)*)"', labels))
        assert (name, pairs) not in values
        values[name, pairs] = float(value)
    assert text.endswith("\n")
    return values


def value(values, name, **labels):
    wanted = labels.items()
    (one,) = [n for (key, pairs), n in values.items() if key == f"fedrank_{name}" and wanted <= dict(pairs).items()]
    return one


def test_a_coordinator_counts_refusals_bytes_and_contact(home):  # noqa: F811
    run = home / "runs" / "first"
    (run / "sites.csv").write_text(SITES + "3,s0,0.25")  # the last line is being written
    contact = {"s0": NOW.timestamp() - 5}
    (run / "sites.json").write_text(
        json.dumps({"at": NOW.timestamp() - 2, "round": 2, "rounds": 30, "contact": contact})
    )
    values = samples(exposition(found(home), home, NOW.timestamp()))
    assert value(values, "site_refusals_total", site="s1") == 1
    assert value(values, "site_refusals_total", site="s0") == 0
    assert value(values, "site_seconds_total", site="s1") == 10.0
    assert value(values, "site_bytes_total", site="s0", direction="up") == 460
    assert value(values, "site_bytes_total", site="s1", direction="down") == 400
    assert value(values, "site_contact_seconds", site="s0") == NOW.timestamp() - 5
    assert value(values, "site_certificate_days", site="s1") == -2
    assert (value(values, "run_round"), value(values, "run_rounds")) == (2, 30)
    assert value(values, "last_update_seconds") == NOW.timestamp() - 2
    assert not [key for key in values if key[0] == "fedrank_site_contact_seconds" and ("site", "s1") in key[1]]
    assert "no answer" not in exposition(found(home), home)  # a reason is not a metric


def test_a_site_reports_its_budget_and_no_reasons(tmp_path):
    folder = tmp_path / "site"
    (folder / "outbox" / "run").mkdir(parents=True)
    (folder / "outbox" / "run" / "1-a").write_bytes(b"12345")
    (folder / "site.log").write_text("2026 s: Refused: patient 7\n2026 s: fine\n")
    one = DeploymentStatus("clinic-a", "clinics", True, 20, spent={"coordinator": 1.5, "partner": 2.25}, limit=8.0)
    text = exposition(one, folder)
    values = samples(text)
    assert value(values, "epsilon_spent", against="partner") == 2.25
    assert (value(values, "epsilon_limit"), value(values, "epsilon_left")) == (8.0, 5.75)
    assert (value(values, "refusals_total"), value(values, "outbox_bytes")) == (1, 5)
    assert "patient" not in text
    without = samples(exposition(replace(one, spent={"coordinator": float("inf")}), folder))
    assert (value(without, "epsilon_spent"), value(without, "epsilon_left")) == (float("inf"), 0)


def test_names_are_escaped(tmp_path):
    line = SiteLine('a"b\\c\nd', "joined")
    text = exposition(DeploymentStatus("coordinator", "x", False, None, sites=(line,)), tmp_path)
    assert 'site="a\\"b\\\\c\\nd"' in text
    samples(text)


@pytest.fixture
def site(tmp_path):
    folder = tmp_path / "site"
    folder.mkdir()
    text = site_template("clinic-a", 0, "clinics").replace("[data]", '[data]\nletor = "train.txt"')
    (folder / "site.toml").write_text(text)
    (folder / "train.txt").write_text("0 qid:1 1:1\n")
    return folder


def test_the_page_needs_the_link(site):
    pytest.importorskip("starlette")
    from tests.web.test_local_app import ask

    door = Access(8000, "fedrank test")
    app = make_app(site, door, lambda found: f"page of {found.who}", "default-src 'none'")
    assert ask(app, "GET", "/metrics")[0] == 401
    status, headers, _ = ask(app, "GET", door.link.removeprefix(door.origin))
    assert status == 303
    cookie = headers["set-cookie"].partition(";")[0]
    status, headers, body = ask(app, "GET", "/metrics", cookie=cookie)
    assert (status, headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert value(samples(body), "serving") == 0
    assert ask(app, "GET", "/", cookie=cookie)[2] == "page of clinic-a"


def test_metrics_are_written_to_a_file(site, tmp_path, monkeypatch, capsys):
    out = tmp_path / "site.prom"
    for target in (str(out), "-"):
        monkeypatch.setattr("sys.argv", ["fedrank", "deploy", "status", "--home", str(site), "--metrics", target])
        with pytest.raises(SystemExit) as end:
            main()
        assert not end.value.code
    assert capsys.readouterr().out == out.read_text()
    assert value(samples(out.read_text()), "epsilon_limit") == 8


def test_events_are_json_lines_without_reasons(capsys):
    tell = event_printer("clinic-a")
    tell("started, process 7")
    tell("round 3: train refused: patient 7 is in no query")
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["member"], first["level"], first["event"]) == ("clinic-a", "info", "started, process 7")
    assert (second["level"], second["event"]) == ("warning", "round 3: train refused")
