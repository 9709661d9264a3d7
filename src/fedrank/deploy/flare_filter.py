"""A privacy filter for NVFLARE jobs: every task result that leaves a site is clipped, charged and noised, or refused.

It is in the site's own policy (`local/privacy.json`), so a job can neither remove it nor choose another scope. Only a
weight difference leaves, without its metadata, and nothing goes from site to site. Events, logs and messages of a job's
own code do not pass through filters: `install` demands a list of allowed classes without those that send them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.filter import Filter
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply

from fedrank.files import parse_json, read_text, write_atomic
from fedrank.privacy.updates import PrivateUpdates

SETTINGS, POLICY = "filter.toml", "privacy.json"
# Classes that send what no filter sees: events, logs, metrics, messages between sites.
FORWARDS = ("ConvertToFedEvent", "LogStreamer", "SiteLogStreamer", "JobLogStreamer", "MetricRelay")

# Rights that go around filters, and who may have them: code of a job, and reading files of the site from the server.
CLOSED = {"byoc": ("none", "no"), "shell_commands": ("none", "no", "o:site")}


class PrivacyFilter(Filter):  # type: ignore[misc]  # NVFLARE has no types
    """Protects the results of all tasks of a site by the settings in a `filter.toml`."""

    def __init__(self, settings: str) -> None:
        super().__init__()
        self.updates = PrivateUpdates.open(Path(settings))

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        if shareable.get_return_code() != ReturnCode.OK:  # the code and the content of an error may quote data
            return make_reply(ReturnCode.EXECUTION_EXCEPTION)
        try:
            return self._protected(shareable, fl_ctx)
        except ValueError as problem:
            self.log_error(fl_ctx, f"this result does not leave the site: {problem}", fire_event=False)
            return make_reply(ReturnCode.TASK_RESULT_FILTER_ERROR)

    def _protected(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        _refuse_forwarding(fl_ctx)
        try:
            found = from_shareable(shareable)
        except Exception:
            raise ValueError("it is not a DXO; only WEIGHT_DIFF may leave") from None
        if found.data_kind != DataKind.WEIGHT_DIFF:
            raise ValueError(
                f"its kind is {str(found.data_kind)[:40]!r}; only WEIGHT_DIFF may leave: metrics (validate), whole "
                "models (submit_model) and collections are not covered by the noise"
            )
        if found.get_meta_prop(MetaKey.PROCESSED_ALGORITHM) is not None:
            raise ValueError("it was encrypted or compressed before this filter, so it cannot be clipped")
        mark = found.get_meta_prop(PrivateUpdates.MARK)
        noised = self.updates.protect(found.data, str(fl_ctx.get_job_id()), mark)
        self.log_info(fl_ctx, f"an update leaves with noise; {self.updates.left}")
        # The number of samples is a fact about data: every site has the same weight.
        return DXO(DataKind.WEIGHT_DIFF, noised, {MetaKey.NUM_STEPS_CURRENT_ROUND: 1}).to_shareable()


class NothingToOtherSites(Filter):  # type: ignore[misc]
    """Stops what a workflow that clients control would send from this site to others: it is not noised."""

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        raise ValueError("the policy of this site lets no task go to other sites")


def _refuse_forwarding(fl_ctx: FLContext) -> None:
    components = fl_ctx.get_engine().get_all_components() if fl_ctx.get_engine() is not None else {}
    for name, component in components.items():
        if {one.__name__ for one in type(component).__mro__} & set(FORWARDS):
            raise ValueError(
                f"component {str(name)[:40]!r} of the job sends events to the server, which no filter sees; "
                "remove it from the job"
            )


def install(settings: Path, kit: Path, anyway: bool = False) -> Path:
    """Write the site's policy: the filter is in its only scope, which every job gets. Return the path of the policy."""
    path = kit / "local" / POLICY
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path.parent} is not a folder; give the kit of an NVFLARE site, which has local/")
    if path.exists() and json.loads(path.read_text()) != policy(settings):
        raise FileExistsError(f"{path} exists; merge it by hand, or move it away")
    for name, gap in (("resources.json", _gap), ("authorization.json", _open_rights)):
        file = path.with_name(name)
        if not anyway and (problem := gap(parse_json(read_text(file)) if file.exists() else {})):
            raise ValueError(f"{file}: {problem}")
    write_atomic(path, json.dumps(policy(settings), indent=2) + "\n", private=True)
    return path


def _gap(found: dict[str, Any]) -> str:
    """How data could leave the site beside its results, by its resources; empty if the settings prevent it."""
    allowed = found.get("class_allow_list")
    if found.get("allow_log_streaming", True):
        return 'logs of a job go to the server; set "allow_log_streaming": false'
    if found.get("class_list_enforcement_mode") != "enforce" or not isinstance(allowed, list):
        return 'a job may use any class; set "class_allow_list", and "class_list_enforcement_mode": "enforce"'
    if wide := [one for one in allowed if not _is_class(str(one).rpartition(".")[2])]:
        return (
            f"class_allow_list has {wide[0]!r}, with which a job can send data beside its results; list single classes"
        )
    return ""


def _open_rights(found: dict[str, Any]) -> str:
    """What role may send code, which no list of classes stops, or read files of the site; empty if no role may."""
    roles = found.get("permissions")
    if not isinstance(roles, dict):
        return "permissions are missing; NVFLARE's default lets a job bring its own code"
    for role, rights in roles.items():
        named = {str(one).strip().lower(): value for one, value in rights.items()} if isinstance(rights, dict) else {}
        for right, safe in CLOSED.items():
            given = named.get(right, "none") if isinstance(rights, dict) else rights
            if given not in safe:
                return f'{role!r} has the right {right}, which goes around the filter; write "{right}": "none"'
    return ""


def _is_class(name: str) -> bool:
    """Whether an entry names one class, not a package: NVFLARE allows everything that begins with an entry."""
    return name[:1].isupper() and name not in FORWARDS


def policy(settings: Path) -> dict[str, Any]:
    """The content of `privacy.json`."""
    entry = {"path": f"{__name__}.{PrivacyFilter.__name__}", "args": {"settings": str(settings.resolve())}}
    others = {"path": f"{__name__}.{NothingToOtherSites.__name__}", "direction": "out"}
    scope = {"name": "fedrank", "task_result_filters": [entry], "task_data_filters": [others]}
    return {"format_version": "1.0", "scopes": [scope], "default_scope": "fedrank"}
