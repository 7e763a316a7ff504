#include "training/cuda/cuda_backend.h"

#include <cuda_runtime_api.h>

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "kernels/cuda/host/device.h"
#include "training/cuda/attention/attention.h"
#include "training/cuda/host/collective.h"
#include "training/cuda/host/product.h"
#include "training/cuda/host/staging.h"
#include "training/cuda/host/workspace.h"
#include "training/cuda/native_sparse/native_sparse.h"
#include "training/cuda/rows/ops.h"

namespace eta::training::cuda {
namespace {

class DeviceBuffer final : public Buffer {
 public:
  DeviceBuffer(eta::cuda::Device& device, void* data, size_t bytes)
      : Buffer(static_cast<std::byte*>(data), bytes), device_(device) {}
  ~DeviceBuffer() override {
    device_.MakeCurrent();
    cudaFree(data());
  }

 private:
  eta::cuda::Device& device_;
};

class CudaBackend final : public TrainingBackend {
 public:
  explicit CudaBackend(std::unique_ptr<eta::cuda::Device> device)
      : device_(std::move(device)),
        workspace_(*device_),
        context_{*device_, workspace_, absl::OkStatus()},
        staging_(context_) {}

  absl::Status Open() {
    ASSIGN_OR_RETURN(products_, Products::Open(context_));
    return absl::OkStatus();
  }
  eta::cuda::Device& device() { return *device_; }
  void Join(int rank, int world_size, std::unique_ptr<Collective> collective) {
    rank_ = rank;
    world_size_ = world_size;
    collective_ = std::move(collective);
  }

  std::string_view name() const override { return "cuda"; }
  std::string description() const override {
    return absl::StrCat(device_->name(), ", bfloat16 products, float32 sums");
  }
  DType activation_dtype() const override { return DType::kBFloat16; }
  DType residual_dtype() const override { return DType::kFloat32; }

  absl::StatusOr<std::unique_ptr<Buffer>> Allocate(size_t bytes) override {
    device_->MakeCurrent();
    void* data = nullptr;
    const cudaError_t error = eta::cuda::AllocateMemory(&data, bytes == 0 ? 1 : bytes);
    if (error == cudaErrorMemoryAllocation) {
      cudaGetLastError();  // otherwise the next launch would report the error
      return absl::ResourceExhaustedError(
          absl::StrCat("cuda: device ", device_->index(), " has no ", bytes, " bytes left"));
    }
    if (error != cudaSuccess) {
      return absl::InternalError(
          absl::StrCat("cuda: device ", device_->index(), ": memory: ", cudaGetErrorString(error)));
    }
    return std::make_unique<DeviceBuffer>(*device_, data, bytes);
  }
  absl::StatusOr<size_t> FreeMemory() const override {
    device_->MakeCurrent();
    size_t free = 0;
    size_t total = 0;
    const cudaError_t error = cudaMemGetInfo(&free, &total);
    if (error != cudaSuccess) {
      return absl::InternalError(
          absl::StrCat("cuda: device ", device_->index(), ": memory: ", cudaGetErrorString(error)));
    }
    return free;
  }
  void Upload(void* to, const void* from, size_t bytes) override {
    Copy(to, from, bytes, cudaMemcpyHostToDevice, "upload");
    device_->Check(cudaStreamSynchronize(device_->stream()), "upload");
  }
  void Download(void* to, const void* from, size_t bytes) override {
    Copy(to, from, bytes, cudaMemcpyDeviceToHost, "download");
    device_->Check(cudaStreamSynchronize(device_->stream()), "download");
  }
  void Zero(void* data, size_t bytes) override {
    device_->MakeCurrent();
    if (bytes == 0) return;
    device_->Check(cudaMemsetAsync(data, 0, bytes, device_->stream()), "zeros");
  }

