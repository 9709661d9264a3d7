"""The privacy filter in a real NVFLARE federation: what arrives at the server is noised and paid for."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="the engine is the extra fedrank[deploy]")

from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.app_common.widgets.convert_to_fed_event import ConvertToFedEvent

from fedrank.deploy.flare_filter import NothingToOtherSites, PrivacyFilter, install, policy
from fedrank.deploy.flare_local import provision_locally, running_locally
from fedrank.deploy.flare_session import Coordinator
from fedrank.privacy.updates import PrivateUpdates
from tests import needs
from tests.deploy.flare_trainer import CLIP, PEOPLE, RECORDER, TORCH_TRAINER, TRAINER, TRUE

ROOT = Path(__file__).parents[2]
ROUNDS = 2
ALLOWED = {"allow_log_streaming": False, "class_allow_list": [TRAINER], "class_list_enforcement_mode": "enforce"}


def settings(folder: Path, **changes) -> Path:
    folder.mkdir(exist_ok=True, parents=True)
    values = {
        "unit": '"site"',
        "shapes": "{ w = [2, 3] }",
        "clip": CLIP,
        "epsilon": 4.0,
        "rounds": ROUNDS,
        "sites": 2,
    } | changes
    path = folder / "filter.toml"
    path.write_text("".join(f"{key} = {value}\n" for key, value in values.items()))
    return path


class Engine:
    def __init__(self, **components) -> None:
        self.components = components

    def get_all_components(self):
        return self.components


def context(**components) -> FLContext:
    found = FLContext()
    found.set_prop("__engine__", Engine(**components), private=True, sticky=False)
    return found


def sent(filter_: PrivacyFilter, dxo: DXO, found: FLContext | None = None) -> Shareable:
    return filter_.process(dxo.to_shareable(), found or context())


def difference(**meta) -> DXO:
    return DXO(DataKind.WEIGHT_DIFF, {"w": np.full((2, 3), TRUE, np.float32)}, meta)


def test_only_a_noised_difference_and_a_constant_leave(tmp_path):
    filter_ = PrivacyFilter(str(settings(tmp_path)))
    told = difference(**{MetaKey.NUM_STEPS_CURRENT_ROUND: 4711, MetaKey.INITIAL_METRICS: {"patients": 17}})
    content = told.to_shareable()
    content["patients"] = "17"
    told.data |= {"patient 17": np.zeros((17, 0)), "counter": np.array([17])}
    content.set_header("patients", 17)
    found = filter_.process(content, context())
    assert list(from_shareable(found).data) == ["w"]
    assert "17" not in str(found).replace(str(from_shareable(found).data), "")
    dxo = from_shareable(found)
    assert dxo.meta == {MetaKey.NUM_STEPS_CURRENT_ROUND: 1}
    assert dxo.data["w"].shape == (2, 3)
    assert not np.allclose(dxo.data["w"], TRUE)
    assert max(filter_.updates.population.spent().values()) == pytest.approx(
        filter_.updates.settings.guarantee(filter_.updates.settings.noise).epsilon(1, 1e-6)
    )


@pytest.mark.parametrize(
    "dxo",
    [
        DXO(DataKind.WEIGHTS, {"w": np.zeros((2, 3))}),
        DXO(DataKind.METRICS, {"auc": 0.7}),
        DXO(DataKind.COLLECTION, {"a": difference()}),
        DXO(DataKind.WEIGHT_DIFF, {"w": np.zeros(7)}),
        DXO(DataKind.WEIGHT_DIFF, {"w": "text"}),
        DXO(DataKind.WEIGHT_DIFF, {"w": np.zeros((2, 3), np.float16)}),
        DXO(DataKind.WEIGHT_DIFF, {"v": np.zeros((2, 3))}),
        difference(**{MetaKey.PROCESSED_ALGORITHM: "he"}),
    ],
    ids=["model", "metrics", "collection", "size", "text", "half", "name", "encrypted"],
)
def test_other_results_are_refused_and_cost_nothing(tmp_path, dxo):
    filter_ = PrivacyFilter(str(settings(tmp_path)))
    found = sent(filter_, dxo)
    assert found.get_return_code() == ReturnCode.TASK_RESULT_FILTER_ERROR
    assert "DXO" not in found
    assert filter_.updates.population.spent() == {}


def test_errors_leave_without_their_content(tmp_path):
    failed = make_reply(ReturnCode.EXECUTION_EXCEPTION)
    failed["why"] = "patient 17"
    found = PrivacyFilter(str(settings(tmp_path))).process(failed, context())
    assert found.get_return_code() == ReturnCode.EXECUTION_EXCEPTION
    assert "why" not in found
    for code in ("patient 17", ReturnCode.TASK_ABORTED):
        failed.set_return_code(code)
        found = PrivacyFilter(str(settings(tmp_path))).process(failed, context())
        assert found.get_return_code() == ReturnCode.EXECUTION_EXCEPTION


def test_nothing_goes_from_site_to_site():
    with pytest.raises(ValueError, match="no task go to other sites"):
        NothingToOtherSites().process(difference().to_shareable(), context())


def test_a_ledger_that_lost_charges_stops_the_site(tmp_path):
    path = settings(tmp_path)
    assert sent(PrivacyFilter(str(path)), difference()).get_return_code() == ReturnCode.OK
    [run] = [one for one in (tmp_path / "ledger/site").iterdir() if one.is_dir()]
    shutil.rmtree(run)
    assert sent(PrivacyFilter(str(path)), difference()).get_return_code() == ReturnCode.TASK_RESULT_FILTER_ERROR


def test_a_job_that_forwards_events_is_refused(tmp_path):
    filter_ = PrivacyFilter(str(settings(tmp_path)))
    found = sent(filter_, difference(), context(metrics=ConvertToFedEvent(["analytix_log_stats"])))
    assert found.get_return_code() == ReturnCode.TASK_RESULT_FILTER_ERROR


def test_the_limit_holds_over_jobs_and_restarts(tmp_path):
    path = settings(tmp_path)
    for job in range(ROUNDS + 2):
        found = context()
        found.set_prop("__run_num__", f"job-{job}", private=True, sticky=False)
        code = sent(PrivacyFilter(str(path)), difference(), found).get_return_code()
        assert (code == ReturnCode.OK) == (job < ROUNDS)
    assert max(PrivateUpdates.open(path).population.spent().values()) <= 4.0
    settings(tmp_path, epsilon=40.0)  # a larger limit does not make spent privacy unspent
    with pytest.raises(ValueError, match="limit of ε = 4"):
        _ = PrivateUpdates.open(path).population


def test_the_policy_has_one_scope_and_is_not_overwritten(tmp_path):
    path, kit = settings(tmp_path), tmp_path / "kit"
    with pytest.raises(FileNotFoundError, match="NVFLARE site"):
        install(path, kit)
    (kit / "local").mkdir(parents=True)
    resources = kit / "local/resources.json"
    for content, problem in (
        ({}, "allow_log_streaming"),
        ({"allow_log_streaming": False}, "class_allow_list"),
        (ALLOWED | {"class_allow_list": ["nvflare.*"]}, "list single classes"),
        (ALLOWED | {"class_allow_list": [TRAINER, "nvflare."]}, r"has 'nvflare\.'.* list single classes"),
        (ALLOWED | {"class_allow_list": ["nvflare.app_common.widgets"]}, "list single classes"),
        (ALLOWED | {"class_allow_list": ["nvflare.widgets.ConvertToFedEvent"]}, "list single classes"),
    ):
        resources.write_text(json.dumps(content))
        with pytest.raises(ValueError, match=problem):
            install(path, kit)
    resources.write_text(json.dumps(ALLOWED))
    closed = {"submit_job": "any", "byoc": "none", "shell_commands": "o:site"}
    rights = kit / "local/authorization.json"
    for permissions, problem in (
        (None, "NVFLARE's default lets a job bring its own code"),
        ({"lead": closed, "project_admin": "any"}, "'project_admin' has the right byoc"),
        ({"lead": {"submit_job": "any", "BYOC": "o:site"}}, "'lead' has the right byoc"),
        ({"lead": closed | {"shell_commands": "any"}}, "'lead' has the right shell_commands"),
    ):
        if permissions is not None:
            rights.write_text(json.dumps({"permissions": permissions}))
        with pytest.raises(ValueError, match=problem):
            install(path, kit)
    rights.write_text(json.dumps({"permissions": {"lead": closed, "member": {"view": "any"}}}))
    written = install(path, kit)
    assert json.loads(written.read_text()) == policy(path)
    [scope] = policy(path)["scopes"]
    assert [one["path"] for one in scope["task_result_filters"]] == ["fedrank.deploy.flare_filter.PrivacyFilter"]
    assert [one["direction"] for one in scope["task_data_filters"]] == ["out"]
    assert install(path, kit) == written
    assert len(json.dumps(policy(path), indent=2).splitlines()) + len(path.read_text().splitlines()) <= 30
    written.write_text('{"scopes": []}')
    with pytest.raises(FileExistsError, match="merge it by hand"):
        install(path, kit)


def job(folder: Path, sites, file: Path, people: int, trainer: str) -> Path:
    shape = [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    server = {
        "format_version": 2,
        "workflows": [
            {
                "id": "scatter",
                "path": "nvflare.app_common.workflows.scatter_and_gather.ScatterAndGather",
                "args": {"min_clients": len(sites), "num_rounds": ROUNDS, "persistor_id": "persistor"},
            }
        ],
        "components": [
            {"id": "aggregator", "path": RECORDER, "args": {"file": str(file)}},
            {
                "id": "persistor",
                "path": "nvflare.app_common.np.np_model_persistor.NPModelPersistor",
                "args": {"model": shape},
            },
            {
                "id": "shareable_generator",
                "path": "nvflare.app_common.shareablegenerators.full_model_shareable_generator"
                ".FullModelShareableGenerator",
                "args": {},
            },
        ],
    }
    executor = {"tasks": ["train"], "executor": {"path": trainer, "args": {"people": people}}}
    client = {"format_version": 2, "executors": [executor], "components": []}
    meta = {
        "name": folder.name,
        "resource_spec": {},
        "min_clients": len(sites),
        "deploy_map": {"server": ["server"], "site": list(sites)},
    }
    for path, content in {
        "meta.json": meta,
        "server/config/config_fed_server.json": server,
        "site/config/config_fed_client.json": client,
    }.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(json.dumps(content))
    return folder


@pytest.mark.process
@pytest.mark.parametrize("trainer", [TRAINER, TORCH_TRAINER], ids=["numpy", "torch"])
def test_a_job_of_somebody_else_sends_only_what_the_policies_of_sites_allow(tmp_path, monkeypatch, trainer):
    if trainer == TORCH_TRAINER:
        pytest.importorskip("torch", reason=needs.reason("torch", "PyTorch is not installed"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]))
    found = provision_locally(tmp_path / "federation", {"clinic-a": 0, "clinic-b": 1})
    for home in (found.home, *found.sites.values()):
        path = home / "kit/local/resources.json"
        allowed = ALLOWED | {"class_allow_list": [trainer]} if home != found.home else {"class_allow_list": ["*"]}
        path.write_text(json.dumps(json.loads(path.read_text()) | allowed))
    files = {}
    for name, home in found.sites.items():
        files[name] = settings(home / "privacy", unit='"person"', people=PEOPLE, shapes="{ numpy_key = [2, 3] }")
        install(files[name], home / "kit")
    with running_locally(found), Coordinator(found.home) as server:
        assert server.connect()
        arrived = tmp_path / "arrived.jsonl"
        ends(server, server.submit(job(tmp_path / "honest", found.sites, arrived, PEOPLE, trainer), "honest"))
        rows = [json.loads(line) for line in arrived.read_text().splitlines()]
        assert len(rows) == len(found.sites) * ROUNDS
        for row in rows:
            assert set(row["meta"]) <= {MetaKey.NUM_STEPS_CURRENT_ROUND}
            values = np.concatenate([np.ravel(one) for one in row["update"].values()])
            assert not np.any(values == np.float32(TRUE))
            assert np.abs(values - TRUE).max() < 0.1  # 2,000 people hide each other behind little noise
        for path in files.values():
            assert 3.9 < max(PrivateUpdates.open(path).population.spent().values()) <= 4.0
        later = tmp_path / "later.jsonl"  # the privacy of the people is spent, and a trainer without PersonSum
        ends(server, server.submit(job(tmp_path / "second", found.sites, later, PEOPLE, trainer), "second"))
        ends(server, server.submit(job(tmp_path / "whole", found.sites, later, 0, trainer), "whole"))
        assert not later.exists()


def ends(server: Coordinator, id: str) -> None:
    deadline = time.monotonic() + 240
    while not server.state(id)[0].startswith("FINISHED"):
        assert time.monotonic() < deadline
        time.sleep(1)
