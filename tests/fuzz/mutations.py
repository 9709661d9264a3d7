"""One small change to a file: what disks, mail programs, editors and enemies do."""

from __future__ import annotations

import re

import numpy as np

NUMBERS = (b"-1", b"0", b"1", b"999999", b"2147483648", b"-9223372036854775809", b"1e999", b"nan", b"-inf", b"1_0", b"")
WORDS = (
    b"null",
    b"[]",
    b"{}",
    b"true",
    b'"x"',
    b"[[[[[[[[",
    b"\xff\xfe",
    b"\x00",
    b"\n",
    b"=",
    b"../x",
    b"module:Class",
)
DEEP = (b"[" * 5000, b'{"a":' * 5000, b"{a = " * 5000, b"9" * 5000, b"a." * 5000)


def mutated(content: bytes, rng: np.random.Generator) -> bytes:
    """The content with one change; now and then it comes out as it was."""
    change = CHANGES[rng.integers(len(CHANGES))]
    return change(content, rng)


def _span(content: bytes, rng: np.random.Generator) -> tuple[int, int]:
    begin = int(rng.integers(len(content) + 1))
    return begin, min(len(content), begin + int(2 ** rng.uniform(0, 8)))


def _flip(content: bytes, rng: np.random.Generator) -> bytes:
    if not content:
        return b"\x00"
    changed = bytearray(content)
    changed[rng.integers(len(changed))] ^= 1 << int(rng.integers(8))
    return bytes(changed)


def _another_digit(content: bytes, rng: np.random.Generator) -> bytes:
    places = [found.start() for found in re.finditer(rb"[0-9]", content)]
    if not places:
        return _flip(content, rng)
    at = places[rng.integers(len(places))]
    return content[:at] + b"%d" % rng.integers(10) + content[at + 1 :]


def _another_number(content: bytes, rng: np.random.Generator) -> bytes:
    found = list(re.finditer(rb"-?[0-9][0-9.eE+-]*", content))
    if not found:
        return _flip(content, rng)
    one = found[rng.integers(len(found))]
    return content[: one.start()] + NUMBERS[rng.integers(len(NUMBERS))] + content[one.end() :]


def _cut(content: bytes, rng: np.random.Generator) -> bytes:
    return content[: rng.integers(len(content) + 1)]


def _delete(content: bytes, rng: np.random.Generator) -> bytes:
    begin, end = _span(content, rng)
    return content[:begin] + content[end:]


def _repeat(content: bytes, rng: np.random.Generator) -> bytes:
    begin, end = _span(content, rng)
    return content[:end] + content[begin:end] * int(rng.integers(1, 4)) + content[end:]


def _insert(content: bytes, rng: np.random.Generator) -> bytes:
    at = int(rng.integers(len(content) + 1))
    return content[:at] + (WORDS + DEEP)[rng.integers(len(WORDS + DEEP))] + content[at:]


def _overwrite(content: bytes, rng: np.random.Generator) -> bytes:
    begin, end = _span(content, rng)
    return content[:begin] + rng.bytes(end - begin) + content[end:]


def _swap_lines(content: bytes, rng: np.random.Generator) -> bytes:
    lines = content.split(b"\n")
    a, b = rng.integers(len(lines), size=2)
    lines[a], lines[b] = lines[b], lines[a]
    return b"\n".join(lines)


def _another_word(content: bytes, rng: np.random.Generator) -> bytes:
    words = list(re.finditer(rb"[A-Za-z_]{2,}", content))
    if not words:
        return _flip(content, rng)
    one, other = (words[i] for i in rng.integers(len(words), size=2))
    return content[: one.start()] + other.group() + content[one.end() :]


CHANGES = (
    _flip, _another_digit, _another_number, _cut, _delete, _repeat, _insert, _overwrite, _swap_lines, _another_word,
)  # fmt: skip
