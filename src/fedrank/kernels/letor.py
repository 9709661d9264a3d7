"""Parse LETOR lines in a block of bytes.

Every line in the block must end in a newline, which stops all loops, so none needs to check for the end of the block.
"""

import numpy as np

from fedrank.kernels.compile import compiled

MAX_INDEX = 100_000
MAX_GRADE = 31

# Results of `read_lines`. Before BAD_GRADE: enlarge arrays and call again; from it on: the text at state[MARK] is bad.
DONE, FULL, WIDER = 0, 1, 2
BAD_GRADE, BAD_QUERY, LONG_QUERY, BAD_PAIR, BAD_INDEX, TWICE, BAD_VALUE, ENDLESS, NUL = 3, 4, 5, 6, 7, 8, 9, 10, 11

# Indices in `state`, which carries everything from one call to the next.
POSITION = 0  # byte where the next line starts
LINE = 1  # its number
ROW = 2  # documents read
QUERIES = 3  # rows used in `queries`
HARD = 4  # rows used in `hard`
LAST = 5  # bytes LAST .. LAST_END contain the query id of the previous document
LAST_END = 6
HIGHEST = 7  # highest index seen
FEWEST = 8  # fewest features on a line
WANTED = 9  # features that the next line needs
MARK = 10  # start of the bad text
STAMP = 11  # lines tried; marks features seen on this line
STATES = 12

_POWERS = np.array([float(f"1e{power}") for power in range(309)])
_EXACT = 2**53  # integers up to this are exact as doubles, and so are powers of ten up to 22
_LARGEST = np.finfo(np.float64).max
_SLACK = 1e-15  # above the total error of the three roundings of an inexact product


@compiled()
def is_space(byte):
    """Whether a byte separates words on a line (including a carriage return, for CRLF)."""
    return byte == 32 or byte == 9 or byte == 13 or byte == 11 or byte == 12


@compiled()
def careful_digits(text, at):
    """The first 18 significant digits from `at` as a number, and the power of ten for the others."""
    mantissa, power, fraction = 0, 0, False
    while True:
        byte = int(text[at])
        if byte == 46:
            fraction = True
        elif byte < 48 or byte > 57:
            return mantissa, power
        else:
            if mantissa < 10**17:
                mantissa = mantissa * 10 + (byte - 48)
                power -= int(fraction)
            else:
                power += int(not fraction)
        at += 1


@compiled()
def read_number(text, at):
    """Parse a decimal number: its value, whether it equals the result of `float`, the byte after it (-1: none)."""
    negative = text[at] == 45
    if negative or text[at] == 43:
        at += 1
    first = at
    mantissa = 0
    digit = int(text[at]) - 48
    while 0 <= digit <= 9:
        mantissa = mantissa * 10 + digit
        at += 1
        digit = int(text[at]) - 48
    digits = at - first
    power = 0
    if digit == -2:
        at += 1
        point = at
        digit = int(text[at]) - 48
        while 0 <= digit <= 9:
            mantissa = mantissa * 10 + digit
            at += 1
            digit = int(text[at]) - 48
        power = point - at
        digits += at - point
    if digits == 0:
        return 0.0, True, -1
    if digits > 18:
        mantissa, power = careful_digits(text, first)
    if text[at] == 101 or text[at] == 69:
        at += 1
        down = text[at] == 45
        if down or text[at] == 43:
            at += 1
        start = at
        exponent = 0
        digit = int(text[at]) - 48
        while 0 <= digit <= 9:
            exponent = min(exponent * 10 + digit, 10**9)
            at += 1
            digit = int(text[at]) - 48
        if at == start:
            return 0.0, True, -1
        power += -exponent if down else exponent

    exact = True
    if mantissa == 0:
        value = 0.0
    elif mantissa <= _EXACT and -22 <= power <= 22 and digits <= 18:
        value = mantissa / _POWERS[-power] if power < 0 else mantissa * _POWERS[power]
    elif power > 308:
        value = np.inf
    elif power < -70:
        value = 0.0  # below 1e-52, which underflows in float32
    else:
        exact = False
        if power < 0:
            value = mantissa / _POWERS[-power]
        else:
            # A sixteenth, so the largest double is not rounded up to infinity.
            part = mantissa / 16.0 * _POWERS[power]
            if part < _LARGEST / 16:
                value = part * 16
            else:
                value = _LARGEST if part <= _LARGEST / 16 * (1 + _SLACK) else np.inf
    return -value if negative else value, exact, at


@compiled()
def is_missing(value, exact, missing):
    """Whether a number marks a missing value (nan: none does)."""
    if exact:
        return value == missing
    return abs(value - missing) <= _SLACK * abs(missing)


@compiled()
def is_hard(value):
    """Whether a number with small rounding errors could round to a different float32 than its text."""
    return np.float32(value * (1 - _SLACK)) != np.float32(value * (1 + _SLACK))


