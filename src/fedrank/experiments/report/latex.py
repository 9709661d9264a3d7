"""Tables as LaTeX, for a paper: they need the package booktabs and nothing else."""

from __future__ import annotations

from fedrank.experiments.report.sections import Cell, Table

ESCAPED = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": "$<$",
    ">": "$>$",
    "|": "$|$",
    "[": "{[}",  # after the end of a row, a bracket would be its argument
    "*": "{*}",  # and so would a star
    "±": r"$\pm$",
    "×": r"$\times$",
    "ε": r"$\varepsilon$",
    "δ": r"$\delta$",
    "▲": r"$^{\uparrow}$",
    "▼": r"$^{\downarrow}$",
    "“": "``",
    "”": "''",
    "…": r"\ldots{}",
    "·": r"$\cdot$",
    "–": "--",
    "−": "$-$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "→": r"$\rightarrow$",
    "√": r"$\surd$",
    "α": r"$\alpha$",
    "β": r"$\beta$",
    "λ": r"$\lambda$",
    "σ": r"$\sigma$",
    "Δ": r"$\Delta$",
}
SIGNS = str.maketrans(ESCAPED)


def latex(table: Table, caption: str, label: str) -> str:
    """A floating table with its caption; notes below a table of a report become a comment."""
    columns = "".join("l" if table.is_text(i) else "r" for i in range(len(table.header)))
    lines = [*(f"% {' '.join(note.split())}" for note in table.notes)]
    lines += [r"\begin{table}", r"  \centering", rf"  \caption{{{escaped(caption)}}}", rf"  \label{{tab:{label}}}"]
    lines += [
        rf"  \begin{{tabular}}{{{columns}}}",
        r"    \toprule",
        f"    {_row([escaped(name) for name in table.header])}",
    ]
    lines += [r"    \midrule", *(f"    {_row([_cell(cell) for cell in row])}" for row in table.cells)]
    lines += [r"    \bottomrule", r"  \end{tabular}", r"\end{table}"]
    return "\n".join(lines) + "\n"


def escaped(text: str) -> str:
    """Text that LaTeX prints as it is.

    >>> print(escaped("50 % of a_b"))
    50 \\% of a\\_b
    """
    return " ".join(text.split()).translate(SIGNS)


def _cell(cell: Cell) -> str:
    shown = escaped(cell.text)
    if shown.startswith("-") and shown[1:2].isdigit():
        shown = f"${shown[0]}${shown[1:]}"  # a minus, and no hyphen
    shown = rf"\textbf{{{shown}}}" if cell.strong else shown
    return shown + escaped(cell.mark or "")


def _row(cells: list[str]) -> str:
    return " & ".join(cells) + r" \\"
