// CUDA version of evolution.py: FOLtR-ES. One warp per client for linear rankers, one crew for neural rankers.

#define TIE_STEP 0x4F1BBCDDll
#define TIE_TURN 0x2545F491ll
#define TIE_BITS 0x7fffffffll
#define BELOW_ALL_SCORES (-2147483647 - 1)

struct EvolutionTask {
    Task task;
    double* rewards;  // [participants]
    u64* seeds;       // [participants]
    float* means;     // [participants, 2]
    char* desks;      // of all crews, in global memory
    u64 noise_key, answer_key;
    i64 hidden, desk, clicked_dcg;
    double deviation, truth;
};

// Like `as_integers`: in the order of scores.
FUNCTION i32 in_order(float score) {
    const i32 bits = bits_of_float(score), size = bits & 0x7fffffff, sign = bits >> 31;
    return (size ^ sign) - sign;
}

// `best_first`: fills page.shown; returns their number, or -1 if a score is NaN. Keys share the memory of times.
FUNCTION i32 best_first(Page& page, i32 count) {
    const i32 size = count < SHOWN ? count : SHOWN;
    i64* keys = (i64*)page.times;
    PerLane<i32> best;
    PerLane<bool> bad;
    EACH_LANE(lane) {
        best[lane] = BELOW_ALL_SCORES;
        bad[lane] = false;
        ROLLED for (i32 d = lane; d < count; d += 32) {
            const i32 own = in_order(page.scores[d]);
            bad[lane] = bad[lane] || (bits_of_float(page.scores[d]) & 0x7fffffff) > 0x7f800000;
            best[lane] = own > best[lane] ? own : best[lane];
        }
    }
    if (ballot(bad) != 0) return -1;
    // Each lane has its best document, so at least ten documents reach the tenth best of these.
    const i32 bound = size < count ? highest_but(SHOWN - 1, best) : BELOW_ALL_SCORES;
    i32 candidates = 0;
    ROLLED for (i32 begin = 0; begin < count; begin += 32) {
        PerLane<bool> may;
        EACH_LANE(lane) may[lane] = begin + lane < count && in_order(page.scores[begin + lane]) >= bound;
        const u32 mask = ballot(may);
        EACH_LANE(lane) {
            if (may[lane]) {
                const i64 d = begin + lane;
                const i32 at = candidates + bits_in(mask & ((1u << lane) - 1u));
                page.early[at] = i32(d);
                keys[at] = i64(u64(~i64(in_order(page.scores[d]))) << 32) |
                           ((d * TIE_STEP + i64(count) * TIE_TURN) & TIE_BITS);
            }
        }
        candidates += bits_in(mask);
    }
    together();
    EACH_LANE(lane) {
        ROLLED for (i32 i = lane; i < candidates; i += 32) {
            const i64 own = keys[i];
            i32 rank = 0;
            for (i32 j = 0; j < candidates; j++) rank += keys[j] < own;
            if (rank < size) page.shown[rank] = page.early[i];
        }
    }
    together();
    return size;
}

FUNCTION double reward_of(u32 clicked, const double* discount, bool clicked_dcg) {
    if (!clicked_dcg) return clicked != 0 ? 1.0 / double(lowest_bit(clicked) + 1) : 0.0;
    double total = 0.0;
    for (; clicked != 0; clicked &= clicked - 1u) total += discount[lowest_bit(clicked)];
    return total;
}

FUNCTION double reported_reward(u32 clicked, const double* discount, bool clicked_dcg, double truth, u64 chance) {
    if (clicked_dcg || truth >= 1.0) return reward_of(clicked, discount, clicked_dcg);
    i64 told = clicked != 0 ? lowest_bit(clicked) + 1 : 0;
    if (!(uniform(chance, 0) < truth)) {
        const i64 other = i64(uniform(chance, 1) * double(SHOWN));
        told = other + (other >= told);
    }
    return told > 0 ? 1.0 / double(told) : 0.0;
}

// One client's searches, and their results so far.
struct Player {
    u64 searches, answers;
    i64 row, pool_start, pool_size, interactions;
    const i8* view;
    const double* ideal;
    double quality, reward, reported;
};

FUNCTION void enter(const EvolutionTask& all, i64 c, Player& player) {
    const Task& task = all.task;
    const i64 row = task.present != nullptr ? task.present[c] : c;
    player.row = row;
    player.searches = stream(task.key, task.ids[row]);
    player.answers = stream(all.answer_key, task.ids[row]);
    player.pool_start = task.pools[task.pool[row]];
    player.pool_size = task.pools[task.pool[row] + 1] - player.pool_start;
    player.view = task.grades + task.view[row] * task.documents;
    player.ideal = task.ideal + task.view[row] * task.query_count;
    player.interactions = task.interactions[row];
    player.quality = player.reward = 0.0;
}

