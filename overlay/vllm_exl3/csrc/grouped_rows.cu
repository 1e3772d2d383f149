// The row kernels of grouped.h: routing, Hadamard rotations, activation, sums.
#include <c10/util/Exception.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "grouped.h"

namespace glmspark {
namespace {

constexpr int kBlock = 128;                       // elements of a Hadamard block
constexpr float kNorm = 0.08838834764831845f;     // 1 / sqrt(128)
constexpr int kWarps = 8;
constexpr int kMaxExperts = 1024;

void check(const char* what) {
    const cudaError_t status = cudaPeekAtLastError();
    TORCH_CHECK(status == cudaSuccess, what, ": ", cudaGetErrorString(status));
}

unsigned int blocks_for(int64_t warps) {
    return static_cast<unsigned int>((warps + kWarps - 1) / kWarps);
}

__device__ __forceinline__ float4 widen_half(uint2 raw) {
    const float2 a = __half22float2(*reinterpret_cast<half2*>(&raw.x));
    const float2 b = __half22float2(*reinterpret_cast<half2*>(&raw.y));
    return {a.x, a.y, b.x, b.y};
}

__device__ __forceinline__ float4 load_half(const uint16_t* p) {
    return widen_half(*reinterpret_cast<const uint2*>(p));
}

__device__ __forceinline__ float4 load(const void* p, int64_t at, bool bf16) {
    uint2 raw = *reinterpret_cast<const uint2*>(static_cast<const uint16_t*>(p) + at);
    if (!bf16) return widen_half(raw);
    return {__uint_as_float(raw.x << 16), __uint_as_float(raw.x & 0xffff0000u),
            __uint_as_float(raw.y << 16), __uint_as_float(raw.y & 0xffff0000u)};
}

__device__ __forceinline__ void store(void* p, int64_t at, float4 v, bool bf16) {
    uint2 raw;
    if (bf16) {
        auto* pair = reinterpret_cast<__nv_bfloat162*>(&raw);
        pair[0] = __floats2bfloat162_rn(v.x, v.y);
        pair[1] = __floats2bfloat162_rn(v.z, v.w);
    } else {
        auto* pair = reinterpret_cast<half2*>(&raw);
        pair[0] = __floats2half2_rn(v.x, v.y);
        pair[1] = __floats2half2_rn(v.z, v.w);
    }
    *reinterpret_cast<uint2*>(static_cast<uint16_t*>(p) + at) = raw;
}

__device__ __forceinline__ float4 times(float4 a, float4 b) {
    return {a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w};
}

__device__ __forceinline__ float4 scaled(float4 a, float s) {
    return {a.x * s, a.y * s, a.z * s, a.w * s};
}

// Hadamard of 128 elements, four in each lane (element 4 * lane + i), normalised.
__device__ __forceinline__ float4 hadamard(float4 v) {
    const float a = v.x + v.y, b = v.x - v.y, c = v.z + v.w, d = v.z - v.w;
    v = {a + c, b + d, a - c, b - d};
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int mask = 1; mask < 32; mask *= 2) {
        const float sign = lane & mask ? -1.0f : 1.0f;
        v.x = fmaf(sign, v.x, __shfl_xor_sync(0xffffffffu, v.x, mask));
        v.y = fmaf(sign, v.y, __shfl_xor_sync(0xffffffffu, v.y, mask));
        v.z = fmaf(sign, v.z, __shfl_xor_sync(0xffffffffu, v.z, mask));
        v.w = fmaf(sign, v.w, __shfl_xor_sync(0xffffffffu, v.w, mask));
    }
    return scaled(v, kNorm);
}

__device__ __forceinline__ int local_expert(const void* ids, bool ids64, int at,
                                            const int* expert_map, int experts) {
    int e = ids64 ? static_cast<int>(static_cast<const int64_t*>(ids)[at])
                  : static_cast<const int*>(ids)[at];
    if (expert_map && e >= 0) e = expert_map[e];
    return e >= 0 && e < experts ? e : -1;
}

// Inclusive sums of two arrays of 1024 values, one of each in every thread.
__device__ __forceinline__ void scan(int* a, int* b) {
    for (int step = 1; step < kMaxExperts; step *= 2) {
        const bool add = threadIdx.x >= step;
        const int x = add ? a[threadIdx.x - step] : 0;
        const int y = add ? b[threadIdx.x - step] : 0;
        __syncthreads();
        a[threadIdx.x] += x;
        b[threadIdx.x] += y;
        __syncthreads();
    }
}

__global__ __launch_bounds__(kMaxExperts) void route_kernel(
    const Routing r, const void* ids, bool ids64, const int* expert_map,
    int tile_rows) {
    __shared__ int rows[kMaxExperts], tiles[kMaxExperts], cursor[kMaxExperts];
    const int t = threadIdx.x;
    cursor[t] = 0;
    __syncthreads();
    for (int i = t; i < r.assignments; i += kMaxExperts) {
        const int e = local_expert(ids, ids64, i, expert_map, r.experts);
        if (e >= 0) atomicAdd(&cursor[e], 1);
    }
    __syncthreads();
    const int count = cursor[t];
    rows[t] = count;
    tiles[t] = (count + tile_rows - 1) / tile_rows;
    __syncthreads();
    scan(rows, tiles);
    if (t < r.experts) {
        r.offsets[t + 1] = rows[t];
        r.tiles[t + 1] = tiles[t];
    }
    if (t == 0) r.offsets[0] = r.tiles[0] = 0;
    cursor[t] = rows[t] - count;
    __syncthreads();
    for (int i = t; i < r.assignments; i += kMaxExperts) {
        const int e = local_expert(ids, ids64, i, expert_map, r.experts);
        const int at = e < 0 ? -1 : atomicAdd(&cursor[e], 1);
        r.position[i] = at;
        if (at < 0) continue;
        r.order[at] = i;
        r.row_expert[at] = e;
    }
}

// The warp's (row, block of 128 columns) in a grid of one warp for each.
struct Place {
    int row, column;
    __device__ Place(int columns) {
        const int64_t warp = int64_t(blockIdx.x) * kWarps + threadIdx.x / 32;
        row = static_cast<int>(warp / (columns / kBlock));
        column = static_cast<int>(warp % (columns / kBlock)) * kBlock +
                 (threadIdx.x % 32) * 4;
    }
};

__global__ void rotate_in_kernel(const Routing r, Half16 x, const uint16_t* suh0,
                                 const uint16_t* suh1, int64_t expert_stride,
                                 uint16_t* out0, uint16_t* out1, int hidden) {
    const Place at(hidden);
    if (at.row >= (r.offsets ? r.offsets[r.experts] : r.assignments)) return;
    const int token = r.offsets ? r.order[at.row] / r.top_k : at.row;
    const int64_t scale = r.offsets ? r.row_expert[at.row] * expert_stride : 0;
    const float4 v = load(x.data, int64_t(token) * hidden + at.column, x.bf16);
    const int64_t to = int64_t(at.row) * hidden + at.column;
    store(out0, to, hadamard(times(v, load_half(suh0 + scale + at.column))), false);
    if (out1)
        store(out1, to, hadamard(times(v, load_half(suh1 + scale + at.column))), false);
}

__device__ __forceinline__ float swiglu(float gate, float up, float limit) {
    if (limit > 0) {
        gate = fminf(gate, limit);
        up = fminf(fmaxf(up, -limit), limit);
    }
    return gate / (1.0f + __expf(-gate)) * up;
}

__global__ void activate_kernel(const Routing r, uint16_t* gate, const uint16_t* up,
                                const uint16_t* svh_gate, const uint16_t* svh_up,
                                int64_t svh_stride, const uint16_t* suh_down, int width,
                                float limit) {
    const Place at(width);
    if (at.row >= r.offsets[r.experts]) return;
    const int64_t expert = r.row_expert[at.row];
    const int64_t here = int64_t(at.row) * width + at.column;
    const int64_t svh = expert * svh_stride + at.column;
    const float4 g = times(hadamard(load_half(gate + here)), load_half(svh_gate + svh));
    const float4 u = times(hadamard(load_half(up + here)), load_half(svh_up + svh));
    const float4 a = {swiglu(g.x, u.x, limit), swiglu(g.y, u.y, limit),
                      swiglu(g.z, u.z, limit), swiglu(g.w, u.w, limit)};
    const float4 s = load_half(suh_down + expert * width + at.column);
    store(gate, here, hadamard(times(a, s)), false);
}

__global__ void combine_kernel(const Routing r, const uint16_t* down,
                               const uint16_t* svh, const float* weights, void* out,
                               bool bf16, int hidden) {
    const Place at(hidden);
    if (at.row >= r.assignments / r.top_k) return;
    float4 sum = {0, 0, 0, 0};
    for (int c = 0; c < r.top_k; ++c) {
        const int flat = at.row * r.top_k + c;
        const int row = r.position[flat];
        if (row < 0) continue;
        const float4 y = hadamard(load_half(down + int64_t(row) * hidden + at.column));
        const int64_t scale = int64_t(r.row_expert[row]) * hidden + at.column;
        const float4 part = scaled(times(y, load_half(svh + scale)), weights[flat]);
        sum = {sum.x + part.x, sum.y + part.y, sum.z + part.z, sum.w + part.w};
    }
    store(out, int64_t(at.row) * hidden + at.column, sum, bf16);
}

__global__ void rotate_out_kernel(const uint16_t* y, const uint16_t* svh, void* out,
                                  bool bf16, int rows, int columns, int64_t stride) {
    const Place at(columns);
    if (at.row >= rows) return;
    const float4 v = hadamard(load_half(y + int64_t(at.row) * columns + at.column));
    store(out, at.row * stride + at.column, times(v, load_half(svh + at.column)), bf16);
}

__global__ void coop_prologue_kernel(Half16 x, const void* ids, bool ids64,
                                     const int* expert_map, const float* weights,
                                     uint16_t* x16, int64_t* ids_out,
                                     uint16_t* weights16, int64_t quads,
                                     int assignments) {
    const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < quads) store(x16, i * 4, load(x.data, i * 4, x.bf16), false);
    if (i >= assignments) return;
    ids_out[i] = local_expert(ids, ids64, static_cast<int>(i), expert_map, 1 << 30);
    reinterpret_cast<half*>(weights16)[i] = __float2half_rn(weights[i]);
}

