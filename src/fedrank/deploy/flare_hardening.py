"""Permissions of a kit. With NVFLARE's default settings, the operator of the server could run code at every site.

A site allows one class, `SiteExecutor`. No role may send code, read files or operate a site, and logs are not sent.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from fedrank.files import parse_json, read_text, write_atomic

MAX_MESSAGE = 64 << 20  # bytes
EXECUTOR, CONTROLLER = "fedrank.deploy.flare.SiteExecutor", "fedrank.deploy.flare.HubController"
ROLES = ("project_admin", "org_admin", "lead", "member")
# All rights that NVFLARE checks; a right that is missing here would be granted to some role.
RIGHTS = (
    *("submit_job", "clone_job", "manage_job", "download_job", "view", "operate", "shell_commands", "byoc"),
    "server-predeployed-flwr",
)
LEADS = ("project_admin", "lead")  # roles that may start a run
HEARTBEAT = 2  # seconds: how soon a site notices that the server dropped a job
SILENT = 30  # seconds without a heartbeat until the server considers a site gone

# What a server may request from a site's main process: starting and ending a job. A modified server could skip
# NVFLARE's permission check, so the other request handlers are removed at the site.
ANSWERED_BY_A_SITE = (
    *("CheckResourceProcessor", "CancelResourceProcessor", "DeployProcessor", "StartJobProcessor"),
    *("AbortAppProcessor", "DeleteRunNumberProcessor", "NotifyJobStatusProcessor"),
)


def harden(kit: Path) -> None:
    """Restrict the permissions of an NVFLARE kit, and remove other ways to start it."""
    local = kit / "local"
    server = (kit / "startup" / "fed_server.json").exists()
    found = parse_json((local / "resources.json.default").read_bytes())
    resources = _of_server(found, kit) if server else _of_site(found)
    rights = {role: _rights(role, server) for role in ROLES}
    _write(local / "resources.json", resources)
    _write(local / "authorization.json", {"format_version": "1.0", "permissions": rights})
    _write(local / "comm_config.json", _communication())
    _write(local / "log_config.json", _logging(parse_json((local / "log_config.json.default").read_bytes())))
    for pattern in ("*.default", "*.sample"):  # they would contradict the settings above
        for path in local.glob(pattern):
            path.unlink()
    strip(kit)


def outdated_classes(kit: Path) -> list[str]:
    """Classes that a kit allows but this version of fedrank does not have; ValueError if the kit is unreadable."""
    path = kit / "local" / "resources.json"
    try:
        resources = parse_json(read_text(path))
    except FileNotFoundError:  # an administrator's kit, or not hardened yet
        return []
    except ValueError as problem:
        raise ValueError(f"{path} cannot be read ({problem})") from None
    allowed = resources.get("class_allow_list", []) if isinstance(resources, dict) else None
    if not isinstance(allowed, list) or not all(isinstance(name, str) for name in allowed):
        raise ValueError(f"{path} cannot be read (class_allow_list is not a list of names)")
    return [name for name in allowed if name.startswith("fedrank.") and name not in (EXECUTOR, CONTROLLER)]


def rename_classes(kit: Path) -> None:
    """Replace the classes that a kit of another version allows by those of this version."""
    if outdated_classes(kit):
        path = kit / "local" / "resources.json"
        server = (kit / "startup" / "fed_server.json").exists()
        _write(path, parse_json(read_text(path)) | {"class_allow_list": [CONTROLLER if server else EXECUTOR]})


def strip(kit: Path) -> None:
    """Remove NVFLARE's scripts: they start background processes without checks."""
    for path in (kit / "startup").iterdir():
        if path.suffix in (".sh", ".ipynb") or path.name == "readme.txt":
            path.unlink()
    (kit / "readme.txt").unlink(missing_ok=True)
    shutil.rmtree(kit / "transfer", ignore_errors=True)


def _rights(role: str, server: bool) -> dict[str, str]:
    """Rights of a role: start a run, and at the server view runs and end one's own."""
    allowed: dict[str, str] = {}
    if role in LEADS:
        allowed["submit_job"] = "any"
        if server:
            allowed |= {"view": "any", "manage_job": "n:submitter"}
    return {right: allowed.get(right, "none") for right in RIGHTS}


def _of_site(resources: dict[str, Any]) -> dict[str, Any]:
    resources |= {"class_allow_list": [EXECUTOR], "class_list_enforcement_mode": "enforce"}
    resources |= {"allow_log_streaming": False}
    resources["components"] = [one for one in resources["components"] if one["id"] != "site_log_streamer"]
    return resources


def _of_server(resources: dict[str, Any], kit: Path) -> dict[str, Any]:
    store = kit.absolute() / "store"  # the default is a temporary folder that all users share
    resources |= {"class_allow_list": [CONTROLLER], "class_list_enforcement_mode": "enforce"}
    resources["servers"][0] |= {"heart_beat_timeout": SILENT}
    storage = resources["snapshot_persistor"]["args"]["storage"]
    storage["args"]["root_dir"] = str(store / "snapshots")
    resources["components"] = [one for one in resources["components"] if one["id"] != "log_receiver"]
    for one in resources["components"]:
        if one["id"] == "job_manager":
            one["args"]["uri_root"] = str(store / "jobs")
        elif one["id"] == "job_scheduler":
            one["args"] |= {"min_schedule_interval": 1.0, "max_schedule_interval": 2.0, "max_schedule_count": 1000}
    return resources


def _communication() -> dict[str, Any]:
    """Limits on both sides, because each protects itself; without a limit, 1.5 GB were accepted."""
    return {
        "streaming_max_blob_size": MAX_MESSAGE,
        "max_message_size": MAX_MESSAGE,
        "streaming_retry_timeout": 10.0,  # each message has a timer with this lifetime
        "allow_adhoc_conns": False,
    }


def _logging(config: dict[str, Any]) -> dict[str, Any]:
    """One log file of limited size besides the errors: NVFLARE writes every line four times."""
    kept = ["logFileHandler", "errorFileHandler"]
    config["handlers"] = {name: config["handlers"][name] for name in kept}
    for handler in config["handlers"].values():
        handler |= {"maxBytes": 4 << 20, "backupCount": 2}
    config["loggers"]["root"]["handlers"] = kept
    return config


def _write(path: Path, content: dict[str, Any]) -> None:
    write_atomic(path, json.dumps(content, indent=2) + "\n", private=True)
