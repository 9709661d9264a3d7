// CUDA version of elementary.py: exponentials and logarithms from sums, products and quotients only, in the same order.
// Compiled without contraction (fused multiply-add), results have the same bits.

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

// One of `logarithms`: ln x for positive normal numbers.
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

// One of `turns`: cosine and sine of fractions of a full circle, from 0 to 1.
FUNCTION void turn(double x, double& cosine, double& sine) {
    const double c2 = 1.0 / 2.0, c3 = 1.0 / 6.0, c4 = 1.0 / 24.0, c5 = 1.0 / 120.0, c6 = 1.0 / 720.0;
    const double c7 = 1.0 / 5040.0, c8 = 1.0 / 40320.0, c9 = 1.0 / 362880.0, c10 = 1.0 / 3628800.0;
    const double c11 = 1.0 / 39916800.0, c12 = 1.0 / 479001600.0, c13 = 1.0 / 6227020800.0;
    const double c14 = 1.0 / 87178291200.0, c15 = 1.0 / 1307674368000.0, c16 = 1.0 / 20922789888000.0;
    const double c17 = 1.0 / 355687428096000.0;
    const double shifted = 4.0 * x + ROUND_TO_INTEGER;
    const double a = (x - 0.25 * (shifted - ROUND_TO_INTEGER)) * 6.283185307179586;
    const double z = a * a;
    const double odd = c11 - z * (c13 - z * (c15 - z * c17)), even = c10 - z * (c12 - z * (c14 - z * c16));
    sine = a - a * z * (c3 - z * (c5 - z * (c7 - z * (c9 - z * odd))));
    cosine = 1.0 - z * (c2 - z * (c4 - z * (c6 - z * (c8 - z * even))));
    const i64 quarter = bits_of(shifted) & 3;
    if (quarter & 1) {
        const double before = cosine;
        cosine = -sine;
        sine = before;
    }
    if (quarter & 2) {
        cosine = -cosine;
        sine = -sine;
    }
}

// Pair i of `standard_normals`: draws 2 i and 2 i + 1.
FUNCTION void two_normals(u64 seed, i64 i, double& one, double& other) {
    const double radius = sqrt(-2.0 * logarithm(uniform(seed, 2 * i)));
    double cosine, sine;
    turn(uniform(seed, 2 * i + 1), cosine, sine);
    one = radius * cosine;
    other = radius * sine;
}

// One of `sigmoids`.
FUNCTION float sigmoid(float value) {
    const float d2 = float(1.0 / 2.0), d3 = float(1.0 / 6.0), d4 = float(1.0 / 24.0), d5 = float(1.0 / 120.0);
    const float d6 = float(1.0 / 720.0), d7 = float(1.0 / 5040.0), round = 12582912.0f;  // 1.5 x 2^23
    float x = -value;
    x = x < -80.0f ? -80.0f : x;
    x = x > 80.0f ? 80.0f : x;
    const float shifted = x * float(LOG2_E) + round;
    const float n = shifted - round;
    const float r = (x - n * 0.693359375f) - n * float(-0.00021219444005469057);
    const float rest = 1.0f + r * (1.0f + r * (d2 + r * (d3 + r * (d4 + r * (d5 + r * (d6 + r * d7))))));
    const float power = float_from(i32(u32(bits_of_float(rest)) + (u32(bits_of_float(shifted)) << 23)));
    return 1.0f / (1.0f + power);
}
