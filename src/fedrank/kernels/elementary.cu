// Twin of elementary.py: exponentials and logarithms of nothing but sums, products and quotients, in the same order.
// Compiled without contraction (no fused multiply-add), results are the same bits.

#define LOG2_E 1.4426950408889634
#define LN2_HIGH 0.6931471803691238
#define LN2_LOW 1.9082149292705877e-10
#define SQRT_HALF 0.7071067811865476
#define ROUND_TO_INTEGER 6755399441055744.0  // 1.5 x 2^52

FUNCTION double exp_of_rest(double r) {
    const double c2 = 1.0 / 2.0, c3 = 1.0 / 6.0, c4 = 1.0 / 24.0, c5 = 1.0 / 120.0, c6 = 1.0 / 720.0;
    const double c7 = 1.0 / 5040.0, c8 = 1.0 / 40320.0, c9 = 1.0 / 362880.0, c10 = 1.0 / 3628800.0;
    const double c11 = 1.0 / 39916800.0, c12 = 1.0 / 479001600.0, c13 = 1.0 / 6227020800.0;
    const double high = c6 + r * (c7 + r * (c8 + r * (c9 + r * (c10 + r * (c11 + r * (c12 + r * c13))))));
    return 1.0 + r * (1.0 + r * (c2 + r * (c3 + r * (c4 + r * (c5 + r * high)))));
}

FUNCTION double log_from(double m, double n) {
    const double s = quotient(m - 1.0, m + 1.0);
    const double z = s * s;
    const double high =
        1.0 / 13.0 + z * (1.0 / 15.0 + z * (1.0 / 17.0 + z * (1.0 / 19.0 + z * (1.0 / 21.0))));
    const double rest =
        z * (1.0 / 3.0 + z * (1.0 / 5.0 + z * (1.0 / 7.0 + z * (1.0 / 9.0 + z * (1.0 / 11.0 + z * high)))));
    return n * LN2_HIGH + (2.0 * s + (2.0 * s * rest + n * LN2_LOW));
}

// One of `exponentials`: e^x for |x| <= 700.
FUNCTION double exponential(double x) {
    x = x < -700.0 ? -700.0 : x;
    x = x > 700.0 ? 700.0 : x;
    const double shifted = x * LOG2_E + ROUND_TO_INTEGER;
    const double n = shifted - ROUND_TO_INTEGER;
    const double rest = exp_of_rest((x - n * LN2_HIGH) - n * LN2_LOW);
    return from_bits(i64(u64(bits_of(rest)) + (u64(bits_of(shifted)) << 52)));
}

// One of `logarithms`: ln x for positive numbers of usual size.
FUNCTION double logarithm(double x) {
    const i64 n = (bits_of(x) - bits_of(SQRT_HALF)) >> 52;
    return log_from(from_bits(i64(u64(bits_of(x)) - (u64(n) << 52))), double(n));
}

SLOW double exp_safe(double x) {
    if (!(x < 709.0)) return x >= 709.0 ? infinity() : x;
    if (x < -740.0) return 0.0;
    const double n = rint(x * LOG2_E);
    return ldexp(exp_of_rest((x - n * LN2_HIGH) - n * LN2_LOW), int(n));
}

SLOW double log_safe(double x) {
    if (!(0.0 < x && x < infinity())) return x == 0.0 ? -infinity() : (x == infinity() ? x : infinity() - infinity());
    i32 n;
    double m = frexp(x, &n);
    if (m < SQRT_HALF) {
        m = 2.0 * m;
        n = n - 1;
    }
    return log_from(m, double(n));
}

SLOW double log1p_safe(double x) {
    const double more = 1.0 + x;
    return more == 1.0 || more == infinity() ? x : log_safe(more) * (x / (more - 1.0));
}
