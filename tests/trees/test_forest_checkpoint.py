"""Forests of a run, one after the other: whenever it is stopped, they come out as if it had not been."""

from __future__ import annotations

from copy import deepcopy

import pytest

pytest.importorskip("lightgbm")

from fedrank.trees.boosters import Lambdamart, Selgb
from fedrank.trees.forest_checkpoint import ForestCheckpoint, Grown
from fedrank.trees.mergers import Bagged, Cyclic
from fedrank.trees.splits import Portion
from tests.made_up import made_up_data

TRAIN = [made_up_data(queries=40, longest=30, seed=seed) for seed in (0, 1)]
VALIDATION = made_up_data(queries=15, longest=30, seed=2)
SMALL = {"trees": 6, "leaves": 5, "min_data_in_leaf": 3, "rate": 0.3}


class Stopped(Exception):
    """Somebody asked for it."""


def interrupted(booster, grow, every: int):
    """What `grow` makes of a booster that is stopped after every so many trees; and how often it was."""
    kept: list[Grown] = []
    for stops in range(100):
        turns = 0

        def turn() -> None:
            nonlocal turns
            turns += 1
            if turns == every:
                raise Stopped

        forestry = ForestCheckpoint(booster, None, turn, deepcopy(kept))
        try:
            return grow(forestry), stops
        except Stopped:
            assert sum(len(forest.all) for forest in forestry.forests) > sum(len(forest.all) for forest in kept)
            kept = forestry.forests
    raise AssertionError("it never ends")


@pytest.mark.parametrize("booster", [Lambdamart(**SMALL), Selgb(**SMALL, keep=0.3), Lambdamart(**SMALL, patience=2)])
@pytest.mark.parametrize("every", [1, 4])
def test_stopped_forests_are_those_of_the_booster(booster, every):
    forests, stops = interrupted(
        booster, lambda forestry: [forestry(data, VALIDATION, seed=3).text for data in TRAIN], every
    )
    assert forests == [booster(data, VALIDATION, seed=3).text for data in TRAIN]
    assert stops >= 2


@pytest.mark.parametrize("merger", [Bagged(), Cyclic(), Cyclic(turn=2)])
@pytest.mark.parametrize("patience", [0, 2])
def test_a_stopped_shared_forest_is_the_same(merger, patience):
    booster = Lambdamart(**SMALL, patience=patience)
    portions = [Portion(str(number), data, VALIDATION, None, data) for number, data in enumerate(TRAIN)]
    (shared, again), stops = interrupted(booster, lambda forestry: merger(portions, (), forestry, 1), 2)
    assert shared.text == again.text == merger(portions, (), booster, 1)[0].text
    assert stops >= 1


def test_settings_are_found_for_every_forest():
    asked = []

    def settings(booster, train, validation, seed, threads):
        asked.append(train)
        return Lambdamart(**SMALL | {"trees": len(asked)})

    forestry = ForestCheckpoint(Lambdamart(**SMALL), settings)
    assert [len(forestry(data, None, seed=1)) for data in TRAIN] == [1, 2]
    assert asked == TRAIN