  void Convert(const Tensor& from, const Tensor& to) override {
    cuda::Convert(Current(), from, to);
  }
  void Embed(const EmbedParams& p) override { cuda::Embed(Current(), staging_, p); }
  void EmbedBackward(const EmbedBackwardParams& p) override {
    cuda::EmbedBackward(Current(), staging_, p);
  }
  void RmsNorm(const RmsNormParams& p) override { cuda::RmsNorm(Current(), p); }
  void RmsNormBackward(const RmsNormBackwardParams& p) override {
    cuda::RmsNormBackward(Current(), p);
  }
  void MatMul(const MatMulParams& p) override {
    Current();
    products_->Multiply({p.x}, {p.weight, true}, p.out, p.accumulate);
  }
  void MatMulInput(const MatMulInputParams& p) override {
    Current();
    products_->Multiply({p.grad_out}, {p.weight}, p.grad_x, false);
  }
  void MatMulWeight(const MatMulWeightParams& p) override {
    Current();
    if (p.grad_weight == nullptr) return;
    const Tensor out = {.data = p.grad_weight,
                        .dtype = DType::kFloat32,
                        .rows = p.grad_out.cols,
                        .cols = p.x.cols,
                        .stride = p.x.cols};
    products_->Multiply({p.grad_out, true}, {p.x}, out, true);
  }
  void AddBias(const AddBiasParams& p) override { cuda::AddBias(Current(), p); }
  void BiasBackward(const BiasBackwardParams& p) override { cuda::BiasBackward(Current(), p); }
  void NormHeads(const NormHeadsParams& p) override { cuda::NormHeads(Current(), p); }
  void NormHeadsBackward(const NormHeadsBackwardParams& p) override {
    cuda::NormHeadsBackward(Current(), p);
  }
  void Rope(const RopeParams& p) override { cuda::Rope(Current(), p); }
  void PredictThresholds(const ThresholdParams& p) override {
    cuda::PredictThresholds(Current(), *products_, p);
  }
  void ThresholdsBackward(const ThresholdBackwardParams& p) override {
    cuda::ThresholdsBackward(Current(), *products_, p);
  }
  size_t AttentionSavedBytes(const AttentionShape& shape,
                             const AttentionGate& gate) const override {
    return cuda::AttentionSavedBytes(shape, gate);
  }
  void Attention(const AttentionForwardParams& p) override { cuda::Attention(Current(), p); }
  void AttentionBackward(const AttentionBackwardParams& p) override {
    cuda::AttentionBackward(Current(), p);
  }
  void GatherWindows(const GatherWindowsParams& p) override { cuda::GatherWindows(Current(), p); }
  void GatherWindowsBackward(const GatherWindowsBackwardParams& p) override {
    cuda::GatherWindowsBackward(Current(), p);
  }
  void CompressedAttention(const CompressedAttentionParams& p) override {
    cuda::CompressedAttention(Current(), *products_, p);
  }
  void CompressedAttentionBackward(const CompressedAttentionBackwardParams& p) override {
    cuda::CompressedAttentionBackward(Current(), *products_, p);
  }
  void MixBranches(const MixBranchesParams& p) override { cuda::MixBranches(Current(), p); }
  void MixBranchesBackward(const MixBranchesBackwardParams& p) override {
    cuda::MixBranchesBackward(Current(), p);
  }
  void Add(const AddParams& p) override { cuda::Add(Current(), p); }
  void SwiGlu(const SwiGluParams& p) override { cuda::SwiGlu(Current(), p); }
  void SwiGluBackward(const SwiGluBackwardParams& p) override {
    cuda::SwiGluBackward(Current(), p);
  }
  void HeadLoss(const HeadLossParams& p) override {
    cuda::HeadLoss(Current(), *products_, staging_, p);
  }
  void WeighRowSums(const WeighRowSumsParams& p) override { cuda::WeighRowSums(Current(), p); }
  double SumSquares(const float* values, int64_t count) override {
    return cuda::SumSquares(Current(), values, count);
  }
  void AdamW(const AdamWParams& p) override { cuda::AdamW(Current(), p); }

  int rank() const override { return rank_; }
  int world_size() const override { return world_size_; }
  void AllReduce(float* values, int64_t count) override {
    Current();
    if (collective_ != nullptr && count > 0) collective_->AllReduce(values, count);
  }

  absl::Status Finish() override {
    device_->MakeCurrent();
    device_->Check(cudaStreamSynchronize(device_->stream()), "training");
    absl::Status refused = std::exchange(context_.refused, absl::OkStatus());
    RETURN_IF_ERROR(device_->TakeShortage());
    return device_->status().ok() ? refused : device_->status();
  }

 private:
  // Ops may be called by any thread; the runtime has a current device for each.
  Context& Current() {
    device_->MakeCurrent();
    return context_;
  }
  void Copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, const char* what) {
    device_->MakeCurrent();
    if (bytes == 0) return;
    device_->Check(cudaMemcpyAsync(to, from, bytes, kind, device_->stream()), what);
  }

  std::unique_ptr<eta::cuda::Device> device_;
  Workspace workspace_;
  Context context_;
  Staging staging_;
  std::unique_ptr<Products> products_;
  std::unique_ptr<Collective> collective_;
  int rank_ = 0;
  int world_size_ = 1;
};

}  // namespace

absl::StatusOr<std::vector<std::unique_ptr<TrainingBackend>>> MakeBackends(int num_devices) {
  std::vector<std::unique_ptr<CudaBackend>> backends;
  std::vector<eta::cuda::Device*> devices;
  for (int i = 0; i < num_devices; ++i) {
    ASSIGN_OR_RETURN(std::unique_ptr<eta::cuda::Device> device, eta::cuda::Device::Open(i));
    if (device->compute_capability() != 90) {
      return absl::UnavailableError(absl::StrCat(
          "device: ", device->name(), ": training needs compute capability 9.0 (Hopper)"));
    }
    backends.push_back(std::make_unique<CudaBackend>(std::move(device)));
    RETURN_IF_ERROR(backends.back()->Open());
    devices.push_back(&backends.back()->device());
  }
  if (num_devices > 1) {
    ASSIGN_OR_RETURN(std::vector<std::unique_ptr<Collective>> ends, Collective::Open(devices));
    for (int i = 0; i < num_devices; ++i) {
      const auto at = static_cast<size_t>(i);
      backends[at]->Join(i, num_devices, std::move(ends[at]));
    }
  }
  return std::vector<std::unique_ptr<TrainingBackend>>(std::make_move_iterator(backends.begin()),
                                                       std::make_move_iterator(backends.end()));
}

}  // namespace eta::training::cuda
