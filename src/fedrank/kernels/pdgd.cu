// CUDA version of pdgd.py: `pdgd_clients` for linear rankers and sampled lists. One warp per client.

struct Task {
    const float* rows;       // [documents, features]; like blocks, two bytes each in loops with Half
    const float* blocks;     // by query, see show.cu
    const i64* offsets;      // [queries + 1]: rows
    const i64* places;       // [queries]: start of its blocks
    const i64* present;      // [participants]: rows of clients, or none: all
    const i64* ids;          // [clients]
    const i32* pool;         // [clients]
    const i64* interactions;  // [clients]
    const i32* queries;
    const i64* pools;
    const i64* at;           // [clients], or none
    const i32* view;         // [clients]
    const i8* grades;        // [views, documents]
    const double* ideal;     // [views, queries]
    const i32* user;         // [clients]
    const double* click;     // [users, levels]
    const double* stop;
    const double* attention;  // [users, SHOWN]
    const double* discount;  // [SHOWN]
    const float* starts;     // [1 or participants, features]
    const double* drifts;    // [participants, features], or none
    float* updates;          // [participants, features]
    double* online;          // [participants]
    char* scratch;           // of all warps, if they have no shared memory
    u64 key;
    i64 documents, query_count, features, longest, users, levels, first, taking_part, many_starts, batch, room;
    double rate, pull, clip_weights, clip_gradients, temperature, keep;
};

// One search: what does not depend on the model, and is prefetched during the previous search.
struct Look {
    u64 chance;
    i64 query, begin, count, place;
};

// What one warp needs in addition to its page.
struct Bench {
    double* master;   // [features]
    double* own;      // [features], if gradients are clipped
    double* without;  // [SHOWN x SHOWN]
    double* pairs;    // [SHOWN x SHOWN]
    double* top;      // [SHOWN]
    double* tail;     // [SHOWN + 1]
    double* scales;   // [SHOWN]
    float* weights;   // [features], at a multiple of 16 bytes
    Look* look;       // the next search
};

SLOW double log_add(double a, double b) {
    const double high = a > b ? a : b, low = a > b ? b : a;
    if (high == -infinity()) return high;
    return high + log1p_safe(exp_safe(low - high));
}

// `pair_weights_in_logarithms`: rare, and done by one lane.
SLOW void pair_weights_in_logarithms(
    const float* scores, const i32* shown, double* tail, double* without, double* scales, i32 count, i32 considered,
    u32 clicked, double temperature, double keep) {
    const i32 size = count < SHOWN ? count : SHOWN;
    EACH_LANE(lane) {
        if (lane == 0) {
            double rest = -infinity();
            for (i32 d = 0; d < count; d++) {
                bool there = false;
                ROLLED for (i32 i = 0; i < size; i++) there = there || shown[i] == d;
                if (!there) rest = log_add(rest, double(scores[d]) / temperature);
            }
            tail[size] = rest;
            ROLLED for (i32 i = size - 1; i >= 0; i--)
                tail[i] = log_add(tail[i + 1], double(scores[shown[i]]) / temperature);
            i32 best = -1;
            double log_kept = 0.0;
            if (keep > 0.0) {
                best = best_of(scores, count);
                log_kept = tail[0] - double(scores[best]) / temperature;
                if (keep < 1.0) log_kept = log_add(log_safe(keep) + log_kept, log1p_safe(-keep));
            }
            for (i32 b = 1; b < considered; b++) {
                without[b] = tail[b + 1];
                for (i32 i = b - 1; i > 0; i--)
                    without[i] = log_add(without[i + 1], double(scores[shown[i]]) / temperature);
                for (i32 a = 0; a < b; a++) {
                    if (((clicked >> a) & 1u) == ((clicked >> b) & 1u)) continue;
                    const double score_a = double(scores[shown[a]]) / temperature;
                    const double score_b = double(scores[shown[b]]) / temperature;
                    double log_inverse = 0.0;
                    ROLLED for (i32 i = a + 1; i <= b; i++) log_inverse += log_add(without[i], score_a) - tail[i];
                    if (best >= 0 && a == 0) {
                        if (shown[0] == best)
                            log_inverse = keep < 1.0 ? log_inverse + log_kept - log1p_safe(-keep) : infinity();
                        else if (shown[b] == best)
                            log_inverse += log1p_safe(-keep) - log_kept;
                    }
                    const double odds = exp_safe(-fabs(score_a - score_b));
                    const double rho = log_inverse < 700.0 ? 1.0 / (1.0 + exp_safe(log_inverse)) : 0.0;
                    const double weight = odds / ((1.0 + odds) * (1.0 + odds)) * rho;
                    const double sign = (clicked >> a) & 1u ? 1.0 : -1.0;
                    scales[a] += sign * weight;
                    scales[b] -= sign * weight;
                }
            }
        }
    }
    together();
}

