"""Loops of the robust aggregators: distances between clients, sorted columns, medians, predictions.

Updates are float32 and computed with as float64: the largest float32, squared and summed, stays finite.
"""

from __future__ import annotations

import math

import numpy as np

from fedrank.kernels.compile import compiled
from fedrank.kernels.lanes import squared_distance, sum_of, wide_dot

CANCELLED = 1e-4  # relative to the squared norms; smaller squared distances have lost digits to cancellation


@compiled()
def sort_few(values):
    """Insertion sort in place, which is the fastest for few values."""
    for i in range(1, len(values)):
        value = values[i]
        at = i
        while at > 0 and values[at - 1] > value:
            values[at] = values[at - 1]
            at -= 1
        values[at] = value


@compiled()
def distances_of_few(updates, squared, out):
    """out[i, j] = distance of clients i and j; infinite from a client to itself, so it sorts last."""
    n = len(updates)
    for i in range(n):
        out[i, i] = np.inf
        for j in range(i):
            distance = squared_distance(updates[i], updates[j])
            if not squared:
                distance = math.sqrt(distance)
            out[i, j] = distance
            out[j, i] = distance


@compiled()
def distances_from_products(updates, products, squared, out):
    """Like `distances_of_few`, from the inner products of the updates, which a matrix product computes faster.

    |a - b|^2 = a.a + b.b - 2 a.b cancels if a and b are close: such pairs are subtracted directly. Only the lower half
    of `products` is read, so the result is always symmetric. `out` may be `products`.
    """
    n = len(updates)
    norms = np.empty(n)
    for i in range(n):
        norms[i] = products[i, i]
    for i in range(n):
        out[i, i] = np.inf
        for j in range(i):
            both = norms[i] + norms[j]
            distance = both - 2.0 * products[i, j]
            if distance < CANCELLED * both:
                distance = squared_distance(updates[i], updates[j])
            if not squared:
                distance = math.sqrt(distance)
            out[i, j] = distance
    for i in range(n):
        for j in range(i):
            out[j, i] = out[i, j]


@compiled()
def sums_of_nearest(distances, count, out):
    """out[i] = sum of the `count` smallest distances in row i, smallest first; sorts the rows."""
    for i in range(len(distances)):
        sort_few(distances[i])
        total = 0.0
        for j in range(count):
            total += distances[i, j]
        out[i] = total


@compiled()
def order_few(scores, order):
    """order = rows by ascending score; in a tie the lowest row comes first."""
    for i in range(len(scores)):
        at = i
        while at > 0 and scores[order[at - 1]] > scores[i]:
            order[at] = order[at - 1]
            at -= 1
        order[at] = i


@compiled()
def krum_of_few(updates, neighbours, count, squared, out):
    """Mean of the `count` updates that are nearest to their `neighbours` nearest others."""
    n = len(updates)
    distances = np.empty((n, n))
    scores = np.empty(n)
    distances_of_few(updates, squared, distances)
    sums_of_nearest(distances, neighbours, scores)
    order = np.empty(n, dtype=np.int64)
    order_few(scores, order)
    out[:] = 0.0
    for i in range(count):
        row = updates[order[i]]
        for p in range(len(out)):
            out[p] += row[p]
    for p in range(len(out)):
        out[p] /= count


@compiled()
def trimmed_mean_of_few(updates, drop, out):
    """Mean of each column without its `drop` smallest and largest values."""
    n, parameters = updates.shape
    column = np.empty(n, dtype=updates.dtype)
    for p in range(parameters):
        for i in range(n):
            column[i] = updates[i, p]
        sort_few(column)
        total = 0.0
        for i in range(drop, n - drop):
            total += np.float64(column[i])
        out[p] = total / (n - 2 * drop)


@compiled()
def lower_bound(value, ascending, count):
    """The first of `count` ascending values that is not below `value`."""
    low, high = 0, count
    while low < high:
        middle = (low + high) >> 1
        if ascending[middle] < value:
            low = middle + 1
        else:
            high = middle
    return low


@compiled()
def is_below(a, b, count):
    """Whether the first of `count` values in which two rows differ is smaller in `a`."""
    for i in range(count):
        if a[i] != b[i]:
            return a[i] < b[i]
    return False


