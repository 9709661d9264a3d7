"""Who holds what: the clients that an experiment makes, as a table and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedrank.experiment.families import describe
from fedrank.experiment.federated_spec import Experiment
from fedrank.experiment.run import clients_of, load_fold
from fedrank.experiment.spec import Variant
from fedrank.experiment.toml import shown
from fedrank.federate.differences import Differences, differences
from fedrank.types import Clients

if TYPE_CHECKING:
    from rich.console import Console

MOST_VARIANTS = 8
MOST_ROWS = 20  # clients in a table
MEANINGS = {
    "grades, from all": "how far a client's shares of grades are from those of all clients; 0 alike, 1 nothing alike",
    "features, from all": "how far its features are from those of all, in standard deviations (Wasserstein)",
    "queries in common": "of the queries that either of two clients has, the share that both have",
    "judged differently": "of what both hold and one finds relevant, the share that the other grades differently",
}


@dataclass(frozen=True)
class Group:
    """Clients that one variant, or several, make."""

    variants: tuple[str, ...]  # names of all variants with these clients
    how: str  # the settings that made them
    found: Differences

    @property
    def title(self) -> str:
        names = ", ".join(self.variants[:3])
        return names if len(self.variants) <= 3 else f"{names} and {len(self.variants) - 3} more"


@dataclass(frozen=True)
class Who:
    """The clients of an experiment, on one fold with one seed."""

    data: str
    fold: int
    seed: int
    groups: tuple[Group, ...]
    left_out: int  # further groups, beyond MOST_VARIANTS


def describe_clients(experiment: Experiment, fold: int | None = None, seed: int | None = None) -> Who:
    """What every variant's clients hold; variants with the same clients are described together.

    The first fold and seed of the experiment are taken unless others are given.
    """
    fold = experiment.data.folds[0] if fold is None else fold
    seed = experiment.seeds[0] if seed is None else seed
    alike: dict[str, list[Variant[Experiment]]] = {}
    for variant in experiment.expand():
        one = variant.experiment
        # Everything that decides who holds what; learners and servers do not.
        made_of = replace(one.clients, partition=describe(one.methods.partition), participation=1.0, malicious=0)
        alike.setdefault(repr((one.data, made_of)), []).append(variant)
    groups = []
    for variants in list(alike.values())[:MOST_VARIANTS]:
        asked = variants[0].experiment
        clients = clients_of(asked, fold, seed)
        names = tuple(variant.name for variant in variants)
        groups.append(Group(names, _how(asked, clients), differences(clients, seed)))
    name = load_fold(experiment.data, fold).name
    return Who(name, fold, seed, tuple(groups), max(0, len(alike) - MOST_VARIANTS))


def show_clients(who: Who, console: Console) -> None:
    """Print what clients hold and how different they are."""
    from rich.table import Table
    from rich.text import Text

    console.print(Text(f"{who.data}, fold {who.fold}, seed {who.seed}"))
    for group in who.groups:
        found = group.found
        console.print()
        console.print(Text(group.title, style="bold"))
        alike = len(set(found.users)) == 1  # then one word says it, and the table fits a narrow terminal
        console.print(Text(f"{group.how}, user {found.users[0]}" if alike else group.how, style="dim"))
        table = Table("client", box=None, pad_edge=False, header_style="cyan")
        levels = found.grades.shape[1]
        numbers = [
            "queries",
            "no relevant",
            "documents",
            *(f"grade {g}" for g in range(levels)),
            "searches",
            "from all",
        ]
        for column in numbers:
            table.add_column(column, justify="right", overflow="fold")
        if not alike:
            table.add_column("user", overflow="fold")
        rows = _first_and_last(len(found.queries), MOST_ROWS)
        for before, c in zip((-1, *rows), rows, strict=False):
            if c > before + 1:
                table.add_row("…")
            counts = (found.queries[c], found.without[c], found.documents[c], *found.grades[c], found.interactions[c])
            cells = [f"{count:,}" for count in counts]
            user = () if alike else (Text(found.users[c]),)
            table.add_row(str(c), *cells, f"{found.from_all[c]:.3f}", *user)
        console.print(table)
        console.print()
        measures = Table("how different", box=None, pad_edge=False, header_style="cyan")
        for column in ("mean", "most", "by chance", "most by chance"):
            measures.add_column(column, justify="right")
        for one in found.distances:
            values = (one.mean, one.most, one.mean_by_chance, one.most_by_chance)
            measures.add_row(one.name, *("-" if np.isnan(value) else f"{value:.3f}" for value in values))
        console.print(measures)
    console.print()
    for name, meaning in MEANINGS.items():
        console.print(Text(f"{name}: {meaning}", style="dim"))
    console.print(Text("by chance: the same if everybody's share were drawn at random from what all hold", style="dim"))
    if who.left_out:
        console.print(
            Text(
                f"{who.left_out} more kinds of clients are not shown; use --set to describe one of them", style="yellow"
            )
        )


def draw_clients(who: Who, path: str | Path) -> None:
    """Draw the shares of grades of clients, and how different each two of them are; the file's ending is its format."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from fedrank.experiment.figures import LOOK

    with mpl.rc_context(LOOK):
        heights = [max(1.6, 0.24 * len(group.found.compared)) + 1.0 for group in who.groups]
        figure = Figure(figsize=(11.0, sum(heights) + 0.6), layout="constrained")
        FigureCanvasAgg(figure)
        _plain(figure.suptitle(f"Who holds what: {who.data}, fold {who.fold}, seed {who.seed}", x=0.01, ha="left"))
        parts = figure.subfigures(len(who.groups), 1, squeeze=False, height_ratios=heights)[:, 0]
        for part, group in zip(parts, who.groups, strict=True):
            _draw_group(part, group)
        figure.savefig(path, dpi=150)