// The index of the n-th set bit, from 0.
FUNCTION i32 nth_bit(u32 mask, i32 n) {
    for (; n > 0; n--) mask &= mask - 1u;
    return lowest_bit(mask);
}

// `pair_weights`: fills bench.scales. Pairs are weighted in parallel, and added up in the order of the loop.
template <i32 ahead = 1> FUNCTION void pair_weights(
    Page& page, Bench& bench, double spread, i32 count, i32 size, i32 considered, u32 clicked, double temperature,
    double keep) {
    double *top = bench.top, *tail = bench.tail;
    EACH_LANE(lane) {
        if (lane < SHOWN) bench.scales[lane] = 0.0;
    }
    together();
    if (!(spread < FAR_APART)) {
        pair_weights_in_logarithms(
            page.scores, page.shown, tail, bench.without, bench.scales, count, considered, clicked, temperature, keep);
        return;
    }
    EACH_LANE(lane) {
        if (lane < size) {
            top[lane] = page.rates[page.shown[lane]];
            page.rates[page.shown[lane]] = 0.0;
        }
    }
    together();
    double rest = 0.0;  // sequentially in every lane, since the order determines the bits
#pragma unroll 8
    for (i32 d = 0; d < count; d++) rest += page.rates[d];
    double sum = rest;
#pragma unroll ahead
    for (i32 i = SHOWN - 1; i >= 0; i--) {
        if (i < size) sum = sum + top[i];
        EACH_LANE(lane) {
            if (lane == i && i < size) tail[i] = sum;
        }
    }
    together();
    EACH_LANE(lane) {
        if (lane == 0) tail[size] = rest;
        if (lane < size) page.rates[page.shown[lane]] = top[lane];
    }
    together();
    i32 best = -1;
    double kept = 1.0;
    if (keep > 0.0) {
        best = best_of(page.scores, count);
        kept = keep * tail[0] / page.rates[best] + (1.0 - keep);
    }
    EACH_LANE(lane) {
        if (lane >= 1 && lane < considered) {
            double sum = tail[lane + 1];
            bench.without[lane * SHOWN + lane] = sum;
#pragma unroll ahead
            for (i32 i = ahead > 1 ? SHOWN - 2 : lane - 1; i > 0; i--) {
                if (i < lane) {
                    sum = sum + top[i];
                    bench.without[lane * SHOWN + i] = sum;
                }
            }
        }
    }
    together();
    const u32 passed = ((1u << considered) - 1u) & ~clicked;  // examined and not clicked
    const i32 others = bits_in(passed), pair_count = bits_in(clicked) * others;  // at most 25: one lane each
    EACH_LANE(lane) {
        if (lane < pair_count) {
            const i32 one = nth_bit(clicked, lane / others), two = nth_bit(passed, lane % others);
            const i32 a = one < two ? one : two, b = one < two ? two : one;
            double inverse = 1.0;
#pragma unroll ahead
            for (i32 i = ahead > 1 ? 1 : a + 1; i < (ahead > 1 ? SHOWN : b + 1); i++) {
                const double factor = quotient(bench.without[b * SHOWN + i] + top[a], tail[i]);
                inverse = i > a && i <= b ? inverse * factor : inverse;
            }
            if (best >= 0 && a == 0) {
                if (page.shown[0] == best)
                    inverse = keep < 1.0 ? inverse * kept / (1.0 - keep) : infinity();
                else if (page.shown[b] == best)
                    inverse *= (1.0 - keep) / kept;
            }
            const double low = top[a] < top[b] ? top[a] : top[b], high = top[a] < top[b] ? top[b] : top[a];
            const double odds = quotient(low, high);
            const double weight = quotient(odds, (1.0 + odds) * (1.0 + odds)) / (1.0 + inverse);
            bench.pairs[a * SHOWN + b] = a == one ? weight : -weight;
        }
    }
    together();
    EACH_LANE(lane) {
        if (lane < considered) {
            const bool own = (clicked >> lane) & 1u;
            double sum = 0.0;
#pragma unroll ahead
            for (i32 other = 0; other < (ahead > 1 ? SHOWN : considered); other++) {
                const double pair = bench.pairs[other < lane ? other * SHOWN + lane : lane * SHOWN + other];
                if (other < considered && ((clicked >> other) & 1u) != own) sum += other < lane ? -pair : pair;
            }
            bench.scales[lane] = sum;
        }
    }
    together();
}

