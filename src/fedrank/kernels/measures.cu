// CUDA version of measures.py: `measure_lists` for linear rankers and cutoffs up to SHOWN. Documents of a query are in the
// order in which ties are broken, so the first of equal scores wins.

#define NDCG 0
#define NDCG_LINEAR 1
#define MAP 2
#define MRR 3
#define ERR 4

#define TILE_DOCUMENTS 128  // per block, eight per thread
#define TILE_DEPTH 8        // features that are loaded together

struct Measures {
    const float* columns;   // [features, documents]
    const float* weights;   // [features, models]
    float* scores;          // [documents of a chunk, stride]
    const i64* offsets;     // [queries + 1]
    const i8* grades;       // [documents]
    const i64* kinds;       // [measures]
    const i64* cutoffs;     // [measures]
    const double* scales;   // [measures, queries]
    const double* without;  // [measures]: value of queries without a relevant document
    const i8* relevant;     // [queries]: whether there is a relevant document
    const double* discount;  // [SHOWN]
    const i64* leaves;      // [leaves + 1]: starts of the blocks that NumPy's `add.reduce` adds sequentially
    double* values;         // [measures, models, queries]
    double* totals;         // [measures, models]
    double* bad;            // [1]: whether a score is NaN
    i64 features, documents, queries, models, stride, measures, first, last, leaf_count, top_grade;
};

// One list under one model: the labels of its best documents, best first.
struct Best {
    i32 keys[SHOWN];
    i32 grades[SHOWN];
};

// `as_integers`: a score as an integer in the same order.
FUNCTION i32 as_integer(float score) {
    const i32 bits = bits_of_float(score), size = bits & 0x7fffffff, sign = bits >> 31;
    return (size ^ sign) - sign;
}

FUNCTION void insert(Best& best, i32 key, i32 grade) {
#pragma unroll
    for (i32 i = SHOWN - 1; i > 0; i--) {
        const bool moves = key > best.keys[i - 1], comes = key > best.keys[i];
        best.grades[i] = moves ? best.grades[i - 1] : (comes ? grade : best.grades[i]);
        best.keys[i] = moves ? best.keys[i - 1] : (comes ? key : best.keys[i]);
    }
    if (key > best.keys[0]) {
        best.keys[0] = key;
        best.grades[0] = grade;
    }
}

FUNCTION double gain_of(i32 grade) { return from_bits((1023ll + grade) << 52) - 1.0; }

// `value_of_list`.
FUNCTION double value_of_list(const Measures& task, i64 kind, const Best& best, i32 shown) {
    double total = 0.0, reading = 1.0;
    i32 relevant = 0;
    bool found = false;
#pragma unroll
    for (i32 rank = 0; rank < SHOWN; rank++) {
        if (rank < shown) {
            const i32 grade = best.grades[rank];
            if (kind == NDCG) {
                total += gain_of(grade) * task.discount[rank];
            } else if (kind == NDCG_LINEAR) {
                total += double(grade) * task.discount[rank];
            } else if (kind == MAP) {
                if (grade >= 1) {
                    relevant += 1;
                    total += double(relevant) / (double(rank) + 1.0);
                }
            } else if (kind == MRR) {
                if (grade >= 1 && !found) total = 1.0 / (double(rank) + 1.0);
                found = found || grade >= 1;
            } else if (kind == ERR) {
                const double satisfied = gain_of(grade) / (gain_of(i32(task.top_grade)) + 1.0);
                total += reading * satisfied / (double(rank) + 1.0);
                reading *= 1.0 - satisfied;
            } else {
                total += grade >= 1 ? 1.0 : 0.0;
            }
        }
    }
    return total;
}