def _draw_group(part: Any, group: Group) -> None:
    found = group.found
    _plain(part.suptitle(_cut(f"{group.title}: {group.how}", 150), x=0.01, ha="left", fontsize=9, fontweight="bold"))
    bars, left, right = part.subplots(1, 3, width_ratios=(1.7, 1, 1))
    _bars(bars, found)
    names = found.compared
    grades = next(one for one in found.distances if one.name == "grades, from all")
    _heat(left, found.grade_pairs, names, "Difference in grades", f"from all: {_against(grades)}")
    judged = found.judgement_pairs.any()
    wanted = "judged differently" if judged else "queries in common"
    other = next(one for one in found.distances if one.name == wanted)
    table = found.judgement_pairs if judged else found.query_pairs
    image = _heat(right, table, names, wanted.capitalize(), f"pairs: {_against(other)}")
    part.colorbar(image, ax=[left, right], shrink=0.8, aspect=18, pad=0.02, ticks=(0, 0.5, 1)).outline.set_visible(
        False
    )


def _bars(axis: Any, found: Differences) -> None:
    from matplotlib import colormaps

    rows, shares = np.arange(len(found.compared)), found.shares[found.compared]
    levels = shares.shape[1]
    relevant = colormaps["viridis_r"](np.linspace(0.12, 0.95, max(levels - 1, 1)))
    before = np.zeros(len(rows))
    for grade in range(levels):
        colour = "#dde2e8" if grade == 0 else relevant[grade - 1]
        axis.barh(rows, shares[:, grade], left=before, color=colour, height=0.8, label=f"grade {grade}", lw=0)
        before += shares[:, grade]
    for row, c in zip(rows, found.compared.tolist(), strict=True):
        axis.text(1.015, row, f"{found.queries[c]:,} q, {found.documents[c]:,} d", va="center", fontsize=7.5)
    axis.set_xlim(0, 1.34)
    axis.set_ylim(len(rows) - 0.5, -0.5)
    axis.set_xticks([])
    axis.set_yticks(*_ticks(found.compared))
    axis.set_ylabel("client")
    axis.tick_params(length=0)
    axis.grid(False)
    axis.spines[:].set_visible(False)
    axis.set_title("Shares of grades; queries (q) and documents (d)", loc="left", fontsize=8.5)
    axis.legend(
        loc="upper left",
        bbox_to_anchor=(0, -0.04 - 0.6 / len(rows)),
        ncols=levels,
        handlelength=1.0,
        columnspacing=1.0,
        borderpad=0,
    )


def _heat(axis: Any, table: NDArray[np.float64], names: NDArray[np.int64], title: str, note: str) -> Any:
    image = axis.imshow(table, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    if len(table) <= 10:
        for (row, column), value in np.ndenumerate(table):
            colour = "white" if value > 0.6 else "#1f2933"
            label = "1" if value > 0.995 else f"{value:.2f}".lstrip("0") if value >= 0.005 else "0"
            axis.text(column, row, label, ha="center", va="center", fontsize=6.5, color=colour)
    axis.set_xticks(*_ticks(names))
    axis.set_yticks(*_ticks(names))
    axis.tick_params(length=0)
    axis.grid(False)
    axis.spines[:].set_visible(False)
    axis.set_title(f"{title}\n{note}", loc="left", fontsize=8.5)
    return image


def _ticks(names: NDArray[np.int64]) -> tuple[list[int], list[str]]:
    places = list(range(0, len(names), max(1, -(-len(names) // 20))))
    return places, [str(names[place]) for place in places]


def _against(distance: Any) -> str:
    if np.isnan(distance.mean):
        return "-"
    return f"mean {distance.mean:.2f}, by chance {distance.mean_by_chance:.2f}"


def _how(asked: Experiment, clients: Clients) -> str:
    """The settings behind some clients, in one line."""
    partition = describe(asked.methods.partition)
    searches = np.unique(clients.interactions).tolist()
    brings = f"{searches[0]}" if len(searches) == 1 else f"{searches[0]} to {searches[-1]}"
    many = "1 client" if len(clients) == 1 else f"{len(clients):,} clients"
    return f"{many}, partition {_short(partition)}, {brings} searches a round"


def _short(table: dict[str, Any]) -> str:
    settings = [
        f"{key} = {_short(value) if isinstance(value, dict) else shown(value)}"
        for key, value in table.items()
        if key != "name"
    ]
    return f"{table['name']} ({', '.join(settings)})" if settings else str(table["name"])


def _first_and_last(count: int, most: int) -> Sequence[int]:
    return range(count) if count <= most else (*range(most - 1), count - 1)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _plain(text: Any) -> None:
    text.set_parse_math(False)  # names come from files, and a "$" there is only a "$"
