"""A privacy filter for any NVFLARE job: every result that leaves a site is clipped, charged and noised, or refused.

It is in the site's own policy (`local/privacy.json`), so a job can neither remove it nor choose another scope. Only a
weight difference leaves, without its metadata. Code of a job that runs at the site can still send data by other
means than its results; sites allow such code in `class_allow_list`, and the filter refuses converters of events.
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
from nvflare.app_common.app_constant import AppConstants

from fedrank.files import write_atomic
from fedrank.privacy.updates import PrivateUpdates

SETTINGS, POLICY = "filter.toml", "privacy.json"
FORWARDS = ("ConvertToFedEvent", "LogStreamer", "SiteLogStreamer")  # components that send what the filter does not see
MOST_ROUNDS = 10**6


class PrivacyFilter(Filter):  # type: ignore[misc]  # NVFLARE has no types
    """Protects the results of all tasks of a site by the settings in a `filter.toml`."""

    def __init__(self, settings: str) -> None:
        super().__init__()
        self.updates = PrivateUpdates.open(Path(settings))

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        code = shareable.get_return_code()
        if code != ReturnCode.OK:  # an error, whose content may quote data
            return make_reply(code if code in vars(ReturnCode).values() else ReturnCode.EXECUTION_EXCEPTION)
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
        reply = DXO(DataKind.WEIGHT_DIFF, noised, {MetaKey.NUM_STEPS_CURRENT_ROUND: 1}).to_shareable()
        number = shareable.get_header(AppConstants.CURRENT_ROUND)
        if type(number) is int and 0 <= number < MOST_ROUNDS:
            reply.set_header(AppConstants.CURRENT_ROUND, number)
        return reply


def _refuse_forwarding(fl_ctx: FLContext) -> None:
    components = fl_ctx.get_engine().get_all_components() if fl_ctx.get_engine() is not None else {}
    for name, component in components.items():
        if {one.__name__ for one in type(component).__mro__} & set(FORWARDS):
            raise ValueError(
                f"component {str(name)[:40]!r} of the job sends events to the server, which no filter sees; "
                "remove it from the job"
            )


def install(settings: Path, kit: Path) -> Path:
    """Write the site's policy: the filter is in its only scope, which every job gets. Return the path of the policy."""
    path = kit / "local" / POLICY
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path.parent} is not a folder; give the kit of an NVFLARE site, which has local/")
    if path.exists() and json.loads(path.read_text()) != policy(settings):
        raise FileExistsError(f"{path} exists; merge it by hand, or move it away")
    write_atomic(path, json.dumps(policy(settings), indent=2) + "\n", private=True)
    return path


def policy(settings: Path) -> dict[str, Any]:
    """The content of `privacy.json`."""
    entry = {"path": f"{__name__}.{PrivacyFilter.__name__}", "args": {"settings": str(settings.absolute())}}
    scope = {"name": "fedrank", "task_result_filters": [entry], "task_data_filters": []}
    return {"format_version": "1.0", "scopes": [scope], "default_scope": "fedrank"}