// One query under 32 models starting at `model`: one model per lane.
FUNCTION void measure_query(const Measures& task, i64 query, i64 model) {
    const i64 begin = task.offsets[query], shift = task.offsets[task.first];
    const i32 count = i32(task.offsets[query + 1] - begin);
    EACH_LANE(lane) {
        if (model + lane < task.models) {
            Best best;
#pragma unroll
            for (i32 i = 0; i < SHOWN; i++) {
                best.keys[i] = i32(0x80000000u);
                best.grades[i] = 0;
            }
            const float* own = task.scores + (begin - shift) * task.stride + model + lane;
#pragma unroll 4
            for (i32 d = 0; d < count; d++) {
                const float score = own[d * task.stride];
                if (!(score == score)) task.bad[0] = 1.0;
                const i32 key = as_integer(score);
                if (key > best.keys[SHOWN - 1]) insert(best, key, task.grades[begin + d]);
            }
            for (i64 m = 0; m < task.measures; m++) {
                const i64 shown = task.cutoffs[m] < count ? task.cutoffs[m] : count;
                const double value = value_of_list(task, task.kinds[m], best, i32(shown)) / task.scales[m * task.queries + query];
                task.values[(m * task.models + model + lane) * task.queries + query] =
                    !task.relevant[query] ? task.without[m] : (value < 1.0 ? value : 1.0);
            }
        }
    }
}

// Sum of at most 128 values, in the order of NumPy's `add.reduce`.
FUNCTION double sum_of_leaf(const double* values, i64 count) {
    if (count < 8) {
        double total = -0.0;
        for (i64 i = 0; i < count; i++) total += values[i];
        return total;
    }
    double r[8];
    for (i32 i = 0; i < 8; i++) r[i] = values[i];
    i64 i = 8;
    for (; i < count - count % 8; i += 8)
        for (i32 j = 0; j < 8; j++) r[j] += values[i + j];
    double total = ((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7]));
    for (; i < count; i++) total += values[i];
    return total;
}

// Sum of more values, from the sums of leaves, of which `next` is the first unused one.
SLOW double sum_of_leaves(const double* sums, i64 count, i64& next) {
    if (count <= 128) return sums[next++];
    const i64 half = count / 2 - count / 2 % 8;
    const double one = sum_of_leaves(sums, half, next);
    return one + sum_of_leaves(sums, count - half, next);
}

// The sum over queries of one measure under one model. `sums` has space for all leaves.
FUNCTION void total_of(const Measures& task, i64 row, double* sums) {
    const double* values = task.values + row * task.queries;
    EACH_LANE(lane) {
        for (i64 leaf = lane; leaf < task.leaf_count; leaf += 32)
            sums[leaf] = sum_of_leaf(values + task.leaves[leaf], task.leaves[leaf + 1] - task.leaves[leaf]);
    }
    together();
    EACH_LANE(lane) {
        if (lane == 0) {
            i64 next = 0;
            task.totals[row] = sum_of_leaves(sums, task.queries, next);
        }
    }
    together();
}

