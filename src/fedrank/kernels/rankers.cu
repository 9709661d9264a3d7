// Twin of rankers.py: neural rankers. One crew scores one list.

#define TILE 16        // hidden units that one member computes at once
#define MOST_GROUPS 4  // and of so many documents

struct alignas(16) Quad {
    float a, b, c, d;
};

// A neural ranker with its weights in rows of `padded` units: one for each feature, then biases, then outputs.
struct Layer {
    float* weights;
    float* sums;  // [8, documents of a pass]: what warps hand over to one another
    float* units;  // [units, capacity]: what came out of the hidden layer
    i32 features, units_there, padded, capacity, tiles, across, deep;
    bool sigmoids;
};

FUNCTION i32 padded_units(i32 units) { return (units + TILE - 1) / TILE * TILE; }

// Warps that share the units of a list, and warps that share its documents.
FUNCTION i32 warps_across(i32 tiles) { return tiles < WARPS_OF_A_CREW ? tiles : WARPS_OF_A_CREW; }

// `hidden_units` of 32 x groups documents and TILE units, for one document of each group.
template <i32 groups> FUNCTION void unit_tile(
    const Layer& layer, const float* const (&own)[groups], i32 tile, float (&sums)[groups][TILE]) {
    const i32 features = layer.features, padded = layer.padded, whole = features & ~3;
    const float* column = layer.weights + tile * TILE;
#pragma unroll
    for (i32 j = 0; j < TILE; j++) {
        const float bias = column[features * padded + j];
#pragma unroll
        for (i32 g = 0; g < groups; g++) sums[g][j] = bias;
    }
    ROLLED for (i32 f = 0; f < whole; f += 4) {
        float x[groups][4];
#pragma unroll
        for (i32 g = 0; g < groups; g++) {
#pragma unroll
            for (i32 i = 0; i < 4; i++) x[g][i] = own[g][32 * (f + i)];
        }
        const float* row = column + f * padded;
#pragma unroll
        for (i32 j = 0; j < TILE; j += 4) {
            const Quad w0 = *(const Quad*)(row + j), w1 = *(const Quad*)(row + padded + j);
            const Quad w2 = *(const Quad*)(row + 2 * padded + j), w3 = *(const Quad*)(row + 3 * padded + j);
#pragma unroll
            for (i32 g = 0; g < groups; g++) {
                const float x0 = x[g][0], x1 = x[g][1], x2 = x[g][2], x3 = x[g][3];
                sums[g][j] += (x0 * w0.a + x1 * w1.a) + (x2 * w2.a + x3 * w3.a);
                sums[g][j + 1] += (x0 * w0.b + x1 * w1.b) + (x2 * w2.b + x3 * w3.b);
                sums[g][j + 2] += (x0 * w0.c + x1 * w1.c) + (x2 * w2.c + x3 * w3.c);
                sums[g][j + 3] += (x0 * w0.d + x1 * w1.d) + (x2 * w2.d + x3 * w3.d);
            }
        }
    }
    ROLLED for (i32 f = whole; f < features; f++) {
#pragma unroll
        for (i32 j = 0; j < TILE; j++) {
            const float w = column[f * padded + j];
#pragma unroll
            for (i32 g = 0; g < groups; g++) sums[g][j] += own[g][32 * f] * w;
        }
    }
}