@compiled()
def bulyan_choice(nearest, distances, attackers, count, chosen):
    """Bulyan's selection: Krum's winner is removed repeatedly, until `count` are chosen.

    `nearest` has the rows of `distances` in ascending order. With m attackers and k remaining, a score sums
    k - m - 2 distances, or 1: then two clients that are each other's nearest always have equal scores, and their
    next distances decide; only then the lowest row. A removed distance is taken out of its row instead of a sum:
    subtracting it would leave the rounding error of a huge outlier.
    """
    n = len(nearest)
    left = np.ones(n, dtype=np.bool_)
    for c in range(count):
        remaining = n - c
        neighbours = min(max(remaining - attackers - 2, 1), remaining - 1)
        best = -1
        smallest = np.inf
        for i in range(n):
            if left[i]:
                score = sum_of(nearest[i, :neighbours])
                if (
                    best < 0
                    or score < smallest
                    or (score == smallest and is_below(nearest[i], nearest[best], remaining - 1))
                ):
                    best = i
                    smallest = score
        chosen[c] = best
        left[best] = False
        for i in range(n):
            if left[i]:
                at = lower_bound(distances[i, best], nearest[i], remaining)
                for j in range(at, remaining - 1):
                    nearest[i, j] = nearest[i, j + 1]


