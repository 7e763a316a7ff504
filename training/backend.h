// A backend of training runs every op of a training step on one device. The same calls in the same
// order serve the reference (double inside, plain loops: the judge), the CPU (float32) and CUDA
// (bfloat16 products, float32 sums).
//
// Thread rules: one caller at a time. Ops run in the order of the calls; they may still run when
// the call returns. Download, SumSquares and Finish wait for all of them. Host memory that an op is
// given need only live until the call returns.
//
// The same calls on the same device give the same bits: no op adds in an order that is not fixed.
//
// Errors: an op returns nothing; what went wrong in any op since the last Finish() comes out of
// Finish(). RESOURCE_EXHAUSTED: the device had no memory for it. INVALID_ARGUMENT: a shape that
// the backend does not do. Any other error: the device is lost.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "training/params.h"

namespace eta::training {

// It is wide since each op of a training step, forward and backward, is one method.
class TrainingBackend {
 public:
  virtual ~TrainingBackend() = default;

  virtual std::string_view name() const = 0;    // "reference", "cpu", "cuda"
  virtual std::string description() const = 0;  // device, threads, types

  // Type of what layers hand to products, and of the weights of products: float32 (cpu, reference),
  // bfloat16 (cuda), float64 (the reference, if tests ask for it).
  virtual DType activation_dtype() const = 0;
  // Type of the stream of residuals and of its gradients.
  virtual DType residual_dtype() const = 0;

  // Memory, aligned for any op; its contents are undefined.
  virtual absl::StatusOr<std::unique_ptr<Buffer>> Allocate(size_t bytes) = 0;
  // Bytes that Allocate could still give. UNIMPLEMENTED if the device does not tell.
  virtual absl::StatusOr<size_t> FreeMemory() const {
    return absl::UnimplementedError("training backend: does not tell its free memory");
  }
  virtual void Upload(void* to, const void* from, size_t bytes) = 0;
  virtual void Download(void* to, const void* from, size_t bytes) = 0;
  virtual void Zero(void* data, size_t bytes) = 0;
  // The same rows and columns; elements are rounded to the type of `to`.
  virtual void Convert(const Tensor& from, const Tensor& to) = 0;

  virtual void Embed(const EmbedParams& params) = 0;
  virtual void EmbedBackward(const EmbedBackwardParams& params) = 0;
  virtual void RmsNorm(const RmsNormParams& params) = 0;
  virtual void RmsNormBackward(const RmsNormBackwardParams& params) = 0;
  virtual void MatMul(const MatMulParams& params) = 0;
  virtual void MatMulInput(const MatMulInputParams& params) = 0;
  virtual void MatMulWeight(const MatMulWeightParams& params) = 0;
  virtual void AddBias(const AddBiasParams& params) = 0;
  virtual void BiasBackward(const BiasBackwardParams& params) = 0;
  virtual void NormHeads(const NormHeadsParams& params) = 0;
  virtual void NormHeadsBackward(const NormHeadsBackwardParams& params) = 0;
  virtual void Rope(const RopeParams& params) = 0;
  virtual void PredictThresholds(const ThresholdParams& params) = 0;
  virtual void ThresholdsBackward(const ThresholdBackwardParams& params) = 0;
  // Bytes of AttentionForwardParams::saved.
  virtual size_t AttentionSavedBytes(const AttentionShape& /*shape*/,
                                     const AttentionGate& /*gate*/) const {
    return 0;
  }
  virtual void Attention(const AttentionForwardParams& params) = 0;
  virtual void AttentionBackward(const AttentionBackwardParams& params) = 0;
  virtual void GatherWindows(const GatherWindowsParams& params) = 0;
  virtual void GatherWindowsBackward(const GatherWindowsBackwardParams& params) = 0;
  virtual void CompressedAttention(const CompressedAttentionParams& params) = 0;
  virtual void CompressedAttentionBackward(const CompressedAttentionBackwardParams& params) = 0;
  virtual void MixBranches(const MixBranchesParams& params) = 0;
  virtual void MixBranchesBackward(const MixBranchesBackwardParams& params) = 0;
  virtual void Add(const AddParams& params) = 0;
  virtual void SwiGlu(const SwiGluParams& params) = 0;
  virtual void SwiGluBackward(const SwiGluBackwardParams& params) = 0;
  virtual void HeadLoss(const HeadLossParams& params) = 0;
  virtual void WeighRowSums(const WeighRowSumsParams& params) = 0;

  // Sum of the squares; NaN or infinity if an element is none or it overflows. Waits.
  virtual double SumSquares(const float* values, int64_t count) = 0;
  virtual void AdamW(const AdamWParams& params) = 0;

  // Data parallelism: the backends of one job are ranks 0 .. world_size() - 1, each with a thread
  // of its own, and all of them call AllReduce in the same order. It sums over the ranks, and every
  // rank gets the same bits.
  virtual int rank() const { return 0; }
  virtual int world_size() const { return 1; }
  virtual void AllReduce(float* /*values*/, int64_t /*count*/) {}

  // Waits for all ops.
  virtual absl::Status Finish() = 0;
};

}  // namespace eta::training
