#include "kernels/cuda/fused_product.h"

#include <cstddef>
#include <variant>

#include "kernels/cuda/packed/packed_product.h"
#include "kernels/cuda/rows/chain_walk.h"

namespace eta::cuda {
namespace {

// Op `i` if it is of type T, else null.
template <typename T>
const T* OpAt(std::span<const Op> ops, size_t i) {
  return i < ops.size() ? std::get_if<T>(&ops[i]) : nullptr;
}

bool Overlap(const TensorView& a, const TensorView& b) {
  const auto begin = [](const TensorView& t) { return reinterpret_cast<const std::byte*>(t.data); };
  const auto end = [&](const TensorView& t) {
    const int64_t elements = (t.rows - 1) * t.stride + t.cols;
    return begin(t) + elements * static_cast<int64_t>(SizeOf(t.dtype));
  };
  return begin(a) < end(b) && begin(b) < end(a);
}

int64_t MostRows(const Weight& weight) {
  return weight.packed() ? kMostNarrowRows : kMostProductRows;
}

// Whether the norm and what it reads stay as they are while thread blocks of the product write.
bool Fits(const RmsNormOp& norm, const MatMulOp& product) {
  return !norm.add && norm.out == product.x && norm.x.dtype == DType::kFloat32 &&
         norm.x.cols == product.weight.cols && !Overlap(norm.x, norm.out) &&
         !Overlap(norm.x, product.out);
}

bool Fits(const SwiGluParams& swiglu, const MatMulOp& product, const RmsNormOp* norm) {
  return swiglu.gate_up == product.out && swiglu.out.dtype == product.weight.dtype &&
         2 * swiglu.out.cols == product.out.cols && swiglu.out.rows == product.out.rows &&
         !product.accumulate && !Overlap(swiglu.out, product.out) &&
         !Overlap(swiglu.out, product.x) && (norm == nullptr || !Overlap(swiglu.out, norm->x));
}

// The weights of the next products, if other work comes first. A product that comes at once asks
// for its weights itself.
std::array<Weight, 2> WeightsAhead(std::span<const Op> ops) {
  std::array<Weight, 2> ahead;
  if (OpAt<RmsNormOp>(ops, 0) != nullptr || OpAt<MatMulOp>(ops, 0) != nullptr) return ahead;
  size_t count = 0;
  for (size_t i = 0; i < ops.size() && count < ahead.size(); ++i) {
    // Their weights are more than there is room for.
    if (OpAt<ExpertProduct>(ops, i) != nullptr) break;
    if (const auto* product = OpAt<MatMulOp>(ops, i)) ahead[count++] = product->weight;
  }
  return ahead;
}

}  // namespace

std::optional<FusedProduct> FuseProduct(std::span<const Op> ops) {
  const auto* norm = OpAt<RmsNormOp>(ops, 0);
  size_t count = norm != nullptr ? 1 : 0;
  const auto* product = OpAt<MatMulOp>(ops, count);
  if (product == nullptr || product->out.rows > MostRows(product->weight)) return std::nullopt;
  if (product->out.rows == 0 || Overlap(product->x, product->out)) return std::nullopt;
  if (norm != nullptr && !Fits(*norm, *product)) return std::nullopt;
  ++count;

  FusedProduct fused;
  fused.product.x = product->x;
  fused.product.weight = product->weight;
  fused.product.out = product->out;
  fused.product.accumulate = product->accumulate;
  if (norm != nullptr) {
    fused.product.norm = {norm->x, norm->weight, norm->eps, nullptr};
    if (norm->gathers) fused.gathers = norm->rows;
  }
  if (const auto* bias = OpAt<AddBiasParams>(ops, count);
      bias != nullptr && bias->x == product->out) {
    fused.product.bias = bias->bias;
    ++count;
  } else if (const auto* swiglu = OpAt<SwiGluParams>(ops, count);
             swiglu != nullptr && Fits(*swiglu, *product, norm)) {
    fused.product.activated = swiglu->out;
    fused.product.activation = swiglu->activation;
    ++count;
  }
  fused.product.ahead = WeightsAhead(ops.subspan(count));
  fused.num_ops = count;
  return fused;
}

std::vector<FusedProduct> FuseChain(std::span<const Op> ops) {
  std::vector<FusedProduct> chain;
  while (chain.size() < product::kMostChained) {
    const std::optional<FusedProduct> fused = FuseProduct(ops);
    if (!fused) break;
    chain.push_back(*fused);
    ops = ops.subspan(fused->num_ops);
  }
  return chain;
}

std::optional<FusedExperts> FuseExperts(std::span<const Op> ops) {
  FusedExperts fused;
  fused.route = OpAt<RouteRowsOp>(ops, 0);
  if (fused.route != nullptr) ops = ops.subspan(1);
  const auto* product = OpAt<ExpertProduct>(ops, 0);
  if (product == nullptr) return std::nullopt;
  const TensorView& out = product->out;
  if (fused.route != nullptr && Overlap(fused.route->params.logits, out)) return std::nullopt;
  fused.product = *product;
  fused.num_ops = fused.route != nullptr ? 2 : 1;
  const auto* swiglu = OpAt<SwiGluParams>(ops, 1);
  const auto* sum = OpAt<AddExpertsParams>(ops, 1);
  const auto writes_apart = [&](const TensorView& to) {
    return !Overlap(to, out) && !Overlap(to, product->x) &&
           (fused.route == nullptr || !Overlap(to, fused.route->params.logits));
  };
  if (swiglu != nullptr && swiglu->gate_up == out && swiglu->out.rows == out.rows &&
      writes_apart(swiglu->out)) {
    ExpertProduct along = *product;
    along.activated = swiglu->out;
    along.activation = swiglu->activation;
    if (!ActivatesAlong(along)) return fused;
    fused.product = along;
    ++fused.num_ops;
  } else if (sum != nullptr && sum->x == out && sum->choice == product->choice &&
             sum->out.cols == product->weights.rows && writes_apart(sum->out)) {
    fused.sum = sum;
    ++fused.num_ops;
  }
  return fused;
}

}  // namespace eta::cuda
