#include "training/cpu/cpu_backend.h"

#include <cstring>
#include <functional>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/system/usable_cpus.h"
#include "training/cpu/ops.h"
#include "training/host_buffer.h"

namespace eta::training::cpu {
namespace {

class CpuBackend final : public TrainingBackend {
 public:
  explicit CpuBackend(int num_threads)
      : workers_(num_threads), scratch_(static_cast<size_t>(workers_.num_threads())) {}

  std::string_view name() const override { return "cpu"; }
  std::string description() const override {
    return absl::StrCat("float32, OpenBLAS, ", workers_.num_threads(), " threads");
  }
  DType activation_dtype() const override { return DType::kFloat32; }
  DType residual_dtype() const override { return DType::kFloat32; }

  absl::StatusOr<std::unique_ptr<Buffer>> Allocate(size_t bytes) override {
    return AllocateHostBuffer(bytes);
  }
  void Upload(void* to, const void* from, size_t bytes) override {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }
  void Download(void* to, const void* from, size_t bytes) override {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }
  void Zero(void* data, size_t bytes) override {
    if (bytes > 0) std::memset(data, 0, bytes);
  }

  void Convert(const Tensor& from, const Tensor& to) override {
    Try([&] { cpu::Convert(context_, from, to); });
  }
  void Embed(const EmbedParams& p) override {
    Try([&] { cpu::Embed(context_, p); });
  }
  void EmbedBackward(const EmbedBackwardParams& p) override {
    Try([&] { cpu::EmbedBackward(context_, p); });
  }
  void RmsNorm(const RmsNormParams& p) override {
    Try([&] { cpu::RmsNorm(context_, p); });
  }
  void RmsNormBackward(const RmsNormBackwardParams& p) override {
    Try([&] { cpu::RmsNormBackward(context_, p); });
  }
  void MatMul(const MatMulParams& p) override {
    Try([&] { cpu::MatMul(context_, p); });
  }
  void MatMulInput(const MatMulInputParams& p) override {
    Try([&] { cpu::MatMulInput(context_, p); });
  }
  void MatMulWeight(const MatMulWeightParams& p) override {
    if (p.grad_weight == nullptr) return;
    Try([&] { cpu::MatMulWeight(context_, p); });
  }
  void AddBias(const AddBiasParams& p) override {
    Try([&] { cpu::AddBias(context_, p); });
  }
  void BiasBackward(const BiasBackwardParams& p) override {
    Try([&] { cpu::BiasBackward(context_, p); });
  }
  void NormHeads(const NormHeadsParams& p) override {
    Try([&] { cpu::NormHeads(context_, p); });
  }
  void NormHeadsBackward(const NormHeadsBackwardParams& p) override {
    Try([&] { cpu::NormHeadsBackward(context_, p); });
  }
  void Rope(const RopeParams& p) override {
    Try([&] { cpu::Rope(context_, p); });
  }
  void PredictThresholds(const ThresholdParams& p) override {
    Try([&] { cpu::PredictThresholds(context_, p); });
  }
  void ThresholdsBackward(const ThresholdBackwardParams& p) override {
    Try([&] { cpu::ThresholdsBackward(context_, p); });
  }
  void Attention(const AttentionForwardParams& p) override {
    Try([&] { cpu::Attention(context_, p); });
  }
  void AttentionBackward(const AttentionBackwardParams& p) override {
    Try([&] { cpu::AttentionBackward(context_, p); });
  }
  void GatherWindows(const GatherWindowsParams& p) override {
    Try([&] { cpu::GatherWindows(context_, p); });
  }
  void GatherWindowsBackward(const GatherWindowsBackwardParams& p) override {
    Try([&] { cpu::GatherWindowsBackward(context_, p); });
  }
  void CompressedAttention(const CompressedAttentionParams& p) override {
    Try([&] { cpu::CompressedAttention(context_, p); });
  }
  void CompressedAttentionBackward(const CompressedAttentionBackwardParams& p) override {
    Try([&] { cpu::CompressedAttentionBackward(context_, p); });
  }
  void MixBranches(const MixBranchesParams& p) override {
    Try([&] { cpu::MixBranches(context_, p); });
  }
  void MixBranchesBackward(const MixBranchesBackwardParams& p) override {
    Try([&] { cpu::MixBranchesBackward(context_, p); });
  }
  void Add(const AddParams& p) override {
    Try([&] { cpu::Add(context_, p); });
  }
  void SwiGlu(const SwiGluParams& p) override {
    Try([&] { cpu::SwiGlu(context_, p); });
  }
  void SwiGluBackward(const SwiGluBackwardParams& p) override {
    Try([&] { cpu::SwiGluBackward(context_, p); });
  }
  void HeadLoss(const HeadLossParams& p) override {
    Try([&] { cpu::HeadLoss(context_, p); });
  }
  void WeighRowSums(const WeighRowSumsParams& p) override {
    Try([&] { cpu::WeighRowSums(context_, p); });
  }
  double SumSquares(const float* values, int64_t count) override {
    double sum = 0.0;
    Try([&] { sum = cpu::SumSquares(context_, values, count); });
    return sum;
  }
  void AdamW(const AdamWParams& p) override {
    Try([&] { cpu::AdamW(context_, p); });
  }

  absl::Status Finish() override { return std::exchange(status_, absl::OkStatus()); }

 private:
  // An op that has no memory for its scratch.
  void Try(const std::function<void()>& op) {
    if (!status_.ok()) return;
    try {
      op();
    } catch (const std::bad_alloc&) {
      status_ = absl::ResourceExhaustedError("training step: the host has no memory left");
    }
  }

  eta::cpu::Workers workers_;
  std::vector<eta::cpu::Scratch> scratch_;
  eta::cpu::Scratch shared_;
  Context context_{workers_, scratch_, shared_};
  absl::Status status_;
};

}  // namespace

std::unique_ptr<TrainingBackend> MakeBackend(int num_threads) {
  return std::make_unique<CpuBackend>(num_threads > 0 ? num_threads : ReadUsableCpus().threads());
}

}  // namespace eta::training::cpu