FUNCTION double norm_of(const double* vector, i64 count) {  // sequentially in every lane
    double total = 0.0;
    for (i64 i = 0; i < count; i++) total += vector[i] * vector[i];
    return sqrt(total);
}

FUNCTION void shorten(double* vector, i64 count, double longest) {
    const double length = norm_of(vector, count);
    together();
    if (length > longest) {
        EACH_LANE(lane) {
            ROLLED for (i64 i = lane; i < count; i += 32) vector[i] *= longest / length;
        }
    }
    together();
}

// target += the sum of scale x features of the shown documents, position by position.
template <typename Real> FUNCTION void add_gradients(
    double* target, const Real* rows, i64 features, const Page& page, double* scales, i32 considered, double factor) {
    EACH_LANE(lane) {
        if (lane < considered) scales[lane] *= factor;
    }
    together();
    ROLLED for (i32 begin = 0; begin < considered; begin += 5) {  // five rows are loaded before the first is added
        i64 at[5];
        double scale[5];
#pragma unroll
        for (i32 i = 0; i < 5; i++) {
            const bool there = begin + i < considered;
            at[i] = there ? page.shown[begin + i] * features : 0;
            scale[i] = there ? scales[begin + i] : 0.0;
        }
        EACH_LANE(lane) {
            ROLLED for (i32 p = lane; p < features; p += 32) {
                float x[5];
#pragma unroll
                for (i32 i = 0; i < 5; i++) x[i] = scale[i] != 0.0 ? wide(rows[at[i] + p]) : 0.0f;
                double sum = target[p];
#pragma unroll
                for (i32 i = 0; i < 5; i++)
                    if (scale[i] != 0.0) sum += scale[i] * double(x[i]);
                target[p] = sum;
            }
        }
    }
    together();
}

// The query of a client's search.
FUNCTION i64 query_of(const Task& task, i64 row, u64 client, i64 interaction, u64& chance) {
    const i64 pool_start = task.pools[task.pool[row]], pool_size = task.pools[task.pool[row] + 1] - pool_start;
    const i64 place = task.at != nullptr ? task.at[row] + interaction : interaction;
    chance = stream(client, place);
    return task.queries[pool_start + (task.at != nullptr ? place : i64(uniform(chance, 0) * double(pool_size)))];
}

