"""Compact display of records: one line at a prompt, a small table in a notebook."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any
from unicodedata import category

CELL = "text-align: left; vertical-align: top"


class DisplayMixin:
    """A record that is displayed by the facts in `_display` instead of its arrays."""

    def _display(self) -> tuple[str, Mapping[str, str]]:
        """Return a name and facts; empty facts are omitted."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return one_line(type(self).__name__, *self._display())

    def _repr_html_(self) -> str:
        return as_pairs(type(self).__name__, *self._display())


def one_line(kind: str, name: str, facts: Mapping[str, str]) -> str:
    """
    >>> one_line("Fold", "mq2007, fold 1", {"features": "46", "notes": ""})
    '<Fold mq2007, fold 1; features: 46>'
    """
    return f"<{'; '.join([f'{kind} {name}'.rstrip(), *(f'{key}: {text}' for key, text in facts.items() if text)])}>"


def as_pairs(kind: str, name: str, facts: Mapping[str, str]) -> str:
    """Format a record as HTML, one row per fact."""
    rows = (f'<tr><th style="{CELL}">{escape(key)}</th>{_cell(text)}</tr>' for key, text in facts.items() if text)
    return f"<div><b>{escape(kind)}</b> {escape(name)}<table>{''.join(rows)}</table></div>"


def as_rows(caption: str, rows: Sequence[Mapping[str, Any]], most: int = 20) -> str:
    """Format records as an HTML table with at most `most` rows."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    head = "".join(f'<th style="{CELL}">{escape(name)}</th>' for name in names)
    body = "".join(f"<tr>{''.join(_cell(row.get(name, '')) for name in names)}</tr>" for row in rows[:most])
    more = f"<div>… and {len(rows) - most:,} more</div>" if len(rows) > most else ""
    return f"<div>{escape(caption)}<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}</div>"


def visible(text: str, drop: bool = False) -> str:
    r"""Text in which characters that are invisible, or change the direction of others, are escaped, or left out.

    Otherwise "invoice\u202efdp.exe" would be displayed as "invoiceexe.pdf". Tabs, line breaks, and joiners behind a
    character that is not ASCII, as in Persian words and emoji, stay.

    >>> print(visible("invoice\u202efdp.exe\x1b[2J"))
    invoice\u202efdp.exe\x1b[2J
    """
    if text.isprintable():
        return text
    signs = zip(" " + text, text, strict=False)
    return "".join(sign if not _hidden(before, sign) else "" if drop else _escaped(sign) for before, sign in signs)


def _hidden(before: str, sign: str) -> bool:
    if sign in "\t\n" or (sign in "\u200c\u200d" and not before.isascii()):
        return False
    return category(sign) in ("Cc", "Cf", "Cs", "Zl", "Zp")  # controls, formats, surrogates and separators


def _escaped(sign: str) -> str:
    code = ord(sign)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65_536 else f"\\U{code:08x}"


def count_of(count: int, one: str, many: str = "") -> str:
    """
    >>> count_of(1, "query", "queries"), count_of(1200, "client")
    ('1 query', '1,200 clients')
    """
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def listed(names: Iterable[str], most: int = 4) -> str:
    """
    >>> listed("abcde", most=3)
    'a, b, c and 2 more'
    """
    some = list(names)
    return ", ".join(some[:most]) + (f" and {len(some) - most:,} more" if len(some) > most else "")


def json_text(value: Any) -> str:
    """A value as JSON: dataclasses are objects, numbers that are not finite are null, invisible characters escaped."""
    text = json.dumps(_json_value(value), indent=1, ensure_ascii=False, allow_nan=False)
    return re.sub(r"[^\n -~]", lambda sign: sign[0] if sign[0].isprintable() else json.dumps(sign[0])[1:-1], text)


def _json_value(value: Any) -> Any:
    if isinstance(value, float) or (hasattr(value, "dtype") and getattr(value, "ndim", 1) == 0):
        number = value if isinstance(value, float) else value.item()
        return number if not isinstance(number, float) or math.isfinite(number) else None
    if hasattr(value, "tolist"):
        return _json_value(value.tolist())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: _json_value(getattr(value, each.name)) for each in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _json_value(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json_value(one) for one in value]
    return str(value) if isinstance(value, Path) else value


def _cell(value: Any) -> str:
    return f'<td style="{CELL}">{escape(f"{value:.4f}" if isinstance(value, float) else str(value))}</td>'
