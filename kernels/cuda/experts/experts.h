// The ops of a layer's experts on the device (eta-semantics.md, "Experts"). Nothing of a choice is
// known on the host: kernels find an expert's rows by its places, and grids follow from the padded
// rows of the step alone. So no step waits for the host, and graphs stay.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/cuda/host/ops.h"
#include "kernels/cuda/rows/matmul.h"
#include "kernels/params/experts.h"
#include "kernels/tensor_view.h"

namespace eta::cuda {

// More than ModelConfig admits there are not.
inline constexpr int32_t kMostExperts = 1024;

// The weights of all experts, one projection: [E, N, K] in one piece. It does not own the memory.
struct ExpertWeights {
  const std::byte* data = nullptr;
  DType dtype = DType::kBFloat16;  // of products; what packed weights are multiplied as
  int32_t num_experts = 0;
  int64_t rows = 0;        // N
  int64_t cols = 0;        // K
  WeightParts parts = {};  // of a packed expert, as Weight has them, else none
  int64_t stride = 0;      // of packed ones: bytes from an expert to the next

  bool packed() const { return parts[0].type != PackedType::kNone; }

  bool operator==(const ExpertWeights&) const = default;
};

// In one piece, since the driver rounds an allocation of some megabytes up, and since an expert's
// weights are then found by its number.
class DeviceExpertStack final : public ExpertStack {
 public:
  DeviceExpertStack(std::unique_ptr<Buffer> buffer, const ExpertWeights& weights)
      : buffer_(std::move(buffer)), weights_(weights) {}

  size_t bytes() const override { return buffer_->size(); }
  const ExpertWeights& weights() const { return weights_; }

 private:
  std::unique_ptr<Buffer> buffer_;
  ExpertWeights weights_;
};

// Copies the matrices [E], all DeviceMatrix of one shape and type, and frees them. Packed ones stay
// packed if all have the same parts of 4 or 8 bits and if `keeps_packed`, else they are unpacked.
absl::StatusOr<std::unique_ptr<ExpertStack>> StackExperts(
    Backend& backend, Device& device, std::vector<std::unique_ptr<Matrix>> matrices,
    bool keeps_packed = true);

// An op: a product of MultiplyExperts, and SwiGlu behind it if `activated` has data.
struct ExpertProduct {
  TensorView x;
  bool by_rows;
  ExpertChoice choice;
  ExpertWeights weights;
  TensorView out;
  TensorView activated{};       // [R k, N / 2]
  bool choice_is_old = false;   // the choice was complete before the kernel in front began
  const float* bias = nullptr;  // [E, N]; null: none
  int64_t bias_stride = 0;      // 0: N
  Activation activation = Activation::kSilu;

  bool operator==(const ExpertProduct&) const = default;
};

// `counts`: device [E], how many rows each expert has; null: nobody asks.
void RouteRows(Context& context, const RouteRowsParams& params, int32_t* counts);  // route_rows.cu
void MultiplyExperts(Context& context, const ExpertProduct& product);  // expert_product.cc
void AddExperts(Context& context, const AddExpertsParams& params);     // expert_sums.cu

// Whether types and shapes are those of tensor cores' loads. Packed weights have one part then, or
// with SwiGlu two of one size.
bool HasStreams(const ExpertProduct& product);
// Whether MultiplyExperts does SwiGlu along.
bool ActivatesAlong(const ExpertProduct& product);

// A layer's experts for few rows: RouteRows, MultiplyExperts and SwiGlu as one kernel, then
// MultiplyExperts and AddExperts as another one. `route`: of the kernel in front, if that was the
// former and chose for the same product, else null. Both write what the separate ops write, put
// nothing on the stream and return false if there is no kernel.
bool RouteAndMultiply(const Context& context, const RouteRowsParams& route, int32_t* counts,
                      const ExpertProduct& product);  // few_rows.cu
bool MultiplyAndAdd(const Context& context, const RouteRowsParams* route,
                    const ExpertProduct& product, const AddExpertsParams& add);  // few_rows.cu

// out [R, N] = x [R, K] * weight [N, K]^T for weights of float32 and an x of 16 bits, which is
// widened: a router's product.
void ExactProduct(const Context& context, const TensorView& x, const Weight& weight,
                  const TensorView& out);  // expert_sums.cu

// The forms of MultiplyExperts. The first two put nothing on the stream and return false if they
// have no kernel for these shapes and types; the last takes all.
bool MultiplyFewPlaces(const Context& context, const ExpertProduct& product);     // few_places.cu
bool MultiplyManyPlaces(const Context& context, const ExpertProduct& product);    // many_places.cu
void PlainMultiplyExperts(const Context& context, const ExpertProduct& product);  // expert_sums.cu

}  // namespace eta::cuda
