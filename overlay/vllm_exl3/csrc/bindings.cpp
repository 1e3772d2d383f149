// The Python face of the kernels: shapes are checked here, once a call, so that a wrong
// tensor is an exception and never an illegal access.
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/extension.h>

#include "grouped.h"
#include "quant/exl3_moe.cuh"
#include "quant/exl3_moe_coop.cuh"
#include "quant/hadamard.cuh"
#include "quant/reconstruct.cuh"

namespace {

using at::Tensor;
using Optional = c10::optional<Tensor>;

void need(const Tensor& t, const char* name, at::ScalarType type, at::IntArrayRef shape) {
    TORCH_CHECK(t.is_cuda() && t.is_contiguous(), name, " must be a contiguous CUDA tensor");
    TORCH_CHECK(t.scalar_type() == type, name, " is ", t.scalar_type(), ", needed ", type);
    TORCH_CHECK(t.sizes() == shape, name, " has shape ", t.sizes(), ", needed ", shape);
}

bool is_bf16(const Tensor& t, const char* name) {
    TORCH_CHECK(t.scalar_type() == at::kBFloat16 || t.scalar_type() == at::kHalf, name,
                " is ", t.scalar_type(), ", needed bfloat16 or float16");
    return t.scalar_type() == at::kBFloat16;
}

bool is_int64(const Tensor& ids) {
    TORCH_CHECK(ids.scalar_type() == at::kLong || ids.scalar_type() == at::kInt,
                "ids are ", ids.scalar_type(), ", needed int32 or int64");
    return ids.scalar_type() == at::kLong;
}

uint16_t* half_ptr(const Tensor& t) { return static_cast<uint16_t*>(t.data_ptr()); }

const int* map_ptr(const Optional& map) {
    if (!map) return nullptr;
    TORCH_CHECK(map->is_cuda() && map->is_contiguous() && map->scalar_type() == at::kInt,
                "expert_map must be a contiguous int32 CUDA tensor");
    return map->data_ptr<int>();
}

// Where the parts of a call's scratch lie in one buffer; the sizes are dispatch.py's.
struct Arena {
    char* base;
    int64_t size, used = 0;

