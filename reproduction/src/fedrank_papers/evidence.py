"""The numbers behind every verdict, as a file: the page of claims is a function of it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from fedrank.experiments.report.claims import Stated, Verdict, judge_all
from fedrank.experiments.report.contrast import Contrast
from fedrank.files import read_text, write_atomic
from fedrank_papers.entries import Entry
from fedrank_papers.page import value_rows

VERSION = 1


@dataclass(frozen=True)
class Record:
    """One experiment: how it was run, its tests before they are judged, and published values next to measured ones."""

    name: str  # its folder within all runs
    paper: str  # title; empty without a paper
    item: str  # name of the table or figure
    label: str
    form: str
    data: str
    command: str
    runs: int
    seconds: float  # of processor time
    ended: str
    processors: tuple[str, ...]
    stated: tuple[Stated, ...]
    values: tuple[tuple[str, ...], ...]  # rows of published values, the last cell is the convention
    note: str = ""  # what a reader must know of these numbers

    @cached_property
    def claims(self) -> tuple[Verdict, ...]:
        return judge_all(self.stated)


def records(by_paper: Mapping[str, Sequence[Entry]]) -> list[Record]:
    """The experiments of a folder of runs."""
    return [_record(title, entry) for title, some in by_paper.items() for entry in some]


def _record(title: str, entry: Entry) -> Record:
    runs, item = entry.analysis.runs.finished, entry.item
    names = [field.name for field in fields(Stated)]
    stated = tuple(Stated(**{name: getattr(claim, name) for name in names}) for claim in entry.analysis.claims)
    return Record(
        name=entry.name,
        paper=title if item else "",
        item=item.name if item else entry.name,
        label=item.label if item else entry.caption,
        form=entry.form,
        data=entry.data,
        command=entry.command,
        runs=len(runs),
        seconds=entry.seconds,
        ended=entry.ended,
        processors=tuple(dict.fromkeys(run.processor for run in runs if run.processor)),
        stated=stated,
        values=tuple(value_rows(entry.analysis, entry.analysis.published)),
    )


def merged(old: Iterable[Record], new: Iterable[Record]) -> list[Record]:
    """Old experiments, replaced by new ones of the same name; the others follow."""
    found = {record.name: record for record in old}
    return [*(found | {record.name: record for record in new}).values()]


def read_evidence(file: Path) -> list[Record]:
    """The records of a file; none if it does not exist."""
    if not file.exists():
        return []
    content = json.loads(read_text(file))
    if content.get("version") != VERSION:
        raise ValueError(
            f"{file}: version must be {VERSION} (got {content.get('version')!r}); write it again from runs"
        )
    return [_read(row) for row in content["experiments"]]


def _read(row: dict[str, Any]) -> Record:
    return Record(
        **{name: value for name, value in row.items() if name not in ("processors", "stated", "values")},
        processors=tuple(row["processors"]),
        stated=tuple(
            Stated(**(claim | {"contrast": Contrast(**{k: _number(v) for k, v in claim["contrast"].items()})}))
            for claim in row["stated"]
        ),
        values=tuple(map(tuple, row["values"])),
    )


def write_evidence(file: Path, found: Sequence[Record]) -> None:
    """Write records as JSON, one claim per line; a number that does not exist is null."""
    experiments = []
    for record in found:
        rest = {field.name: getattr(record, field.name) for field in fields(Record) if field.name != "stated"}
        lines = ",\n".join(f"    {_json(asdict(claim))}" for claim in record.stated)
        experiments.append(f'  {_json(rest)[:-1]}, "stated": [\n{lines}\n  ]}}')
    body = ",\n".join(experiments)
    write_atomic(file, f'{{"version": {VERSION}, "experiments": [\n{body}\n]}}\n')


def _json(value: Any) -> str:
    return json.dumps(_known(value), ensure_ascii=False, allow_nan=False)


def _known(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _known(each) for name, each in value.items()}
    return None if isinstance(value, float) and math.isnan(value) else value


def _number(value: Any) -> Any:
    return math.nan if value is None else value
