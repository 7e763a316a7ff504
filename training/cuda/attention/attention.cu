#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "training/cuda/attention/attention.h"
#include "training/cuda/attention/attention_launch.h"
#include "training/cuda/attention/attention_rows.cuh"
#include "training/cuda/attention/tensor_map.h"

namespace eta::training::cuda {
namespace {

// Bytes of one section's keys or queries that should stay in the L2 cache.
constexpr int64_t kSectionBytes = int64_t{24} << 20;
// Of scratch for block sums of groups.
constexpr int64_t kBlockGateBytes = int64_t{512} << 20;

HeadsShape ShapeOf(const AttentionShape& shape) {
  return {.sequences = shape.sequences,
          .tokens = shape.length,
          .query_heads = shape.num_query_heads,
          .kv_heads = shape.num_kv_heads};
}

// Of a head of all its tiles of 64 tokens by all its queries.
int64_t HeadBlocks(const HeadsShape& shape) {
  return int64_t{shape.tiles()} * shape.padded_tokens();
}

GateFactors FactorsOf(const AttentionShape& shape, const AttentionGate& gate) {
  const float full = shape.scale * kLog2E;
  const float slope = 0.5f * gate.beta;
  GateFactors factors = {.full = full,
                         .open = 0.0f,
                         .gated = 0.0f,
                         .slope = slope * shape.scale,
                         .bias_slope = -slope,
                         .through = 0.0f,
                         .sum = 0.5f * slope * full};
  if (gate.kind == GateKind::kSilu) {
    factors.open = full * (1.0f - 0.5f * gate.strength);
    factors.gated = full * 0.5f * gate.strength;
    factors.through = gate.strength * shape.scale * factors.sum;
  } else if (gate.kind == GateKind::kAdditive) {
    factors.gated = 0.5f * gate.strength * kAdditivePenalty * kLog2E;
    factors.open = -factors.gated;
    factors.through = gate.strength * kAdditivePenalty * factors.sum;
  }
  return factors;
}

// `bytes`: what the CTAs of a head read again and again; `together` heads read the same.
WorkOrder OrderOf(int32_t heads, int32_t tiles, int64_t bytes, int32_t together) {
  const int64_t sections = std::max<int64_t>(1, kSectionBytes / bytes);
  return {.first_head = 0,
          .heads = heads,
          .tiles = tiles,
          .section = static_cast<int32_t>(std::min<int64_t>(heads, sections * together))};
}

int32_t DivideUp(int32_t value, int32_t by) {
  return (value + by - 1) / by;
}

// False, with the reason in `context`, for what the kernels do not do.
bool Check(Context& context, const AttentionForwardParams& params) {
  const int32_t head_dim = params.shape.head_dim;
  if (head_dim != 64 && head_dim != 128) {
    context.refused.Update(absl::InvalidArgumentError(absl::StrCat(
        "backend: cuda: trains heads of 64 and 128 dimensions; these have ", head_dim)));
    return false;
  }
  if (params.gate.kind != GateKind::kNone && !params.keys.all()) {
    context.refused.Update(absl::InvalidArgumentError(
        "backend: cuda: attention with a gate does not take a selection of keys"));
    return false;
  }
  return true;
}

SelectedKeys KeysOf(const AttentionForwardParams& params) {
  const int32_t length = params.shape.length;
  const int32_t window = params.keys.window;
  return {.blocks = params.keys.blocks, .window = window > 0 ? std::min(window, length) : length};
}

bool Map(Context& context, const Tensor& tensor, const AttentionShape& shape, CUtensorMap& map) {
  const absl::StatusOr<CUtensorMap> made =
      MapHeads(tensor, shape.sequences, shape.length, shape.head_dim);
  if (made.ok()) {
    map = *made;
  } else if (absl::IsInvalidArgument(made.status())) {
    context.refused.Update(made.status());
  } else {
    context.device.Fail(made.status());
  }
  return made.ok();
}

HeadsOut OutOf(const Tensor& tensor) {
  return {.data = tensor.as<__nv_bfloat16>(), .stride = tensor.stride};
}

// Queries of a CTA: RowShape::kTileRows.
int32_t QueriesOfCta(int32_t head_dim) {
  return head_dim == 64 ? 192 : 128;
}

// Forward with block sums of groups: gates of some KV heads, then their sums.
void AttendGroups(Context& context, const AttentionForwardParams& params,
                  ForwardKernelParams kernel, const KernelChoice& choice) {
  const HeadsShape& shape = kernel.shape;
  const int32_t group = shape.group();
  const int32_t all = shape.sequences * shape.kv_heads;
  const int64_t bytes = HeadBlocks(shape) * group * static_cast<int64_t>(sizeof(float));
  const auto some = static_cast<int32_t>(std::clamp<int64_t>(kBlockGateBytes / bytes, 1, all));
  auto* gates = static_cast<float*>(
      context.workspace.Get(Workspace::Use::kBlockGates, static_cast<size_t>(bytes * some)));
  auto* largest = reinterpret_cast<uint8_t*>(params.saved);
  if (gates == nullptr) return;
  const WorkOrder order = kernel.order;
  for (int32_t first = 0; first < all; first += some) {
    const int32_t heads = std::min(some, all - first);
    kernel.order.first_head = first * group;
    kernel.order.heads = heads * group;
    kernel.order.section = std::min(order.section, kernel.order.heads);
    kernel.block_gate = gates - int64_t{first} * group * HeadBlocks(shape);
    LaunchForward(context.device, choice, kernel);
    const GroupBlocksParams sums = {.shape = shape,
                                    .first_head = first,
                                    .block_sum = params.block_sum,
                                    .largest = largest,
                                    .block_gate = gates};
    eta::cuda::Launch(context.device, "block sums",
                      {.grid = {static_cast<uint32_t>(DivideUp(shape.tokens, kGroupThreads)),
                                static_cast<uint32_t>(heads)},
                       .block = kGroupThreads},
                      GroupBlocksKernel, sums);
  }
}

}  // namespace

size_t AttentionSavedBytes(const AttentionShape& shape, const AttentionGate& gate) {
  if (gate.kind == GateKind::kNone) return 0;
  return static_cast<size_t>(HeadBlocks(ShapeOf(shape)) * shape.sequences * shape.num_query_heads);
}

void Attention(Context& context, const AttentionForwardParams& params) {
  eta::cuda::Device& device = context.device;
  const AttentionShape& shape = params.shape;
  if (shape.rows() == 0 || !Check(context, params)) return;
  ForwardKernelParams kernel = {};
  if (!Map(context, params.q, shape, kernel.q) || !Map(context, params.k, shape, kernel.k) ||
      !Map(context, params.v, shape, kernel.v)) {
    return;
  }
  kernel.shape = ShapeOf(shape);
  kernel.order = OrderOf(shape.sequences * shape.num_query_heads,
                         DivideUp(shape.length, QueriesOfCta(shape.head_dim)),
                         int64_t{shape.length} * shape.head_dim * 4, shape.group());
  kernel.gate = FactorsOf(shape, params.gate);
  kernel.tau = params.tau;
  kernel.out = OutOf(params.out);
  kernel.log_sum_exp = params.lse;
  kernel.gate_sum = params.gate_sum;
  kernel.keys = KeysOf(params);
  const bool gated = params.gate.kind != GateKind::kNone;
  const KernelChoice choice = {.head_dim = shape.head_dim,
                               .gate = params.gate.kind,
                               .blocks = gated && params.block_sum != nullptr,
                               .selected = !params.keys.all()};
  if (choice.blocks) kernel.largest = reinterpret_cast<uint8_t*>(params.saved);
  if (choice.blocks && params.gate.group_blocks && shape.group() > 1) {
    return AttendGroups(context, params, kernel, choice);
  }
  if (choice.blocks) kernel.block_sum = params.block_sum;
  LaunchForward(device, choice, kernel);
}

void AttentionBackward(Context& context, const AttentionBackwardParams& params) {
  eta::cuda::Device& device = context.device;
  const AttentionForwardParams& forward = params.forward;
  const AttentionShape& shape = forward.shape;
  if (shape.rows() == 0 || !Check(context, forward)) return;
  BackwardKernelParams kernel = {};
  if (!Map(context, forward.q, shape, kernel.q) || !Map(context, forward.k, shape, kernel.k) ||
      !Map(context, forward.v, shape, kernel.v) ||
      !Map(context, params.grad_out, shape, kernel.grad_out)) {
    return;
  }
  const HeadsShape heads = ShapeOf(shape);
  const bool gated = forward.gate.kind != GateKind::kNone;
  const KernelChoice choice = {.head_dim = shape.head_dim,
                               .gate = forward.gate.kind,
                               .blocks = gated && params.grad_block_sum.data != nullptr,
                               .selected = !forward.keys.all()};
  const int64_t queries = int64_t{shape.sequences} * shape.num_query_heads * heads.padded_tokens();
  auto* rows = static_cast<QueryRows*>(context.workspace.Get(
      Workspace::Use::kRows, static_cast<size_t>(queries / 2) * sizeof(QueryRows)));
  float* block_grad = nullptr;
  if (choice.blocks) {
    if (forward.saved == nullptr) {
      return context.refused.Update(absl::InvalidArgumentError(
          "backend: cuda: a gradient of block sums without what attention saved"));
    }
    block_grad = static_cast<float*>(context.workspace.Get(
        Workspace::Use::kBlockGrads, static_cast<size_t>(queries) * sizeof(float)));
  }
  if (rows == nullptr || (choice.blocks && block_grad == nullptr)) return;
  kernel.shape = heads;
  const int64_t head_bytes = int64_t{shape.length} * shape.head_dim * 4;
  kernel.query_order =
      OrderOf(shape.sequences * shape.num_query_heads,
              DivideUp(shape.length, QueriesOfCta(shape.head_dim)), head_bytes, shape.group());
  kernel.key_order = OrderOf(shape.sequences * shape.num_kv_heads, DivideUp(shape.length, 128),
                             head_bytes * shape.group(), 1);
  kernel.gate = FactorsOf(shape, forward.gate);
  kernel.tau_factor = -1.0f / (shape.scale * kLog2E);
  kernel.rows = rows;
  kernel.block_grad = block_grad;
  kernel.largest = reinterpret_cast<const uint8_t*>(forward.saved);
  kernel.grad_q = OutOf(params.grad_q);
  kernel.grad_k = OutOf(params.grad_k);
  kernel.grad_v = OutOf(params.grad_v);
  kernel.grad_tau = params.grad_tau;
  kernel.keys = KeysOf(forward);
  const RowsParams row_params = {
      .shape = heads,
      .out = forward.out.as<const __nv_bfloat16>(),
      .out_stride = forward.out.stride,
      .grad_out = params.grad_out.as<const __nv_bfloat16>(),
      .grad_out_stride = params.grad_out.stride,
      .tau = gated ? forward.tau : nullptr,
      .log_sum_exp = forward.lse,
      .grad_gate_sum = gated ? params.grad_gate_sum : RowGradient{},
      .grad_block_sum = params.grad_block_sum,
      .block_group = forward.gate.group_blocks ? shape.group() : 1,
      .bias_slope = kernel.gate.bias_slope,
      .sum_factor = kernel.gate.sum,
      .rows = rows,
      .block_grad = block_grad,
  };
  const eta::cuda::LaunchShape row_shape = {
      .grid = static_cast<uint32_t>((queries * kRowLanes + kRowThreads - 1) / kRowThreads),
      .block = kRowThreads};
  eta::cuda::Launch(device, "rows of attention", row_shape,
                    shape.head_dim == 64 ? QueryRowsKernel<64> : QueryRowsKernel<128>, row_params);
  LaunchQueryGrad(device, choice, kernel);
  LaunchKeyGrad(device, choice, kernel);
}

}  // namespace eta::training::cuda
