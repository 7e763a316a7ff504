// A backend that does what another one does until it is told to fail.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/backend.h"

namespace eta::testing {

// Shared by the test and the backend that the engine owns. Thread-safe.
struct Faults {
  std::atomic<int64_t> memory = -1;  // bytes of the device; below 0: no limit, and none is told
  std::atomic<int> finishes = 0;     // calls of Finish so far

  // The next Finish returns this.
  void FailNextFinish(absl::Status status) {
    const std::lock_guard lock(mutex);
    next_finish = std::move(status);
  }
  // Every Finish from now on does.
  void Break(absl::Status status) {
    const std::lock_guard lock(mutex);
    broken = std::move(status);
  }

  std::mutex mutex;
  absl::Status next_finish;
  absl::Status broken;
};

class FaultyBackend final : public Backend {
 public:
  FaultyBackend(std::unique_ptr<Backend> backend, std::shared_ptr<Faults> faults,
                std::string name = "faulty")
      : backend_(std::move(backend)), faults_(std::move(faults)), name_(std::move(name)) {}

  std::string_view name() const override { return name_; }
  std::string description() const override { return name_; }
  absl::StatusOr<size_t> FreeMemory() const override {
    if (faults_->memory < 0) return backend_->FreeMemory();
    return static_cast<size_t>(faults_->memory - allocated_);
  }
  absl::StatusOr<std::unique_ptr<Buffer>> Allocate(size_t bytes) override {
    if (faults_->memory >= 0 && allocated_ + static_cast<int64_t>(bytes) > faults_->memory) {
      return absl::ResourceExhaustedError(absl::StrCat("no memory for ", bytes, " bytes"));
    }
    allocated_ += static_cast<int64_t>(bytes);
    return backend_->Allocate(bytes);
  }
  void Upload(std::byte* to, const void* from, size_t bytes) override {
    backend_->Upload(to, from, bytes);
  }
  void Download(void* to, const std::byte* from, size_t bytes) override {
    backend_->Download(to, from, bytes);
  }
  absl::StatusOr<std::unique_ptr<Matrix>> Pack(std::span<const HostMatrix> parts,
                                               WeightFormat format) override {
    return backend_->Pack(parts, format);
  }
  absl::StatusOr<KvLayout> Layout(const KvGeometry& geometry) const override {
    return backend_->Layout(geometry);
  }
  BlockRecord ReadRecord(const KvGeometry& geometry, const KvLayerView& kv, int32_t block,
                         int32_t kv_head) const override {
    return backend_->ReadRecord(geometry, kv, block, kv_head);
  }
  void Plan(const BatchView& batch) override { backend_->Plan(batch); }
  void Embed(const EmbedParams& params) override { backend_->Embed(params); }
  void RmsNorm(const RmsNormParams& params) override { backend_->RmsNorm(params); }
  void MatMul(const MatMulParams& params) override { backend_->MatMul(params); }
  void Rope(const RopeParams& params) override { backend_->Rope(params); }
  void AppendKv(const AppendKvParams& params) override { backend_->AppendKv(params); }
  void PredictThresholds(const ThresholdParams& params) override {
    backend_->PredictThresholds(params);
  }
  void SelectBlocks(const SelectBlocksParams& params) override { backend_->SelectBlocks(params); }
  void DecodeAttention(const AttentionParams& params) override {
    backend_->DecodeAttention(params);
  }
  void PrefillAttention(const AttentionParams& params) override {
    backend_->PrefillAttention(params);
  }
  void CountRecall(const RecallParams& params) override { backend_->CountRecall(params); }
  void SwiGlu(const SwiGluParams& params) override { backend_->SwiGlu(params); }
  void Sample(const SampleParams& params) override { backend_->Sample(params); }
  absl::Status Finish() override {
    const absl::Status done = backend_->Finish();
    ++faults_->finishes;
    const std::lock_guard lock(faults_->mutex);
    if (!faults_->broken.ok()) return faults_->broken;
    const absl::Status once = std::exchange(faults_->next_finish, absl::OkStatus());
    return once.ok() ? done : once;
  }

 private:
  std::unique_ptr<Backend> backend_;
  std::shared_ptr<Faults> faults_;
  std::string name_;
  int64_t allocated_ = 0;
};

}  // namespace eta::testing
