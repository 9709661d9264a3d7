// CUDA version of pdgd.py: `pdgd_clients` for neural rankers and sampled lists. One crew per client.

struct NeuralTask {
    Task task;
    char* desks;  // of all crews, in global memory, for large and rarely read data
    i64 hidden, desk;
};

struct Desk {
    double* master;  // [parameters]; for rows of features only the lower halves, u32
    double* own;     // [parameters], if gradients are clipped
    double* rows;    // [SHOWN, features] in shared memory: the shown documents
};

// Reconstructs a double from its float value and its lower 32 bits. Rounding to float moves it by at most half a unit of
// single precision, 2^28 of its own units, so only one double that near ends in these bits. Not for values beyond single
// precision, 3e38 and more. Values nearer to 0 than 1e-38 are truncated.
FUNCTION double joined(float upper, u32 lower) {
    if (fabsf(upper) < 1.17549435e-38f) return double(upper);
    const i64 near = bits_of(double(upper));
    return from_bits(near + i64(i32(lower - u32(near))));
}

// What the first warp passes to the others.
struct Told {
    i32 considered;
};

FUNCTION void crew_shortens(double* vector, i64 count, double longest) {
    const double length = norm_of(vector, count);
    crew_together();
    if (length > longest) {
        EACH_MEMBER(t) {
            ROLLED for (i64 i = t; i < count; i += CREW) vector[i] *= longest / length;
        }
    }
    crew_together();
}

// target += the gradients of the shown documents, two at a time, like `add_mlp_gradients`. With `fresh` it starts at 0.
// With `halved` the upper half of the target is the ranker, which is updated.
template <bool fresh, bool halved> FUNCTION void add_mlp_gradients(
    double* target, const Layer& layer, const float* rows, const Desk& desk, const Page& page, const double* scales,
    i32 considered) {
    EACH_MEMBER(t) {
        ROLLED for (i32 i = t / 32; i < considered; i += WARPS_OF_A_CREW) {
            const float* row = rows + page.shown[i] * layer.features;
            ROLLED for (i32 f = t % 32; f < layer.features; f += 32) desk.rows[i * layer.features + f] = double(row[f]);
        }
        if (considered & 1) {  // the last one is paired with a weight of 0
            const float* row = rows + page.shown[considered - 1] * layer.features;
            ROLLED for (i32 f = t; f < layer.features; f += CREW) desk.rows[considered * layer.features + f] = double(row[f]);
        }
    }
    crew_together();
    EACH_MEMBER(t) {
        const i32 units = layer.units_there, width = units < CREW ? units : CREW, step = CREW / width;
        const i32 features = layer.features;
        if (t / width < step) {
            ROLLED for (i32 unit = t % width; unit < units; unit += width) {
                const double output = double(layer.weights[(features + 1) * layer.padded + unit]);
                const float* found = layer.sums + unit * layer.capacity;
                u32* lower = (u32*)target;
                double back[SHOWN];
                double bias = 0.0, last = 0.0;
                const bool outer = t / width == 0;  // this member also has the unit's bias and output
                double* bias_at = target + features * units + unit;
                if (outer && !fresh) {
                    bias = bias_at[0];
                    last = bias_at[units];
                }
#pragma unroll
                for (i32 i = 0; i < SHOWN; i += 2) {
                    if (i < considered) {
                        const i32 pair = i + 1 < considered ? i + 1 : i;
                        const double first = scales[i], second = pair > i ? scales[pair] : 0.0;
                        const double one = double(activated(layer, found[page.shown[i]]));
                        const double two = pair > i ? double(activated(layer, found[page.shown[pair]])) : one;
                        if (layer.sigmoids) {
                            back[i] = first * output * one * (1.0 - one);
                            back[i + 1] = second * output * two * (1.0 - two);
                        } else {
                            back[i] = first * output * (one > 0.0 ? 1.0 : 0.0);
                            back[i + 1] = second * output * (two > 0.0 ? 1.0 : 0.0);
                        }
                        bias += back[i] + back[i + 1];
                        last += first * one + second * two;
                    }
                }
                ROLLED for (i32 begin = t / width; begin < features; begin += AT_ONCE * step) {
                    double sum[AT_ONCE];  // all are loaded before the first is needed
#pragma unroll
                    for (i32 k = 0; k < AT_ONCE; k++) {
                        const i32 f = begin + k * step;
                        sum[k] = 0.0;
                        if (!fresh && f < features)
                            sum[k] = halved ? joined(layer.weights[f * layer.padded + unit], lower[f * units + unit])
                                            : target[f * units + unit];
                    }
#pragma unroll
                    for (i32 i = 0; i < SHOWN; i += 2) {
                        if (i < considered) {
#pragma unroll
                            for (i32 k = 0; k < AT_ONCE; k++) {
                                const i32 f = begin + k * step;
                                const double* x = desk.rows + i * features + (f < features ? f : 0);
                                sum[k] += x[0] * back[i] + x[features] * back[i + 1];
                            }
                        }
                    }
#pragma unroll
                    for (i32 k = 0; k < AT_ONCE; k++) {
                        const i32 f = begin + k * step;
                        if (f < features) {
                            if (halved) {
                                lower[f * units + unit] = u32(bits_of(sum[k]));
                                layer.weights[f * layer.padded + unit] = float(sum[k]);
                            } else {
                                target[f * units + unit] = sum[k];
                            }
                        }
                    }
                }
                if (outer) {
                    bias_at[0] = bias;
                    bias_at[units] = last;
                }
            }
        }
    }
    crew_together();
    if (halved) {  // after all have read the outputs for the gradients
        EACH_MEMBER(t) {
            const i32 rows_there = layer.features + 2;
            ROLLED for (i32 unit = t; unit < layer.units_there; unit += CREW) {
                ROLLED for (i32 row = layer.features; row < rows_there; row++)
                    layer.weights[row * layer.padded + unit] = float(target[row * layer.units_there + unit]);
            }
        }
        crew_together();
    }
}

