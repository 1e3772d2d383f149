// The grouped GEMM of grouped.h. exl3_dq.cuh is exllamav3's decoder of one tile.
#include <c10/util/Exception.h>
#include <cuda_fp16.h>

#include "grouped.h"
#include "util.h"
#include "util.cuh"
#include "ptx.cuh"
#include "quant/exl3_dq.cuh"

namespace glmspark {
namespace {

constexpr int kColumns = 128;  // of a block
constexpr int kTile = 16;

__device__ __forceinline__ void copy16(void* shared, const void* global, bool valid) {
    const uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
    const int bytes = valid ? 16 : 0;  // the rest is filled with zeros
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(to),
                 "l"(global), "r"(bytes));
}

__device__ __forceinline__ void commit() { asm volatile("cp.async.commit_group;\n"); }

template <int pending>
__device__ __forceinline__ void wait() {
    asm volatile("cp.async.wait_group %0;\n" ::"n"(pending));
}

__device__ __forceinline__ void load_a(FragA& a, const void* shared) {
    uint32_t* r = reinterpret_cast<uint32_t*>(&a);
    const uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at));
}

// Row tiles of 16 (MT), column tiles of 16 for each warp (WN), depth of a stage (BK).
template <int bits, int cb, int MT, int WN, int BK, int STAGES>
struct Gemm {
    static constexpr int kWarps = kColumns / (kTile * WN);
    static constexpr int kThreads = 32 * kWarps;
    static constexpr int kRows = kTile * MT;
    static constexpr int kDepth = BK / kTile;             // trellis tiles of a stage
    static constexpr int kWords = 8 * bits;               // uint32 of a trellis tile
    static constexpr int kChunks = BK / 8;                // 16-byte chunks of a row
    static constexpr int kABytes = kRows * BK * 2;
    static constexpr int kBBytes = kDepth * (kColumns / kTile) * kWords * 4;
    static constexpr int kStage = kABytes + kBBytes;
    static constexpr int kShared = kStage * STAGES;

    // Chunk c of row r, swizzled so that the eight rows of an ldmatrix phase lie in
    // different banks.
    static __device__ __forceinline__ int place(int r, int c) {
        const int turn = kChunks == 8 ? (r & 7) : ((r >> 1) & 3);
        return (r * kChunks + (c ^ turn)) * 16;
    }
};

template <class G>
__device__ __forceinline__ void fetch(char* stage, const uint16_t* a, int rows, int k,
                                      const uint32_t* b, int n, int step) {
    const int depth = G::kDepth * kTile;
    for (int i = threadIdx.x; i < G::kRows * G::kChunks; i += G::kThreads) {
        const int r = i / G::kChunks, c = i % G::kChunks;
        const bool valid = r < rows;
        const uint16_t* from = a + int64_t(valid ? r : 0) * k + step * depth + c * 8;
        copy16(stage + G::place(r, c), from, valid);
    }
    constexpr int line = (kColumns / kTile) * G::kWords / 4;  // chunks of a tile row
    for (int i = threadIdx.x; i < G::kDepth * line; i += G::kThreads) {
        const int row = i / line, c = i % line;
        const int64_t tile_row = int64_t(step) * G::kDepth + row;
        const uint32_t* from = b + tile_row * (n / kTile) * G::kWords + c * 4;
        copy16(stage + G::kABytes + i * 16, from, true);
    }
}

__device__ __forceinline__ int expert_of(const int* tiles, int experts, int tile) {
    int low = 0, high = experts;  // tiles[low] <= tile < tiles[high]
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (tiles[middle] <= tile) low = middle;
        else high = middle;
    }
    return low;
}

