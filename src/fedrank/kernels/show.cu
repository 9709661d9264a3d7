// CUDA version of show.py: result lists and clicks. One warp samples one list.

#define SHOWN 10
#define FIRST_CLICK_DRAW 2
#define FIRST_DOCUMENT_DRAW 22
#define KEEP_DRAW (1ll << 40)
#define FAR_APART 500.0

// Buffers for one list, private to a warp.
struct Page {
    float* scores;  // [longest]
    double* rates;  // [longest]: e^((score - highest) / temperature)
    double* times;  // [longest]
    i32* early;     // [longest]
    i32* shown;     // [SHOWN]
};

struct Four {
    float a, b, c, d;
};

FUNCTION float wide(float x) { return x; }

// Features of a query are in groups of 32 documents, [group, feature, 32]; the last group has rows of the smallest
// sufficient multiple of 8. Features of two bytes are in groups of 64, [group, feature, 32, 2]; the last group has rows of
// a multiple of 4 pairs: a pair is document i and document i + the number of pairs.
FUNCTION i32 tight(const float*, i32 documents, i32 group) {
    return documents >= 32 * (group + 1) ? 32 : (documents - 32 * group + 7) / 8 * 8;
}
FUNCTION i32 tight(const Half*, i32 documents, i32 group) {
    return documents >= 64 * (group + 1) ? 32 : (documents - 64 * group + 7) / 8 * 4;
}

FUNCTION float feature_of(const float* block, i32 features, i32 documents, i32 d, i32 f) {
    return block[d / 32 * features * 32 + f * tight(block, documents, d / 32) + d % 32];
}
FUNCTION float feature_of(const Half* block, i32 features, i32 documents, i32 d, i32 f) {
    const i32 pairs = tight(block, documents, d / 64), i = d % 64;
    return wide(block[d / 64 * features * 64 + (f * pairs + i % pairs) * 2 + i / pairs]);
}

// Eight partial sums per lane, for `groups` groups at once: a weight is read once for all of them. The sums are those of
// `lanes.dot`: eight in parallel, folded, and the remainder added sequentially.
template <i32 groups> FUNCTION void scores_of(
    const float* weights, const float* block, i32 features, i32 first, i32 documents, float* scores) {
    const i32 whole = features & ~7, last = tight(block, documents, first / 32 + groups - 1);
    EACH_LANE(lane) {
        const float* own[groups];
        float sums[groups][8];
#pragma unroll
        for (i32 g = 0; g < groups; g++) {
            own[g] = block + (i64(first / 32 + g) * features) * 32 + lane;
#pragma unroll
            for (i32 i = 0; i < 8; i++) sums[g][i] = 0.0f;
        }
        ROLLED for (i32 f = 0; f < whole; f += 8) {
            float x[groups][8];
#pragma unroll
            for (i32 g = 0; g < groups; g++) {
                const i32 row = g + 1 < groups ? 32 : last;
#pragma unroll
                for (i32 i = 0; i < 8; i++) x[g][i] = own[g][row * i];
                own[g] += row * 8;
            }
            const Four low = *(const Four*)(weights + f), high = *(const Four*)(weights + f + 4);
            const float w[8] = {low.a, low.b, low.c, low.d, high.a, high.b, high.c, high.d};
#pragma unroll
            for (i32 g = 0; g < groups; g++) {
#pragma unroll
                for (i32 i = 0; i < 8; i++) sums[g][i] += x[g][i] * w[i];
            }
        }
#pragma unroll
        for (i32 g = 0; g < groups; g++) {
            const i32 row = g + 1 < groups ? 32 : last;
            const float* s = sums[g];
            float total = ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
            ROLLED for (i32 f = whole; f < features; f++) total += own[g][row * (f - whole)] * weights[f];
            const i32 d = first + 32 * g + lane;
            if (d < documents) scores[d] = total;
        }
    }
}

struct alignas(4) Pair {
    Half one, two;
};

// The same for pairs: `groups` groups of 64.
template <i32 groups> FUNCTION void scores_of(
    const float* weights, const Half* block, i32 features, i32 first, i32 documents, float* scores) {
    const i32 whole = features & ~7, last = tight(block, documents, first / 64 + groups - 1);
    EACH_LANE(lane) {
        const Pair* own[groups];
        float sums[groups][2][8];
#pragma unroll
        for (i32 g = 0; g < groups; g++) {
            own[g] = (const Pair*)block + (i64(first / 64 + g) * features) * 32 + lane;
#pragma unroll
            for (i32 i = 0; i < 8; i++) sums[g][0][i] = sums[g][1][i] = 0.0f;
        }
        ROLLED for (i32 f = 0; f < whole; f += 8) {
            Pair x[groups][8];
#pragma unroll
            for (i32 g = 0; g < groups; g++) {
                const i32 row = g + 1 < groups ? 32 : last;
#pragma unroll
                for (i32 i = 0; i < 8; i++) x[g][i] = own[g][row * i];
                own[g] += row * 8;
            }
            const Four low = *(const Four*)(weights + f), high = *(const Four*)(weights + f + 4);
            const float w[8] = {low.a, low.b, low.c, low.d, high.a, high.b, high.c, high.d};
#pragma unroll
            for (i32 g = 0; g < groups; g++) {
#pragma unroll
                for (i32 i = 0; i < 8; i++) {
                    sums[g][0][i] += wide(x[g][i].one) * w[i];
                    sums[g][1][i] += wide(x[g][i].two) * w[i];
                }
            }
        }
#pragma unroll
        for (i32 g = 0; g < groups; g++) {
            const i32 row = g + 1 < groups ? 32 : last;
#pragma unroll
            for (i32 half = 0; half < 2; half++) {
                const float* s = sums[g][half];
                float total = ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
                ROLLED for (i32 f = whole; f < features; f++) {
                    const Pair both = own[g][row * (f - whole)];
                    total += wide(half ? both.two : both.one) * weights[f];
                }
                const i32 d = first + 64 * g + row * half + lane;
                if (lane < row && d < documents) scores[d] = total;
            }
        }
    }
}

