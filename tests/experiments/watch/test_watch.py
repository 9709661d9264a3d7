"""What the page on runs knows, and whom it answers."""

from __future__ import annotations

import math
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedrank.experiments.runner.runs import load_runs
from fedrank.experiments.watch.state import MAX_LOG_LENGTH, Watched, charts, log_of, preview
from tests.experiments.report.made_up_runs import write_run
from tests.experiments.watch.served import BAD, WatchedPage, finish, grow, running, served, write_folders

pytest.importorskip("starlette", reason="pip install 'fedrank[watch]'")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedPage]:
    out = tmp_path_factory.mktemp("watch") / "runs"
    write_folders(out)
    with served(out) as one:
        yield one


def test_states_and_time_left_by_hand(tmp_path: Path) -> None:
    write_folders(tmp_path / "runs")
    now = [0.0]
    watched = Watched((tmp_path / "runs",), clock=lambda: now[0])
    first, second = watched.look()
    assert (first.name, first.counts["finished"], first.counts["not begun"]) == ("first", 12, 0)
    assert (second.counts["finished"], second.counts["failed"], second.counts["not begun"]) == (4, 1, 1)
    assert math.isnan(second.seconds_left), "nobody is working on it"
    with running(tmp_path / "runs", "second", "median", 2, 3, round=10) as folder:
        assert watched.look() == (first, second), "a look is good for a second"
        now[0] = 1.5
        second, _ = watched.look()
        assert (second.name, second.counts["running"], second.counts["not begun"]) == ("second", 1, 0)
        (one,) = [one for one in second.runs if one.run.status == "running"]
        assert (one.run.round, one.run.asked) == (10, 40)
        assert one.seconds_left == 2.0 * 30
        assert second.seconds_left == 60.0
        assert second.done == pytest.approx((4 + 7 / 40 + 10 / 40) / 6)
        assert len(_line(charts([second]), "fold 2, seed 3")["rounds"]) == 5
        grow(folder, 10)
        assert len(_line(charts([second]), "fold 2, seed 3")["rounds"]) == 10
        finish(folder)
    now[0] = 3.0
    assert {one.name: one.counts["finished"] for one in watched.look()}["second"] == 5


def test_what_has_not_begun_takes_as_long_as_the_others(tmp_path: Path) -> None:
    write_folders(tmp_path / "runs")
    shutil.rmtree(tmp_path / "runs" / "second" / "median" / "fold-1-seed-3")
    with running(tmp_path / "runs", "second", "median", 2, 3):
        second, _ = Watched((tmp_path / "runs",)).look()
        assert (second.counts["running"], second.counts["not begun"]) == (1, 1)
        assert second.seconds_left == pytest.approx(60 + (4 * 0.8 + 80) / 5)


def test_a_run_whose_process_ended_is_interrupted(tmp_path: Path) -> None:
    with running(tmp_path, "second", "median", 2, 3):
        pass
    (experiment,) = Watched((tmp_path,)).look()
    assert experiment.counts["interrupted"] == 1
    assert math.isnan(experiment.seconds_left)


def test_a_folder_that_disappears_is_an_empty_page(tmp_path: Path) -> None:
    assert Watched((tmp_path / "gone",)).look() == ()


def test_of_many_runs_the_farthest_of_each_variant_is_drawn(tmp_path: Path) -> None:
    for seed in range(1, 30):
        write_run(tmp_path, "many", "only", seed=seed)
    (many,) = Watched((tmp_path,)).look()
    assert [len(chart["lines"]) for chart in charts([many])] == [1, 1, 1]


def test_the_overview_has_the_best_variant_and_a_curve_of_each(tmp_path: Path) -> None:
    for variant, final in (("low", 0.2), ("high", 0.7), ("middle", 0.5)):
        for seed in (1, 2):
            folder = write_run(tmp_path, "three", variant, seed=seed)
            rows = ["round,online,ndcg@10", "1,,0.1", f"2,,{final - 0.01 * seed}"]
            (folder / "rounds.csv").write_text("\n".join(rows) + "\n")
    (three,) = Watched((tmp_path,)).look()
    measure, variant, value = three.best
    assert (measure, variant) == ("ndcg@10", "high")
    assert value == pytest.approx(sum(one.quality for one in three.variants["high"]) / 2)
    lines = {line["name"]: line["points"] for line in preview(three)}
    assert set(lines) == {"low", "high", "middle"}
    assert lines["high"] == "0.0,30.0 120.0,2.0"  # from the lowest value of all curves to the highest


def test_the_overview_of_a_run_without_evaluations_has_no_curve(tmp_path: Path) -> None:
    folder = write_run(tmp_path)
    (folder / "rounds.csv").write_text("round,online\n")
    (one,) = Watched((tmp_path,)).look()
    assert math.isnan(one.best[2])
    assert preview(one) == []


def test_a_run_that_cannot_be_read_is_shown_as_broken(tmp_path: Path) -> None:
    folder = write_run(tmp_path)
    (folder / "rounds.csv").write_text("round,online\n1,half of a ro")
    (experiment,) = Watched((tmp_path,)).look()
    assert experiment.counts["broken"] == 1
    assert charts([experiment]) == []


