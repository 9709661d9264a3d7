// CUDA version of rounds in simulation (federated/round.py) with the mean: many rounds in one launch. One team of warps per
// client; between rounds all blocks synchronise, and each computes the next model.

#define ADD 0
#define MOMENTUM 1
#define ADAM 2

struct Rounds {
    Task task;             // without fields that change every round
    const u64* keys;       // [rounds]
    const i64* present;    // [rounds, participants]: rows of clients, or none: all
    const double* counts;  // [rounds]: the sum of weights
    const double* bias;    // [rounds, 2]: 1 - beta^steps, of Adam
    const double* model;   // [features]: before the first round
    const double* server;  // [remembered]: state of the server step before the first round
    float* updates;        // [2, participants, features]: double buffer for two rounds
    double* online;        // [rounds, participants]
    double* models;        // [rounds, features]
    double* servers;       // [rounds, remembered]
    u32* gate;             // 0
    double* done;          // completed rounds: fewer if an update is not finite
    char* scratch;         // of a team without shared memory
    i64 rounds, taking_part, weighted, step, remembered;
    double server_rate, beta1, beta2, epsilon;  // beta1 is also the decay of momentum
};

// One search: what does not depend on the model, and is prefetched during the previous search.
struct Search {
    u64 chance;
    i64 begin, place, who;
    double ideal;
    i64 count;
};

// What a team needs in addition to the memory of a warp.
struct Team {
    double* model;    // [features]
    double* server;   // [remembered], for Adam without the number of steps
    float* partial;   // [groups, 8, 32]: sums of scores
    double* draws;    // [2, longest]
    double* waits;    // [2, longest]
    double* clicks;   // [2, 2 SHOWN]
    i8* grades;       // [2, longest]
    Search* searches;  // [2]
    i32* said;        // [2]: considered positions; whether a sum is not finite
};

// Memory of a team after that of a warp; Python's `team_shared_bytes` counts the same bytes.
FUNCTION void furnish_team(const Rounds& all, char* memory, Team& team) {
    const i64 longest = all.task.longest, groups = (longest + 31) / 32;
    team.model = (double*)memory;
    memory += rounded(8 * all.task.features);
    team.server = (double*)memory;
    memory += rounded(8 * all.remembered);
    team.partial = (float*)memory;
    memory += rounded(4 * 8 * 32 * groups);
    team.draws = (double*)memory;
    memory += rounded(16 * longest);
    team.waits = (double*)memory;
    memory += rounded(16 * longest);
    team.clicks = (double*)memory;
    memory += rounded(8 * 4 * SHOWN);
    team.searches = (Search*)memory;
    memory += rounded(2 * sizeof(Search));
    team.said = (i32*)memory;
    team.grades = (i8*)(memory + 16);
}

// Scores of one query by all warps: each computes one of the eight sums of `lanes.dot`, for four groups at once.
FUNCTION void team_sums(const float* weights, const float* block, i32 features, i32 documents, float* partial) {
    const i32 whole = features & ~7, groups = (documents + 31) / 32;
    EACH_THREAD(thread) {
        const i32 lane = thread & 31, own = thread / 32 % 8;
        ROLLED for (i32 first = thread / 256 * 4; first < groups; first += TEAM / 8 * 4) {
            float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
            const float* at = block + i64(first) * features * 32 + lane;
            const i32 apart = features * 32, there = groups - first;
            i32 row[4];
#pragma unroll
            for (i32 g = 0; g < 4; g++) row[g] = g < there ? tight(block, documents, first + g) : 0;
#pragma unroll 8
            for (i32 f = own; f < whole; f += 8) {
                const float w = weights[f];
#pragma unroll
                for (i32 g = 0; g < 4; g++)
                    if (g < there) sums[g] += at[g * apart + f * row[g]] * w;
            }
#pragma unroll
            for (i32 g = 0; g < 4; g++)
                if (g < there) partial[((first + g) * 8 + own) * 32 + lane] = sums[g];
        }
    }
}

FUNCTION void team_sums(const float* weights, const Half* block, i32 features, i32 documents, float* partial) {
    const i32 whole = features & ~7, groups = (documents + 63) / 64;
    EACH_THREAD(thread) {
        const i32 lane = thread & 31, own = thread / 32 % 8;
        ROLLED for (i32 g = thread / 256; g < groups; g += TEAM / 8) {
            const i32 row = tight(block, documents, g);
            const Pair* at = (const Pair*)block + i64(g) * features * 32 + lane;
            float one = 0.0f, two = 0.0f;
#pragma unroll 8
            for (i32 f = own; f < whole; f += 8) {
                const Pair both = at[f * row];
                one += wide(both.one) * weights[f];
                two += wide(both.two) * weights[f];
            }
            const i32 d = 64 * g + lane, e = d + row;
            if (lane < row) {
                partial[(d / 32 * 8 + own) * 32 + d % 32] = one;
                if (e < documents) partial[(e / 32 * 8 + own) * 32 + e % 32] = two;
            }
        }
    }
}

