// MultiplyExperts: which kernel does the product.

#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/cuda/experts/experts.h"

namespace eta::cuda {
namespace {

bool IsAligned(const void* data, int64_t stride) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && stride % 8 == 0;
}

// Whether kernels take the parts of packed weights.
bool FitParts(const ExpertProduct& product) {
  const WeightParts& parts = product.weights.parts;
  if (product.activated.data == nullptr) return parts[1].type == PackedType::kNone;
  return parts[0].rows == parts[1].rows && parts[2].type == PackedType::kNone;
}

// The product of part `i` of packed weights, without SwiGlu.
ExpertProduct PartOf(const ExpertProduct& product, size_t i) {
  ExpertProduct out = product;
  out.activated = {};
  if (product.weights.parts[1].type == PackedType::kNone) return out;
  ExpertWeights& weights = out.weights;
  int64_t first = 0;
  for (size_t before = 0; before < i; ++before) {
    first += weights.parts[before].rows;
    weights.data += PartBytes(weights.parts[before], weights.cols);
  }
  const WeightPart part = weights.parts[i];
  weights.parts = {part};
  weights.rows = part.rows;
  out.out = product.out.Columns(first, part.rows);
  if (product.bias != nullptr) out.bias = product.bias + first;
  out.bias_stride = product.weights.rows;
  return out;
}

bool MultiplyOnTensorCores(const Context& context, const ExpertProduct& product) {
  return HasStreams(product) &&
         (MultiplyFewPlaces(context, product) || MultiplyManyPlaces(context, product));
}

}  // namespace

// Indices of tasks are 32-bit.
bool HasStreams(const ExpertProduct& product) {
  constexpr int64_t kMostWidth = 1 << 24;
  constexpr int64_t kLeastChannels = 8;  // of a task
  const ExpertWeights& weights = product.weights;
  const bool halves = weights.dtype == DType::kFloat16 || weights.dtype == DType::kBFloat16;
  const int64_t tasks =
      (product.out.rows + weights.num_experts) * (weights.rows / kLeastChannels + 1);
  return halves && product.x.dtype == weights.dtype &&
         (product.out.dtype == weights.dtype || product.out.dtype == DType::kFloat32) &&
         FitParts(product) && weights.cols > 0 && weights.cols % 8 == 0 &&
         weights.cols <= kMostWidth && weights.rows <= kMostWidth && tasks <= INT32_MAX &&
         IsAligned(weights.data, 0) && IsAligned(product.x.data, product.x.stride);
}

bool ActivatesAlong(const ExpertProduct& product) {
  return HasStreams(product) && product.activated.dtype == product.weights.dtype &&
         2 * product.activated.cols == product.weights.rows;
}

void MultiplyExperts(Context& context, const ExpertProduct& product) {
  if (product.out.rows == 0) return;
  const ExpertWeights& weights = product.weights;
  if (product.x.dtype != weights.dtype ||
      (product.out.dtype != weights.dtype && product.out.dtype != DType::kFloat32)) {
    context.device.Fail(absl::InvalidArgumentError(
        absl::StrCat("experts: x is ", std::string(Name(product.x.dtype)), " and out ",
                     std::string(Name(product.out.dtype)), ", but the weights were packed as ",
                     std::string(Name(weights.dtype)))));
    return;
  }
  if (product.activated.data != nullptr && MultiplyOnTensorCores(context, product)) return;
  const WeightParts& parts = weights.parts;
  for (size_t i = 0; i < kMostParts && (i == 0 || parts[i].type != PackedType::kNone); ++i) {
    const ExpertProduct part = PartOf(product, i);
    if (!MultiplyOnTensorCores(context, part)) PlainMultiplyExperts(context, part);
  }
  if (product.activated.data == nullptr) return;
  SwiGlu(context, {product.out, product.activated, product.activation});
}

}  // namespace eta::cuda
