"""Sites that a test makes up: functions from a request to an answer, asked in this thread."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import Future

from fedrank import wire
from fedrank.deploy import protocol
from fedrank.deploy.plan import PROTOCOL, Plan
from fedrank.deploy.site_calls import SiteCalls
from fedrank.wire import Label

Answer = Callable[[str, bytes, Label], bytes | None]  # site, request, its label; None: no answer


def calls_to(plan: Plan, answer: Answer, **more) -> SiteCalls:
    """Calls to the sites of a plan. Who does not answer has failed at once, so that nobody waits."""

    def send(name: str, content: bytes, patience: float) -> Future[bytes]:
        future: Future[bytes] = Future()
        found = answer(name, content, wire.read_label(content))
        if found is None:
            future.set_exception(OSError("is away"))
        else:
            future.set_result(found)
        return future

    return SiteCalls(plan, send, **more)


def facts(plan: Plan, name: str, label: Label, **changes) -> bytes:
    """What a site that fits says of itself."""
    found = {"protocol": PROTOCOL, "version": plan.version, "features": plan.features}
    found |= {"feature_names": plan.feature_names, "normalised": plan.normalised} | changes
    return protocol.reply("facts", label, plan.party(name).clients[0], facts=json.dumps(found).encode())


def stranger(plan: Plan, name: str, label: Label) -> bytes:
    """What a site answers that was started meanwhile and knows nothing of the run."""
    return protocol.refusal(label, plan.party(name).clients[0], protocol.SAY_HELLO)