// One warp shows the list given by page.scores, and records its reward.
FUNCTION void show_best(
    const EvolutionTask& all, Player& player, i64 interaction, u64 chance, i64 query, Page& page, double* terms) {
    const Task& task = all.task;
    const i64 begin = task.offsets[query];
    const i32 size = best_first(page, i32(task.offsets[query + 1] - begin));
    if (size < 0) {
        player.reported = from_bits(0x7ff8000000000000ll);  // NaN
        return;
    }
    const i8* grades = player.view + begin;
    player.quality += shown_ndcg(grades, page, size, player.ideal[query], task.discount, terms);
    const i64 own = task.user[player.row];
    const i64 who = own >= 0 ? own : i64(uniform(chance, 1) * double(task.users));
    const u32 clicked = read_and_click(
        grades, page, size, task.click + who * task.levels, task.stop + who * task.levels,
        task.attention + who * SHOWN, chance);
    const bool dcg = all.clicked_dcg != 0;
    player.reward += reward_of(clicked, task.discount, dcg);
    player.reported += reported_reward(clicked, task.discount, dcg, all.truth, stream(player.answers, interaction));
}

FUNCTION i64 searched(const Task& task, const Player& player, u64 chance) {
    return task.queries[player.pool_start + i64(uniform(chance, 0) * double(player.pool_size))];
}

FUNCTION i64 at_least_one(i64 count) { return count > 1 ? count : 1; }

FUNCTION void leave(const EvolutionTask& all, i64 c, const Player& player, u64 seed, float plus, float minus) {
    const double searches = double(at_least_one(player.interactions));
    all.task.online[c] = player.quality / searches;
    all.rewards[c] = player.reward / searches;
    all.seeds[c] = seed;
    all.means[2 * c] = plus;
    all.means[2 * c + 1] = minus;
}

template <i32 groups> FUNCTION void evolution_client(
    const EvolutionTask& all, i64 c, Page& page, float* weights, double* noise, double* terms) {
    const Task& task = all.task;
    const i32 features = i32(task.features);
    const float* start = task.starts + (task.many_starts ? c * features : 0);
    Player player;
    enter(all, c, player);
    const u64 seed = stream(all.noise_key, task.ids[player.row]);
    EACH_LANE(lane) {
        ROLLED for (i32 i = lane; 2 * i < features; i += 32) {
            double one, other;
            two_normals(seed, i, one, other);
            noise[2 * i] = one;
            if (2 * i + 1 < features) noise[2 * i + 1] = other;
        }
    }
    together();
    const i64 half = (player.interactions + 1) / 2;
    float means[2];
#pragma unroll
    for (i32 side = 0; side < 2; side++) {
        const i64 from = side == 0 ? 0 : half, to = side == 0 ? half : player.interactions;
        const double deviation = side == 0 ? all.deviation : -all.deviation;
        EACH_LANE(lane) {
            ROLLED for (i32 p = lane; p < features; p += 32)
                weights[p] = float(double(start[p]) + deviation * noise[p]);
        }
        together();
        player.reported = 0.0;
        ROLLED for (i64 interaction = from; interaction < to; interaction++) {
            const u64 chance = stream(player.searches, interaction);
            const i64 query = searched(task, player, chance);
            const i32 count = i32(task.offsets[query + 1] - task.offsets[query]);
            linear_scores<groups>(weights, task.blocks + task.places[query], features, count, page.scores);
            show_best(all, player, interaction, chance, query, page, terms);
            together();
        }
        means[side] = float(player.reported / double(at_least_one(to - from)));
    }
    const double slope = (double(means[0]) - double(means[1])) / (2.0 * all.deviation);
    EACH_LANE(lane) {
        ROLLED for (i32 p = lane; p < features; p += 32) task.updates[c * features + p] = float(slope * noise[p]);
        if (lane == 0) leave(all, c, player, seed, means[0], means[1]);
    }
    together();
}

// Memory of one warp; Python's `linear_shared_bytes` counts the same bytes.
FUNCTION void furnish_player(const Task& task, char* memory, Page& page, float*& weights, double*& noise, double*& terms) {
    const i64 longest = task.longest, at_least = longest > SHOWN ? longest : SHOWN;
    weights = (float*)memory;
    memory += rounded(4 * (task.features + 8));
    noise = (double*)memory;
    memory += rounded(8 * task.features);
    page.rates = nullptr;
    page.times = (double*)memory;
    memory += rounded(8 * at_least);
    page.scores = (float*)memory;
    memory += rounded(4 * longest);
    page.early = (i32*)memory;
    memory += rounded(4 * at_least);
    terms = (double*)memory;
    page.shown = (i32*)(terms + SHOWN);
}

