"""Forests on the coordinator: sites send them, the coordinator merges them and returns the merged model.

In a trial every client merges with its own merge set, as in the simulation. Between organisations there is none, so the
coordinator's training queries are the merge set: judged queries that no site trained on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from fedrank.deploy import protocol
from fedrank.deploy.coordinate import Coordination, deployed, site_notes
from fedrank.deploy.forests import GROWS, ROUND, largest_forest, merged_files, portions_of, read_trees
from fedrank.deploy.handshake import Differs, Handshake
from fedrank.deploy.plan import Plan
from fedrank.deploy.site_calls import SiteCalls
from fedrank.deploy.site_measures import MAX_QUERIES
from fedrank.experiments.runner.cards import forest_card
from fedrank.experiments.runner.folder import Card
from fedrank.experiments.runner.merge import MergeRun
from fedrank.experiments.runner.writer import RunWriter
from fedrank.experiments.spec.trees import TreesExperiment
from fedrank.trees.histograms import Histograms
from fedrank.wire import Label, Part, Refused

LAST_CALLS = 3  # requests to a site that sends nothing after enough other sites have sent their forests
BETWEEN_SITES = {
    "rounds": "one round: sites train their models and the coordinator merges them into one; values are those of the "
    "merged model",
    "merge set": "the training queries of the coordinator, which no site learned from",
}


class SentForest(NamedTuple):
    """The forest of a client."""

    trees: tuple[str, ...]
    queries: int  # number of training queries that it reports


@dataclass
class ForestHub:
    """A coordinator that collects forests."""

    calls: SiteCalls

    def __post_init__(self) -> None:
        self.plan, self.handshake = self.calls.plan, Handshake(self.calls)
        assert self.plan.forests is not None
        self.question = self.plan.forests

    def forests(self) -> dict[int, SentForest]:
        """Collect the forest of every client that sends one, waiting for sites that are still training."""
        found: dict[int, SentForest] = {}
        came, called = set[str](), dict[str, int]()
        request = protocol.request("forest", self.plan.run, ROUND)
        while True:
            asked = {site.name: request for site in self.calls.sites() if site.name not in came}
            more, why = self.handshake.ask_and_greet(asked, ROUND, self._read, "answers")
            for name, forests in more.items():
                found |= forests
                came.add(name)
            called |= {name: 0 if why[name].startswith(GROWS) else called.get(name, 0) + 1 for name in why}
            waiting = [name for name in why if called[name] < LAST_CALLS and name not in self.calls.left_out]
            if len(came) >= self.plan.min_sites and not waiting:
                return found
            if not self.calls.sites():
                raise Differs(f"no site is left to ask: {'; '.join(self.calls.left_out.values())}")
            self.calls.pause(ROUND, why)

    def _read(self, content: bytes, label: Label) -> dict[int, SentForest]:
        clients = self.plan.site_of[label.sender].clients
        largest = largest_forest(self.question)
        parts = {"forests": Part("|S", len(clients) * (largest + 4)), "queries": Part("<i8", len(clients))}
        found = protocol.read(content, label, parts)
        pieces = protocol.unbundle(found["forests"], len(clients), largest)
        queries = [int(count) for count in found["queries"]]
        if len(pieces) != len(clients) or not all(0 < count < MAX_QUERIES for count in queries):
            raise Refused(f"received {len(pieces)} forests with {queries} queries from {len(clients)} clients")
        forests = (read_trees(piece, self.question, self.plan.features) for piece in pieces)
        return dict(zip(clients, map(SentForest, forests, queries), strict=True))


def give_merged(calls: SiteCalls, files: Mapping[str, bytes]) -> dict[str, str]:
    """Send merged models to sites; return why sites did not accept theirs."""
    requests = {
        name: protocol.request("merged", calls.plan.run, ROUND, files=content)
        for name, content in files.items()
        if name not in calls.left_out
    }
    return calls.ask(requests, ROUND, protocol.read_facts, "facts")[1]


def perform_forests(experiment: TreesExperiment, run: Coordination) -> None:
    """Collect the forests of all sites, merge them, and send the result to all sites."""
    writer, plan, books = run.writer, run.plan, run.books
    merging = MergeRun.begin(experiment, writer)
    if isinstance(experiment.merge, Histograms):
        from fedrank.deploy.joint_forest import perform_grown

        return perform_grown(merging, run)
    merging.describe(None if plan.simulated else BETWEEN_SITES)
    writer.begin()
    hub = ForestHub(run.calls)
    hub.handshake.hello()
    books.progress(plan, 0, ROUND)
    sent = hub.forests()
    books.keep_left_out(run.calls.left_out)
    if plan.simulated:
        portions = portions_of(experiment, plan.fold, plan.seed)
        trees = [sent[id].trees for id, _ in enumerate(portions)]
        outcome = merging.merge_sent(portions, trees)
    else:
        senders = {site.name: sent[site.clients[0]] for site in plan.sites if site.clients[0] in sent}
        outcome = merging.merge_organisations(senders)
    merging.save(outcome)
    # Write and send everything before the run counts as finished: a run that stops here continues.
    run.issue(site_card(plan, sorted(sent)), merging.fold.name)
    why = give_merged(run.calls, result_files(writer, plan, sorted(sent)))
    absent = [site.name for site in plan.sites if not set(site.clients) & set(sent)]
    notes = [f"{name} sent no forest, so the model does not include it" for name in absent]
    merging.finish(outcome, notes=site_notes(run.calls.left_out, why) + notes, tuned=None)
    return books.progress(plan, ROUND, ROUND)


def site_card(plan: Plan, clients: Sequence[int], sees: str = "") -> Card:
    """The card of a model that sites trained together; `sees` describes what each party sees if it is not forests."""
    card = forest_card(len(clients))
    if sees:
        card = replace(card, who_sees_what=sees, summary=f"No mechanism: {sees}. No privacy guarantee.")
    return deployed(card, plan, clients)


def result_files(writer: RunWriter, plan: Plan, clients: Sequence[int]) -> dict[str, bytes]:
    """Files for every site: the merged model, or the model of the site's first client if each client has its own."""
    card, files = writer.folder / Card.FILE, {}
    for site in plan.sites:
        folder = writer.folder
        if not (folder / "model.json").exists() and site.clients[0] in clients:
            folder = folder / "clients" / str(clients.index(site.clients[0]) + 1) / "merged"
        if (folder / "model.json").exists():
            files[site.name] = merged_files(folder, card)
    return files