def _line(found: list[dict], name: str) -> dict:
    (line,) = [line for line in found[0]["lines"] if line["name"].endswith(name)]
    return line


def test_numbers_that_are_none_do_not_end_the_page(tmp_path: Path) -> None:
    folder = write_run(tmp_path, "first", "mean", status="running", round=0, rounds=40)
    (folder / "rounds.csv").write_text("round,online,interactions,ndcg@10\n1,0.2,5,0.5\n2,inf,inf,0.6\ninf,0.3,9,0.7\n")
    (experiment,) = Watched((tmp_path,)).look()
    assert [one.run.round for one in experiment.runs] == [0]
    assert [chart["lines"][0]["rounds"] for chart in charts([experiment])] == [[1], [1]]


def test_of_a_log_the_end_is_shown_and_nothing_that_lies_elsewhere(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "runs", status="failed")
    (run,) = load_runs(tmp_path / "runs")
    (folder / "traceback.txt").write_bytes(b"\xff" * 3 * MAX_LOG_LENGTH + b"\nKeyError: 1\n")
    assert log_of(run).endswith("KeyError: 1\n")
    assert len(log_of(run)) == MAX_LOG_LENGTH
    (folder / "traceback.txt").unlink()
    (tmp_path / "elsewhere").write_text("secret")
    (folder / "traceback.txt").symlink_to(tmp_path / "elsewhere")
    assert log_of(run) == ""


def test_pages(site: WatchedPage) -> None:
    with site.browser() as browser:
        text = browser.get("/").text
        ids = re.findall(r'/experiments/(\w+)">(\w+)<', text)
        assert [name for _, name in ids] == ["first", "second"]
        assert "12 finished" in text
        assert "1 failed" in text
        assert BAD not in text
        compared = browser.get("/compare", params={"e": [id for id, _ in ids]}).text
        assert compared.count("<h2>") == 3
        assert BAD not in compared
        (failed,) = re.findall(r'/runs/(\w+)">second', text)
        shown = browser.get(f"/runs/{failed}").text
        assert "ValueError: no such luck" in shown
        assert BAD not in shown
        assert "&lt;script&gt;alert(1)" in shown


@pytest.mark.long
def test_a_report_opens_and_has_a_policy_of_its_own(site: WatchedPage) -> None:
    with site.browser() as browser:
        ids = re.findall(r'name="e" value="(\w+)"', browser.get("/").text)
        answer = browser.get("/report", params={"e": ids})
        assert answer.status_code == 200
        assert "first and second, compared" in answer.text
        policy = answer.headers["content-security-policy"]
        assert re.search(r"script-src 'sha256-[^']+'", policy)
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert policy.split("; frame-ancestors")[0] in answer.text


def test_what_is_not_there(site: WatchedPage) -> None:
    with site.browser() as browser:
        for path in ("/nowhere", "/experiments/0", "/runs/../../etc/passwd", "/compare", "/report?e=x", "/style.css/"):
            assert browser.get(path).status_code == 404, path
        assert browser.post("/", headers={"origin": site.origin}).status_code == 405


def test_no_report_before_a_run_is_finished(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    with running(tmp_path / "runs", "new", "only", 1, 1), served(tmp_path / "runs") as site, site.browser() as browser:
        (id,) = re.findall(r'name="e" value="(\w+)"', browser.get("/").text)
        answer = browser.get("/report", params={"e": id})
        assert answer.status_code == 409
        assert "none of 1 runs is finished" in answer.text


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"cookie": "mine"}, 200),
        ({"cookie": "mine", "host": "localhost"}, 421),
        ({"cookie": "mine", "host": "evil.example"}, 421),
        ({"cookie": "mine", "sec-fetch-site": "cross-site"}, 403),
        ({"cookie": "mine", "sec-fetch-site": "same-site"}, 403),
        ({"cookie": "mine", "sec-purpose": "prefetch"}, 503),
    ],
)
def test_the_guard_is_that_of_the_search_page(site: WatchedPage, headers: dict[str, str], status: int) -> None:
    import httpx

    from fedrank.web.local_app import HEADERS

    sent = {
        key: f"{site.door.cookie}={site.door._session}" if value == "mine" else value for key, value in headers.items()
    }
    answer = httpx.get(f"{site.origin}/", headers=sent, trust_env=False)
    assert answer.status_code == status
    assert {name: answer.headers[name] for name in HEADERS} == HEADERS


@pytest.mark.process
def test_the_command_prints_a_link_and_ends_in_order(tmp_path: Path) -> None:
    write_run(tmp_path / "runs")
    command = [sys.executable, "-m", "fedrank", "watch", str(tmp_path / "runs"), "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"COLUMNS": "200"}) as process:
        assert process.stdout is not None
        assert re.match(r"Open http://127\.0\.0\.1:\d+/enter/[\w-]{43}$", process.stdout.readline().strip())
        process.send_signal(signal.SIGTERM)
        assert "the runs continue" in process.stdout.read()
        assert process.wait(20) == 0
    done = subprocess.run([*command[:-2], str(tmp_path / "none")], capture_output=True, text=True)
    assert done.returncode != 0
    assert "no folder" in done.stderr
