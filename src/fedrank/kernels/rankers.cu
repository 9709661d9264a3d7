// CUDA version of rankers.py: neural rankers. One crew scores one list.

#define TILE 16  // hidden units per member, for up to four documents

struct alignas(16) Quad {
    float a, b, c, d;
};

// A neural ranker with its weights in rows of `padded` units: one per feature, then biases, then outputs.
struct Layer {
    float* weights;
    float* sums;  // [units, capacity]: sums of hidden units, in global memory
    i32 features, units_there, padded, capacity, tiles, across, deep;
    bool sigmoids;
};

FUNCTION i32 padded_units(i32 units) { return (units + TILE - 1) / TILE * TILE; }

// The numbers of warps that share the units of a list, and that share its documents.
FUNCTION i32 warps_across(i32 tiles) { return tiles < WARPS_OF_A_CREW ? tiles : WARPS_OF_A_CREW; }

// Sums of TILE units, for one document per group.
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

// Computes sums of units for groups x 32 x deep documents from group `first` on, into layer.sums.
template <i32 groups> FUNCTION void hidden_sums(const Layer& layer, const float* block, i32 first, i32 documents) {
    const i32 last_group = (documents - 1) / 32;
    EACH_MEMBER(t) {
        const i32 warp = t / 32, lane = t % 32, part = warp / layer.across, from = first + part * groups;
        if (part < layer.deep && from <= last_group) {
            ROLLED for (i32 tile = warp % layer.across; tile < layer.tiles; tile += layer.across) {
                const float* columns[groups];
#pragma unroll
                for (i32 g = 0; g < groups; g++) {
                    const i32 group = from + g < last_group ? from + g : last_group;
                    columns[g] = block + i64(group) * layer.features * 32 + lane;
                }
                float own[groups][TILE];
                unit_tile<groups>(layer, columns, tile, own);
                float* out = layer.sums + tile * TILE * layer.capacity + 32 * from + lane;
#pragma unroll
                for (i32 j = 0; j < TILE; j++) {
#pragma unroll
                    for (i32 g = 0; g < groups; g++)
                        if (tile * TILE + j < layer.units_there && from + g <= last_group) out[32 * g] = own[g][j];
                    out += layer.capacity;
                }
            }
        }
    }
}

FUNCTION float activated(const Layer& layer, float sum) {
    return layer.sigmoids ? sigmoid(sum) : (0.0f > sum ? 0.0f : sum);
}

// Fills `scores`, and layer.sums of all documents.
FUNCTION void mlp_scores(const Layer& layer, const float* block, i32 documents, float* scores) {
    const i32 groups = (documents + 31) / 32;
    for (i32 first = 0; first < groups;) {
        const i32 each = (groups - first + layer.deep - 1) / layer.deep;  // per warp
        if (each >= 4) {
            hidden_sums<4>(layer, block, first, documents);
            first += 4 * layer.deep;
        } else if (each == 3) {
            hidden_sums<3>(layer, block, first, documents);
            first += 3 * layer.deep;
        } else if (each == 2) {
            hidden_sums<2>(layer, block, first, documents);
            first += 2 * layer.deep;
        } else {
            hidden_sums<1>(layer, block, first, documents);
            first += layer.deep;
        }
    }
    crew_together();
    EACH_MEMBER(t) {
        const i32 units = layer.units_there, whole = units & ~7, capacity = layer.capacity;
        const float* outputs = layer.weights + (layer.features + 1) * layer.padded;
        ROLLED for (i32 d = t; d < documents; d += CREW) {  // in the order of `lanes.dot`
            const float* own = layer.sums + d;
            float s[8] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
            float next[8];
#pragma unroll
            for (i32 i = 0; i < 8; i++) next[i] = whole > 0 ? own[i * capacity] : 0.0f;
            ROLLED for (i32 j = 0; j < whole; j += 8) {
                float sums[8];
#pragma unroll
                for (i32 i = 0; i < 8; i++) {  // load the following ones in advance
                    sums[i] = next[i];
                    if (j + 8 < whole) next[i] = own[(j + 8 + i) * capacity];
                }
#pragma unroll
                for (i32 i = 0; i < 8; i++) {
                    s[i] += activated(layer, sums[i]) * outputs[j + i];
                }
            }
            float total = ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
            ROLLED for (i32 j = whole; j < units; j++) total += activated(layer, own[j * capacity]) * outputs[j];
            scores[d] = total;
        }
    }
    crew_together();
}

#define AT_ONCE 8  // parameters that a member loads together

// A member's share of the parameters, always of the same units: store(row, unit, load(row, unit)), in rows before `rows`.
template <typename Load, typename Store> FUNCTION void each_parameter(
    const Layer& layer, i32 t, i32 rows, Load load, Store store) {
    const i32 width = layer.units_there < CREW ? layer.units_there : CREW, step = CREW / width;
    if (t / width >= step) return;
    ROLLED for (i32 unit = t % width; unit < layer.units_there; unit += width) {
        ROLLED for (i32 begin = t / width; begin < rows; begin += AT_ONCE * step) {
            double found[AT_ONCE];  // all are loaded before the first is stored
#pragma unroll
            for (i32 k = 0; k < AT_ONCE; k++) {
                const i32 row = begin + k * step;
                found[k] = load(row < rows ? row : begin, unit);
            }
#pragma unroll
            for (i32 k = 0; k < AT_ONCE; k++)
                if (begin + k * step < rows) store(begin + k * step, unit, found[k]);
        }
    }
}

// Lays out a ranker; returns the address after it.
FUNCTION char* furnish_layer(Layer& layer, i64 hidden, i64 features, i64 longest, char* memory, float* sums) {
    layer.features = i32(features);
    layer.units_there = i32(hidden < 0 ? -hidden : hidden);
    layer.sigmoids = hidden > 0;
    layer.padded = padded_units(layer.units_there);
    layer.tiles = layer.padded / TILE;
    layer.across = warps_across(layer.tiles);
    layer.deep = WARPS_OF_A_CREW / layer.across;
    layer.capacity = i32((longest + 31) / 32 * 32);
    layer.sums = sums;
    layer.weights = (float*)memory;
    return memory + 4 * (features + 2) * layer.padded;
}