template <typename Real> FUNCTION void team_scores(
    const float* weights, const Real* block, i32 features, i32 documents, float* partial, float* scores) {
    const i32 whole = features & ~7;
    team_sums(weights, block, features, documents, partial);
    all_together();
    EACH_THREAD(thread) {
        ROLLED for (i32 d = thread; d < documents; d += 32 * TEAM) {
            const float* s = partial + d / 32 * 256 + d % 32;
            float total = ((s[0] + s[4 * 32]) + (s[2 * 32] + s[6 * 32])) + ((s[32] + s[5 * 32]) + (s[3 * 32] + s[7 * 32]));
#pragma unroll 8
            for (i32 f = whole; f < features; f++) total += feature_of(block, features, documents, d, f) * weights[f];
            scores[d] = total;
        }
    }
    all_together();
}

// Looks up the data of a search, by one of `threads` threads.
template <typename Real> FUNCTION void look_up(
    const Task& task, i64 row, u64 client, i64 interaction, Team& team, i32 thread, i32 threads) {
    const i32 side = i32(interaction & 1);
    const i64 pool_start = task.pools[task.pool[row]], pool_size = task.pools[task.pool[row] + 1] - pool_start;
    const i64 place = task.at != nullptr ? task.at[row] + interaction : interaction;
    const u64 chance = stream(client, place);
    const i64 drawn = task.at != nullptr ? place : i64(uniform(chance, 0) * double(pool_size));
    const i64 query = task.queries[pool_start + drawn];
    const i64 begin = task.offsets[query];
    const i32 count = i32(task.offsets[query + 1] - begin);
    const char* block = (const char*)((const Real*)task.blocks + task.places[query]);
    const i64 bytes = count * task.features * i64(sizeof(Real));
    ROLLED for (i64 byte = i64(thread) * 128; byte < bytes; byte += i64(threads) * 128) call_up(block + byte);
    const char* rows = (const char*)((const Real*)task.rows + begin * task.features);
    ROLLED for (i64 byte = i64(thread) * 128; byte < bytes; byte += i64(threads) * 128) call_up(rows + byte);
    const i8* grades = task.grades + task.view[row] * task.documents + begin;
    ROLLED for (i32 d = thread; d < count; d += threads) {
        const double draw = uniform(chance, FIRST_DOCUMENT_DRAW + d);
        team.draws[side * task.longest + d] = draw;
        team.waits[side * task.longest + d] = -logarithm(draw);
        team.grades[side * task.longest + d] = grades[d];
    }
    if (thread < 2 * SHOWN) team.clicks[side * 2 * SHOWN + thread] = uniform(chance, FIRST_CLICK_DRAW + thread);
    if (thread == 0) {
        const i64 who = task.user[row] >= 0 ? task.user[row] : i64(uniform(chance, 1) * double(task.users));
        const double ideal = task.ideal[task.view[row] * task.query_count + query];
        team.searches[side] = {chance, begin, task.places[query], who, ideal, count};
    }
}