#ifdef __CUDACC__
// Scores of 128 documents under 8 models per column of threads, in the order of `products`: feature by feature.
extern "C" __global__ void __launch_bounds__(256, 2) score_models(const __grid_constant__ Measures task) {
    __shared__ __align__(16) float documents[2][TILE_DEPTH][TILE_DOCUMENTS], models[2][TILE_DEPTH][128];
    const i64 begin = task.offsets[task.first], end = task.offsets[task.last];
    const i64 first = begin + blockIdx.x * TILE_DOCUMENTS;
    const i32 across = blockDim.x / 16, row = threadIdx.x / across, column = threadIdx.x % across;
    const i32 width = 8 * across;  // models of this block
    const bool upper = threadIdx.x >= width;
    const i32 own = upper ? threadIdx.x - width : threadIdx.x;  // the model that a thread loads
    float sums[8][8];
#pragma unroll
    for (i32 i = 0; i < 8; i++)
#pragma unroll
        for (i32 j = 0; j < 8; j++) sums[i][j] = 0.0f;
    const i32 features = i32(task.features);
    auto fetch = [&](i32 f, i32 side) {
        for (i32 i = threadIdx.x; i < TILE_DEPTH * TILE_DOCUMENTS; i += blockDim.x) {
            const i32 deep = f + i / TILE_DOCUMENTS;
            const i64 d = first + i % TILE_DOCUMENTS;
            const bool there = deep < features && d < end;
            send_for(
                &documents[side][i / TILE_DOCUMENTS][i % TILE_DOCUMENTS],
                task.columns + (there ? deep * task.documents + d : 0), there);
        }
#pragma unroll
        for (i32 i = 0; i < TILE_DEPTH; i += 2) {  // there are twice as many threads as models
            const i32 deep = upper ? i + 1 : i;
            const bool there = f + deep < features && own < task.models;
            send_for(&models[side][deep][own], task.weights + (there ? (f + deep) * task.models + own : 0), there);
        }
    };
    fetch(0, 0);
    i32 side = 0;
    for (i32 f = 0; f < features; f += TILE_DEPTH, side ^= 1) {
        all_are_here();
        __syncthreads();  // also ensures that the other buffer is no longer read
        if (f + TILE_DEPTH < features) fetch(f + TILE_DEPTH, side ^ 1);
#pragma unroll
        for (i32 k = 0; k < TILE_DEPTH; k++) {
            float x[8], w[8];
            // A thread's documents and models are two groups of four, far apart, so adjacent threads read adjacent memory.
            *(float4*)x = *(const float4*)&documents[side][k][row * 4];
            *(float4*)(x + 4) = *(const float4*)&documents[side][k][64 + row * 4];
            *(float4*)w = *(const float4*)&models[side][k][column * 4];
            *(float4*)(w + 4) = *(const float4*)&models[side][k][width / 2 + column * 4];
#pragma unroll
            for (i32 i = 0; i < 8; i++)
#pragma unroll
                for (i32 j = 0; j < 8; j++) sums[i][j] += x[i] * w[j];
        }
    }
#pragma unroll
    for (i32 i = 0; i < 8; i++) {
        const i64 d = first + (i / 4) * 64 + row * 4 + i % 4;
        float* to = task.scores + (d - begin) * task.stride + column * 4;
        if (d < end) {
            *(float4*)to = make_float4(sums[i][0], sums[i][1], sums[i][2], sums[i][3]);
            *(float4*)(to + width / 2) = make_float4(sums[i][4], sums[i][5], sums[i][6], sums[i][7]);
        }
    }
}

extern "C" __global__ void __launch_bounds__(128, 5) measure_lists(const __grid_constant__ Measures task) {
    const i64 sets = (task.models + 31) / 32, warp = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (warp < (task.last - task.first) * sets) measure_query(task, task.first + warp / sets, warp % sets * 32);
}

extern "C" __global__ void __launch_bounds__(32) total_of_values(const __grid_constant__ Measures task) {
    extern __shared__ __align__(16) char memory[];
    total_of(task, blockIdx.x, (double*)memory);
}
#else
extern "C" void score_models(const Measures* task) {
    const i64 begin = task->offsets[task->first], end = task->offsets[task->last];
    for (i64 d = begin; d < end; d++)
        for (i64 m = 0; m < task->models; m++) {
            float sum = 0.0f;
            for (i64 f = 0; f < task->features; f++)
                sum += task->columns[f * task->documents + d] * task->weights[f * task->models + m];
            task->scores[(d - begin) * task->stride + m] = sum;
        }
}

extern "C" void measure_lists(const Measures* task) {
    for (i64 query = task->first; query < task->last; query++)
        for (i64 model = 0; model < task->models; model += 32) measure_query(*task, query, model);
}

extern "C" void total_of_values(const Measures* task) {
    double* sums = new double[task->leaf_count];
    for (i64 row = 0; row < task->measures * task->models; row++) total_of(*task, row, sums);
    delete[] sums;
}
#endif
