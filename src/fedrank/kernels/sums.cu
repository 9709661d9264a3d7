// Twin of sums.py: `add_rows`, row by row. A block adds up 32 columns of one part of the rows.

#define ROWS_AT_ONCE 256

struct RowSum {
    const i64* weights;  // [rows], or none: each counts once
    const float* rows;   // [rows, columns]
    double* totals;      // [parts, columns]
    i64 count, columns, part;  // rows, values of a row, rows of a part
};

#ifdef __CUDACC__
// The first warp adds, each lane its own column, in order; all others fetch what comes next.
extern "C" __global__ void __launch_bounds__(288) add_rows(const RowSum task) {
    extern __shared__ __align__(16) char memory[];
    float(*fetched)[ROWS_AT_ONCE][32] = (float(*)[ROWS_AT_ONCE][32])memory;
    double(*counted)[ROWS_AT_ONCE] = (double(*)[ROWS_AT_ONCE])(memory + 2 * ROWS_AT_ONCE * 32 * 4);
    const i64 columns = task.columns, slices = (columns + 31) / 32;
    const i64 part = blockIdx.x / slices, column = blockIdx.x % slices * 32 + threadIdx.x % 32;
    const i64 begin = part * task.part;
    const i64 end = begin + task.part < task.count ? begin + task.part : task.count;
    const i32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    double total = 0.0;
    i32 side = 0;
    for (i64 row = begin; row < end + ROWS_AT_ONCE; row += ROWS_AT_ONCE, side ^= 1) {
        if (warp > 0) {
            float x[ROWS_AT_ONCE / 8];
#pragma unroll
            for (i32 k = 0; k < ROWS_AT_ONCE / 8; k++) {
                const i64 r = row + 8 * k + warp - 1;
                x[k] = r < end && column < columns ? task.rows[r * columns + column] : 0.0f;
            }
            const i64 own = row + threadIdx.x - 32;
            double weight = 1.0;
            if (threadIdx.x - 32 < ROWS_AT_ONCE && own < end && task.weights != nullptr) weight = double(task.weights[own]);
#pragma unroll
            for (i32 k = 0; k < ROWS_AT_ONCE / 8; k++) fetched[side][8 * k + warp - 1][lane] = x[k];
            if (threadIdx.x - 32 < ROWS_AT_ONCE) counted[side][threadIdx.x - 32] = weight;
        } else if (row > begin) {
            const i64 before = row - ROWS_AT_ONCE;
            const i32 some = i32(end - before < ROWS_AT_ONCE ? end - before : ROWS_AT_ONCE);
            if (some == ROWS_AT_ONCE) {
#pragma unroll 32
                for (i32 i = 0; i < ROWS_AT_ONCE; i++) total += counted[side ^ 1][i] * double(fetched[side ^ 1][i][lane]);
            } else {
                for (i32 i = 0; i < some; i++) total += counted[side ^ 1][i] * double(fetched[side ^ 1][i][lane]);
            }
        }
        __syncthreads();
    }
    if (warp == 0 && column < columns) task.totals[part * columns + column] = total;
}
#else
extern "C" void add_rows(const RowSum* task) {
    for (i64 part = 0; part * task->part < task->count; part++) {
        const i64 begin = part * task->part;
        const i64 end = begin + task->part < task->count ? begin + task->part : task->count;
        for (i64 p = 0; p < task->columns; p++) {
            double total = 0.0;
            for (i64 row = begin; row < end; row++)
                total += (task->weights != nullptr ? double(task->weights[row]) : 1.0) *
                         double(task->rows[row * task->columns + p]);
            task->totals[part * task->columns + p] = total;
        }
    }
}
#endif
