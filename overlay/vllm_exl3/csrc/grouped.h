// EXL3 experts as grouped GEMMs: tokens sorted by expert, weights decoded in registers.
//
// A trellis tile is stored in the order of a tensor-core B fragment (m16n8k16), so a
// warp decodes it straight into the operands of two mma instructions and uses them for
// every row of its tile. Weights are read once for each tile of rows, at 4 bits instead
// of the 16 that a dequantised copy would be written and read with.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace glmspark {

// Which experts the rows belong to; filled by route() on the device.
struct Routing {
    int* offsets;      // [experts + 1] first row of each expert
    int* tiles;        // [experts + 1] first row tile of each expert
    int* order;        // [tokens * top_k] row -> flat (token, choice)
    int* position;     // [tokens * top_k] flat (token, choice) -> row, or -1
    int* row_expert;   // [tokens * top_k] row -> expert
    int experts;
    int assignments;   // tokens * top_k: the rows there can be
    int top_k;
};

// Activations or scales as they come: bf16 or fp16.
struct Half16 {
    const void* data;
    bool bf16;
};

// One or two projections that share their rows: out[p] = in[p] @ decode(trellis[p]).
struct Projection {
    const uint16_t* in[2];     // fp16 [rows, k]
    uint16_t* out[2];          // fp16 [rows, n]
    const uint32_t* trellis[2];
    int64_t expert_words;      // uint32 words from one expert's trellis to the next's
    int count;                 // 1 or 2
    int k;
    int n;
};

// Row tiles that GEMMs are built for; others are refused.
constexpr int kRowTiles[] = {16, 32, 64, 128};

void route(const Routing& r, const void* ids, bool ids64, const int* expert_map,
           int tile_rows, cudaStream_t stream);

// rotated[p][row] = fp16(H(x[token of row] * suh[p][expert])); count projections.
void rotate_in(const Routing& r, Half16 x, const uint16_t* const suh[2],
               int64_t expert_stride, uint16_t* const rotated[2], int count, int hidden,
               cudaStream_t stream);

// gate[row] = fp16(H(silu(min(H(gate) svh_g, limit)) * clamp(H(up) svh_u) * suh_d)).
void activate(const Routing& r, uint16_t* gate, const uint16_t* up,
              const uint16_t* svh_gate, const uint16_t* svh_up, int64_t svh_stride,
              const uint16_t* suh_down, int width, float limit, cudaStream_t stream);

// out[token] = sum over its choices of weight * H(down[row]) * svh[expert].
void combine(const Routing& r, const uint16_t* down, const uint16_t* svh,
             const float* weights, void* out, bool bf16, int hidden,
             cudaStream_t stream);

// out[row] = H(y[row]) * svh, for a dense layer; out has a row stride.
void rotate_out(const uint16_t* y, const uint16_t* svh, void* out, bool bf16, int rows,
                int columns, int64_t out_stride, cudaStream_t stream);

// The grouped GEMM; r.offsets may be null for one dense layer of `rows` rows.
void gemm(const Routing& r, const Projection& p, int rows, int bits, int codebook,
          int tile_rows, cudaStream_t stream);

// fp16 copies of x, int64 local expert ids and fp16 weights, in one launch.
void coop_prologue(Half16 x, const void* ids, bool ids64, const int* expert_map,
                   const float* weights, uint16_t* x16, int64_t* ids_out,
                   uint16_t* weights16, int tokens, int hidden, int top_k,
                   cudaStream_t stream);

// out = x, fp32 to bf16 or fp16.
void narrow(const float* x, void* out, bool bf16, int64_t count, cudaStream_t stream);

}  // namespace glmspark