template <int bits, int cb, int MT, int WN, int BK, int STAGES>
__global__ __launch_bounds__(Gemm<bits, cb, MT, WN, BK, STAGES>::kThreads) void
gemm_kernel(const Routing r, const Projection p, int dense_rows) {
    using G = Gemm<bits, cb, MT, WN, BK, STAGES>;
    extern __shared__ __align__(128) char shared[];

    const int tile = blockIdx.y;
    int expert = 0, first = tile * G::kRows, end = dense_rows;
    if (r.offsets) {
        if (tile >= r.tiles[r.experts]) return;
        expert = expert_of(r.tiles, r.experts, tile);
        first = r.offsets[expert] + (tile - r.tiles[expert]) * G::kRows;
        end = r.offsets[expert + 1];
    }
    const int rows = min(end - first, G::kRows);
    const int column = blockIdx.x * kColumns;
    const bool other = blockIdx.z;  // no run-time index: it would cost local memory
    const uint16_t* a = (other ? p.in[1] : p.in[0]) + int64_t(first) * p.k;
    const uint32_t* b = (other ? p.trellis[1] : p.trellis[0]) +
                        expert * p.expert_words + int64_t(column / kTile) * G::kWords;

    const int steps = p.k / BK;
#pragma unroll
    for (int s = 0; s < STAGES - 1; ++s) {
        if (s < steps) fetch<G>(shared + s * G::kStage, a, rows, p.k, b, p.n, s);
        commit();
    }

    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    FragC sum[MT][2 * WN] = {};
    for (int step = 0; step < steps; ++step) {
        wait<STAGES - 2>();
        __syncthreads();
        const int ahead = step + STAGES - 1;
        if (ahead < steps)
            fetch<G>(shared + (ahead % STAGES) * G::kStage, a, rows, p.k, b, p.n, ahead);
        commit();

        char* stage = shared + (step % STAGES) * G::kStage;
        const uint32_t* words = reinterpret_cast<const uint32_t*>(stage + G::kABytes);
#pragma unroll
        for (int d = 0; d < G::kDepth; ++d) {
            FragB weight[2 * WN];
#pragma unroll
            for (int j = 0; j < WN; ++j) {
                const int at = (d * (kColumns / kTile) + warp * WN + j) * G::kWords;
                dq_dispatch<bits, cb>(words + at, lane * 8, weight[2 * j],
                                      weight[2 * j + 1]);
            }
#pragma unroll
            for (int m = 0; m < MT; ++m) {
                FragA x;
                load_a(x, stage + G::place(m * kTile + lane % 16, d * 2 + lane / 16));
#pragma unroll
                for (int j = 0; j < 2 * WN; ++j)
                    ptx_mma_m16n8k16(x, weight[j], sum[m][j]);
            }
        }
    }

    half* out = reinterpret_cast<half*>(other ? p.out[1] : p.out[0]) +
                int64_t(first) * p.n + column;
#pragma unroll
    for (int m = 0; m < MT; ++m)
#pragma unroll
        for (int j = 0; j < 2 * WN; ++j)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int row = m * kTile + h * 8 + lane / 4;
                const int at = warp * WN * kTile + j * 8 + (lane % 4) * 2;
                if (row < rows)
                    *reinterpret_cast<half2*>(out + int64_t(row) * p.n + at) =
                        __floats2half2_rn(sum[m][j][2 * h], sum[m][j][2 * h + 1]);
            }
}

template <int bits, int cb, int MT, int WN, int BK, int STAGES>
void launch(const Routing& r, const Projection& p, int rows, cudaStream_t stream) {
    using G = Gemm<bits, cb, MT, WN, BK, STAGES>;
    auto* kernel = gemm_kernel<bits, cb, MT, WN, BK, STAGES>;
    TORCH_CHECK(p.k % BK == 0 && p.n % kColumns == 0, "EXL3 GEMM: k ", p.k, ", n ", p.n);
    if (G::kShared > 48 * 1024) {
        const cudaError_t status = cudaFuncSetAttribute(
            kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, G::kShared);
        TORCH_CHECK(status == cudaSuccess, cudaGetErrorString(status));
    }
    // The sum over experts of ceil(count / tile) is at most this.
    int tiles = (rows + G::kRows - 1) / G::kRows;
    if (r.offsets) tiles = rows / G::kRows + min(r.experts, rows);
    const dim3 grid(p.n / kColumns, tiles, p.count);
    kernel<<<grid, G::kThreads, G::kShared, stream>>>(r, p, rows);
}

template <int bits, int cb>
void by_tile(const Routing& r, const Projection& p, int rows, int tile,
             cudaStream_t stream) {
    switch (tile) {
        case 16: return launch<bits, cb, 1, 1, 64, 4>(r, p, rows, stream);
        case 32: return launch<bits, cb, 2, 1, 64, 4>(r, p, rows, stream);
        case 64: return launch<bits, cb, 4, 2, 64, 3>(r, p, rows, stream);
        case 128: return launch<bits, cb, 8, 2, 32, 4>(r, p, rows, stream);
        default: TORCH_CHECK(false, "EXL3 GEMM: no row tile of ", tile);
    }
}

}  // namespace

void gemm(const Routing& r, const Projection& p, int rows, int bits, int codebook,
          int tile_rows, cudaStream_t stream) {
    TORCH_CHECK(bits == EXL3_BITS && codebook == EXL3_CODEBOOK,
                "the extension is built for K = ", EXL3_BITS, ", codebook ",
                EXL3_CODEBOOK, "; asked for K = ", bits, ", codebook ", codebook);
    by_tile<EXL3_BITS, EXL3_CODEBOOK>(r, p, rows, tile_rows, stream);
    const cudaError_t status = cudaPeekAtLastError();
    TORCH_CHECK(status == cudaSuccess, "EXL3 GEMM: ", cudaGetErrorString(status));
}

}  // namespace glmspark
