// CUDA version of sums.py: `add_rows`, row by row, of all or of some. A block sums 32 columns.

#define ROWS_AT_ONCE 256

struct RowSum {
    const i64* weights;  // [rows], or none: all weights are 1
    const float* rows;   // [rows, columns]
    double* totals;      // [columns]
    i64 count, columns;  // rows, values of a row
    i64 fresh;           // whether totals start at 0 or continue
    const i64* which;    // [rows]: their indices, or none: consecutive
};

#ifdef __CUDACC__
// The first warp adds in order, one column per lane; all others load the next rows.
extern "C" __global__ void __launch_bounds__(288) add_rows(const RowSum task) {
    extern __shared__ __align__(16) char memory[];
    float(*fetched)[ROWS_AT_ONCE][32] = (float(*)[ROWS_AT_ONCE][32])memory;
    double(*counted)[ROWS_AT_ONCE] = (double(*)[ROWS_AT_ONCE])(memory + 2 * ROWS_AT_ONCE * 32 * 4);
    const i64 columns = task.columns, end = task.count, column = blockIdx.x * 32 + threadIdx.x % 32;
    const i32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    double total = task.fresh || column >= columns ? 0.0 : task.totals[column];
    i32 side = 0;
    for (i64 row = 0; row < end + ROWS_AT_ONCE; row += ROWS_AT_ONCE, side ^= 1) {
        if (warp > 0) {
            float x[ROWS_AT_ONCE / 8];
#pragma unroll
            for (i32 k = 0; k < ROWS_AT_ONCE / 8; k++) {
                const i64 r = row + 8 * k + warp - 1;
                x[k] = r < end && column < columns ? task.rows[(task.which ? task.which[r] : r) * columns + column] : 0.0f;
            }
            const i64 own = row + threadIdx.x - 32;
            const double weight = own < end && task.weights != nullptr ? double(task.weights[own]) : 1.0;
#pragma unroll
            for (i32 k = 0; k < ROWS_AT_ONCE / 8; k++) fetched[side][8 * k + warp - 1][lane] = x[k];
            counted[side][threadIdx.x - 32] = weight;  // one thread per row
        } else if (row > 0) {
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
    if (warp == 0 && column < columns) task.totals[column] = total;
}
#else
extern "C" void add_rows(const RowSum* task) {
    for (i64 p = 0; p < task->columns; p++) {
        double total = task->fresh ? 0.0 : task->totals[p];
        for (i64 row = 0; row < task->count; row++)
            total += (task->weights != nullptr ? double(task->weights[row]) : 1.0) *
                     double(task->rows[(task->which != nullptr ? task->which[row] : row) * task->columns + p]);
        task->totals[p] = total;
    }
}
#endif