// `most` groups at once: more groups mean more loads in flight, and more registers.
template <i32 most> FUNCTION void linear_scores(
    const float* weights, const float* block, i32 features, i32 documents, float* scores) {
    i32 first = 0;
    ROLLED for (; documents - first > 32 * (most - 1); first += 32 * most)
        scores_of<most>(weights, block, features, first, documents, scores);
    if (most > 3 && documents - first > 64)
        scores_of<3>(weights, block, features, first, documents, scores);
    else if (most > 2 && documents - first > 32)
        scores_of<2>(weights, block, features, first, documents, scores);
    else if (documents - first > 0)
        scores_of<1>(weights, block, features, first, documents, scores);
    together();
}

template <i32 most> FUNCTION void linear_scores(
    const float* weights, const Half* block, i32 features, i32 documents, float* scores) {
    constexpr i32 groups = most / 2;
    i32 first = 0;
    ROLLED for (; documents - first > 64 * (groups - 1); first += 64 * groups)
        scores_of<groups>(weights, block, features, first, documents, scores);
    if (documents - first > 0) scores_of<1>(weights, block, features, first, documents, scores);
    together();
}

// The highest and the lowest score, in every lane.
FUNCTION void extremes(const float* scores, i32 count, float& highest, float& lowest) {
    PerLane<float> high, low;
    EACH_LANE(lane) {
        high[lane] = scores[0];
        low[lane] = -scores[0];
        ROLLED for (i32 d = lane; d < count; d += 32) {
            high[lane] = fmaxf(high[lane], scores[d]);
            low[lane] = fmaxf(low[lane], -scores[d]);
        }
    }
    highest = highest_of(high);
    lowest = -highest_of(low);
}

FUNCTION double rate_of(float score, float highest, double temperature) {
    const double away = double(score) - double(highest);
    return exponential(temperature == 1.0 ? away : away / temperature);
}

// Fills page.rates; returns the spread of the scores, in temperatures.
FUNCTION double rates(Page& page, i32 count, double temperature) {
    float highest, lowest;
    extremes(page.scores, count, highest, lowest);
    EACH_LANE(lane) {
        ROLLED for (i32 d = lane; d < count; d += 32) page.rates[d] = rate_of(page.scores[d], highest, temperature);
    }
    together();
    return (double(highest) - double(lowest)) / temperature;
}

// The source of the draws of documents: the stream on demand, or precomputed.
struct Keyed {
    u64 chance;
};
struct Noted {
    const double* draws;  // [count]
    const double* waits;  // [count]: -log(draw)
    const double* clicks;  // [2 SHOWN]: draws of clicks and stops
};
FUNCTION double draw_of(const Keyed& from, i32 d) { return uniform(from.chance, FIRST_DOCUMENT_DRAW + d); }
FUNCTION double draw_of(const Noted& from, i32 d) { return from.draws[d]; }
FUNCTION double wait_of(const Keyed& from, i32 d) { return -logarithm(draw_of(from, d)); }
FUNCTION double wait_of(const Noted& from, i32 d) { return from.waits[d]; }
FUNCTION double click_of(const Keyed& from, i32 i) { return uniform(from.chance, FIRST_CLICK_DRAW + i); }
FUNCTION double click_of(const Noted& from, i32 i) { return from.clicks[i]; }

FUNCTION i32 best_of(const float* scores, i32 count) {
    i32 best = 0;
    for (i32 d = 1; d < count; d++)
        if (scores[d] > scores[best]) best = d;
    return best;
}

// The same list by logarithms, if rates are too far apart: rare, and done by one lane.
SLOW void plackett_luce_in_logarithms(
    const float* scores, double* times, i32* early, i32* shown, i32 count, double temperature, i32 first, u64 chance) {
    const i32 size = count < SHOWN ? count : SHOWN;
    EACH_LANE(lane) {
        if (lane == 0) {
            i32 filled = 0;
            for (i32 d = 0; d < count; d++) {
                double key = -infinity();
                if (d != first)
                    key = log_safe(-log_safe(uniform(chance, FIRST_DOCUMENT_DRAW + d))) - scores[d] / temperature;
                if (filled < size || key < times[size - 1]) {
                    i32 at = filled < size ? filled : size - 1;
                    while (at > 0 && times[at - 1] > key) {
                        times[at] = times[at - 1];
                        early[at] = early[at - 1];
                        at--;
                    }
                    times[at] = key;
                    early[at] = d;
                    filled = filled + 1 < size ? filled + 1 : size;
                }
            }
            ROLLED for (i32 i = 0; i < size; i++) shown[i] = early[i];
        }
    }
    together();
}