@compiled()
def read_pairs(text, at, values, seen, hard, state, missing):
    """Parse `index:value` pairs into a row up to the comment or the end of the line: status, the byte there.

    Values that this parser cannot round reliably (one in many millions) are listed in `hard` for the caller.
    """
    stamp = state[STAMP]
    width = len(values)
    count, highest = 0, 0
    while True:
        while is_space(text[at]):
            at += 1
        if text[at] == 10 or text[at] == 35:
            break
        start = at
        index = 0
        digit = int(text[at]) - 48
        while 0 <= digit <= 9:
            index = index * 10 + digit
            at += 1
            digit = int(text[at]) - 48
        if digit != 10 or at == start:
            state[MARK] = start
            return BAD_PAIR, at
        if index < 1 or index > MAX_INDEX or at - start > 9:
            state[MARK] = start
            return BAD_INDEX, at
        at += 1
        begin = at
        value, exact, at = read_number(text, at)
        # "1.#INF" is not a 1 followed by a comment.
        if at < 0 or not (is_space(text[at]) or text[at] == 10 or (text[at] == 35 and text[at - 1] != 46)):
            state[MARK] = start
            return BAD_VALUE, at
        count += 1
        highest = max(highest, index)
        if index > width:
            continue
        if seen[index] == stamp:
            state[MARK] = start
            return TWICE, at
        seen[index] = stamp
        if is_missing(value, exact, missing):
            value = 0.0
        elif not exact and is_hard(value):
            used = state[HARD]
            hard[used, 0] = state[ROW]
            hard[used, 1] = index - 1
            hard[used, 2] = state[LINE]
            hard[used, 3] = begin
            hard[used, 4] = at
            state[HARD] = used + 1
        elif abs(value) > 3.5e38 or np.isinf(np.float32(value)):
            state[MARK] = start
            return ENDLESS, at
        values[index - 1] = value
    if highest > width:
        state[WANTED] = highest
        return WIDER, at
    state[HIGHEST] = max(state[HIGHEST], highest)
    state[FEWEST] = min(state[FEWEST], count)
    return DONE, at


@compiled()
def same_bytes(text, a, a_end, b, b_end):
    """Whether two ranges of bytes are equal."""
    same = a_end - a == b_end - b
    while same and a < a_end:
        same = text[a] == text[b]
        a += 1
        b += 1
    return same


@compiled()
def read_lines(text, stop, features, grades, seen, queries, hard, state, missing, longest_query) -> int:
    """Parse lines up to byte `stop`: labels and features of documents, and the starts of queries.

    `features [documents, width]` must be zero from row state[ROW] on. `queries` receives (row, line, start, end) of
    every query id that differs from the one before; `hard` receives (row, column, line, start, end).
    """
    width = features.shape[1]
    at = state[POSITION]
    while at < stop:
        state[POSITION] = at
        while is_space(text[at]):
            at += 1
        if text[at] != 10 and text[at] != 35:
            if state[ROW] == len(grades) or state[QUERIES] == len(queries) or state[HARD] + width > len(hard):
                return FULL
            hard_before = state[HARD]
            state[STAMP] += 1

            state[MARK] = at
            grade = 0
            digit = int(text[at]) - 48
            while 0 <= digit <= 9:
                grade = min(grade * 10 + digit, 1000)
                at += 1
                digit = int(text[at]) - 48
            ends = is_space(text[at]) or text[at] == 10 or text[at] == 35
            if at == state[MARK] or not ends or grade > MAX_GRADE:
                return BAD_GRADE

            while is_space(text[at]):
                at += 1
            state[MARK] = at
            if not (text[at] == 113 and text[at + 1] == 105 and text[at + 2] == 100 and text[at + 3] == 58):
                return BAD_QUERY
            at += 4
            query = at
            while text[at] > 32 and text[at] != 35:
                at += 1
            query_end = at
            if query_end == query:
                return BAD_QUERY
            if query_end - query > longest_query:
                return LONG_QUERY

            status, at = read_pairs(text, at, features[state[ROW]], seen, hard, state, missing)
            if status != DONE:
                state[HARD] = hard_before
                return status

            if not same_bytes(text, query, query_end, state[LAST], state[LAST_END]):
                used = state[QUERIES]
                queries[used, 0] = state[ROW]
                queries[used, 1] = state[LINE]
                queries[used, 2] = query
                queries[used, 3] = query_end
                state[QUERIES] = used + 1
            state[LAST] = query
            state[LAST_END] = query_end
            grades[state[ROW]] = grade
            state[ROW] += 1
        while text[at] != 10:
            if text[at] == 0:
                state[MARK] = at
                return NUL
            at += 1
        at += 1
        state[LINE] += 1
    state[POSITION] = at
    return DONE
