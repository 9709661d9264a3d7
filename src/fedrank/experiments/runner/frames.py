"""Tidy frames: one value per row, as a pandas frame if pandas is installed, else as a list of records."""

from __future__ import annotations

from typing import Any

from fedrank.display import as_rows, count_of


class Records(list[dict[str, Any]]):
    """Rows as dictionaries, all with the same keys; a notebook shows them as a table."""

    def __repr__(self) -> str:
        keys = ", ".join(self[0]) if self else ""
        return f"<{count_of(len(self), 'record')}{': ' if keys else ''}{keys}>"

    def _repr_html_(self) -> str:
        return as_rows(count_of(len(self), "record"), self)


def framed(rows: list[dict[str, Any]]) -> Any:
    """The rows as a pandas frame if pandas is installed, else as `Records`; missing values are None."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    whole = Records({name: row.get(name) for name in names} for row in rows)
    try:
        import pandas  # type: ignore[import-untyped, import-not-found, unused-ignore]
    except ImportError:
        return whole
    return pandas.DataFrame(list(whole), columns=names)