FUNCTION void copy_to_layer(const Layer& layer, const double* master) {
    EACH_MEMBER(t) {
        each_parameter(
            layer, t, layer.features + 2, [&](i32 row, i32 unit) { return master[row * layer.units_there + unit]; },
            [&](i32 row, i32 unit, double weight) { layer.weights[row * layer.padded + unit] = float(weight); });
    }
    crew_together();
}

// `plain`: no keep, clipping, pull or drift, temperature 1 and a step after every search.
template <bool plain> FUNCTION void neural_client(
    const NeuralTask& all, i64 c, Page& page, Bench& bench, const Layer& layer, const Desk& desk, Told* told) {
    const Task& task = all.task;
    const i64 parameters = i64(layer.features + 2) * layer.units_there;
    const double keep = plain ? 0.0 : task.keep, temperature = plain ? 1.0 : task.temperature;
    const double pull = plain ? 0.0 : task.pull, clip_weights = plain ? 0.0 : task.clip_weights;
    const double clip_gradients = plain ? 0.0 : task.clip_gradients;
    const double* drifts = plain ? nullptr : task.drifts;
    const float* start = task.starts + (task.many_starts ? c * parameters : 0);
    double* master = desk.master;
    u32* lower = (u32*)master;
    const i32 units = layer.units_there;
    EACH_MEMBER(t) {
        each_parameter(
            layer, t, layer.features + 2, [&](i32 row, i32 unit) { return double(start[row * units + unit]); },
            [&](i32 row, i32 unit, double weight) {
                layer.weights[row * layer.padded + unit] = float(weight);
                if (plain && row < layer.features)
                    lower[row * units + unit] = u32(bits_of(weight));
                else
                    master[row * units + unit] = weight;
            });
    }
    crew_together();
    const i64 row = task.present != nullptr ? task.present[c] : c;
    const u64 client = stream(task.key, task.ids[row]);
    const i64 pool_start = task.pools[task.pool[row]];
    const i64 pool_size = task.pools[task.pool[row] + 1] - pool_start;
    const i8* view = task.grades + task.view[row] * task.documents;
    const double* ideal = task.ideal + task.view[row] * task.query_count;
    const i64 interactions = task.interactions[row];
    const bool bent = pull != 0.0 || drifts != nullptr || clip_weights > 0.0;
    const bool clipped = clip_gradients > 0.0, batch = !plain && task.batch != 0;
    const double factor = (clipped ? 1.0 : task.rate) / temperature;
    double quality = 0.0;
    for (i64 interaction = 0; interaction < interactions; interaction++) {
        const i64 place = task.at != nullptr ? task.at[row] + interaction : interaction;
        const u64 chance = stream(client, place);
        const i64 drawn = task.at != nullptr ? place : i64(uniform(chance, 0) * double(pool_size));
        const i64 query = task.queries[pool_start + drawn];
        const i64 begin = task.offsets[query];
        const i32 count = i32(task.offsets[query + 1] - begin);
        mlp_scores(layer, task.blocks + task.places[query], count, page.scores);
        ONE_WARP {
            const i8* grades = view + begin;
            const double spread = rates(page, count, temperature);
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
            if (considered >= 2) {
                pair_weights(page, bench, spread, count, size, considered, clicked, temperature, keep);
                EACH_LANE(lane) {
                    if (lane < considered) bench.scales[lane] *= factor;
                }
            }
            EACH_LANE(lane) {
                if (lane == 0) told->considered = considered;
            }
        }
        crew_together();
        const i32 considered = told->considered;
        const bool moved = considered >= 2;
        const float* rows = task.rows + begin * layer.features;
        if (plain) {
            if (moved) add_mlp_gradients<false, true>(master, layer, rows, desk, page, bench.scales, considered);
            crew_together();
            continue;
        }
        if (pull != 0.0 || drifts != nullptr) {
            EACH_MEMBER(t) {
                ROLLED for (i64 p = t; p < parameters; p += CREW) {
                    double weight = master[p];
                    if (pull != 0.0) weight -= pull * (weight - double(start[p]));
                    if (drifts != nullptr) weight += task.rate * drifts[c * parameters + p];
                    master[p] = weight;
                }
            }
            crew_together();
        }
        if (moved && !clipped) add_mlp_gradients<false, false>(master, layer, rows, desk, page, bench.scales, considered);
        if (moved && clipped) {
            double* own = desk.own;
            add_mlp_gradients<true, false>(own, layer, rows, desk, page, bench.scales, considered);
            crew_shortens(own, parameters, clip_gradients);
            if (norm_of(own, parameters) < infinity()) {
                EACH_MEMBER(t) {
                    ROLLED for (i64 p = t; p < parameters; p += CREW) master[p] += task.rate * own[p];
                }
            }
            crew_together();
        }
        if ((moved || bent) && !batch) {
            if (clip_weights > 0.0) crew_shortens(master, parameters, clip_weights);
            copy_to_layer(layer, master);
        }
        crew_together();
    }
    if (clip_weights > 0.0 && batch && interactions > 0) crew_shortens(master, parameters, clip_weights);
    EACH_MEMBER(t) {
        if (t == 0) task.online[c] = interactions > 0 ? quality / double(interactions) : 0.0;
        each_parameter(
            layer, t, layer.features + 2,
            [&](i32 row, i32 unit) {
                const i32 p = row * units + unit;
                const bool halved = plain && row < layer.features;
                const double weight = halved ? joined(layer.weights[row * layer.padded + unit], lower[p]) : master[p];
                return weight - double(start[p]);
            },
            [&](i32 row, i32 unit, double moved) {
                task.updates[c * parameters + row * units + unit] = float(moved);
            });
    }
    crew_together();
}

