// A crew: four warps that work on one client with a large model. Like warp.cu, the only file with device-specific code.
//
// EACH_MEMBER (t) { ... } is a phase of all four warps, which `crew_together` ends. ONE_WARP { ... } runs on the first warp
// while the others wait.

#define WARPS_OF_A_CREW 4
#define CREW 128

#ifdef __CUDACC__

#define EACH_MEMBER(t) for (i32 t = threadIdx.x, once_ = 1; once_; once_ = 0)
#define ONE_WARP if (threadIdx.x < 32)

template <typename T> struct PerMember {
    T value;
    FUNCTION T& operator[](i32) { return value; }
};

FUNCTION void crew_together() { __syncthreads(); }

#else

#define EACH_MEMBER(t) for (i32 t = 0; t < CREW; t++)
#define ONE_WARP

template <typename T> struct PerMember {
    T value[CREW];
    T& operator[](i32 t) { return value[t]; }
};

FUNCTION void crew_together() {}

#endif