    template <class T>
    T* take(int64_t count) {
        T* at = reinterpret_cast<T*>(base + used);
        used += (count * int64_t(sizeof(T)) + 255) / 256 * 256;
        TORCH_CHECK(used <= size, "EXL3 scratch of ", size, " bytes is too small");
        return at;
    }
};

struct Shape {
    int tokens, top_k, hidden, width, experts;
};

Shape shape_of(const Tensor& x, const Tensor& ids, const std::vector<Tensor>& w) {
    TORCH_CHECK(w.size() == 6, "weights: w13 trellis, suh, svh, then w2");
    Shape s{int(x.size(0)), int(ids.size(1)), int(x.size(1)), int(w[2].size(2)),
            int(w[0].size(0))};
    const int64_t words = w[0].size(4);
    need(w[0], "w13_trellis", at::kShort, {s.experts, 2, s.hidden / 16, s.width / 16, words});
    need(w[1], "w13_suh", at::kHalf, {s.experts, 2, s.hidden});
    need(w[2], "w13_svh", at::kHalf, {s.experts, 2, s.width});
    need(w[3], "w2_trellis", at::kShort, {s.experts, s.width / 16, s.hidden / 16, words});
    need(w[4], "w2_suh", at::kHalf, {s.experts, s.width});
    need(w[5], "w2_svh", at::kHalf, {s.experts, s.hidden});
    return s;
}

void check_call(const Tensor& x, const Tensor& ids, const Tensor& weights, const Tensor& out) {
    need(x, "x", x.scalar_type(), x.sizes());
    need(ids, "ids", ids.scalar_type(), {x.size(0), ids.size(1)});
    need(weights, "weights", at::kFloat, ids.sizes());
    need(out, "out", x.scalar_type(), x.sizes());
}

// The routed sum by grouped GEMMs over rows sorted by expert.
void moe_grouped(const Tensor& x, const Tensor& ids, const Tensor& weights,
                 const Optional& expert_map, const Tensor& out,
                 const std::vector<Tensor>& w, const Tensor& scratch, int bits,
                 int codebook, double limit, int tile) {
    using namespace glmspark;
    check_call(x, ids, weights, out);
    const Shape s = shape_of(x, ids, w);
    if (s.tokens == 0) return;
    const at::cuda::OptionalCUDAGuard guard(x.device());
    const cudaStream_t stream = at::cuda::getCurrentCUDAStream();
    const bool bf16 = is_bf16(x, "x");
    const int rows = s.tokens * s.top_k;

    Arena arena{static_cast<char*>(scratch.data_ptr()), int64_t(scratch.nbytes())};
    Routing r{};
    r.experts = s.experts;
    r.assignments = rows;
    r.top_k = s.top_k;
    r.offsets = arena.take<int>(s.experts + 1);
    r.tiles = arena.take<int>(s.experts + 1);
    r.order = arena.take<int>(rows);
    r.position = arena.take<int>(rows);
    r.row_expert = arena.take<int>(rows);
    uint16_t* const turned[2] = {arena.take<uint16_t>(int64_t(rows) * s.hidden),
                                 arena.take<uint16_t>(int64_t(rows) * s.hidden)};
    uint16_t* gate = arena.take<uint16_t>(int64_t(rows) * s.width);
    uint16_t* up = arena.take<uint16_t>(int64_t(rows) * s.width);

    const int64_t half_words = w[0][0][0].numel() / 2;  // uint32 words of one projection
    const uint32_t* w13 = static_cast<const uint32_t*>(w[0].data_ptr());
    const uint32_t* w2 = static_cast<const uint32_t*>(w[3].data_ptr());
    const uint16_t* const suh[2] = {half_ptr(w[1]), half_ptr(w[1]) + s.hidden};

    route(r, ids.data_ptr(), is_int64(ids), map_ptr(expert_map), tile, stream);
    rotate_in(r, {x.data_ptr(), bf16}, suh, 2 * s.hidden, turned, 2, s.hidden, stream);
    const Projection first{{turned[0], turned[1]}, {gate, up}, {w13, w13 + half_words},
                           2 * half_words, 2, s.hidden, s.width};
    gemm(r, first, rows, bits, codebook, tile, stream);
    activate(r, gate, up, half_ptr(w[2]), half_ptr(w[2]) + s.width, 2 * s.width,
             half_ptr(w[4]), s.width, float(limit), stream);
    const Projection second{{gate, gate}, {turned[0], turned[0]}, {w2, w2}, half_words, 1,
                            s.width, s.hidden};
    gemm(r, second, rows, bits, codebook, tile, stream);
    combine(r, turned[0], half_ptr(w[5]), weights.data_ptr<float>(), out.data_ptr(), bf16,
            s.hidden, stream);
}

// The routed sum by exllamav3's cooperative kernels: at most 256 (token, choice) slots.
void moe_coop(const Tensor& x, const Tensor& ids, const Tensor& weights,
              const Optional& expert_map, const Tensor& out, const Tensor& tables,
              std::vector<Tensor> scratch, int bits, int codebook, double limit) {
    check_call(x, ids, weights, out);
    const int tokens = int(x.size(0)), hidden = int(x.size(1)), top_k = int(ids.size(1));
    if (tokens == 0) return;
    TORCH_CHECK(scratch.size() == 11, "moe_coop: eleven scratch tensors");
    const at::cuda::OptionalCUDAGuard guard(x.device());
    const cudaStream_t stream = at::cuda::getCurrentCUDAStream();
    Tensor x16 = scratch[8].narrow(0, 0, tokens);
    Tensor ids64 = scratch[9].narrow(0, 0, tokens);
    Tensor w16 = scratch[10].narrow(0, 0, tokens);
    need(ids64, "scratch ids", at::kLong, {tokens, top_k});
    need(w16, "scratch weights", at::kHalf, {tokens, top_k});
    need(x16, "scratch x", at::kHalf, {tokens, hidden});
    glmspark::coop_prologue({x.data_ptr(), is_bf16(x, "x")}, ids.data_ptr(), is_int64(ids),
                            map_ptr(expert_map), weights.data_ptr<float>(), half_ptr(x16),
                            ids64.data_ptr<int64_t>(), half_ptr(w16), tokens, hidden, top_k,
                            stream);
    const int experts = int(tables.size(1));
    auto t = [&](int i) { return tables[i]; };
    exl3_moe_coop(x16, ids64, w16, 0, experts, hidden, t(0), t(1), t(2), t(3), t(4), t(5),
                  t(6), t(7), t(8), {}, {}, {}, float(bits), float(bits), float(bits),
                  codebook == 1, codebook == 2, MOE_COOP_ACT_SILU, float(limit), true,
                  scratch[0], scratch[1], scratch[2], scratch[3], scratch[4], scratch[5],
                  scratch[6], scratch[7], {}, {});
    glmspark::narrow(scratch[7].data_ptr<float>(), out.data_ptr(), is_bf16(out, "out"),
                     int64_t(tokens) * hidden, stream);
}

// out[:, column:column + n] = x @ weight of one dense EXL3 layer.
void linear(const Tensor& x, const Tensor& trellis, const Tensor& suh, const Tensor& svh,
            const Tensor& out, int64_t column, const Tensor& scratch, int bits,
            int codebook, int tile) {
    using namespace glmspark;
    const int rows = int(x.size(0)), k = int(x.size(1)), n = int(svh.size(0));
    if (rows == 0) return;
    need(x, "x", x.scalar_type(), {rows, k});
    need(trellis, "trellis", at::kShort, {k / 16, n / 16, trellis.size(2)});
    need(suh, "suh", at::kHalf, {k});
    need(svh, "svh", at::kHalf, {n});
    need(out, "out", x.scalar_type(), {rows, out.size(1)});
    TORCH_CHECK(column >= 0 && column + n <= out.size(1), "out has too few columns");
    const at::cuda::OptionalCUDAGuard guard(x.device());
    const cudaStream_t stream = at::cuda::getCurrentCUDAStream();
    const bool bf16 = is_bf16(x, "x");
    Arena arena{static_cast<char*>(scratch.data_ptr()), int64_t(scratch.nbytes())};
    uint16_t* const turned[2] = {arena.take<uint16_t>(int64_t(rows) * k), nullptr};
    uint16_t* y = arena.take<uint16_t>(int64_t(rows) * n);
    Routing r{};
    r.assignments = rows;
    r.top_k = 1;
    const uint16_t* const scales[2] = {half_ptr(suh), nullptr};
    rotate_in(r, {x.data_ptr(), bf16}, scales, 0, turned, 1, k, stream);
    const uint32_t* words = static_cast<const uint32_t*>(trellis.data_ptr());
    const Projection p{{turned[0], nullptr}, {y, nullptr}, {words, nullptr}, 0, 1, k, n};
    gemm(r, p, rows, bits, codebook, tile, stream);
    rotate_out(y, half_ptr(svh), static_cast<uint16_t*>(out.data_ptr()) + column, bf16,
               rows, n, out.size(1), stream);
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    m.def("moe_grouped", &moe_grouped);
    m.def("moe_coop", &moe_coop);
    m.def("linear", &linear);
    m.def("exl3_moe", &exl3_moe);
    m.def("exl3_moe_max_concurrency", &exl3_moe_max_concurrency);
    m.def("exl3_moe_coop", &exl3_moe_coop);
    m.def("reconstruct", &reconstruct);
    m.def("reconstruct_had_batch", &reconstruct_had_batch);
    m.def("exl3_moe_gather", &exl3_moe_gather);
}