// `plain`: no keep, clipping, pull or drift, temperature 1. That code is not compiled then, and more warps fit.
template <typename Real, bool plain, i32 groups> FUNCTION void pdgd_client(const Task& task, i64 c, Page& page, Bench& bench) {
    const i64 features = task.features;
    const double keep = plain ? 0.0 : task.keep, temperature = plain ? 1.0 : task.temperature;
    const double pull = plain ? 0.0 : task.pull, clip_weights = plain ? 0.0 : task.clip_weights;
    const double clip_gradients = plain ? 0.0 : task.clip_gradients;
    const double* drifts = plain ? nullptr : task.drifts;
    const float* start = task.starts + (task.many_starts ? c * features : 0);
    double* master = bench.master;
    EACH_LANE(lane) {
        ROLLED for (i32 p = lane; p < features; p += 32) {
            bench.weights[p] = start[p];
            master[p] = double(start[p]);
        }
    }
    together();
    const i64 row = task.present != nullptr ? task.present[c] : c;
    const u64 client = stream(task.key, task.ids[row]);
    const i8* view = task.grades + task.view[row] * task.documents;
    const double* ideal = task.ideal + task.view[row] * task.query_count;
    const i64 interactions = task.interactions[row];
    const bool bent = pull != 0.0 || drifts != nullptr || clip_weights > 0.0;
    const bool clipped = clip_gradients > 0.0;
    const double factor = (clipped ? 1.0 : task.rate) / temperature;
    double quality = 0.0;
    if (interactions > 0) {
        u64 chance;
        const i64 query = query_of(task, row, client, 0, chance), begin = task.offsets[query];
        EACH_LANE(lane) {
            if (lane == 0) *bench.look = {chance, query, begin, task.offsets[query + 1] - begin, task.places[query]};
        }
        together();
    }
    for (i64 interaction = 0; interaction < interactions; interaction++) {
        const u64 chance = bench.look->chance;
        const i64 query = bench.look->query, begin = bench.look->begin, block = bench.look->place;
        const i32 count = i32(bench.look->count);
        const i8* grades = view + begin;
        const bool more = interaction + 1 < interactions;
        u64 next_chance = 0;
        i64 next = 0;  // the next query; each step of its lookup is hidden behind longer work
        if (more) next = query_of(task, row, client, interaction + 1, next_chance);

        linear_scores<groups>(bench.weights, (const Real*)task.blocks + block, i32(features), count, page.scores);
        i64 next_begin = 0, next_end = 0, next_place = 0;
        if (more) {
            next_begin = task.offsets[next];
            next_end = task.offsets[next + 1];
            next_place = task.places[next];
        }
        const double spread = rates(page, count, temperature);
        if (more) {
            EACH_LANE(lane) {
                if (lane == 0) *bench.look = {next_chance, next, next_begin, next_end - next_begin, next_place};
            }
        }
        i32 first = -1;
        if (keep > 0.0 && uniform(chance, KEEP_DRAW) < keep) first = best_of(page.scores, count);
        const i32 size = plackett_luce(page, spread, count, temperature, first, chance);
        const i64 who = task.user[row] >= 0 ? task.user[row] : i64(uniform(chance, 1) * double(task.users));
        const u32 clicked = read_and_click(
            grades, page, size, task.click + who * task.levels, task.stop + who * task.levels,
            task.attention + who * SHOWN, chance);
        quality += shown_ndcg(grades, page, size, ideal[query], task.discount, bench.scales);

        const i32 below = highest_bit(clicked) + 2;
        const i32 considered = clicked == 0 ? 0 : (below < size ? below : size);
        const bool moved = considered >= 2;
        if (pull != 0.0) {
            EACH_LANE(lane) {
                ROLLED for (i32 p = lane; p < features; p += 32) master[p] -= pull * (master[p] - double(start[p]));
            }
        }
        if (drifts != nullptr) {
            EACH_LANE(lane) {
                ROLLED for (i32 p = lane; p < features; p += 32) master[p] += task.rate * drifts[c * features + p];
            }
        }
        if (moved) {
            pair_weights(page, bench, spread, count, size, considered, clicked, temperature, keep);
            const Real* rows = (const Real*)task.rows + begin * features;
            if (!clipped) {
                add_gradients(master, rows, features, page, bench.scales, considered, factor);
            } else {
                double* own = bench.own;
                EACH_LANE(lane) {
                    ROLLED for (i32 p = lane; p < features; p += 32) own[p] = 0.0;
                }
                add_gradients(own, rows, features, page, bench.scales, considered, factor);
                shorten(own, features, clip_gradients);
                if (norm_of(own, features) < infinity()) {
                    EACH_LANE(lane) {
                        ROLLED for (i32 p = lane; p < features; p += 32) master[p] += task.rate * own[p];
                    }
                }
            }
        }
        together();
        if ((moved || bent) && !task.batch) {
            if (clip_weights > 0.0) shorten(master, features, clip_weights);
            EACH_LANE(lane) {
                ROLLED for (i32 p = lane; p < features; p += 32) bench.weights[p] = float(master[p]);
            }
            together();
        }
    }
    if (clip_weights > 0.0 && task.batch && interactions > 0) shorten(master, features, clip_weights);
    EACH_LANE(lane) {
        if (lane == 0) task.online[c] = interactions > 0 ? quality / double(interactions) : 0.0;
        ROLLED for (i32 p = lane; p < features; p += 32)
            task.updates[c * features + p] = float(master[p] - double(start[p]));
    }
    together();
}

