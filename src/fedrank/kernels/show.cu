// Twin of show.py: what people are shown, and what they do with it. One warp draws one list.

#define SHOWN 10
#define FIRST_CLICK_DRAW 2
#define FIRST_DOCUMENT_DRAW 22
#define KEEP_DRAW (1ll << 40)
#define FAR_APART 500.0
#define GROUPS 4  // of 32 documents, scored together: a weight is read once for all of them

// Room for one list; of a warp alone.
struct Page {
    float* scores;    // [longest]
    double* rates;    // [longest]: e^((score - highest) / temperature)
    double* times;    // [longest]
    i32* early;       // [longest]
    i32 shown[SHOWN];  // the same in every lane
};

struct Four {
    float a, b, c, d;
};

// Scores of `documents` documents, GROUPS x 32 at a time. The features lie by columns of `padded` documents each. Sums are
// those of `lanes.dot`: eight of them side by side, folded, and what is left over added one by one.
FUNCTION void linear_scores(
    const float* weights, const float* columns, i64 features, i64 documents, i64 padded, float* scores) {
    const i64 whole = features & ~7ll;
    for (i64 first = 0; first < padded; first += 32 * GROUPS) {
        const i32 groups = i32((padded - first) / 32 < GROUPS ? (padded - first) / 32 : GROUPS);
        EACH_LANE(lane) {
            const float* own = columns + first + lane;
            float sums[GROUPS][8];
#pragma unroll
            for (i32 g = 0; g < GROUPS; g++)
#pragma unroll
                for (i32 i = 0; i < 8; i++) sums[g][i] = 0.0f;
            for (i64 f = 0; f < whole; f += 8) {
                const Four low = *(const Four*)(weights + f), high = *(const Four*)(weights + f + 4);
                const float w[8] = {low.a, low.b, low.c, low.d, high.a, high.b, high.c, high.d};
#pragma unroll
                for (i32 g = 0; g < GROUPS; g++) {
                    if (g < groups) {
#pragma unroll
                        for (i32 i = 0; i < 8; i++) sums[g][i] += own[(f + i) * padded + 32 * g] * w[i];
                    }
                }
            }
#pragma unroll
            for (i32 g = 0; g < GROUPS; g++) {
                if (g < groups) {
                    const float* s = sums[g];
                    float total = ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
                    for (i64 f = whole; f < features; f++) total += own[f * padded + 32 * g] * weights[f];
                    const i64 d = first + 32 * g + lane;
                    if (d < documents) scores[d] = total;
                }
            }
        }
    }
    together();
}

// Fills page.rates; returns the spread of the scores, in temperatures.
FUNCTION double rates(Page& page, i64 count, double temperature) {
    PerLane<float> high, low;
    EACH_LANE(lane) {
        high[lane] = page.scores[0];
        low[lane] = -page.scores[0];
        for (i64 d = lane; d < count; d += 32) {
            high[lane] = fmaxf(high[lane], page.scores[d]);
            low[lane] = fmaxf(low[lane], -page.scores[d]);
        }
    }
    const float highest = highest_of(high), lowest = -highest_of(low);
    EACH_LANE(lane) {
        for (i64 d = lane; d < count; d += 32)
            page.rates[d] = exponential((double(page.scores[d]) - double(highest)) / temperature);
    }
    together();
    return (double(highest) - double(lowest)) / temperature;
}

FUNCTION i32 best_of(const float* scores, i64 count) {
    i32 best = 0;
    for (i32 d = 1; d < count; d++)
        if (scores[d] > scores[best]) best = d;
    return best;
}

// The same list in logarithms, where rates are too far apart: rare, and done by one lane.
SLOW void plackett_luce_in_logarithms(Page& page, i64 count, double temperature, i32 first, u64 chance, i32 size) {
    EACH_LANE(lane) {
        if (lane == 0) {
            i32 filled = 0;
            for (i64 d = 0; d < count; d++) {
                double key = -infinity();
                if (d != first)
                    key = log_safe(-log_safe(uniform(chance, FIRST_DOCUMENT_DRAW + d))) - page.scores[d] / temperature;
                if (filled < size || key < page.times[size - 1]) {
                    i32 at = filled < size ? filled : size - 1;
                    while (at > 0 && page.times[at - 1] > key) {
                        page.times[at] = page.times[at - 1];
                        page.early[at] = page.early[at - 1];
                        at--;
                    }
                    page.times[at] = key;
                    page.early[at] = i32(d);
                    filled = filled + 1 < size ? filled + 1 : size;
                }
            }
        }
    }
    together();
    for (i32 i = 0; i < size; i++) page.shown[i] = page.early[i];
    together();
}