// The player of the first warp is that of the crew; the other warps follow its searches.
FUNCTION void evolution_crew(const EvolutionTask& all, i64 c, Page& page, double* terms, const Layer& layer, const Desk& desk) {
    const Task& task = all.task;
    const i32 units = layer.units_there;
    const i64 parameters = i64(layer.features + 2) * units;
    const float* start = task.starts + (task.many_starts ? c * parameters : 0);
    double* noise = desk.master;
    Player player;
    enter(all, c, player);
    const u64 seed = stream(all.noise_key, task.ids[player.row]);
    EACH_MEMBER(t) {
        ROLLED for (i64 i = t; 2 * i < parameters; i += CREW) {
            double one, other;
            two_normals(seed, i, one, other);
            noise[2 * i] = one;
            if (2 * i + 1 < parameters) noise[2 * i + 1] = other;
        }
    }
    crew_together();
    const i64 half = (player.interactions + 1) / 2;
    float means[2];
    ROLLED for (i32 side = 0; side < 2; side++) {
        const i64 from = side == 0 ? 0 : half, to = side == 0 ? half : player.interactions;
        const double deviation = side == 0 ? all.deviation : -all.deviation;
        EACH_MEMBER(t) {
            each_parameter(
                layer, t, layer.features + 2,
                [&](i32 row, i32 unit) {
                    const i32 p = row * units + unit;
                    return double(start[p]) + deviation * noise[p];
                },
                [&](i32 row, i32 unit, double weight) { layer.weights[row * layer.padded + unit] = float(weight); });
        }
        crew_together();
        player.reported = 0.0;
        ROLLED for (i64 interaction = from; interaction < to; interaction++) {
            const u64 chance = stream(player.searches, interaction);
            const i64 query = searched(task, player, chance);
            const i32 count = i32(task.offsets[query + 1] - task.offsets[query]);
            mlp_scores(layer, task.blocks + task.places[query], count, page.scores);
            ONE_WARP show_best(all, player, interaction, chance, query, page, terms);
            crew_together();
        }
        means[side] = float(player.reported / double(at_least_one(to - from)));
    }
    float* told = (float*)terms;  // known only to the first warp
    EACH_MEMBER(t) {
        if (t == 0) {
            leave(all, c, player, seed, means[0], means[1]);
            told[0] = means[0];
            told[1] = means[1];
        }
    }
    crew_together();
    const double slope = (double(told[0]) - double(told[1])) / (2.0 * all.deviation);
    EACH_MEMBER(t) {
        ROLLED for (i64 p = t; p < parameters; p += CREW) task.updates[c * parameters + p] = float(slope * noise[p]);
    }
    crew_together();
}

#ifdef __CUDACC__
template <i32 groups> FUNCTION void all_players(const EvolutionTask& all, char* memory) {
    const i64 inside = threadIdx.x / 32, warps = blockDim.x / 32;
    Page page;
    float* weights;
    double *noise, *terms;
    furnish_player(all.task, memory, page, weights, noise, terms);
    for (i64 c = all.task.first + blockIdx.x * warps + inside; c < all.task.taking_part; c += gridDim.x * warps)
        evolution_client<groups>(all, c, page, weights, noise, terms);
}

extern "C" __global__ void __launch_bounds__(128, 4) evolution_clients(const __grid_constant__ EvolutionTask task) {
    extern __shared__ __align__(16) char memory[];
    all_players<4>(task, memory + threadIdx.x / 32 * task.task.room);
}

extern "C" __global__ void __launch_bounds__(128, 8) evolution_clients_short(const __grid_constant__ EvolutionTask task) {
    extern __shared__ __align__(16) char memory[];
    all_players<2>(task, memory + threadIdx.x / 32 * task.task.room);
}

extern "C" __global__ void __launch_bounds__(128, 4) evolution_clients_wide(const __grid_constant__ EvolutionTask task) {
    all_players<2>(task, task.task.scratch + (blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32) * task.task.room);
}

FUNCTION void all_crews(const EvolutionTask& all, char* memory) {
    Page page;
    Bench bench;
    Layer layer;
    Desk desk;
    Told* told;
    furnish_crew(all.task, all.hidden, memory, all.desks + blockIdx.x * all.desk, page, bench, layer, desk, told);
    for (i64 c = all.task.first + blockIdx.x; c < all.task.taking_part; c += gridDim.x)
        evolution_crew(all, c, page, bench.scales, layer, desk);
}

extern "C" __global__ void __launch_bounds__(CREW, 4) evolution_crews(const __grid_constant__ EvolutionTask task) {
    extern __shared__ __align__(16) char memory[];
    all_crews(task, memory);
}

extern "C" __global__ void __launch_bounds__(CREW, 4) evolution_crews_wide(const __grid_constant__ EvolutionTask task) {
    all_crews(task, task.task.scratch + blockIdx.x * task.task.room);
}
#else
template <i32 groups> FUNCTION void all_players(const EvolutionTask& all) {
    Page page;
    float* weights;
    double *noise, *terms;
    furnish_player(all.task, all.task.scratch, page, weights, noise, terms);
    for (i64 c = all.task.first; c < all.task.taking_part; c++)
        evolution_client<groups>(all, c, page, weights, noise, terms);
}

extern "C" void evolution_clients(const EvolutionTask* task) { all_players<4>(*task); }
extern "C" void evolution_clients_short(const EvolutionTask* task) { all_players<2>(*task); }

extern "C" void evolution_crews(const EvolutionTask* task) {
    Page page;
    Bench bench;
    Layer layer;
    Desk desk;
    Told* told;
    furnish_crew(task->task, task->hidden, task->task.scratch, task->desks, page, bench, layer, desk, told);
    for (i64 c = task->task.first; c < task->task.taking_part; c++)
        evolution_crew(*task, c, page, bench.scales, layer, desk);
}
#endif
