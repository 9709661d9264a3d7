"""What a user does with a result list."""

from __future__ import annotations

from fedrank.kernels.chance import uniform
from fedrank.kernels.compile import compiled


@compiled()
def read_and_click(grades, shown, count, click, stop, attention, stream, first_draw, clicked):
    """Read `count` shown documents from the top; mark clicks; return how many positions PDGD considers.

    Considered are all positions down to and including the one after the last click, none without a click.
    Draws first_draw + 2i and first_draw + 2i + 1 decide position i.
    """
    considered = 0
    left = False
    for i in range(count):
        clicked[i] = False
        if left:
            continue
        grade = grades[shown[i]]
        if uniform(stream, first_draw + 2 * i) < click[grade] * attention[i]:
            clicked[i] = True
            considered = i + 2
            left = uniform(stream, first_draw + 2 * i + 1) < stop[grade]
    return min(considered, count)