__global__ void narrow_kernel(const float* x, void* out, bool bf16, int64_t quads) {
    const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < quads) store(out, i * 4, reinterpret_cast<const float4*>(x)[i], bf16);
}

}  // namespace

void route(const Routing& r, const void* ids, bool ids64, const int* expert_map,
           int tile_rows, cudaStream_t stream) {
    TORCH_CHECK(r.experts <= kMaxExperts, "EXL3: ", r.experts, " experts, most 1024");
    route_kernel<<<1, kMaxExperts, 0, stream>>>(r, ids, ids64, expert_map, tile_rows);
    check("route");
}

void rotate_in(const Routing& r, Half16 x, const uint16_t* const suh[2],
               int64_t expert_stride, uint16_t* const rotated[2], int count, int hidden,
               cudaStream_t stream) {
    const unsigned int grid = blocks_for(int64_t(r.assignments) * (hidden / kBlock));
    rotate_in_kernel<<<grid, 32 * kWarps, 0, stream>>>(
        r, x, suh[0], suh[1], expert_stride, rotated[0],
        count == 2 ? rotated[1] : nullptr, hidden);
    check("rotate_in");
}

void activate(const Routing& r, uint16_t* gate, const uint16_t* up,
              const uint16_t* svh_gate, const uint16_t* svh_up, int64_t svh_stride,
              const uint16_t* suh_down, int width, float limit, cudaStream_t stream) {
    const unsigned int grid = blocks_for(int64_t(r.assignments) * (width / kBlock));
    activate_kernel<<<grid, 32 * kWarps, 0, stream>>>(
        r, gate, up, svh_gate, svh_up, svh_stride, suh_down, width, limit);
    check("activate");
}