// Memory of one crew: its layer, page and bench in shared memory, and a desk in global memory. Python's
// `group_shared_bytes` and `group_global_bytes` count the same bytes.
FUNCTION void furnish_crew(
    const Task& task, i64 hidden, char* memory, char* slow, Page& page, Bench& bench, Layer& layer, Desk& desk,
    Told*& told) {
    const i64 longest = task.longest, units = hidden < 0 ? -hidden : hidden, parameters = (task.features + 2) * units;
    desk.master = (double*)slow;
    slow += rounded(8 * parameters);
    desk.own = (double*)slow;
    slow += task.clip_gradients > 0.0 ? rounded(8 * parameters) : 0;
    memory = furnish_layer(layer, hidden, task.features, longest, memory, (float*)slow);
    const i64 at_least = longest > SHOWN ? longest : SHOWN;
    page.rates = (double*)memory;
    page.times = (double*)(memory + rounded(8 * longest));
    page.scores = (float*)(memory + rounded(8 * longest) + rounded(8 * at_least));
    page.early = (i32*)(memory + rounded(8 * longest) + rounded(8 * at_least) + rounded(4 * longest));
    const i64 papers = rounded(8 * longest) + rounded(8 * at_least) + rounded(4 * longest) + rounded(4 * at_least);
    desk.rows = (double*)memory;  // this memory is free once pairs are weighted
    const i64 rows = rounded(8 * SHOWN * task.features);
    memory += papers > rows ? papers : rows;
    bench.master = bench.own = nullptr;
    bench.weights = nullptr;
    bench.without = (double*)memory;
    bench.pairs = bench.without + SHOWN * SHOWN;
    bench.top = bench.pairs + SHOWN * SHOWN;
    bench.tail = bench.top + SHOWN;
    bench.scales = bench.tail + SHOWN + 1;
    page.shown = (i32*)(bench.scales + SHOWN);
    told = (Told*)(page.shown + SHOWN);
    const i64 everything = (task.features + 2) * layer.padded;
    EACH_MEMBER(t) {  // padding units stay 0
        ROLLED for (i64 p = t; p < everything; p += CREW) layer.weights[p] = 0.0f;
    }
    crew_together();
}

