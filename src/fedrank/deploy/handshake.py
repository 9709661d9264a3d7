"""The handshake of a coordinator with sites: before the first round, and again with a restarted site.

A site answers hello with its facts: versions, features, and measures that it reports. Facts that differ from the plan
stop the run before its first round. In a trial with secure aggregation, sites also send the keys of their clients,
which are then sent to all sites; between organisations these keys are in the plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from fedrank import wire
from fedrank.deploy import protocol
from fedrank.deploy.plan import PROTOCOL, PlannedSite
from fedrank.deploy.records import printable
from fedrank.deploy.site_calls import MAX_WITNESSES, Exchange, SiteCalls
from fedrank.wire import Label

Facts = Mapping[str, Any]
MAX_FAILURES = 15  # hello requests that a site answers with a failure until the coordinator stops waiting for it


class Differs(Exception):
    """Sites whose facts differ from the plan, or that refuse it; the text lists the reasons."""

    explained = True  # a failed run shows no traceback


@dataclass
class Handshake:
    """Which sites of a plan have answered hello, and the facts they reported."""

    calls: SiteCalls
    secure: bool = False  # whether rounds use secure aggregation, which needs a key of every client
    check: Callable[[str, Facts], None] = lambda name, facts: None  # raises Differs if facts do not match the run
    over: int = 0  # completed rounds
    identities: dict[int, bytes] = field(default_factory=dict)  # public keys of clients, for secure aggregation
    reporting: set[str] = field(default_factory=set)  # sites that report measures without noise
    noised: dict[str, list[str]] = field(default_factory=dict)  # by site: measures that it releases with noise
    give: bytes = b""  # a request that every site receives after hello; empty: none

    def __post_init__(self) -> None:
        plan = self.calls.plan
        self._brings_keys = self.secure and plan.simulated
        self._greeted: set[str] = set()
        if self.secure and not plan.simulated:
            self.identities = {site.clients[0]: bytes.fromhex(site.identity) for site in plan.sites}

    def hello(self, over: int = 0) -> None:
        """Send hello to every site until enough have answered. `over` is the number of completed rounds.

        Sites that differ stop the run. So do sites that refuse the plan, or fail with their own settings, if too few
        others are left. The coordinator waits for sites that are offline or have not accepted the plan yet.
        """
        self.over, greeted, failures = over, set[str](), Counter[str]()
        plan = self.calls.plan
        while True:
            found, why = self._greet([site for site in self.calls.sites() if site.name not in greeted])
            greeted |= found
            if len(greeted) >= plan.min_sites and not (self._brings_keys and why):
                break
            failures.update(name for name, reason in why.items() if reason.startswith(protocol.SITE_FAILS))
            refused = {name for name, reason in why.items() if reason.startswith(protocol.REFUSED)}
            failed = {name for name in why if failures[name] >= MAX_FAILURES}
            if len(plan.sites) - len(failed | refused) < plan.min_sites:
                reasons = [f"{name}: {why[name]}" for name in why if name in failed | refused]
                raise Differs(
                    f"{plan.min_sites} sites are needed, but {len(reasons)} of {len(plan.sites)} refuse or fail; when "
                    f"they have changed that, run the same command again: {'; '.join(reasons)}"
                )
            self.calls.pause(over, why)

    def greet_once(self, over: int) -> dict[str, str]:
        """Send hello to every site once, after this many rounds; return why sites did not answer."""
        self.over = over
        return self._greet(self.calls.sites())[1]

    def greet_missing(self) -> None:
        """Send hello once to sites that have not answered it yet; a site that differs does not stop the run."""
        missing = [site for site in self.calls.sites() if site.name not in self._greeted]
        if missing:
            with suppress(Differs):
                self._greet(missing)

    def greet_strangers(self, why: Mapping[str, str]) -> dict[str, str]:
        """Send hello to sites that were started during a run; return why sites cannot be used now.

        A site that no longer matches the plan does not stop the others.
        """
        strangers = [site for site in self.calls.plan.sites if why.get(site.name) == protocol.SAY_HELLO]
        if not strangers:
            if protocol.NOT_CONFIRMED in why.values():
                self._ask_witnesses()
            return dict(why)
        try:
            return {**why, **self._greet(strangers)[1]}
        except Differs as problem:
            return {**why, **{site.name: str(problem) for site in strangers}}

    def ask_and_greet(
        self, requests: Mapping[str, bytes], number: int, read: Callable[[bytes, Label], Any], kind: str
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """Ask sites, note every request, and send hello to restarted sites; return answers and reasons of failures."""
        traffic: list[Exchange] = []
        found, why = self.calls.ask(requests, number, read, kind, traffic=traffic)
        for one in traffic:
            self.calls.note(number, one)
        return found, self.greet_strangers(why)

    def ask_for_round(
        self,
        requests: Mapping[str, bytes],
        round: int,
        read: Callable[[bytes, Label], Any],
        attempt: int,
        traffic: list[Exchange],
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """Request a round; send hello to sites that were started meanwhile, and ask them again."""
        enough = None if self.secure else self.calls.plan.min_sites
        found, why = self.calls.ask(requests, round, read, "answers", attempt, traffic, enough)
        why = self.greet_strangers(why)
        known = (protocol.SAY_HELLO, protocol.NOT_CONFIRMED)
        again = {name: requests[name] for name, reason in why.items() if reason in known}
        if again:
            more, still = self.calls.ask(again, round, read, "answers", attempt, traffic)
            found |= more
            why = {name: reason for name, reason in why.items() if name not in again} | still
        return found, why

    def _greet(self, sites: Sequence[PlannedSite]) -> tuple[set[str], dict[str, str]]:
        """Send hello to these sites, store their facts, and send them all keys; return who answered, and reasons."""
        plan = self.calls.plan
        content = protocol.request("hello", plan.run, self.over, plan=plan.dump())
        found, why = self.calls.ask({site.name: content for site in sites}, self.over, protocol.read_facts, "facts")
        self._compare(found)
        self.reporting |= {name for name, facts in found.items() if facts.get("measures")}
        for name, facts in found.items():
            if isinstance(noised := facts.get("noised"), list) and noised:
                self.noised[name] = [str(one) for one in noised]
        self._greeted |= set(found)
        if found:
            self._ask_witnesses()
        if self._brings_keys:
            for name, facts in found.items():
                self.identities |= self._keys(name, facts.get("identities", {}))
            if len(self.identities) == len(plan.clients):
                why |= self._introduce()
        if self.give and found:
            why |= self.give_all(list(found))
        return set(found), why

    def give_all(self, names: Sequence[str] | None = None) -> dict[str, str]:
        """Send `give` to these sites, by default to all; return why sites did not accept it."""
        asked = [site.name for site in self.calls.sites() if names is None or site.name in names]
        return self.calls.ask(dict.fromkeys(asked, self.give), 0, protocol.read_facts, "facts")[1]

    def _ask_witnesses(self) -> None:
        """Let sites sign the newest heads of each other, which they need before they send anything new.

        Sites that share a folder do not need it and may answer days later.
        """
        calls = self.calls
        if calls.witness is None or len(calls.keys) < 2 or getattr(calls.send, "keeps_requests", False):
            return
        content = protocol.request("witness", calls.plan.run)
        asked = {site.name: content for site in calls.sites() if site.name in self._greeted}
        # Each signs for the next MAX_WITNESSES sites, so fewer missing answers than that leave every site a witness.
        enough = max(2, len(asked) - MAX_WITNESSES + 1)
        calls.ask(asked, 0, _read_letters, "letters", traffic=[], enough=enough)

    def _compare(self, found: Mapping[str, Facts]) -> None:
        plan = self.calls.plan
        expected = {"protocol": PROTOCOL, "version": plan.version, "features": plan.features}
        expected |= {"feature_names": plan.feature_names, "normalised": plan.normalised}
        lines = [
            f"{name} has {key} {printable(str(facts[key]))[:80] or 'none'}, the plan {value or 'none'}"
            for name, facts in found.items()
            for key, value in expected.items()
            if key in facts and facts[key] != value
        ]
        lines += [
            f"{name} does not report its {key}"
            for name, facts in found.items()
            for key in expected
            if key not in facts and facts.get("version") == plan.version
        ]
        if lines:
            raise Differs("the facts of sites differ from the plan, so the run does not start: " + "; ".join(lines))
        for name, facts in found.items():
            self.check(name, facts)

    def _keys(self, name: str, keys: Any) -> dict[int, bytes]:
        try:
            return {id: bytes.fromhex(keys[str(id)]) for id in self.calls.plan.party(name).clients}
        except (KeyError, TypeError, ValueError):
            raise Differs(f"{name} reports no signing keys, which secure aggregation needs") from None

    def _introduce(self) -> dict[str, str]:
        """Send the public keys of all clients of a trial to all sites; return why sites did not accept them."""
        keys = protocol.facts({str(id): key.hex() for id, key in self.identities.items()})
        content = protocol.request("partners", self.calls.plan.run, keys=keys)
        return self.calls.ask({site.name: content for site in self.calls.sites()}, 0, _read_letters, "letters")[1]


def _read_letters(content: bytes, label: Label) -> bytes:
    found: bytes = protocol.read(content, label, {"letters": wire.Part("|S", 0)})["letters"]
    return found
