"""Which methods can be combined: one table, based on the traits that methods declare."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from fedrank.federated.server_optimizers import Add
from fedrank.types import Aggregator, Attack, Learner, LocalStep, Mechanism, has_trait

if TYPE_CHECKING:
    from fedrank.federated.federation import Federation


class Clash(NamedTuple):
    """A combination of methods that does not work."""

    place: str  # the key of the spec to change
    when: Callable[[Federation], Any]  # true if the combination occurs
    says: str  # the problem and the remedy; {name} is the class of the method at `place`


def _rate(federation: Federation) -> float:
    return float(getattr(federation.learner, "rate", 0.0))


CLASHES = (
    Clash(
        "server",
        lambda f: has_trait(f.aggregator, "apart") and not isinstance(f.server, Add),
        'only the server step "add" works if every client has its own model, as with the aggregator "none"; '
        'use server = { name = "add" }',
    ),
    Clash(
        "local",
        lambda f: f.local is not None and has_trait(f.aggregator, "apart"),
        '{name} needs a shared model, but with this aggregator every client has its own; use the aggregator "mean"',
    ),
    Clash(
        "local",
        lambda f: f.local is not None and not has_trait(f.learner, "steps"),
        "{name} corrects local gradient steps, but this learner takes none; use the learner pdgd",
    ),
    Clash(
        "local",
        lambda f: has_trait(f.local, "shared part") and f.learner.ranker.hidden == 0,
        '{name} shares the hidden layer, but a linear ranker has none; use learner.ranker = { name = "mlp" }',
    ),
    Clash(
        "local",
        lambda f: getattr(f.local, "strength", 0) * _rate(f) >= 2,
        "{name} overshoots the global model at every step; use a strength of at most 1 / learner.rate",
    ),
    Clash(
        "local",
        lambda f: getattr(f.local, "strength", 0) and getattr(f.learner, "batch", False),
        "{name} has no effect with learner.batch = true, because the only step begins at the global model; use "
        "batch = false",
    ),
    Clash(
        "local",
        lambda f: has_trait(f.local, "plain messages") and (f.attack is not None or f.mechanism is not None),
        "{name} reads every client's gradient from its message, so messages must be unchanged; "
        "use another local method with an attack or a mechanism",
    ),
    Clash(
        "local",
        lambda f: (
            has_trait(f.local, "plain messages")
            and (getattr(f.learner, "clip_weights", 0) or getattr(f.learner, "clip_gradients", 0))
        ),
        "{name} assumes plain steps, which learner.clip_weights and learner.clip_gradients change; set both to 0",
    ),
    Clash(
        "local",
        lambda f: has_trait(f.local, "shared part") and getattr(f.learner, "clip_weights", 0),
        "{name} with learner.clip_weights would let personal weights shorten the shared ones; set clip_weights to 0",
    ),
    Clash(
        "local",
        lambda f: has_trait(f.local, "shared part") and f.mechanism is not None,
        "{name} keeps personal weights at clients, but the evaluated model contains their mean, which no "
        "mechanism protects; remove one of them",
    ),
    Clash(
        "local",
        lambda f: has_trait(f.local, "shared part") and has_trait(f.aggregator, "trusted queries"),
        "{name} leaves the server without a complete model, so it cannot learn from trusted queries; "
        "use another aggregator",
    ),
    Clash(
        "attack",
        lambda f: has_trait(f.attack, "whole model") and has_trait(f.local, "shared part"),
        "{name} uses the output weights, which this local method keeps at each client; use another attack",
    ),
    Clash(
        "attack",
        lambda f: f.attack is not None and sends_nothing(f.aggregator),
        'malicious clients have no effect with the aggregator "none"; use another aggregator',
    ),
    Clash(
        "mechanism",
        lambda f: f.mechanism is not None and sends_nothing(f.aggregator),
        'clients send nothing with the aggregator "none", so a mechanism has no effect; use another aggregator',
    ),
    Clash(
        "aggregator",
        lambda f: has_trait(f.mechanism, "adds up") and not has_trait(f.aggregator, "sum"),
        "{name} needs single updates, but this mechanism reveals only their sum; "
        'use the aggregator "mean", or noise with placement = "client"',
    ),
    Clash(
        "clients.schedule",
        lambda f: f.dealt and f.participation < 1,
        'with "dealt", each client participates in one round, so no fraction of them is drawn; '
        "remove clients.participation",
    ),
    Clash(
        "learner",
        lambda f: f.dealt and has_trait(f.learner, "rewards"),
        '{name} (FOLtR-ES) sends rewards, which no Gaussian noise protects, so clients.schedule = "dealt" has no price '
        "for it; use the learner pdgd, or draw clients every round",
    ),
    Clash(
        "mechanism",
        lambda f: f.dealt and f.mechanism is not None and not has_trait(f.mechanism, "dealt"),
        '{name} is not Gaussian noise, but clients.schedule = "dealt" is priced as one Gaussian release per client; '
        'use the mechanism "gaussian", or draw clients every round',
    ),
    Clash(
        "local",
        lambda f: f.dealt and (has_trait(f.local, "common") or has_trait(f.local, "shared part")),
        '{name} stores state at a client for its next round, but with clients.schedule = "dealt" there is none; '
        "remove it, use FedProx, or draw clients every round",
    ),
    Clash(
        "mechanism",
        lambda f: f.mechanism is not None and has_trait(f.aggregator, "gossip"),
        "{name} protects messages to a server, and no guarantee is known for clients that choose models by their own "
        "clicks; remove the mechanism, or use an aggregator with a server",
    ),
    Clash(
        "learner",
        lambda f: (
            has_trait(f.aggregator, "gossip") and (has_trait(f.learner, "rewards") or has_trait(f.learner, "logged"))
        ),
        "{name} shows no lists whose clicks could check the models of other clients; use the learner pdgd",
    ),
)


def sends_nothing(aggregator: object) -> bool:
    """Whether each client learns alone."""
    return has_trait(aggregator, "apart") and not has_trait(aggregator, "gossip")


def clashes(federation: Federation) -> list[str]:
    """Return all invalid combinations, each with its key and the remedy."""
    return [
        f"{one.place}: {one.says.replace('{name}', type(getattr(federation, one.place, None)).__name__)}"
        for one in CLASHES
        if one.when(federation)
    ]


def people_clashes(
    learner: Learner,
    local: LocalStep | None,
    attack: Attack | None,
    mechanism: Mechanism | None,
    aggregator: Aggregator | None = None,
) -> list[str]:
    """Return all invalid combinations for clients that are organisations with several persons."""
    found = []
    if has_trait(learner, "rewards"):
        found.append("learner: evolution sends rewards, which cannot be added up over persons; use pdgd")
    if has_trait(local, "common") or has_trait(local, "shared part"):
        found.append(
            f"local: {type(local).__name__} stores state at a client, but persons start from the model of "
            "the round; remove it, or use FedProx"
        )
    if attack is not None:
        found.append("attack: malicious persons within an organisation are not simulated; remove the attack")
    if has_trait(aggregator, "gossip"):
        found.append(
            "aggregator: an organisation has no single click history to check models by; use one with a server"
        )
    if getattr(mechanism, "unit", "client") == "interaction":
        found.append(
            'mechanism.unit: "interaction" bounds the effect of one search on a client\'s update, not on a mean over '
            'persons; use "person", which covers all searches of each'
        )
    return found