// Fills page.shown, in every lane; returns how many.
FUNCTION i32 plackett_luce(Page& page, double spread, i64 count, double temperature, i32 first, u64 chance) {
    const i32 size = i32(count < SHOWN ? count : SHOWN);
    PerLane<double> part;
    EACH_LANE(lane) {
        part[lane] = 0.0;
        for (i64 d = lane; d < count; d += 32) part[lane] += page.rates[d];
    }
    const double total = sum_of(part);  // only says when to stop looking: in which order it was added up is all the same
    if (!(spread < FAR_APART) || !(total > 0.0)) {
        plackett_luce_in_logarithms(page, count, temperature, first, chance, size);
        return size;
    }
    double deadline = 1.8 * SHOWN / total;
    i32 candidates;
    while (true) {
        candidates = 0;
        i32 arrived = 0;
        for (i64 begin = 0; begin < count; begin += 32) {
            PerLane<bool> may, does;
            PerLane<double> draw;
            EACH_LANE(lane) {
                const i64 d = begin + lane;
                draw[lane] = d == first ? 1.0 : uniform(chance, FIRST_DOCUMENT_DRAW + d);
                may[lane] = d < count && 1.0 - draw[lane] < deadline * page.rates[d < count ? d : 0];
            }
            const u32 mask = ballot(may);
            EACH_LANE(lane) {
                does[lane] = false;
                if (may[lane]) {
                    const i32 at = candidates + bits_in(mask & ((1u << lane) - 1u));
                    const double time = -logarithm(draw[lane]) / page.rates[begin + lane];
                    page.early[at] = i32(begin + lane);
                    page.times[at] = time;
                    does[lane] = time < deadline;
                }
            }
            candidates += bits_in(mask);
            arrived += bits_in(ballot(does));
        }
        if (arrived >= size || candidates == count) break;
        deadline *= 2.5;
    }
    together();
    PerLane<i32> place;  // a candidate's rank is the number of those that came before it
    for (i32 begin = 0; begin < candidates; begin += 32) {
        EACH_LANE(lane) {
            const i32 i = begin + lane;
            i32 rank = SHOWN;
            if (i < candidates) {
                rank = 0;
                const double own = page.times[i];
                for (i32 j = 0; j < candidates; j++) rank += j < i ? page.times[j] <= own : page.times[j] < own;
            }
            place[lane] = rank;
        }
        for (i32 rank = 0; rank < size; rank++) {
            PerLane<bool> here;
            EACH_LANE(lane) here[lane] = place[lane] == rank;
            const u32 mask = ballot(here);
            if (mask != 0) page.shown[rank] = page.early[begin + lowest_bit(mask)];
        }
    }
    together();
    return size;
}

// Bit i is set where place i was clicked. Every place is read as if nobody had left; then who leaves, leaves.
FUNCTION u32 read_and_click(
    const i8* grades, const Page& page, i32 size, const double* click, const double* stop, const double* attention,
    u64 chance) {
    PerLane<bool> clicks, stops;
    EACH_LANE(lane) {
        clicks[lane] = false;
        stops[lane] = false;
        for (i32 i = 0; i < SHOWN; i++) {  // page.shown is in registers, and may be indexed by what is known in advance
            if (lane == i && i < size) {
                const i32 grade = grades[page.shown[i]];
                clicks[lane] = uniform(chance, FIRST_CLICK_DRAW + 2 * i) < click[grade] * attention[i];
                stops[lane] = clicks[lane] && uniform(chance, FIRST_CLICK_DRAW + 2 * i + 1) < stop[grade];
            }
        }
    }
    const u32 clicked = ballot(clicks), left = ballot(stops);
    return left == 0 ? clicked : clicked & ((2u << lowest_bit(left)) - 1u);
}

FUNCTION double shown_ndcg(const i8* grades, const Page& page, i32 size, double ideal, const double* discount) {
    if (ideal == 0.0) return 0.0;
    double gain = 0.0;
    for (i32 i = 0; i < size; i++) gain += (ldexp(1.0, grades[page.shown[i]]) - 1.0) * discount[i];
    return gain / ideal;
}
