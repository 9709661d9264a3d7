// Twin of sums.py: `add_rows`, row by row. A block adds up one part of the rows, a thread one column of it.

#define ROWS_AT_ONCE 64

struct RowSum {
    const i64* weights;  // [rows], or none: each counts once
    const float* rows;   // [rows, columns]
    double* totals;      // [parts, columns]
    i64 count, columns, part;  // rows, values of a row, rows of a part
};

#ifdef __CUDACC__
// Threads fetch rows for all; those of the first columns add them, each its own column, in order.
extern "C" __global__ void add_rows(const RowSum task) {
    extern __shared__ __align__(16) char memory[];
    const i64 columns = task.columns;
    float* fetched = (float*)memory;                                     // [2, ROWS_AT_ONCE, columns]
    double* counted = (double*)(fetched + 2 * ROWS_AT_ONCE * columns);  // [2, ROWS_AT_ONCE]
    const i64 begin = blockIdx.x * task.part;
    const i64 end = begin + task.part < task.count ? begin + task.part : task.count;
    const i64 adders = (columns + 31) / 32 * 32;  // whole warps add, and the others fetch what comes next
    double total = 0.0;
    for (i64 row = begin, side = 0; row < end + ROWS_AT_ONCE; row += ROWS_AT_ONCE, side ^= 1) {
        if (threadIdx.x >= adders) {
            const i64 some = end - row < ROWS_AT_ONCE ? end - row : ROWS_AT_ONCE;
            const i64 helpers = blockDim.x - adders, own = threadIdx.x - adders;
            float* to = fetched + side * ROWS_AT_ONCE * columns;
            const float* from = task.rows + row * columns;
            const i32 values = i32(some * columns), step = i32(helpers);
            for (i32 i = i32(own); i < values; i += 8 * step) {
                float x[8];
#pragma unroll
                for (i32 k = 0; k < 8; k++) x[k] = i + k * step < values ? from[i + k * step] : 0.0f;
#pragma unroll
                for (i32 k = 0; k < 8; k++)
                    if (i + k * step < values) to[i + k * step] = x[k];
            }
            for (i64 i = own; i < some; i += helpers)
                counted[side * ROWS_AT_ONCE + i] = task.weights != nullptr ? double(task.weights[row + i]) : 1.0;
        } else if (row > begin && threadIdx.x < columns) {
            const i64 before = row - ROWS_AT_ONCE;
            const i32 some = i32(end - before < ROWS_AT_ONCE ? end - before : ROWS_AT_ONCE);
            const float* from = fetched + (side ^ 1) * ROWS_AT_ONCE * columns + threadIdx.x;
            const double* weight = counted + (side ^ 1) * ROWS_AT_ONCE;
#pragma unroll 16
            for (i32 i = 0; i < some; i++) total += weight[i] * double(from[i * i32(columns)]);
        }
        __syncthreads();
    }
    if (threadIdx.x < columns) task.totals[blockIdx.x * columns + threadIdx.x] = total;
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
