// CUDA version of chance.py: draw i of a stream is a function of (stream, i). Integers, so a GPU draws the same bits.

FUNCTION u64 mix(u64 x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}

FUNCTION u64 stream(u64 key, i64 number) { return mix(mix(key) + (u64(number) + 1ull) * 0x9E3779B97F4A7C15ull); }

FUNCTION double uniform(u64 stream, i64 i) {
    const u64 bits = mix(stream + (u64(i) + 1ull) * 0x9E3779B97F4A7C15ull) >> 12;
    return (double(bits) + 0.5) * 0x1p-52;
}