// Scores of groups x 32 x deep documents from group `first` on. Units are added up in the order of `lanes.dot`: a warp adds
// its own to what those before it have added.
template <i32 groups> FUNCTION void mlp_scores_of(
    const Layer& layer, const float* block, i32 first, i32 documents, float* scores) {
    const i32 units = layer.units_there, whole = units & ~7, stretch = 32 * groups * layer.deep;
    const i32 last_group = (documents - 1) / 32;
    ROLLED for (i32 begin = 0; begin < layer.tiles; begin += layer.across) {
        struct Own {
            float values[groups][TILE];
        };
        PerMember<Own> all;
        EACH_MEMBER(t) {
            const i32 warp = t / 32, lane = t % 32, tile = begin + warp % layer.across, part = warp / layer.across;
            if (tile < layer.tiles && part < layer.deep) {
                float(&own)[groups][TILE] = all[t].values;
                const float* columns[groups];
#pragma unroll
                for (i32 g = 0; g < groups; g++) {
                    const i32 group = first + part * groups + g;
                    columns[g] = block + i64(group < last_group ? group : last_group) * layer.features * 32 + lane;
                }
                unit_tile<groups>(layer, columns, tile, own);
                const float* outputs = layer.weights + (layer.features + 1) * layer.padded + tile * TILE;
                float* units_out = layer.units + tile * TILE * layer.capacity + 32 * (first + part * groups) + lane;
#pragma unroll
                for (i32 j = 0; j < TILE; j++) {
                    if (tile * TILE + j < units) {
                        const float output = outputs[j];
#pragma unroll
                        for (i32 g = 0; g < groups; g++) {
                            const float sum = own[g][j];
                            const float unit = layer.sigmoids ? sigmoid(sum) : (0.0f > sum ? 0.0f : sum);
                            if (first + part * groups + g <= last_group) units_out[j * layer.capacity + 32 * g] = unit;
                            own[g][j] = unit * output;
                        }
                    }
                }
            }
        }
        ROLLED for (i32 turn = 0; turn < layer.across; turn++) {
            EACH_MEMBER(t) {
                const i32 warp = t / 32, lane = t % 32, tile = begin + turn, part = warp / layer.across;
                if (warp % layer.across == turn && tile < layer.tiles && part < layer.deep) {
#pragma unroll
                    for (i32 g = 0; g < groups; g++) {
                        const float* own = all[t].values[g];
                        float* handed = layer.sums + 32 * (part * groups + g) + lane;
                        float s[8];
#pragma unroll
                        for (i32 i = 0; i < 8; i++) s[i] = tile == 0 ? 0.0f : handed[i * stretch];
#pragma unroll
                        for (i32 eight = 0; eight < TILE; eight += 8) {
                            if (tile * TILE + eight < whole) {
#pragma unroll
                                for (i32 i = 0; i < 8; i++) s[i] += own[eight + i];
                            }
                        }
                        if (tile + 1 < layer.tiles) {
#pragma unroll
                            for (i32 i = 0; i < 8; i++) handed[i * stretch] = s[i];
                        } else {
                            float total = ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
#pragma unroll
                            for (i32 j = 0; j < TILE; j++)
                                if (tile * TILE + j >= whole && tile * TILE + j < units) total += own[j];
                            const i32 d = 32 * (first + part * groups + g) + lane;
                            if (d < documents) scores[d] = total;
                        }
                    }
                }
            }
            crew_together();
        }
    }
}

FUNCTION void mlp_scores(const Layer& layer, const float* block, i32 documents, float* scores) {
    const i32 groups = (documents + 31) / 32;
    for (i32 first = 0; first < groups;) {
        const i32 each = (groups - first + layer.deep - 1) / layer.deep;  // of a warp
        if (each >= 4) {
            mlp_scores_of<4>(layer, block, first, documents, scores);
            first += 4 * layer.deep;
        } else if (each == 3) {
            mlp_scores_of<3>(layer, block, first, documents, scores);
            first += 3 * layer.deep;
        } else if (each == 2) {
            mlp_scores_of<2>(layer, block, first, documents, scores);
            first += 2 * layer.deep;
        } else {
            mlp_scores_of<1>(layer, block, first, documents, scores);
            first += layer.deep;
        }
    }
}

// What a member does with its share of the parameters: act(row, unit), always of the same units.
template <typename Act> FUNCTION void each_parameter(const Layer& layer, i32 t, i32 rows, Act act) {
    const i32 width = layer.units_there < CREW ? layer.units_there : CREW, step = CREW / width;
    if (t / width >= step) return;
    ROLLED for (i32 unit = t % width; unit < layer.units_there; unit += width) {
        ROLLED for (i32 row = t / width; row < rows; row += step) act(row, unit);
    }
}

// Room of one crew: [features + 2, padded] weights and what warps hand over; Python's `layer_room` counts the same bytes.
FUNCTION char* furnish_layer(Layer& layer, i64 hidden, i64 features, i64 longest, char* memory, float* units) {
    layer.features = i32(features);
    layer.units_there = i32(hidden < 0 ? -hidden : hidden);
    layer.sigmoids = hidden > 0;
    layer.padded = padded_units(layer.units_there);
    layer.tiles = layer.padded / TILE;
    layer.across = warps_across(layer.tiles);
    layer.deep = WARPS_OF_A_CREW / layer.across;
    layer.capacity = i32((longest + 31) / 32 * 32);
    layer.units = units;
    layer.weights = (float*)memory;
    memory += 4 * (features + 2) * layer.padded;
    layer.sums = (float*)memory;
    return memory + (layer.tiles > 1 ? 4 * 8 * 32 * MOST_GROUPS * layer.deep : 0);
}
