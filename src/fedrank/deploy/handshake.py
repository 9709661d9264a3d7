"""The handshake of a coordinator with sites: before the first round, and again with a site that was restarted.

A site that greets back tells its facts: versions, features, measures that it reports. Facts that differ from the plan
stop the run before its first round. In a trial with secure aggregation sites also bring the keys of their clients,
which everybody is then told; between organisations these keys stand in the plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedrank import wire
from fedrank.deploy import protocol
from fedrank.deploy.plan import PROTOCOL, PlannedSite
from fedrank.deploy.records import printable
from fedrank.deploy.site_calls import Exchange, SiteCalls
from fedrank.wire import Label

Facts = Mapping[str, Any]
MAX_FAILURES = 15  # greetings that a site answers with a failure, after which it is not waited for


class Differs(Exception):
    """Sites that do not fit together, so that no round begins; the text lists who has what."""


@dataclass
class Handshake:
    """Who of the sites of a plan was greeted, and what they said of themselves."""

    calls: SiteCalls
    secure: bool = False  # whether rounds are secure sums, which need a key of every client
    check: Callable[[str, Facts], None] = lambda name, facts: None  # raises Differs where facts do not fit the run
    over: int = 0  # rounds that are over
    identities: dict[int, bytes] = field(default_factory=dict)  # public keys of clients, for secure sums
    reporting: set[str] = field(default_factory=set)  # sites that tell measures of their own queries

    def __post_init__(self) -> None:
        plan = self.calls.plan
        self._brings_keys = self.secure and plan.simulated
        if self.secure and not plan.simulated:
            self.identities = {site.clients[0]: bytes.fromhex(site.identity) for site in plan.sites}

    def hello(self, over: int = 0) -> None:
        """Greet every site until enough have answered. `over` rounds are over.

        Sites that differ stop the run, and so do sites that cannot work with their own settings, where too few are
        left. A site that is away, or whose people have not accepted the plan yet, is waited for.
        """
        self.over, greeted, failures = over, set[str](), Counter[str]()
        plan = self.calls.plan
        while True:
            found, why = self._greet([site for site in self.calls.sites() if site.name not in greeted])
            greeted |= found
            if len(greeted) >= plan.min_sites and not (self._brings_keys and why):
                break
            failures.update(name for name, reason in why.items() if reason.startswith(protocol.SITE_FAILS))
            failed = [f"{name}: {why[name]}" for name in why if failures[name] >= MAX_FAILURES]
            if len(plan.sites) - len(failed) < plan.min_sites:
                raise Differs(
                    f"{plan.min_sites} sites are needed, and {len(failed)} of {len(plan.sites)} fail; correct them, "
                    f"then run the same command again: {'; '.join(failed)}"
                )
            self.calls.pause(over, why)

    def greet_once(self, over: int) -> dict[str, str]:
        """Greet every site after so many rounds, without waiting for those who do not answer; why they did not."""
        self.over = over
        return self._greet(self.calls.sites())[1]

    def greet_strangers(self, why: Mapping[str, str]) -> dict[str, str]:
        """Greet sites that were started in the middle of a run and know nothing of it; why sites are of no use now.

        A site that no longer fits is no reason for the others to stop.
        """
        strangers = [site for site in self.calls.plan.sites if why.get(site.name) == protocol.SAY_HELLO]
        if not strangers:
            return dict(why)
        try:
            return {**why, **self._greet(strangers)[1]}
        except Differs as problem:
            return {**why, **{site.name: str(problem) for site in strangers}}

    def ask_and_greet(
        self, requests: Mapping[str, bytes], number: int, read: Callable[[bytes, Label], Any], kind: str
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """Ask sites, note every request, and greet sites that were started meanwhile; answers, and reasons for none."""
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
        """Ask for a round; whoever was started meanwhile and knows nothing of the run is greeted, and asked again."""
        enough = None if self.secure else self.calls.plan.min_sites
        found, why = self.calls.ask(requests, round, read, "answers", attempt, traffic, enough)
        why = self.greet_strangers(why)
        again = {name: requests[name] for name, reason in why.items() if reason == protocol.SAY_HELLO}
        if again:
            more, still = self.calls.ask(again, round, read, "answers", attempt, traffic)
            found |= more
            why = {name: reason for name, reason in why.items() if name not in again} | still
        return found, why

    def _greet(self, sites: Sequence[PlannedSite]) -> tuple[set[str], dict[str, str]]:
        """Say hello to these, note what they say, and tell them everybody's keys; who answered, and why not."""
        plan = self.calls.plan
        content = protocol.request("hello", plan.run, self.over, plan=plan.dump())
        found, why = self.calls.ask({site.name: content for site in sites}, self.over, protocol.read_facts, "facts")
        self._compare(found)
        self.reporting |= {name for name, facts in found.items() if facts.get("measures")}
        if self._brings_keys:
            for name, facts in found.items():
                self.identities |= self._keys(name, facts.get("identities", {}))
            if len(self.identities) == len(plan.clients):
                why |= self._introduce()
        return set(found), why

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
            f"{name} does not say its {key}"
            for name, facts in found.items()
            for key in expected
            if key not in facts and facts.get("version") == plan.version
        ]
        if lines:
            raise Differs("sites do not fit together, so that no round begins: " + "; ".join(lines))
        for name, facts in found.items():
            self.check(name, facts)

    def _keys(self, name: str, keys: Any) -> dict[int, bytes]:
        try:
            return {id: bytes.fromhex(keys[str(id)]) for id in self.calls.plan.party(name).clients}
        except (KeyError, TypeError, ValueError):
            raise Differs(f"{name} brings no keys to sign with, and a secure sum needs them") from None

    def _introduce(self) -> dict[str, str]:
        """The public keys of all clients of a trial, to everybody; why some did not take them."""
        keys = protocol.facts({str(id): key.hex() for id, key in self.identities.items()})
        content = protocol.request("partners", self.calls.plan.run, keys=keys)
        return self.calls.ask({site.name: content for site in self.calls.sites()}, 0, _read_letters, "letters")[1]


def _read_letters(content: bytes, label: Label) -> bytes:
    found: bytes = protocol.read(content, label, {"letters": wire.Part("|S", 0)})["letters"]
    return found
