"""A strict reader of the little LaTeX that tables are written in: what it takes, LaTeX compiles.

It knows one environment for floats and one for cells, and every command with its number of arguments. Whatever else
LaTeX could mean by a character is refused, as LaTeX would refuse it or, worse, swallow it.
"""

from __future__ import annotations

import re

ARGUMENTS = {
    "begin": 1,
    "end": 1,
    "caption": 1,
    "label": 1,
    "textbf": 1,
    "centering": 0,
    "par": 0,
    "smallskip": 0,
    "footnotesize": 0,
    "toprule": 0,
    "midrule": 0,
    "bottomrule": 0,
    "textbackslash": 0,
    "textasciitilde": 0,
    "textasciicircum": 0,
    "ldots": 0,
}
IN_MATHS = {"pm", "times", "varepsilon", "delta", "uparrow", "downarrow", "cdot", "leq", "geq", "rightarrow", "surd"}
IN_MATHS |= {"alpha", "beta", "lambda", "sigma", "Delta"}
TOKEN = re.compile(r"\\[A-Za-z]+|\\.|.", re.DOTALL)


def check_table(text: str) -> list[list[str]]:
    """The cells of each row, as they were written; ValueError says what LaTeX would not take."""
    text = re.sub(r"^%.*\n", "", text, flags=re.MULTILINE)
    _check_tokens(TOKEN.findall(text))
    whole = re.fullmatch(
        r"\\begin\{table\}\n  \\centering\n  \\caption\{.+\}\n  \\label\{[a-zA-Z0-9:.-]+\}\n"
        r"  \\begin\{tabular\}\{([lr]+)\}\n    \\toprule\n(.+)\n    \\midrule\n(.*\n)    \\bottomrule\n"
        r"  \\end\{tabular\}\n(?:  \\par\\smallskip\n(?:  \{\\footnotesize .+\\par\}\n)+)?\\end\{table\}\n",
        text,
        re.DOTALL,
    )
    if whole is None:
        raise ValueError(f"no table as it should be:\n{text}")
    rows = []
    for line in [whole[2], *whole[3].splitlines()]:
        if not line.endswith(r" \\"):
            raise ValueError(f"a row without an end: {line}")
        row = line.strip().removesuffix(r" \\")
        if row[:1] in ("[", "*"):
            raise ValueError(f"taken for an argument of the row above: {line}")
        cells = re.split(r"(?<!\\)&", row)
        if len(cells) != len(whole[1]):
            raise ValueError(f"{len(cells)} cells in {len(whole[1])} columns: {line}")
        rows.append([cell.strip() for cell in cells])
    return rows


def _check_tokens(tokens: list[str]) -> None:
    depth, maths = [], False
    for i, token in enumerate(tokens):
        if token == "{":
            depth.append(maths)
        elif token == "}":
            if not depth or depth.pop() != maths:
                raise ValueError(f"a brace that nothing opened, or across the end of a formula: {_around(tokens, i)}")
        elif token == "$":
            maths = not maths
        elif token[0] == "\\" and token[1:].isalpha():
            name = token[1:]
            if name not in (IN_MATHS if maths else ARGUMENTS):
                raise ValueError(f"no command {token} {'in' if maths else 'outside'} a formula: {_around(tokens, i)}")
            if ARGUMENTS.get(name) and "".join(tokens[i + 1 : i + 2]) != "{":
                raise ValueError(f"{token} without its argument: {_around(tokens, i)}")
        elif token[0] == "\\" and token not in ("\\\\", *(f"\\{sign}" for sign in "&%$#_{}")):
            raise ValueError(f"no command {token!r}: {_around(tokens, i)}")
        elif token in ("%", "#", "~") or (token in ("_", "^", "&") and not maths and token != "&"):
            raise ValueError(f"a bare {token}: {_around(tokens, i)}")
        elif token == "\n" and maths:
            raise ValueError(f"a formula that does not end: {_around(tokens, i)}")
        elif not token.isascii() and not token.isalpha():
            raise ValueError(f"{token!r} has no place in a font: {_around(tokens, i)}")
    if depth or maths:
        raise ValueError("a brace or a formula is left open")


def _around(tokens: list[str], place: int) -> str:
    return "".join(tokens[max(0, place - 20) : place + 20])
