"""What goes with what: one table, read from the traits that methods declare."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from fedrank.federated.server_optimizers import Add
from fedrank.types import Attack, Learner, LocalStep, Mechanism, has_trait

if TYPE_CHECKING:
    from fedrank.federated.federation import Federation


class Clash(NamedTuple):
    """Methods that are each right and do not go together."""

    place: str  # the key of a spec that is to be changed
    when: Callable[[Federation], Any]  # true where they meet
    says: str  # the consequence and the remedy; {name} is the class of the method at `place`


def _rate(federation: Federation) -> float:
    return float(getattr(federation.learner, "rate", 0.0))


CLASHES = (
    Clash(
        "server",
        lambda f: has_trait(f.aggregator, "apart") and not isinstance(f.server, Add),
        'steps other than "add" move a model that clients share, and the aggregator "none" has none; '
        'use server = { name = "add" }',
    ),
    Clash(
        "local",
        lambda f: f.local is not None and has_trait(f.aggregator, "apart"),
        '{name} needs a model that clients share, and the aggregator "none" has none; use the aggregator "mean"',
    ),
    Clash(
        "local",
        lambda f: f.local is not None and not has_trait(f.learner, "steps"),
        "{name} bends local steps, and this learner takes none that it could bend; use the learner pdgd",
    ),
    Clash(
        "local",
        lambda f: has_trait(f.local, "shared part") and f.learner.ranker.hidden == 0,
        '{name} needs a hidden layer to share, and a linear ranker has none; use learner.ranker = { name = "mlp" }',
    ),
    Clash(
        "local",
        lambda f: getattr(f.local, "strength", 0) * _rate(f) >= 2,
        "{name} overshoots the global model further at every step; use a strength of at most 1 / learner.rate",
    ),
    Clash(
        "local",
        lambda f: getattr(f.local, "strength", 0) and getattr(f.learner, "batch", False),
        "{name} does nothing with learner.batch = true, whose only step begins at the global model; use batch = false",
    ),
    Clash(
        "local",
        lambda f: has_trait(f.local, "plain messages") and (f.attack is not None or f.mechanism is not None),
        "{name} reads every client's gradient from its message, so it must arrive as it was sent; "
        "use another one with an attack or a mechanism",
    ),
    Clash(
        "local",
        lambda f: (
            has_trait(f.local, "plain messages")
            and (getattr(f.learner, "clip_weights", 0) or getattr(f.learner, "clip_gradients", 0))
        ),
        "{name} takes steps for plain ones, which learner.clip_weights and learner.clip_gradients bend; use 0",
    ),
    Clash(
        "local",
        lambda f: has_trait(f.local, "shared part") and getattr(f.learner, "clip_weights", 0),
        "{name} and learner.clip_weights would let weights that stay with the client shorten those it sends; use 0",
    ),
    Clash(
        "local",
        lambda f: has_trait(f.local, "shared part") and f.mechanism is not None,
        "{name} keeps weights with their client, but the averaged model that is evaluated holds their mean, which no "
        "mechanism protects; leave one of them out",
    ),
    Clash(
        "local",
        lambda f: has_trait(f.local, "shared part") and has_trait(f.aggregator, "trusted queries"),
        "{name} leaves the server without a whole model, so that it learns nothing from trusted queries of its own; "
        "use another aggregator",
    ),
    Clash(
        "attack",
        lambda f: has_trait(f.attack, "whole model") and has_trait(f.local, "shared part"),
        "{name} aims by the output weights, which this local method leaves with each client; use another attack",
    ),
    Clash(
        "attack",
        lambda f: f.attack is not None and has_trait(f.aggregator, "apart"),
        'with the aggregator "none" nobody listens to malicious clients; use another aggregator',
    ),
    Clash(
        "mechanism",
        lambda f: f.mechanism is not None and has_trait(f.aggregator, "apart"),
        'nothing leaves a client with the aggregator "none", so there is nothing to protect; use another aggregator',
    ),
    Clash(
        "aggregator",
        lambda f: has_trait(f.mechanism, "adds up") and not has_trait(f.aggregator, "sum"),
        "{name} must see single updates, and this mechanism protects nothing but their sum; "
        'use the aggregator "mean", or noise with placement = "client"',
    ),
)


def clashes(federation: Federation) -> list[str]:
    """All that does not go together, each with its place and the remedy."""
    return [
        f"{one.place}: {one.says.replace('{name}', type(getattr(federation, one.place)).__name__)}"
        for one in CLASHES
        if one.when(federation)
    ]


def people_clashes(
    learner: Learner, local: LocalStep | None, attack: Attack | None, mechanism: Mechanism | None
) -> list[str]:
    """What does not go together with clients that are organisations, with people who learn apart."""
    found = []
    if has_trait(learner, "rewards"):
        found.append("learner: evolution tells rewards, which people do not add up to one message; use pdgd")
    if has_trait(local, "common") or has_trait(local, "shared part"):
        found.append(
            f"local: {type(local).__name__} keeps something with a client, and its people begin anew from the model of "
            "the round; leave it out, or use FedProx"
        )
    if attack is not None:
        found.append("attack: people who attack within an organisation are not simulated in this version; leave it out")
    if getattr(mechanism, "unit", "client") == "interaction":
        found.append(
            'mechanism.unit: "interaction" bounds what one search adds to a client\'s own update, not to a mean over '
            'people; use "person", which covers all searches of each'
        )
    return found
