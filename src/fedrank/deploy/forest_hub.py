"""Forests at the coordinator: they come from sites, are merged here, and the merged model goes back to everybody.

In a trial every client merges by its own merge set, as in the simulation. Between organisations nobody has one, so that
the coordinator's own training queries are the merge set: judged queries that no site learned from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from fedrank.data.catalog import Fold
from fedrank.deploy import protocol
from fedrank.deploy.coordinate import Books
from fedrank.deploy.forests import GROWS, ROUND, largest_forest, merged_files, portions_of, read_trees
from fedrank.deploy.hub import MOST_QUERIES, Differs, Hub
from fedrank.deploy.plan import Plan
from fedrank.deploy.site_calls import Exchange, Send
from fedrank.experiments.runner.cards import forest_card, issued
from fedrank.experiments.runner.folder import DEPLOYED_RUN, Card
from fedrank.experiments.runner.merge import CONVENTIONS, finish_merge, save_merged
from fedrank.experiments.runner.trees import begin_trees
from fedrank.experiments.runner.writer import RunWriter
from fedrank.experiments.spec.trees import TreesExperiment
from fedrank.trees.forest import planted, transplanted
from fedrank.trees.histograms import Histograms
from fedrank.trees.mergers import Stacking, WeightedSum
from fedrank.trees.training import Merging, measured, merge_grown
from fedrank.wire import Label, Part, Refused

LAST_CALLS = 3  # of a site that sends nothing, where enough others have sent their forests
BETWEEN_SITES = {
    "rounds": "one round: sites train their models and the coordinator merges them into one; values are those of the "
    "merged model",
    "merge set": "the training queries of the coordinator, which no site learned from",
}


class SentForest(NamedTuple):
    """What a client sent."""

    trees: tuple[str, ...]
    queries: int  # that it says it learned from


@dataclass
class ForestHub(Hub):
    """A coordinator that gathers forests."""

    def __post_init__(self) -> None:
        assert self.plan.forests is not None
        self.place, self.question = None, self.plan.forests

    def forests(self) -> dict[int, SentForest]:
        """The forest of every client that sent one. Whoever grows one still is waited for."""
        found: dict[int, SentForest] = {}
        came, called = set[str](), dict[str, int]()
        request = protocol.request("forest", self.plan.run, ROUND)
        while True:
            missing = [site for site in self.sites() if site.name not in came]
            traffic: list[Exchange] = []
            asked = {site.name: request for site in missing}
            more, why = self._ask(asked, ROUND, self._read, "answers", traffic=traffic)
            for one in traffic:
                self.note(ROUND, one)
            for name, forests in more.items():
                found |= forests
                came.add(name)
            called |= {name: 0 if why[name].startswith(GROWS) else called.get(name, 0) + 1 for name in why}
            waiting = [name for name in why if called[name] < LAST_CALLS and name not in self.left_out]
            if len(came) >= self.plan.fewest and not waiting:
                return found
            if strangers := [site for site in missing if why.get(site.name) == protocol.SAY_HELLO]:
                why |= self._greet_again(strangers)
            if not self.sites():
                raise Differs(f"nobody is left to ask: {'; '.join(self.left_out.values())}")
            self._wait(ROUND, why)

    def _read(self, content: bytes, label: Label) -> dict[int, SentForest]:
        clients = next(one for one in self.plan.sites if one.clients[0] == label.sender).clients
        largest = largest_forest(self.question)
        parts = {"forests": Part("|S", len(clients) * (largest + 4)), "queries": Part("<i8", len(clients))}
        found = protocol.read(content, label, parts)
        pieces = protocol.unbundle(found["forests"], len(clients), largest)
        queries = [int(count) for count in found["queries"]]
        if len(pieces) != len(clients) or not all(0 < count < MOST_QUERIES for count in queries):
            raise Refused(f"{len(pieces)} forests of {queries} queries came of {len(clients)} clients")
        forests = (read_trees(piece, self.question, self.plan.features) for piece in pieces)
        return dict(zip(clients, map(SentForest, forests, queries), strict=True))

    def give_merged(self, files: Mapping[str, bytes]) -> dict[str, str]:
        """Give merged models to sites; of those who did not take theirs, why."""
        requests = {
            name: protocol.request("merged", self.plan.run, ROUND, files=content)
            for name, content in files.items()
            if name not in self.left_out
        }
        return self._ask(requests, ROUND, protocol.read_facts, "facts")[1]


def perform_forests(
    experiment: TreesExperiment, writer: RunWriter, plan: Plan, send: Send, patience: float, say: Callable[[str], None]
) -> None:
    """Gather the forests of all sites, merge them, and give everybody what came out."""
    books = Books(writer.folder, say)
    fold, _, nothing = begin_trees(experiment, writer)
    if isinstance(experiment.merge, Histograms):
        from fedrank.deploy.joint_forest import perform_grown

        return perform_grown(experiment, writer, plan, send, patience, books, fold, nothing)
    writer.know(conventions=CONVENTIONS if plan.simulated else CONVENTIONS | BETWEEN_SITES)
    writer.begin()
    hub = ForestHub(
        plan, send, patience, note=books.note, waiting=books.waiting, stop=writer.stop, left_out=books.left_out()
    )
    hub.hello()
    books.progress(plan, 0, ROUND)
    sent = hub.forests()
    books.keep_left_out(hub.left_out)
    merge = _merged_in_trial if plan.simulated else _merged_between_sites
    outcome = merge(experiment, writer, plan, fold, sent)
    save_merged(outcome, writer, fold)
    # All that sites get is written and given before the run counts as finished: whoever is stopped here comes back.
    issued(site_card(plan, sorted(sent)), writer.folder, fold.name).write(writer.folder)
    why = hub.give_merged(result_files(writer, plan, sorted(sent)))
    notes = [f"{name}: {reason}" for name, reason in hub.left_out.items()]
    notes += [f"{name} has not been given the result: {reason}" for name, reason in why.items()]
    absent = [site.name for site in plan.sites if not set(site.clients) & set(sent)]
    notes += [f"{name} sent no forest, and the model is without it" for name in absent]
    finish_merge(outcome, writer, fold, nothing, notes=notes, tuned=None)
    return books.progress(plan, ROUND, ROUND)


def _merged_in_trial(
    experiment: TreesExperiment, writer: RunWriter, plan: Plan, fold: Fold, sent: Mapping[int, SentForest]
) -> Merging:
    assert experiment.merge is not None
    portions = portions_of(experiment, plan.fold, plan.seed)
    local = [
        planted(sent[id].trees, portion.train, {"client": portion.name, "queries": portion.train.queries})
        for id, portion in enumerate(portions)
    ]
    asked = experiment.booster, experiment.merge, experiment.measures, plan.seed, writer.threads
    return merge_grown(fold, portions, local, *asked)


def _merged_between_sites(
    experiment: TreesExperiment, writer: RunWriter, plan: Plan, fold: Fold, sent: Mapping[int, SentForest]
) -> Merging:
    assert isinstance(experiment.merge, WeightedSum | Stacking)
    senders = {site.name: sent[site.clients[0]] for site in plan.sites if site.clients[0] in sent}
    queries = {name: one.queries for name, one in senders.items()}
    local = [
        transplanted(one.trees, fold.train, {"client": name, "queries": one.queries}) for name, one in senders.items()
    ]
    model = experiment.merge.merge(local, fold.train, plan.seed, writer.threads)
    nobodys = np.zeros((len(local), fold.test.queries), np.bool_)
    return measured(queries, local, [model] * len(local), fold, experiment.measures, nobodys)


def site_card(plan: Plan, clients: Sequence[int], sees: str = "") -> Card:
    """What may be claimed for what sites made together; `sees` says who saw what, where it is not forests."""
    card = forest_card(len(clients))
    if sees:
        card = replace(card, who_sees_what=sees, summary=f"No mechanism: {sees}. Nothing can be claimed.")
    if plan.simulated:
        return card
    sites = ", ".join(site.name for site in plan.sites if site.clients[0] in clients)
    return replace(card, what=DEPLOYED_RUN, not_covered=(*card.not_covered, f"which sites took part: {sites}"))


def result_files(writer: RunWriter, plan: Plan, clients: Sequence[int]) -> dict[str, bytes]:
    """What every site gets: the merged model, or where each client has its own, that of the site's first one."""
    card, files = writer.folder / Card.FILE, {}
    for site in plan.sites:
        folder = writer.folder
        if not (folder / "model.json").exists() and site.clients[0] in clients:
            folder = folder / "clients" / str(clients.index(site.clients[0]) + 1) / "merged"
        if (folder / "model.json").exists():
            files[site.name] = merged_files(folder, card)
    return files