// `pdgd_client` by a team.
template <typename Real, bool plain> FUNCTION void team_client(
    const Task& task, u64 key, i64 row, float* update, double* online, Page& page, Bench& bench, Team& team) {
    const i64 features = task.features;
    const double keep = plain ? 0.0 : task.keep, temperature = plain ? 1.0 : task.temperature;
    const double clip_weights = plain ? 0.0 : task.clip_weights, clip_gradients = plain ? 0.0 : task.clip_gradients;
    const bool clipped = clip_gradients > 0.0;
    const double factor = (clipped ? 1.0 : task.rate) / temperature;
    const u64 client = stream(key, task.ids[row]);
    const i64 interactions = task.interactions[row];
    double* master = bench.master;
    EACH_THREAD(thread) {
        ROLLED for (i32 p = thread; p < features; p += 32 * TEAM) {
            bench.weights[p] = float(team.model[p]);
            master[p] = double(float(team.model[p]));
        }
        if (interactions > 0) look_up<Real>(task, row, client, 0, team, thread, 32 * TEAM);
    }
    all_together();
    double quality = 0.0;  // computed by the last warp, which has the least work
    for (i64 interaction = 0; interaction < interactions; interaction++) {
        const i32 side = i32(interaction & 1);
        const Search search = team.searches[side];
        const i32 count = i32(search.count), size = count < SHOWN ? count : SHOWN;
        team_scores(
            bench.weights, (const Real*)task.blocks + search.place, i32(features), count, team.partial, page.scores);
        float highest, lowest;
        extremes(page.scores, count, highest, lowest);
        const double spread = (double(highest) - double(lowest)) / temperature;
        const bool race = plain && spread < FAR_APART;
        EACH_THREAD(thread) {
            ROLLED for (i32 d = thread; d < count; d += 32 * TEAM) {
                const double rate = rate_of(page.scores[d], highest, temperature);
                page.rates[d] = rate;
                if (race) page.times[d] = quotient(team.waits[side * task.longest + d], rate);
            }
        }
        all_together();
        if (race) {  // one document per thread: all times are known, and no deadline is needed
            EACH_THREAD(thread) {
                ROLLED for (i32 d = thread; d < count; d += 32 * TEAM) {
                    const double own = page.times[d];
                    i32 rank = 0;
#pragma unroll 8
                    for (i32 j = 0; j < count; j++) rank += j < d ? page.times[j] <= own : page.times[j] < own;
                    if (rank < size) page.shown[rank] = d;
                }
            }
            all_together();
        }
        const i8* grades = team.grades + side * task.longest;
        LEADER {
            const Noted noted = {
                team.draws + side * task.longest, team.waits + side * task.longest, team.clicks + side * 2 * SHOWN};
            i32 first = -1;
            if (keep > 0.0 && uniform(search.chance, KEEP_DRAW) < keep) first = best_of(page.scores, count);
            if (!race) plackett_luce<8>(page, spread, count, temperature, first, search.chance, noted);
            const u32 clicked = read_and_click(
                grades, page, size, task.click + search.who * task.levels, task.stop + search.who * task.levels,
                task.attention + search.who * SHOWN, noted);
            const i32 below = highest_bit(clicked) + 2;
            const i32 considered = clicked == 0 ? 0 : (below < size ? below : size);
            if (considered >= 2)
                pair_weights<SHOWN>(page, bench, spread, count, size, considered, clicked, temperature, keep);
            EACH_LANE(lane) {
                if (considered >= 2 && lane < SHOWN) bench.scales[lane] = lane < considered ? bench.scales[lane] * factor : 0.0;
                if (lane == 0) team.said[0] = considered;
            }
        }
        EACH_HELPER(thread) {
            if (interaction + 1 < interactions)
                look_up<Real>(task, row, client, interaction + 1, team, thread, 32 * (TEAM - 1));
        }
        all_together();
        LAST_WARP { quality += shown_ndcg(grades, page, size, search.ideal, task.discount, bench.pairs); }
        const bool moved = team.said[0] >= 2;
        double* target = clipped ? bench.own : master;
        if (moved) {
            const Real* rows = (const Real*)task.rows + search.begin * features;
            EACH_THREAD(thread) {
                ROLLED for (i32 p = thread; p < features; p += 32 * TEAM) {
                    float x[SHOWN];
                    double scale[SHOWN];
#pragma unroll
                    for (i32 i = 0; i < SHOWN; i++) {
                        scale[i] = bench.scales[i];
                        x[i] = scale[i] != 0.0 ? wide(rows[page.shown[i] * features + p]) : 0.0f;
                    }
                    double sum = clipped ? 0.0 : target[p];
#pragma unroll
                    for (i32 i = 0; i < SHOWN; i++)
                        if (scale[i] != 0.0) sum += scale[i] * double(x[i]);
                    target[p] = sum;
                }
            }
            if (clipped) {
                all_together();
                LEADER { shorten(bench.own, features, clip_gradients); }
                all_together();
                if (norm_of(bench.own, features) < infinity()) {
                    EACH_THREAD(thread) {
                        ROLLED for (i32 p = thread; p < features; p += 32 * TEAM) master[p] += task.rate * bench.own[p];
                    }
                }
            }
        }
        if ((moved || clip_weights > 0.0) && !task.batch) {
            if (clip_weights > 0.0) {
                all_together();
                LEADER { shorten(master, features, clip_weights); }
                all_together();
            }
            EACH_THREAD(thread) {
                ROLLED for (i32 p = thread; p < features; p += 32 * TEAM) bench.weights[p] = float(master[p]);
            }
        }
        all_together();
    }
    if (clip_weights > 0.0 && task.batch && interactions > 0) {
        LEADER { shorten(master, features, clip_weights); }
        all_together();
    }
    EACH_THREAD(thread) {
        if (thread == 32 * (TEAM - 1)) *online = interactions > 0 ? quality / double(interactions) : 0.0;
        ROLLED for (i32 p = thread; p < features; p += 32 * TEAM)
            update[p] = float(master[p] - double(float(team.model[p])));
    }
    all_together();
}

