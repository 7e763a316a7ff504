// A backend whose memory the host cannot touch, as a GPU's: pages of its buffers are readable only
// while an op or a copy runs, and whoever reads them otherwise ends the process. Within a
// DeferringBackend it behaves as a device does.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/forwarding_backend.h"
#include "kernels/params/calibration.h"
#include "kernels/params/layer.h"
#include "kernels/params/sampling.h"
#include "kernels/params/selection.h"

namespace eta::testing {

class DeviceMemoryBackend final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;

  absl::StatusOr<std::unique_ptr<Buffer>> Allocate(size_t bytes) override {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t size = (std::max<size_t>(bytes, 1) + page - 1) / page * page;
    void* data = mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) return absl::ResourceExhaustedError("memory: the host has none left");
    return std::make_unique<Pages>(pages_, static_cast<std::byte*>(data), bytes, size);
  }
  void Upload(std::byte* to, const void* from, size_t bytes) override {
    Run([&] { ForwardingBackend::Upload(to, from, bytes); });
  }
  void Download(void* to, const std::byte* from, size_t bytes) override {
    Run([&] { ForwardingBackend::Download(to, from, bytes); });
  }
  BlockRecord ReadRecord(const KvGeometry& geometry, const KvLayerView& kv, int32_t block,
                         int32_t kv_head) const override {
    return Run([&] { return ForwardingBackend::ReadRecord(geometry, kv, block, kv_head); });
  }
  void Embed(const EmbedParams& params) override {
    Run([&] { ForwardingBackend::Embed(params); });
  }
  void RmsNorm(const RmsNormParams& params) override {
    Run([&] { ForwardingBackend::RmsNorm(params); });
  }
  void MatMul(const MatMulParams& params) override {
    Run([&] { ForwardingBackend::MatMul(params); });
  }
  void AddBias(const AddBiasParams& params) override {
    Run([&] { ForwardingBackend::AddBias(params); });
  }
  void NormHeads(const NormHeadsParams& params) override {
    Run([&] { ForwardingBackend::NormHeads(params); });
  }
  void Rope(const RopeParams& params) override {
    Run([&] { ForwardingBackend::Rope(params); });
  }
  void AppendKv(const AppendKvParams& params) override {
    Run([&] { ForwardingBackend::AppendKv(params); });
  }
  void PredictThresholds(const ThresholdParams& params) override {
    Run([&] { ForwardingBackend::PredictThresholds(params); });
  }
  void SelectBlocks(const SelectBlocksParams& params) override {
    Run([&] { ForwardingBackend::SelectBlocks(params); });
  }
  void ListBlocks(const ListBlocksParams& params) override {
    Run([&] { ForwardingBackend::ListBlocks(params); });
  }
  void DecodeAttention(const AttentionParams& params) override {
    Run([&] { ForwardingBackend::DecodeAttention(params); });
  }
  void PrefillAttention(const AttentionParams& params) override {
    Run([&] { ForwardingBackend::PrefillAttention(params); });
  }
  void CountRecall(const RecallParams& params) override {
    Run([&] { ForwardingBackend::CountRecall(params); });
  }
  void MeasureShadow(const ShadowParams& params) override {
    Run([&] { ForwardingBackend::MeasureShadow(params); });
  }
  void CollectCalibration(const CalibrationParams& params) override {
    Run([&] { ForwardingBackend::CollectCalibration(params); });
  }
  void SwiGlu(const SwiGluParams& params) override {
    Run([&] { ForwardingBackend::SwiGlu(params); });
  }
  void Sample(const SampleParams& params) override {
    Run([&] { ForwardingBackend::Sample(params); });
  }

 private:
  using Regions = std::vector<std::pair<std::byte*, size_t>>;

  class Pages final : public Buffer {
   public:
    Pages(std::shared_ptr<Regions> all, std::byte* data, size_t bytes, size_t size)
        : Buffer(data, bytes), all_(std::move(all)), size_(size) {
      all_->emplace_back(data, size);
    }
    ~Pages() override {
      std::erase(*all_, std::pair(data(), size_));
      munmap(data(), size_);
    }

   private:
    std::shared_ptr<Regions> all_;
    size_t size_;
  };

  template <typename Work>
  std::invoke_result_t<Work> Run(const Work& work) const {
    struct Open {
      explicit Open(const Regions& regions) : all(regions) { Protect(PROT_READ | PROT_WRITE); }
      ~Open() { Protect(PROT_NONE); }
      void Protect(int how) const {
        for (const auto& [data, size] : all) mprotect(data, size, how);
      }
      const Regions& all;
    };
    const Open open(*pages_);
    return work();
  }

  std::shared_ptr<Regions> pages_ = std::make_shared<Regions>();
};

}  // namespace eta::testing
