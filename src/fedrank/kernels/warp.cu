// A warp: 32 lanes that work on one client. The only file that depends on whether this is a GPU.
//
// Loops are written as phases. In a phase, EACH_LANE (lane) { ... } runs for all lanes, which share only memory that no
// other lane writes in that phase; code outside is the same for all lanes. `together` ends a phase. Without a GPU a phase
// is a loop, so the same source is compiled and tested on every machine.

typedef signed char i8;
typedef int i32;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;

// A feature in two bytes.
struct Half {
    unsigned short bits;
};

#ifndef TEAM
#define TEAM 8  // warps per client if there are few clients
#endif

#ifdef __CUDACC__

#define FUNCTION __device__ __forceinline__
#define SLOW __device__ __noinline__
#define ROLLED _Pragma("unroll 1")  // unrolled loops would need registers that reduce the number of warps
#define EACH_LANE(lane) for (i32 lane = threadIdx.x & 31, once_ = 1; once_; once_ = 0)

template <typename T> struct PerLane {
    T value;
    FUNCTION T& operator[](i32) { return value; }
};

FUNCTION void together() { __syncwarp(); }

// A team: TEAM warps of a block that work on one client. Code outside of a phase runs in every warp; a phase is
// EACH_THREAD, or that of the leader (the first warp), concurrently with that of its helpers (all others).
#define EACH_THREAD(thread) for (i32 thread = threadIdx.x, once_ = 1; once_; once_ = 0)
#define LEADER if (threadIdx.x < 32)
#define EACH_HELPER(thread) for (i32 thread = threadIdx.x - 32; thread >= 0; thread = -1)
#define LAST_WARP if (threadIdx.x >= 32 * (TEAM - 1))
FUNCTION void all_together() { __syncthreads(); }

// A barrier for all blocks: `gate` counts arrivals.
FUNCTION void wait_for_blocks(u32* gate, u32 arrivals) {
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        atomicAdd(gate, 1u);
        while (*(volatile u32*)gate < arrivals) {
        }
        __threadfence();
    }
    __syncthreads();
}

FUNCTION float wide(Half x) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(x.bits));
    return value;
}

// A value that another block wrote.
FUNCTION float fresh(const float* place) { return __ldcg(place); }

// Prefetch.
FUNCTION void call_up(const void* place) { asm volatile("prefetch.global.L2 [%0];" ::"l"(place)); }

// Asynchronous copy of one float into shared memory; 0 if there is none. `all_are_here` waits for this thread's copies.
FUNCTION void send_for(float* to, const float* from, bool there) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(u32(__cvta_generic_to_shared(to))), "l"(from),
                 "r"(there ? 4 : 0));
}
FUNCTION void all_are_here() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// a / b of normal numbers, and of 0 / b: the first steps of a division, without special cases.
FUNCTION double quotient(double a, double b) {
    double r;
    asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(r) : "d"(b));
    r = __hiloint2double(__double2hiint(r), 1);  // as the compiler does
    double e = __fma_rn(-b, r, 1.0);
    e = __fma_rn(e, e, e);
    r = __fma_rn(r, e, r);
    e = __fma_rn(-b, r, 1.0);
    r = __fma_rn(r, e, r);
    const double q = a * r;
    return __fma_rn(r, __fma_rn(-b, q, a), q);
}

// Bit i is the value of lane i.
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
// The value of the lane that `rank` others precede; ranks from 0. By a bitonic sort.
FUNCTION i32 highest_but(i32 rank, PerLane<i32>& own) {
    const i32 lane = threadIdx.x & 31;
    i32 value = own.value;
#pragma unroll
    for (i32 size = 2; size <= 32; size *= 2) {
#pragma unroll
        for (i32 step = size / 2; step > 0; step /= 2) {
            const i32 other = __shfl_xor_sync(0xffffffffu, value, step);
            const bool higher = ((lane & size) == 0) == ((lane & step) == 0);  // whether this lane keeps the higher value
            value = higher ? max(value, other) : min(value, other);
        }
    }
    return __shfl_sync(0xffffffffu, value, rank);
}

FUNCTION float float_from(i32 bits) { return __int_as_float(bits); }
FUNCTION i32 bits_of_float(float x) { return __float_as_int(x); }
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

#define EACH_THREAD(thread) for (i32 thread = 0; thread < 32 * TEAM; thread++)
#define LEADER
#define LAST_WARP
#define EACH_HELPER(thread) for (i32 thread = 0; thread < 32 * (TEAM - 1); thread++)
FUNCTION void all_together() {}
FUNCTION void wait_for_blocks(u32*, u32) {}
FUNCTION float fresh(const float* place) { return *place; }
FUNCTION void call_up(const void*) {}
FUNCTION double quotient(double a, double b) { return a / b; }

FUNCTION float wide(Half x) {
    const int exponent = x.bits >> 10 & 31, fraction = x.bits & 1023;
    const float size = exponent == 0 ? ldexpf(float(fraction), -24) : ldexpf(float(1024 + fraction), exponent - 25);
    return x.bits >> 15 ? -size : size;
}

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

FUNCTION double sum_of(PerLane<double>& own) {  // in the order of a GPU
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

FUNCTION i32 bits_of_float(float x) {
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