// Fills page.shown; returns its length. `ahead`: loop iterations that are started together; each takes registers.
template <i32 ahead, typename Draws> FUNCTION i32 plackett_luce(
    Page& page, double spread, i32 count, double temperature, i32 first, u64 chance, const Draws& from) {
    const i32 size = count < SHOWN ? count : SHOWN;
    PerLane<double> part;
    EACH_LANE(lane) {
        part[lane] = 0.0;
        ROLLED for (i32 d = lane; d < count; d += 32) part[lane] += page.rates[d];
    }
    const double total = sum_of(part);  // only decides when to stop, so the order of summation is irrelevant
    if (!(spread < FAR_APART) || !(total > 0.0)) {
        plackett_luce_in_logarithms(
            page.scores, page.times, page.early, page.shown, count, temperature, first, chance);
        return size;
    }
    double deadline = 1.8 * SHOWN / total;
    i32 candidates;
    while (true) {
        candidates = 0;
        ROLLED for (i32 begin = 0; begin < count; begin += 32) {
            PerLane<bool> may;
            EACH_LANE(lane) {
                const i32 d = begin + lane;
                const i32 there = d < count ? d : 0;
                const double draw = d == first ? 1.0 : draw_of(from, there);
                may[lane] = d < count && 1.0 - draw < deadline * page.rates[there];
            }
            const u32 mask = ballot(may);
            EACH_LANE(lane) {
                if (may[lane]) page.early[candidates + bits_in(mask & ((1u << lane) - 1u))] = begin + lane;
            }
            candidates += bits_in(mask);
        }
        together();
        i32 arrived = 0;
        ROLLED for (i32 begin = 0; begin < candidates; begin += 32) {
            PerLane<bool> does;
            EACH_LANE(lane) {
                const i32 i = begin + lane;
                does[lane] = false;
                if (i < candidates) {
                    const i32 d = page.early[i];
                    const double time = quotient(d == first ? -logarithm(1.0) : wait_of(from, d), page.rates[d]);
                    page.times[i] = time;
                    does[lane] = time < deadline;
                }
            }
            arrived += bits_in(ballot(does));
        }
        together();
        if (arrived >= size || candidates == count) break;
        deadline *= 2.5;
    }
    EACH_LANE(lane) {  // a candidate's rank is the number of earlier ones
        ROLLED for (i32 i = lane; i < candidates; i += 32) {
            const double own = page.times[i];
            i32 rank = 0;
#pragma unroll ahead
            for (i32 j = 0; j < candidates; j++) rank += j < i ? page.times[j] <= own : page.times[j] < own;
            if (rank < size) page.shown[rank] = page.early[i];
        }
    }
    together();
    return size;
}

FUNCTION i32 plackett_luce(Page& page, double spread, i32 count, double temperature, i32 first, u64 chance) {
    return plackett_luce<1>(page, spread, count, temperature, first, chance, Keyed{chance});
}

// Bit i is set if position i was clicked. All positions are evaluated, and then those after leaving are removed.
template <typename Draws> FUNCTION u32 read_and_click(
    const i8* grades, const Page& page, i32 size, const double* click, const double* stop, const double* attention,
    const Draws& from) {
    PerLane<bool> clicks, stops;
    EACH_LANE(lane) {
        clicks[lane] = false;
        stops[lane] = false;
        if (lane < size) {
            const i32 grade = grades[page.shown[lane]];
            clicks[lane] = click_of(from, 2 * lane) < click[grade] * attention[lane];
            stops[lane] = clicks[lane] && click_of(from, 2 * lane + 1) < stop[grade];
        }
    }
    const u32 clicked = ballot(clicks), left = ballot(stops);
    return left == 0 ? clicked : clicked & ((2u << lowest_bit(left)) - 1u);
}

FUNCTION u32 read_and_click(
    const i8* grades, const Page& page, i32 size, const double* click, const double* stop, const double* attention,
    u64 chance) {
    return read_and_click(grades, page, size, click, stop, attention, Keyed{chance});
}

// nDCG@10 of the list, in every lane. `terms` [SHOWN] is scratch.
FUNCTION double shown_ndcg(
    const i8* grades, const Page& page, i32 size, double ideal, const double* discount, double* terms) {
    if (ideal == 0.0) return 0.0;
    EACH_LANE(lane) {
        if (lane < size)  // 2^label from its bits
            terms[lane] = (from_bits((1023ll + grades[page.shown[lane]]) << 52) - 1.0) * discount[lane];
    }
    together();
    double gain = 0.0;
#pragma unroll 2
    for (i32 i = 0; i < size; i++) gain += terms[i];
    together();
    return quotient(gain, ideal);
}
