"""The systemd unit, the Dockerfile and the compose file: what they allow a member to do."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedrank.cli import app
from fedrank.deploy.flare_processes import unit
from fedrank.deploy.metrics import exposition
from fedrank.deploy.settings import site_template
from fedrank.deploy.status import DeploymentStatus
from fedrank.deploy.transport import store_shared_folder
from tests import needs

FILES = Path(__file__).parents[2] / "examples" / "containers"
EXPOSURE = 3.0  # systemd's rating of a unit, from 0 to 10; below 3 is "OK" or better


@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    folder = tmp_path / "clinic-a"
    folder.mkdir()
    text = site_template("clinic-a", 0, "clinics").replace("[data]", '[data]\nletor = "train.txt"')
    (folder / "site.toml").write_text(text)
    (folder / "train.txt").write_text("0 qid:1 1:1\n")
    return folder


def writable(text):
    (line,) = re.findall("^ReadWritePaths=(.*)$", text, re.MULTILINE)
    return re.findall('"([^"]*)"', line)


def test_a_unit_writes_to_its_folder_and_to_the_second_place(site, tmp_path):
    second = tmp_path / "state" / "fedrank" / "heads"
    assert writable(unit(site)) == [str(site), str(second)]
    assert second.is_dir()  # systemd starts no unit whose paths do not exist
    store_shared_folder(site, tmp_path / "shared")
    assert writable(unit(site)) == [str(site), str(tmp_path / "shared"), str(second)]
    assert writable(unit(tmp_path)) == [str(tmp_path)]  # a coordinator has no second place


@pytest.mark.process
def test_systemd_accepts_the_unit_and_rates_it(site, tmp_path):
    if shutil.which("systemd-analyze") is None:
        needs.skip("system", "systemd-analyze was not found")
    path = tmp_path / "fedrank-site.service"
    path.write_text(unit(site, user="daemon"))
    done = subprocess.run(["systemd-analyze", "verify", path], capture_output=True, text=True, check=False)
    assert "fedrank-site" not in done.stderr, done.stderr
    rated = subprocess.run(
        ["systemd-analyze", "security", "--offline=yes", path], capture_output=True, text=True, check=False
    )
    (level,) = re.findall(r"exposure level for fedrank-site.service: ([\d.]+)", rated.stdout)
    assert float(level) < EXPOSURE, rated.stdout


def test_the_image_runs_as_a_user_without_rights_and_checks_its_health(tmp_path):
    text = (FILES / "Dockerfile").read_text()
    final = text[text.rindex("\nFROM ") :]
    (user,) = re.findall(r"^USER (\d+):\d+$", final, re.MULTILINE)
    assert int(user) >= 1000
    assert "COPY --from=build" in final  # sources and build tools stay behind
    assert "--invalidation-mode unchecked-hash" in text  # copied modules are not compiled at every start
    (pattern,) = re.findall(r"^HEALTHCHECK[^|]*--metrics - \| grep -q '([^']*)'$", final, re.MULTILINE)
    running = DeploymentStatus("clinic-a", "clinics", True, None)
    for serves in (True, False):
        metrics = exposition(replace(running, serves=serves), tmp_path)
        assert bool(re.search(pattern.replace("{", r"\{").replace("}", r"\}"), metrics, re.MULTILINE)) is serves


def test_the_command_of_the_image_exists():
    (words,) = re.findall(r"^CMD (\[.*\])$", (FILES / "Dockerfile").read_text(), re.MULTILINE)
    done = CliRunner().invoke(app, [*json.loads(words), "--help"])
    assert done.exit_code == 0, done.output


def test_every_service_of_the_compose_file_is_confined():
    yaml = pytest.importorskip("yaml")
    content = yaml.safe_load((FILES / "compose.yml").read_text())
    assert sorted(content["services"]) == ["clinic-a", "clinic-b", "clinic-c", "coordinator"]
    mounted = []
    for name, service in content["services"].items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert service["user"] == "10001:10001"
        assert "ports" not in service  # a site opens no port; the coordinator's is inside the network
        mounted += [volume.split(":")[0] for volume in service["volumes"]]
        assert all(volume.endswith(":ro") for volume in service["volumes"] if "/data" in volume)
    assert len(set(mounted)) == len(mounted)  # members share no folder