void combine(const Routing& r, const uint16_t* down, const uint16_t* svh,
             const float* weights, void* out, bool bf16, int hidden,
             cudaStream_t stream) {
    const int64_t warps = int64_t(r.assignments / r.top_k) * (hidden / kBlock);
    combine_kernel<<<blocks_for(warps), 32 * kWarps, 0, stream>>>(
        r, down, svh, weights, out, bf16, hidden);
    check("combine");
}

void rotate_out(const uint16_t* y, const uint16_t* svh, void* out, bool bf16, int rows,
                int columns, int64_t out_stride, cudaStream_t stream) {
    const unsigned int grid = blocks_for(int64_t(rows) * (columns / kBlock));
    rotate_out_kernel<<<grid, 32 * kWarps, 0, stream>>>(y, svh, out, bf16, rows,
                                                        columns, out_stride);
    check("rotate_out");
}

void coop_prologue(Half16 x, const void* ids, bool ids64, const int* expert_map,
                   const float* weights, uint16_t* x16, int64_t* ids_out,
                   uint16_t* weights16, int tokens, int hidden, int top_k,
                   cudaStream_t stream) {
    const int64_t quads = int64_t(tokens) * hidden / 4;
    const unsigned int grid = static_cast<unsigned int>((quads + 255) / 256);
    coop_prologue_kernel<<<grid, 256, 0, stream>>>(x, ids, ids64, expert_map, weights,
                                                   x16, ids_out, weights16, quads,
                                                   tokens * top_k);
    check("coop_prologue");
}

void narrow(const float* x, void* out, bool bf16, int64_t count, cudaStream_t stream) {
    const unsigned int grid = static_cast<unsigned int>((count / 4 + 255) / 256);
    narrow_kernel<<<grid, 256, 0, stream>>>(x, out, bf16, count / 4);
    check("narrow");
}

}  // namespace glmspark
