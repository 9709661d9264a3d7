// CUDA version of clip.py: updates are clipped, weighted, rounded to a grid and added up. Integers: the order is irrelevant.

#define ROWS_OF_A_BLOCK 256  // and the number of threads

struct ClippedSum {
    const float* rows;      // [rows, columns]
    const double* weights;  // [rows]
    i64* totals;            // [columns]
    i64 count, columns, norm;
    double clip, step;
};

// The factor of a row, in grid steps; 0 if it is not finite.
FUNCTION double grid_factor(const ClippedSum& task, i64 row) {
    const float* own = task.rows + row * task.columns;
    double length = 0.0;
#pragma unroll 8
    for (i64 p = 0; p < task.columns; p++) {
        const double value = double(own[p]);
        length += task.norm == 1 ? fabs(value) : value * value;
    }
    if (task.norm == 2) length = sqrt(length);
    if (!(length < infinity())) return 0.0;
    return task.clip / (task.clip > length ? task.clip : length) * task.weights[row] / task.step;
}

FUNCTION i64 on_grid(float value, double factor) { return factor == 0.0 ? 0 : i64(rint(double(value) * factor)); }

#ifdef __CUDACC__
extern "C" __global__ void __launch_bounds__(ROWS_OF_A_BLOCK) add_clipped(const ClippedSum task) {
    __shared__ double factors[ROWS_OF_A_BLOCK];
    const i64 first = i64(blockIdx.x) * ROWS_OF_A_BLOCK, left = task.count - first;
    const i32 some = i32(left < ROWS_OF_A_BLOCK ? left : ROWS_OF_A_BLOCK);
    if (threadIdx.x < some) factors[threadIdx.x] = grid_factor(task, first + threadIdx.x);
    __syncthreads();
    // Threads divide columns among them, and if there are few columns, rows as well.
    const i32 columns = i32(task.columns), width = columns < ROWS_OF_A_BLOCK ? columns : ROWS_OF_A_BLOCK;
    const i32 step = ROWS_OF_A_BLOCK / width;
    if (threadIdx.x / width >= step) return;
    for (i32 p = threadIdx.x % width; p < columns; p += width) {
        const float* column = task.rows + first * columns + p;
        i64 total = 0;
#pragma unroll 4
        for (i32 row = threadIdx.x / width; row < some; row += step) total += on_grid(column[i64(row) * columns], factors[row]);
        atomicAdd((u64*)(task.totals + p), u64(total));
    }
}
#else
extern "C" void add_clipped(const ClippedSum* task) {
    for (i64 row = 0; row < task->count; row++) {
        const double factor = grid_factor(*task, row);
        for (i64 p = 0; p < task->columns; p++)
            task->totals[p] += on_grid(task->rows[row * task->columns + p], factor);
    }
}
#endif
