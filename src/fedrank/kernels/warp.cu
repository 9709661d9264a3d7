// A warp: 32 lanes that work on one client. The only file that knows whether this is a GPU.
//
// Loops are written as phases. In a phase, EACH_LANE (lane) { ... } does the same for all lanes, which share nothing but
// memory that no other lane writes in that phase; what stands outside is the same for all of them. `together` ends a
// phase. Without a GPU a phase is a loop, so that the same text is compiled and tested on every machine.

typedef signed char i8;
typedef int i32;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;

#ifdef __CUDACC__

#define FUNCTION __device__ __forceinline__
#define SLOW __device__ __noinline__
#define ROLLED _Pragma("unroll 1")  // unrolled, a loop would need registers that more warps can use better
#define EACH_LANE(lane) for (i32 lane = threadIdx.x & 31, once_ = 1; once_; once_ = 0)

template <typename T> struct PerLane {
    T value;
    FUNCTION T& operator[](i32) { return value; }
};

FUNCTION void together() { __syncwarp(); }

// Bit i is what lane i says.
FUNCTION u32 ballot(PerLane<bool>& said) { return __ballot_sync(0xffffffffu, said.value); }

FUNCTION float highest_of(PerLane<float>& own) {
    float best = own.value;
    for (i32 step = 16; step > 0; step /= 2) best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, step));
    return best;
}

FUNCTION double sum_of(PerLane<double>& own) {
    double total = own.value;
    for (i32 step = 16; step > 0; step /= 2) total += __shfl_xor_sync(0xffffffffu, total, step);
    return total;
}

FUNCTION i32 bits_in(u32 mask) { return __popc(mask); }
FUNCTION i32 lowest_bit(u32 mask) { return __ffs(mask) - 1; }
FUNCTION i32 highest_bit(u32 mask) { return 31 - __clz(mask); }
// What the lane has that `rank` others come before; ranks from 0. By a bitonic sort.
FUNCTION i32 highest_but(i32 rank, PerLane<i32>& own) {
    const i32 lane = threadIdx.x & 31;
    i32 value = own.value;
#pragma unroll
    for (i32 size = 2; size <= 32; size *= 2) {
#pragma unroll
        for (i32 step = size / 2; step > 0; step /= 2) {
            const i32 other = __shfl_xor_sync(0xffffffffu, value, step);
            const bool higher = ((lane & size) == 0) == ((lane & step) == 0);  // who keeps the higher one
            value = higher ? max(value, other) : min(value, other);
        }
    }
    return __shfl_sync(0xffffffffu, value, rank);
}

FUNCTION i32 float_bits(float x) { return __float_as_int(x); }
FUNCTION float float_from(i32 bits) { return __int_as_float(bits); }
FUNCTION i64 bits_of(double x) { return __double_as_longlong(x); }
FUNCTION double from_bits(i64 bits) { return __longlong_as_double(bits); }
FUNCTION double infinity() { return from_bits(0x7ff0000000000000ll); }

#else

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>

#define FUNCTION static inline
#define SLOW static
#define ROLLED
#define EACH_LANE(lane) for (i32 lane = 0; lane < 32; lane++)

template <typename T> struct PerLane {
    T value[32];
    T& operator[](i32 lane) { return value[lane]; }
};

FUNCTION void together() {}

FUNCTION u32 ballot(PerLane<bool>& said) {
    u32 mask = 0;
    EACH_LANE(lane) mask |= u32(said[lane]) << lane;
    return mask;
}

FUNCTION float highest_of(PerLane<float>& own) {
    float best = own[0];
    EACH_LANE(lane) best = fmaxf(best, own[lane]);
    return best;
}

FUNCTION double sum_of(PerLane<double>& own) {  // in the order in which lanes of a GPU do it
    double total[32], other[32];
    EACH_LANE(lane) total[lane] = own[lane];
    for (i32 step = 16; step > 0; step /= 2) {
        EACH_LANE(lane) other[lane] = total[lane ^ step];
        EACH_LANE(lane) total[lane] += other[lane];
    }
    return total[0];
}

FUNCTION i32 bits_in(u32 mask) { return __builtin_popcount(mask); }
FUNCTION i32 lowest_bit(u32 mask) { return __builtin_ffs(int(mask)) - 1; }
FUNCTION i32 highest_bit(u32 mask) { return mask == 0 ? -1 : 31 - __builtin_clz(mask); }
FUNCTION i32 highest_but(i32 rank, PerLane<i32>& own) {
    i32 sorted[32];
    EACH_LANE(lane) sorted[lane] = own[lane];
    std::sort(sorted, sorted + 32, std::greater<i32>());
    return sorted[rank];
}

FUNCTION i32 float_bits(float x) {
    i32 bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
FUNCTION float float_from(i32 bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
FUNCTION i64 bits_of(double x) {
    i64 bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
FUNCTION double from_bits(i64 bits) {
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
FUNCTION double infinity() { return from_bits(0x7ff0000000000000ll); }

#endif
