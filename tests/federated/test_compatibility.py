"""What goes with what: every row of the table, and nothing else, refuses a federation."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from fedrank.attacks.poison import Promote, SignFlip
from fedrank.federated.aggregators import AGGREGATORS, Apart, Mean
from fedrank.federated.compatibility import CLASHES, clashes
from fedrank.federated.federation import Federation
from fedrank.federated.gossip import RankGuardStyle
from fedrank.federated.local import LOCAL_STEPS, FedPer, FedProx, Scaffold
from fedrank.federated.robust import Krum, Trust
from fedrank.federated.server_optimizers import SERVER_OPTIMIZERS, Momentum
from fedrank.privacy.mechanisms import AtServer, Gaussian, Laplace, SecureAggregation
from fedrank.ranking.evolution import Evolution
from fedrank.ranking.learners import LambdaRank, LoggedClicks, Pdgd
from fedrank.ranking.rankers import Mlp
from fedrank.types import has_trait

NEURAL = Pdgd(Mlp(hidden=3))
SHARED = sorted(name for name, kind in AGGREGATORS.items() if not has_trait(kind, "apart"))  # one model for all
SECURE = Gaussian(1.0, 1.0, SecureAggregation())

# (number of the row, federation, words of its message): in the order of the table
ROWS = [
    (0, {"aggregator": Apart(), "server": Momentum()}, 'server: only the server step "add"'),
    (1, {"aggregator": Apart(), "local": FedProx()}, "local: FedProx needs a shared model"),
    (2, {"learner": Evolution(), "local": FedProx()}, "local: FedProx corrects local gradient steps"),
    (2, {"learner": LambdaRank(), "local": Scaffold()}, "local: Scaffold corrects local gradient steps"),
    (3, {"local": FedPer()}, "local: FedPer shares the hidden layer"),
    (4, {"learner": Pdgd(rate=0.5), "local": FedProx(4.0)}, "local: FedProx overshoots"),
    (4, {"learner": NEURAL, "local": FedPer(20.0)}, "local: FedPer overshoots"),
    (5, {"learner": Pdgd(batch=True), "local": FedProx()}, "local: FedProx has no effect with learner.batch = true"),
    (5, {"learner": replace(NEURAL, batch=True), "local": FedPer(1.0)}, "local: FedPer has no effect with"),
    (6, {"local": Scaffold(), "attack": SignFlip()}, "local: Scaffold reads every client's gradient"),
    (6, {"local": Scaffold(), "mechanism": Gaussian(1.0, 1.0)}, "local: Scaffold reads every client's gradient"),
    (7, {"learner": Pdgd(clip_weights=1.0), "local": Scaffold()}, "local: Scaffold assumes plain steps"),
    (
        7,
        {"learner": Pdgd(batch=True, clip_gradients=1.0), "local": Scaffold()},
        "local: Scaffold assumes plain steps",
    ),
    (8, {"learner": replace(NEURAL, clip_weights=1.0), "local": FedPer()}, "local: FedPer with learner.clip_weights"),
    (
        9,
        {"learner": NEURAL, "local": FedPer(), "mechanism": Gaussian(1.0, 1.0)},
        "local: FedPer keeps personal weights",
    ),
    (10, {"learner": NEURAL, "local": FedPer(), "aggregator": Trust()}, "local: FedPer leaves the server without"),
    (11, {"learner": NEURAL, "local": FedPer(), "attack": Promote()}, "attack: Promote uses the output weights"),
    (12, {"aggregator": Apart(), "attack": SignFlip()}, "attack: malicious clients have no effect"),
    (13, {"aggregator": Apart(), "mechanism": Gaussian(1.0, 1.0)}, "mechanism: clients send nothing"),
    (14, {"aggregator": Krum(), "mechanism": SECURE}, "aggregator: Krum needs single updates"),
    (14, {"aggregator": Krum(), "mechanism": Gaussian(1.0, 1.0, AtServer())}, "aggregator: Krum needs single"),
    (15, {"dealt": 4, "participation": 0.5}, "clients.schedule: with"),
    (16, {"dealt": 4, "learner": Evolution()}, "learner: Evolution (FOLtR-ES) sends rewards"),
    (17, {"dealt": 4, "mechanism": Laplace(1.0, 1.0)}, "mechanism: Laplace is not Gaussian noise"),
    (18, {"dealt": 4, "local": Scaffold()}, "local: Scaffold stores state at a client"),
    (18, {"dealt": 4, "learner": NEURAL, "local": FedPer()}, "local: FedPer stores state at a client"),
    (19, {"aggregator": RankGuardStyle(), "mechanism": Gaussian(1.0, 1.0)}, "mechanism: Gaussian protects messages"),
    (20, {"aggregator": RankGuardStyle(), "learner": Evolution()}, "learner: Evolution shows no lists"),
    (20, {"aggregator": RankGuardStyle(), "learner": LoggedClicks()}, "learner: LoggedClicks shows no lists"),
]


def federated(parts):
    """A federation that nobody has checked."""
    made = object.__new__(Federation)
    for name, value in {**vars(Federation()), **parts}.items():
        object.__setattr__(made, name, value)
    return made


def test_every_row_of_the_table_is_tested():
    assert {row for row, *_ in ROWS} == set(range(len(CLASHES)))


@pytest.mark.parametrize(("row", "parts", "says"), ROWS, ids=lambda value: value if isinstance(value, str) else "")
def test_what_does_not_go_together_is_refused_with_its_place_and_a_remedy(row, parts, says):
    found = clashes(federated(parts))
    assert any(one.startswith(says) for one in found)
    assert CLASHES[row].when(federated(parts))
    assert all("{name}" not in one for one in found)
    place = CLASHES[row].place
    said = next(one for one in found if one.startswith(says))
    assert said.startswith(f"{place}: ")
    assert "; " in said, "a consequence, and then what to do"
    with pytest.raises(ValueError) as caught:
        Federation(**parts)
    assert str(caught.value).splitlines() == found


@pytest.mark.parametrize(("row", "parts", "says"), ROWS, ids=lambda value: value if isinstance(value, str) else "")
def test_without_any_one_of_them_the_rest_goes_together(row, parts, says):
    for name, part in parts.items():
        if len(parts) == 1 or part is NEURAL:  # clashes with a default; only there so that FedPer has a layer to share
            continue
        assert not CLASHES[row].when(federated({key: value for key, value in parts.items() if key != name}))


def test_several_clashes_are_named_at_once():
    with pytest.raises(ValueError) as caught:
        Federation(aggregator=Apart(), server=Momentum(), attack=SignFlip(), mechanism=Gaussian(1.0, 1.0))
    assert [line.split(":")[0] for line in str(caught.value).splitlines()] == ["server", "attack", "mechanism"]


def test_everything_else_goes_together():
    """All that the families have, two by two: what is refused is refused by a row that names one of the two."""
    made = 0
    for aggregator, server in itertools.product(SHARED, SERVER_OPTIMIZERS):
        assert not clashes(federated({"aggregator": AGGREGATORS[aggregator](), "server": SERVER_OPTIMIZERS[server]()}))
        made += 1
    for local, aggregator in itertools.product(LOCAL_STEPS, sorted(set(SHARED) - {"trust"})):
        parts = {"learner": NEURAL, "local": LOCAL_STEPS[local](), "aggregator": AGGREGATORS[aggregator]()}
        assert not clashes(federated(parts))
        made += 1
    for mechanism in (Gaussian(1.0, 1.0), Gaussian(1.0, 1.0, AtServer()), SECURE):
        assert not clashes(federated({"aggregator": Mean(), "mechanism": mechanism, "local": FedProx()}))
        made += 1
    assert made == 10 * 3 + 3 * 9 + 3


class Outside:
    """A rule from outside, which declares nothing: it is treated as one that must see single updates."""

    def __call__(self, messages):
        return messages.updates.mean(axis=0)


def test_a_method_from_outside_is_judged_by_the_traits_it_declares():
    with pytest.raises(ValueError, match="aggregator: Outside needs single updates"):
        Federation(aggregator=Outside(), mechanism=SECURE)

    class Sums(Outside):
        traits = frozenset({"sum"})

    assert Federation(aggregator=Sums(), mechanism=SECURE)
    assert Federation(aggregator=Outside(), mechanism=Gaussian(1.0, 1.0))