@compiled()
def means_around_medians(columns, count, out):
    """out[p] = mean of the `count` values of row p nearest to its median; the lower in a tie. Rows are ascending."""
    parameters, n = columns.shape
    for p in range(parameters):
        row = columns[p]
        median = (np.float64(row[(n - 1) // 2]) + np.float64(row[n // 2])) / 2.0
        first = 0
        while first + count < n and row[first + count] - median < median - row[first]:
            first += 1
        total = 0.0
        for i in range(first, first + count):
            total += np.float64(row[i])
        out[p] = total / count


@compiled()
def geometric_median(updates, tolerance, iterations, point):
    """Move `point` to the minimum of the sum of distances to all updates; returns the number of steps.

    Weiszfeld's iteration. At an update it would divide by zero or get stuck: there the step of Vardi and Zhang (2000)
    leaves, unless that update is the solution. Stops when a step is shorter than `tolerance` times the harmonic mean
    of the distances, which is robust to outliers.
    """
    n, parameters = updates.shape
    ahead = np.empty(parameters)
    for step in range(iterations):
        ahead[:] = 0.0
        total = 0.0
        here = 0
        for i in range(n):
            distance = math.sqrt(squared_distance(updates[i], point))
            if distance == 0.0:
                here += 1
                continue
            weight = 1.0 / distance
            total += weight
            for p in range(parameters):
                ahead[p] += weight * (updates[i, p] - point[p])
        if total == 0.0:
            return step
        pull = math.sqrt(wide_dot(ahead, ahead))
        if pull <= here:
            return step
        share = (1.0 - here / pull) / total
        for p in range(parameters):
            point[p] += share * ahead[p]
        if share * pull <= tolerance * (n - here) / total:
            return step + 1
    return iterations


@compiled()
def curvature(steps, bends, first, flattest, up, down):
    """Estimate curvature from the pairs first .. of moves of the model and changes of the mean update (BFGS).

    The result is a matrix B = scale x identity + sum of up up' - sum of down down'; returns (scale, pairs used), with
    the rows in `up` and `down`. Updates shrink as the model converges, so B uses the changes with inverted sign. Pairs
    whose cosine is below `flattest` are left out: B would no longer be positive definite, or be mostly noise.
    """
    window, parameters = steps.shape
    scale = 0.0
    fit = np.zeros(window, dtype=np.bool_)
    for k in range(first, window):
        together = -wide_dot(steps[k], bends[k])
        long = wide_dot(steps[k], steps[k])
        if together > flattest * math.sqrt(long) * math.sqrt(wide_dot(bends[k], bends[k])):
            fit[k] = True
            scale = together / long
    used = 0
    image = np.empty(parameters)
    for k in range(first, window):
        if not fit[k]:
            continue
        step = steps[k]
        curvature_product(step, scale, up, down, used, image)
        root = math.sqrt(-wide_dot(step, bends[k]))
        stretch = math.sqrt(wide_dot(step, image))
        if not (root > 0.0 and stretch > 0.0):
            continue
        for p in range(parameters):
            up[used, p] = -bends[k, p] / root
            down[used, p] = image[p] / stretch
        used += 1
    return scale, used


@compiled()
def curvature_product(vector, scale, up, down, used, out):
    """out = B times vector."""
    for p in range(len(vector)):
        out[p] = scale * vector[p]
    for k in range(used):
        more = wide_dot(up[k], vector)
        less = wide_dot(down[k], vector)
        for p in range(len(vector)):
            out[p] += more * up[k, p] - less * down[k, p]


@compiled()
def forecast_errors(updates, before, weights, started, rows, scale, up, down, used, out):
    """out[i] = distance of update i from its prediction: the client's last update, corrected for the model's move.

    `before` and `started` are last updates and the models they started from; update i belongs to their row rows[i].
    """
    parameters = updates.shape[1]
    move = np.empty(parameters)
    image = np.zeros(parameters)
    forecast = np.empty(parameters)
    for i in range(len(updates)):
        row = rows[i]
        moved = False  # mostly the same as for the previous client
        for p in range(parameters):
            step = weights[p] - started[row, p]
            moved = moved or i == 0 or step != move[p]
            move[p] = step
        if moved:
            curvature_product(move, scale, up, down, used, image)
        for p in range(parameters):
            forecast[p] = before[row, p] - image[p]
        out[i] = math.sqrt(squared_distance(updates[i], forecast))


@compiled()
def record_forecast_errors(
    updates, rows, weights, steps, bends, first, flattest, before, started, seen, excluded, noted
):
    """Append the relative error of each prediction to `noted` [clients, window]; returns their number.

    Clients that are excluded or new have none. -1 if a row does not exist: nothing is written.
    """
    for i in range(len(updates)):
        if rows[i] < 0 or rows[i] >= len(seen):
            return -1
    up = np.empty(steps.shape)
    down = np.empty(steps.shape)
    scale, used = curvature(steps, bends, first, flattest, up, down)
    distances = np.empty(len(updates))
    forecast_errors(updates, before, weights, started, rows, scale, up, down, used, distances)
    total = 0.0
    count = 0
    for i in range(len(updates)):
        if seen[rows[i]] and not excluded[rows[i]]:
            total += distances[i]
            count += 1
    window = noted.shape[1]
    for i in range(len(updates)):
        row = rows[i]
        if seen[row] and not excluded[row]:
            for k in range(window - 1):
                noted[row, k] = noted[row, k + 1]
            noted[row, window - 1] = distances[i] / total * count if total > 0.0 else 1.0
    return count


@compiled()
def record_round(updates, rows, weights, excluded, rounds, last, steps, bends, before, started, seen, change):
    """Replace `change`, last round's, by the mean of this round's updates of clients not excluded; update the state.

    `last` is the model of the last round; `steps` and `bends` [window, parameters] get the differences.
    """
    n, parameters = updates.shape
    mean = np.zeros(parameters)
    count = 0
    for i in range(n):
        row = rows[i]
        seen[row] = True
        for p in range(parameters):
            before[row, p] = updates[i, p]
            started[row, p] = weights[p]
        if not excluded[row]:
            count += 1
            for p in range(parameters):
                mean[p] += updates[i, p]
    window = len(steps)
    for k in range(window - 1):
        for p in range(parameters):
            steps[k, p] = steps[k + 1, p]
            bends[k, p] = bends[k + 1, p]
    for p in range(parameters):
        mean[p] /= max(count, 1)
        steps[window - 1, p] = weights[p] - last[p]
        bends[window - 1, p] = mean[p] - change[p]
        last[p] = weights[p]
        change[p] = mean[p]
    rounds[0] += 1


@compiled()
def mean_forecast_errors(noted, excluded, judged, scores):
    """Mean of each row of `noted` that is full and not excluded; returns their number, with the rows in `judged`."""
    n, window = noted.shape
    count = 0
    for i in range(n):
        if not excluded[i] and not math.isnan(noted[i, 0]):
            judged[count] = i
            scores[count] = sum_of(noted[i]) / window
            count += 1
    return count


@compiled()
def best_split(values):
    """Two clusters of ascending values: (first of the upper one, dispersion of one cluster, dispersion of two).

    A dispersion is the sum of squared distances to the cluster's mean; in one dimension the best two clusters of
    k-means are a cut, so all cuts are tried. The mean is subtracted first, so nearly equal values keep their digits.
    """
    n = len(values)
    mean = 0.0
    for value in values:
        mean += value / n
    whole = 0.0
    squares = 0.0
    for value in values:
        whole += value - mean
        squares += (value - mean) * (value - mean)
    one = squares - whole * whole / n
    cut = n
    two = one
    left = 0.0
    left_squares = 0.0
    for i in range(1, n):
        value = values[i - 1] - mean
        left += value
        left_squares += value * value
        right = whole - left
        spread = max(left_squares - left * left / i, 0.0) + max(squares - left_squares - right * right / (n - i), 0.0)
        if spread < two:
            two = spread
            cut = i
    return cut, one, two