#ifdef __CUDACC__
template <bool plain> FUNCTION void all_neural_clients(const NeuralTask& all, char* memory) {
    Page page;
    Bench bench;
    Layer layer;
    Desk desk;
    Told* told;
    furnish_crew(all.task, all.hidden, memory, all.desks + blockIdx.x * all.desk, page, bench, layer, desk, told);
    for (i64 c = all.task.first + blockIdx.x; c < all.task.taking_part; c += gridDim.x)
        neural_client<plain>(all, c, page, bench, layer, desk, told);
}

extern "C" __global__ void __launch_bounds__(CREW, 4) neural_clients_plain(const __grid_constant__ NeuralTask task) {
    extern __shared__ __align__(16) char memory[];
    all_neural_clients<true>(task, memory);
}

extern "C" __global__ void __launch_bounds__(CREW, 4) neural_clients(const __grid_constant__ NeuralTask task) {
    extern __shared__ __align__(16) char memory[];
    all_neural_clients<false>(task, memory);
}

// The same if a model or a list is too large for shared memory.
extern "C" __global__ void __launch_bounds__(CREW, 4) neural_clients_wide(const __grid_constant__ NeuralTask task) {
    all_neural_clients<false>(task, task.task.scratch + blockIdx.x * task.task.room);
}
#else
template <bool plain> FUNCTION void all_neural_clients(const NeuralTask& all) {
    Page page;
    Bench bench;
    Layer layer;
    Desk desk;
    Told* told;
    furnish_crew(all.task, all.hidden, all.task.scratch, all.desks, page, bench, layer, desk, told);
    for (i64 c = all.task.first; c < all.task.taking_part; c++)
        neural_client<plain>(all, c, page, bench, layer, desk, told);
}

extern "C" void neural_clients_plain(const NeuralTask* task) { all_neural_clients<true>(*task); }
extern "C" void neural_clients(const NeuralTask* task) { all_neural_clients<false>(*task); }
#endif