FUNCTION i64 rounded(i64 bytes) { return (bytes + 15) / 16 * 16; }

// Memory of one warp, starting at `memory`; Python's `shared_bytes_of` counts the same bytes.
FUNCTION void furnish(const Task& task, char* memory, Page& page, Bench& bench) {
    const i64 features = task.features, longest = task.longest;
    bench.weights = (float*)memory;
    memory += rounded(4 * (features + 8));
    bench.master = (double*)memory;
    memory += rounded(8 * features);
    bench.own = (double*)memory;
    memory += task.clip_gradients > 0.0 ? rounded(8 * features) : 0;
    page.rates = (double*)memory;
    memory += rounded(8 * longest);
    page.times = (double*)memory;
    memory += rounded(8 * (longest > SHOWN ? longest : SHOWN));
    page.scores = (float*)memory;
    memory += rounded(4 * longest);
    page.early = (i32*)memory;
    memory += rounded(4 * (longest > SHOWN ? longest : SHOWN));
    bench.without = (double*)memory;
    bench.pairs = bench.without + SHOWN * SHOWN;
    bench.top = bench.pairs + SHOWN * SHOWN;
    bench.tail = bench.top + SHOWN;
    bench.scales = bench.tail + SHOWN + 1;
    page.shown = (i32*)(bench.scales + SHOWN);
    bench.look = (Look*)(page.shown + SHOWN);
}

#ifdef __CUDACC__
template <typename Real, bool plain, i32 groups> FUNCTION void all_clients(const Task& task, char* memory) {
    const i64 inside = threadIdx.x / 32, warps = blockDim.x / 32;
    Page page;
    Bench bench;
    furnish(task, memory, page, bench);
    for (i64 c = task.first + blockIdx.x * warps + inside; c < task.taking_part; c += gridDim.x * warps)
        pdgd_client<Real, plain, groups>(task, c, page, bench);
}

#define LOOP(name, Real, plain, groups, blocks)                                                     \
    extern "C" __global__ void __launch_bounds__(128, blocks) name(const __grid_constant__ Task task) { \
        extern __shared__ __align__(16) char memory[];                                              \
        all_clients<Real, plain, groups>(task, memory + threadIdx.x / 32 * task.room);              \
    }
// For lists that are too long for shared memory.
#define WIDE_LOOP(name, Real)                                                                            \
    extern "C" __global__ void __launch_bounds__(128, 4) name(const __grid_constant__ Task task) {       \
        const i64 warp = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;                              \
        all_clients<Real, false, 2>(task, task.scratch + warp * task.room);                              \
    }
#else
template <typename Real, bool plain, i32 groups> FUNCTION void all_clients(const Task& task) {
    Page page;
    Bench bench;
    furnish(task, task.scratch, page, bench);
    for (i64 c = task.first; c < task.taking_part; c++) pdgd_client<Real, plain, groups>(task, c, page, bench);
}

#define LOOP(name, Real, plain, groups, blocks) \
    extern "C" void name(const Task* task) { all_clients<Real, plain, groups>(*task); }
#define WIDE_LOOP(name, Real)
#endif

// Many features and long lists are limited by loads: few warps without global memory are best. Short lists are limited by
// latency: many warps are best.
LOOP(pdgd_clients, float, false, 2, 4)
LOOP(pdgd_clients_plain, float, true, 4, 4)
LOOP(pdgd_clients_short, float, true, 2, 8)
WIDE_LOOP(pdgd_clients_wide, float)
LOOP(pdgd_half_clients, Half, false, 2, 4)
LOOP(pdgd_half_clients_plain, Half, true, 4, 4)
LOOP(pdgd_half_clients_short, Half, true, 2, 8)
WIDE_LOOP(pdgd_half_clients_wide, Half)
