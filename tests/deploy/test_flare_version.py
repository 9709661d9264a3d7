"""What we lean on in the engine, by name: a new version of it is looked at here before anybody trusts it."""

from __future__ import annotations

import importlib.util
import inspect
import json
import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

pytest.importorskip("nvflare", reason="the engine is the extra fedrank[deploy]")

import yaml
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.job_def import RunStatus
from nvflare.app_common.widgets import component_path_authorizer as classes
from nvflare.fuel.f3.comm_config import VarName
from nvflare.fuel.flare_api import api_spec
from nvflare.fuel.flare_api.flare_api import Session, new_secure_session
from nvflare.private.fed.app import utils
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors
from nvflare.private.fed.server import fed_server, server_engine
from nvflare.security.security import COMMAND_CATEGORIES

from fedrank.deploy import flare_hardening, flare_jobs, flare_processes, flare_session

PINNED = r"nvflare>=2\.9,<2\.10"


def test_the_engine_is_one_of_the_versions_that_were_attacked():
    listed = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert any(re.fullmatch(PINNED, line) for line in listed["project"]["optional-dependencies"]["deploy"])
    found = tuple(map(int, metadata.version("nvflare").split(".")[:2]))
    assert found == (2, 9), (
        f"nvflare {metadata.version('nvflare')} was never attacked: read this file's other tests, run tests/deploy and "
        "`make chaos` against it, then raise the pin in pyproject.toml and here"
    )


def test_every_right_is_known():
    """A right that we do not name would keep the engine's default, which is open."""
    assert set(COMMAND_CATEGORIES.values()) <= set(flare_hardening.RIGHTS)
    templates = Path(importlib.util.find_spec("nvflare").submodule_search_locations[0]) / "lighter" / "templates"
    usual = yaml.safe_load((templates / "master_template.yml").read_text())["default_authz"]
    permissions = json.loads(usual)["permissions"]
    assert set(permissions) == set(flare_hardening.ROLES)
    assert {right for allowed in permissions.values() if allowed != "any" for right in allowed} <= set(
        flare_hardening.RIGHTS
    )


def test_what_a_site_answers_is_a_small_part_of_what_the_engine_would():
    there = {type(one).__name__ for one in ClientRequestProcessors.request_processors}
    assert set(flare_hardening.ANSWERED_BY_A_SITE) <= there
    assert not {"ShellCommandProcessor", "SysInfoProcessor", "ConfigureSiteLogProcessor", "ClientInfoProcessor"} & set(
        flare_hardening.ANSWERED_BY_A_SITE
    )
    assert len(there) == 20, f"new questions that a server may ask: {sorted(there)}; are any of them needed?"


def test_the_settings_that_close_a_kit_have_their_names():
    assert classes.CLASS_ALLOW_LIST == "class_allow_list"
    assert classes.CLASS_LIST_ENFORCEMENT_MODE == "class_list_enforcement_mode"
    names = {value for name, value in vars(VarName).items() if name.isupper()}
    assert set(flare_hardening._communication()) <= names
    assert "disabled_clients.json" in inspect.getsource(fed_server)


def test_processes_are_modules_whose_jobs_end_with_them():
    for module in (flare_processes.SERVER, flare_processes.CLIENT):
        assert importlib.util.find_spec(module) is not None
    assert inspect.isfunction(utils.monitor_parent_process)
    assert inspect.isfunction(utils.check_parent_alive)


def test_bytes_travel_by_aux_requests():
    words = list(inspect.signature(server_engine.ServerEngine.send_aux_request).parameters)
    assert words[:6] == ["self", "targets", "topic", "request", "timeout", "fl_ctx"]
    assert {"OK", "TIMEOUT", "COMMUNICATION_ERROR", "TASK_UNKNOWN"} <= set(vars(ReturnCode))
    assert {"START_RUN", "END_RUN"} <= set(vars(EventType))
    assert {"WORKSPACE_OBJECT", "JOB_META"} <= set(vars(FLContextKey))


def test_a_session_knows_our_questions():
    assert "submit_token" in inspect.signature(Session.submit_job).parameters
    assert "timeout" in inspect.signature(new_secure_session).parameters
    for name in ("get_job_meta", "abort_job", "get_system_info", "do_command"):
        assert callable(getattr(Session, name))
    for name in flare_session.REFUSALS:
        assert issubclass(getattr(api_spec, name), Exception)


def test_states_of_jobs_begin_as_we_think():
    ended = {state.value for state in RunStatus if state.name.startswith("FINISHED")}
    assert all(value.startswith(flare_jobs.ENDED) for value in ended)
    assert RunStatus.RUNNING.value == flare_jobs.RUNNING
