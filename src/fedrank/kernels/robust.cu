// CUDA version of robust.py: distances between clients, and sorted columns. One team per client, or per parameter.

#define SOME 64  // values that are added sequentially; likewise their sums

struct Robust {
    const float* rows;  // [count, columns]: updates
    double* out;        // [count] scores, [columns] means, or [1] whether something is not finite
    char* scratch;      // of a team without shared memory
    i64 count, columns;
    i64 number;   // of nearest others, or of values dropped at each end
    i64 squared;  // whether distances are squared
};

// `squared_distance` of lanes.py.
FUNCTION double squared_distance(const float* a, const float* b, i64 size) {
    double s[8] = {0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0};
    const i64 whole = size & ~7ll;
    for (i64 p = 0; p < whole; p += 8) {
#pragma unroll
        for (i32 i = 0; i < 8; i++) {
            const double away = double(a[p + i]) - double(b[p + i]);
            s[i] += away * away;
        }
    }
    double total = ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
    for (i64 p = whole; p < size; p++) {
        const double away = double(a[p]) - double(b[p]);
        total += away * away;
    }
    return total;
}

FUNCTION i64 power_of_two(i64 count) {
    i64 size = 1;
    while (size < count) size *= 2;
    return size;
}

// Bitonic sort, ascending; `size` is a power of two (Batcher, 1968).
template <typename Real> FUNCTION void sort_by_team(Real* values, i64 size) {
    for (i64 stretch = 2; stretch <= size; stretch *= 2) {
        for (i64 step = stretch / 2; step > 0; step /= 2) {
            EACH_THREAD(thread) {
                for (i64 pair = thread; pair < size / 2; pair += 32 * TEAM) {
                    const i64 low = (pair & ~(step - 1)) * 2 | (pair & (step - 1)), high = low + step;
                    const Real a = values[low], b = values[high];
                    if ((a > b) == ((low & stretch) == 0)) {
                        values[low] = b;
                        values[high] = a;
                    }
                }
            }
            all_together();
        }
    }
}

// The sum of values first .. last - 1, in every thread. `sums` [32 x TEAM] is scratch. At most SOME values are added
// sequentially, like in robust.py.
template <typename Real> FUNCTION double sum_by_team(const Real* values, i64 first, i64 last, double* sums) {
    const i64 fair = (last - first + 32 * TEAM - 1) / (32 * TEAM), each = fair > SOME ? fair : SOME;
    EACH_THREAD(thread) {
        double sum = 0.0;
        for (i64 i = first + thread * each; i < first + (thread + 1) * each && i < last; i++) sum += double(values[i]);
        sums[thread] = sum;
    }
    all_together();
    double total = 0.0;
    for (i64 i = 0; i * each < last - first; i++) total += sums[i];
    all_together();
    return total;
}

// `sums_of_nearest` of distances to all others.
FUNCTION void krum_scores_of(const Robust& task, char* memory, i64 block, i64 blocks) {
    const i64 count = task.count, size = power_of_two(count);
    double* sums = (double*)memory;
    double* distances = sums + 32 * TEAM;
    for (i64 row = block; row < count; row += blocks) {
        const float* own = task.rows + row * task.columns;
        EACH_THREAD(thread) {
            for (i64 other = thread; other < size; other += 32 * TEAM) {
                double distance = infinity();
                if (other < count && other != row) {
                    distance = squared_distance(own, task.rows + other * task.columns, task.columns);
                    if (!task.squared) distance = sqrt(distance);
                }
                distances[other] = distance;
            }
        }
        all_together();
        sort_by_team(distances, size);
        const double score = sum_by_team(distances, 0, task.number, sums);
        EACH_THREAD(thread) {
            if (thread == 0) task.out[row] = score;
        }
        all_together();
    }
}

// `trimmed_mean_of_few`, also for many.
FUNCTION void trimmed_means_of(const Robust& task, char* memory, i64 block, i64 blocks) {
    const i64 count = task.count, size = power_of_two(count);
    double* sums = (double*)memory;
    float* values = (float*)(sums + 32 * TEAM);
    for (i64 column = block; column < task.columns; column += blocks) {
        EACH_THREAD(thread) {
            for (i64 row = thread; row < size; row += 32 * TEAM)
                values[row] = row < count ? task.rows[row * task.columns + column] : float(infinity());
        }
        all_together();
        sort_by_team(values, size);
        const double total = sum_by_team(values, task.number, count - task.number, sums);
        EACH_THREAD(thread) {
            if (thread == 0) task.out[column] = total / double(count - 2 * task.number);
        }
        all_together();
    }
}

FUNCTION void unsound_of(const Robust& task, char*, i64 block, i64 blocks) {
    EACH_THREAD(thread) {
        for (i64 i = block * 32 * TEAM + thread; i < task.count * task.columns; i += blocks * 32 * TEAM) {
            const float value = task.rows[i];
            if (!(value - value == 0.0f)) task.out[0] = 1.0;
        }
    }
}

#ifdef __CUDACC__
#define ROBUST(name)                                                                           \
    extern "C" __global__ void __launch_bounds__(32 * TEAM) name(const __grid_constant__ Robust task) { \
        extern __shared__ __align__(16) char memory[];                                          \
        name##_of(task, memory, blockIdx.x, gridDim.x);                                        \
    }
#else
#define ROBUST(name) \
    extern "C" void name(const Robust* task) { name##_of(*task, task->scratch, 0, 1); }
#endif

ROBUST(krum_scores)
ROBUST(trimmed_means)
ROBUST(unsound)
