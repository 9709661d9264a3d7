"""Parse LETOR lines in a block of bytes.

Every line in the block must end in a newline, which stops all loops, so none needs to check for the end of the block.
"""

import numpy as np

from fedrank.kernels.compile import compiled

MAX_INDEX = 100_000
MAX_GRADE = 31

TAB, NEWLINE, RETURN, SPACE = 9, 10, 13, 32  # bytes
HASH, PLUS, MINUS, DOT, ZERO, NINE, COLON = 35, 43, 45, 46, 48, 57, 58
UPPER_E, LOWER_D, LOWER_E, LOWER_I, LOWER_Q = 69, 100, 101, 105, 113

# Results of `read_lines`. Before BAD_GRADE: enlarge arrays and call again; from it on: the text at state[MARK] is bad.
DONE, FULL, WIDER = 0, 1, 2
BAD_GRADE, BAD_QUERY, LONG_QUERY, BAD_PAIR, BAD_INDEX, TWICE, BAD_VALUE, INFINITE, NUL = 3, 4, 5, 6, 7, 8, 9, 10, 11

# Indices in `state`, which carries everything from one call to the next.
POSITION = 0  # byte where the next line starts
LINE = 1  # its number
ROW = 2  # documents read
QUERIES = 3  # rows used in `queries`
UNROUNDED = 4  # rows used in `unrounded`
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
    """Whether a byte separates words on a line, such as a tab, or the carriage return of CRLF."""
    return byte == SPACE or (TAB <= byte <= RETURN and byte != NEWLINE)


@compiled()
def careful_digits(text, at):
    """The first 18 significant digits from `at` as a number, and the power of ten for the others."""
    mantissa, power, fraction = 0, 0, False
    while True:
        byte = int(text[at])
        if byte == DOT:
            fraction = True
        elif byte < ZERO or byte > NINE:
            return mantissa, power
        else:
            if mantissa < 10**17:
                mantissa = mantissa * 10 + (byte - ZERO)
                power -= int(fraction)
            else:
                power += int(not fraction)
        at += 1


@compiled()
def read_number(text, at):
    """Parse a decimal number: its value, whether it equals the result of `float`, the byte after it (-1: none)."""
    negative = text[at] == MINUS
    if negative or text[at] == PLUS:
        at += 1
    first = at
    mantissa = 0
    digit = int(text[at]) - ZERO
    while 0 <= digit <= 9:
        mantissa = mantissa * 10 + digit
        at += 1
        digit = int(text[at]) - ZERO
    digits = at - first
    power = 0
    if text[at] == DOT:
        at += 1
        point = at
        digit = int(text[at]) - ZERO
        while 0 <= digit <= 9:
            mantissa = mantissa * 10 + digit
            at += 1
            digit = int(text[at]) - ZERO
        power = point - at
        digits += at - point
    if digits == 0:
        return 0.0, True, -1
    if digits > 18:
        mantissa, power = careful_digits(text, first)
    if text[at] == LOWER_E or text[at] == UPPER_E:
        at += 1
        down = text[at] == MINUS
        if down or text[at] == PLUS:
            at += 1
        start = at
        exponent = 0
        digit = int(text[at]) - ZERO
        while 0 <= digit <= 9:
            exponent = min(exponent * 10 + digit, 10**9)
            at += 1
            digit = int(text[at]) - ZERO
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
def needs_exact_rounding(value):
    """Whether a number with small rounding errors could round to a different float32 than its text."""
    return np.float32(value * (1 - _SLACK)) != np.float32(value * (1 + _SLACK))


@compiled()
def read_pairs(text, at, values, seen, unrounded, state, missing):
    """Parse `index:value` pairs into a row up to the comment or the end of the line: status, the byte there.

    Values that this parser cannot round reliably (one in many millions) are listed in `unrounded` for the caller.
    """
    stamp = state[STAMP]
    width = len(values)
    count, highest = 0, 0
    while True:
        while is_space(text[at]):
            at += 1
        if text[at] == NEWLINE or text[at] == HASH:
            break
        start = at
        index = 0
        digit = int(text[at]) - ZERO
        while 0 <= digit <= 9:
            index = index * 10 + digit
            at += 1
            digit = int(text[at]) - ZERO
        if text[at] != COLON or at == start:
            state[MARK] = start
            return BAD_PAIR, at
        if index < 1 or index > MAX_INDEX or at - start > 9:
            state[MARK] = start
            return BAD_INDEX, at
        at += 1
        begin = at
        value, exact, at = read_number(text, at)
        # "1.#INF" is not a 1 followed by a comment.
        if at < 0 or not (is_space(text[at]) or text[at] == NEWLINE or (text[at] == HASH and text[at - 1] != DOT)):
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
        elif not exact and needs_exact_rounding(value):
            used = state[UNROUNDED]
            unrounded[used, 0] = state[ROW]
            unrounded[used, 1] = index - 1
            unrounded[used, 2] = state[LINE]
            unrounded[used, 3] = begin
            unrounded[used, 4] = at
            state[UNROUNDED] = used + 1
        elif abs(value) > 3.5e38 or np.isinf(np.float32(value)):
            state[MARK] = start
            return INFINITE, at
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
def read_lines(text, stop, features, grades, seen, queries, unrounded, state, missing, longest_query) -> int:
    """Parse lines up to byte `stop`: labels and features of documents, and the starts of queries.

    `features [documents, width]` must be zero from row state[ROW] on. `queries` receives (row, line, start, end) of
    every query id that differs from the one before; `unrounded` receives (row, column, line, start, end).
    """
    width = features.shape[1]
    at = state[POSITION]
    while at < stop:
        state[POSITION] = at
        while is_space(text[at]):
            at += 1
        if text[at] != NEWLINE and text[at] != HASH:
            if state[ROW] == len(grades) or state[QUERIES] == len(queries) or state[UNROUNDED] + width > len(unrounded):
                return FULL
            unrounded_before = state[UNROUNDED]
            state[STAMP] += 1

            state[MARK] = at
            grade = 0
            digit = int(text[at]) - ZERO
            while 0 <= digit <= 9:
                grade = min(grade * 10 + digit, 1000)
                at += 1
                digit = int(text[at]) - ZERO
            ends = is_space(text[at]) or text[at] == NEWLINE or text[at] == HASH
            if at == state[MARK] or not ends or grade > MAX_GRADE:
                return BAD_GRADE

            while is_space(text[at]):
                at += 1
            state[MARK] = at
            if not (
                text[at] == LOWER_Q and text[at + 1] == LOWER_I and text[at + 2] == LOWER_D and text[at + 3] == COLON
            ):
                return BAD_QUERY
            at += 4
            query = at
            while text[at] > SPACE and text[at] != HASH:
                at += 1
            query_end = at
            if query_end == query:
                return BAD_QUERY
            if query_end - query > longest_query:
                return LONG_QUERY

            status, at = read_pairs(text, at, features[state[ROW]], seen, unrounded, state, missing)
            if status != DONE:
                state[UNROUNDED] = unrounded_before
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
        while text[at] != NEWLINE:
            if text[at] == 0:
                state[MARK] = at
                return NUL
            at += 1
        at += 1
        state[LINE] += 1
    state[POSITION] = at
    return DONE