// The server step of kernels/rounds.py for one parameter, and its new state.
FUNCTION double stepped(const Rounds& all, double weight, double change, double* kept, i64 round) {
    if (all.step == ADD) return weight + all.server_rate * change;
    if (all.step == MOMENTUM) {
        kept[0] = all.beta1 * kept[0] + change;
        return weight + all.server_rate * kept[0];
    }
    const i64 size = all.task.features;
    kept[0] = all.beta1 * kept[0] + (1.0 - all.beta1) * change;
    kept[size] = all.beta2 * kept[size] + (1.0 - all.beta2) * (change * change);
    const double mean = kept[0] / all.bias[2 * round], square = kept[size] / all.bias[2 * round + 1];
    return weight + all.server_rate * mean / (sqrt(square) + all.epsilon);
}

template <typename Real, bool plain> FUNCTION void many_rounds(const Rounds& all, char* memory, i64 block, i64 blocks) {
    const Task& task = all.task;
    const i64 features = task.features, taking_part = all.taking_part;
    Page page;
    Bench bench;
    Team team;
    furnish(task, memory, page, bench);
    furnish_team(all, memory + task.room, team);
    EACH_THREAD(thread) {
        ROLLED for (i64 p = thread; p < features; p += 32 * TEAM) team.model[p] = all.model[p];
        ROLLED for (i64 p = thread; p < all.remembered; p += 32 * TEAM) team.server[p] = all.server[p];
        if (thread == 0) team.said[1] = 0;
    }
    all_together();
    i64 round = 0;
    for (; round < all.rounds; round++) {
        float* updates = all.updates + (round & 1) * taking_part * features;
        const i64* present = all.present != nullptr ? all.present + round * taking_part : nullptr;
        for (i64 c = block; c < taking_part; c += blocks)
            team_client<Real, plain>(
                task, all.keys[round], present != nullptr ? present[c] : c, updates + c * features,
                all.online + round * taking_part + c, page, bench, team);
        wait_for_blocks(all.gate, u32(blocks * (round + 1)));
        EACH_THREAD(thread) {
            ROLLED for (i64 p = thread; p < features; p += 32 * TEAM) {
                double total = 0.0;
#pragma unroll 8
                for (i64 c = 0; c < taking_part; c++) {
                    const i64 row = present != nullptr ? present[c] : c;
                    total += (all.weighted ? double(task.interactions[row]) : 1.0) * double(fresh(updates + c * features + p));
                }
                bench.master[p] = total;
                if (!(total - total == 0.0)) team.said[1] = 1;
            }
        }
        all_together();
        if (team.said[1]) break;
        EACH_THREAD(thread) {
            ROLLED for (i64 p = thread; p < features; p += 32 * TEAM) {
                const double change = all.counts[round] == 0.0 ? 0.0 : bench.master[p] / all.counts[round];
                team.model[p] = stepped(all, team.model[p], change, team.server + p, round);
                if (block == 0) {
                    all.models[round * features + p] = team.model[p];
                    for (i64 i = p; i < all.remembered; i += features)
                        all.servers[round * all.remembered + i] = team.server[i];
                }
            }
        }
        all_together();
    }
    EACH_THREAD(thread) {
        if (block == 0 && thread == 0) *all.done = double(round);
    }
}

#ifdef __CUDACC__
#define ROUNDS(name, Real, plain)                                                                             \
    extern "C" __global__ void __launch_bounds__(32 * TEAM, 1) name(const __grid_constant__ Rounds all) { \
        extern __shared__ __align__(16) char memory[];                                                  \
        many_rounds<Real, plain>(all, memory, blockIdx.x, gridDim.x);                                   \
    }
#else
#define ROUNDS(name, Real, plain) \
    extern "C" void name(const Rounds* all) { many_rounds<Real, plain>(*all, all->scratch, 0, 1); }
#endif

ROUNDS(pdgd_rounds, float, false)
ROUNDS(pdgd_rounds_plain, float, true)
ROUNDS(pdgd_half_rounds, Half, false)
ROUNDS(pdgd_half_rounds_plain, Half, true)
